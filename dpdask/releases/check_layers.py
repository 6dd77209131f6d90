"""Check that the arrays on a card are those of its query and of its layers, and no others."""

from __future__ import annotations

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.queries import BesideArray, layer_from_dict, query_rules
from dpdask.queries.beside import NOISE_STD
from dpdask.releases.card import ReleaseCard
from dpdask.types import Json

__all__ = ["check_layers"]


def check_layers(card: ReleaseCard) -> None:
    """Raise :class:`VerificationFailed` unless every layer adds the arrays that the card lists.

    They come after those of the query, in the order of the layers. No other array may stand there:
    it would hold a noisy part that the guarantee does not count.
    """
    try:
        arrays, suffixes = _arrays_of_layers(card), _suffixes_of_query(card)
    except (DpdaskError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise VerificationFailed(
            f"the layers or other arrays on the card cannot be rebuilt ({type(error).__name__})"
        ) from None
    released = card.released
    recorded = released.beside[len(released.beside) - len(arrays) :]
    if len(recorded) != len(arrays) or not all(
        _described(array, card) == each.model_dump(exclude={"shards", "codec"})
        for array, each in zip(arrays, recorded, strict=True)
    ):
        raise VerificationFailed("the arrays on the card are not those that its layers add")
    others = {each.array for each in released.beside[: len(released.beside) - len(arrays)]}
    if not others <= {f"{released.array}_{suffix}" for suffix in suffixes}:
        raise VerificationFailed("an array on the card is none that its query releases")


def _suffixes_of_query(card: ReleaseCard) -> tuple[str, ...]:
    rules = query_rules(card.query["name"])
    return (*rules.published_parts(card.query), NOISE_STD)


def _arrays_of_layers(card: ReleaseCard) -> list[BesideArray]:
    released = card.released
    shape, names = tuple(released.shape), tuple(released.dimension_names)
    return [
        array
        for layer in released.layers
        for array in layer_from_dict(layer.model_dump()).arrays(shape, names)
    ]


def _described(array: BesideArray, card: ReleaseCard) -> Json:
    """Return what a layer says of its array."""
    released = card.released
    names = array.dimension_names or tuple(released.dimension_names[: len(array.shape)])
    return {
        "array": f"{released.array}_{array.suffix}",
        "shape": list(array.shape),
        "chunks": released.chunks if array.aligned else list(array.shape),
        "dtype": "float64",
        "dimension_names": list(names),
        "attributes": array.attributes(released.attributes),
    }

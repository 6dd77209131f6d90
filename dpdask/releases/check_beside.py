"""Check that the arrays on a card are those of its query, noise and layers, and no others."""

from __future__ import annotations

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.noise import Noise, NoiseLevel
from dpdask.queries import BesideArray, layer_from_dict, query_rules
from dpdask.queries.base import NOISE_STD
from dpdask.releases.card import ReleaseCard
from dpdask.types import Json

__all__ = ["check_beside", "noise_level_of"]


def check_beside(card: ReleaseCard, noise: Noise) -> None:
    """Raise :class:`VerificationFailed` unless the card lists the arrays that its noise and its
    layers add, as they describe them.

    They come after those of the query, in the order of the layers. No other array may stand there:
    it would hold a noisy part that the guarantee does not count.
    """
    try:
        arrays = [*_noise_std(card, noise), *_arrays_of_layers(card)]
        suffixes = _suffixes_of_query(card)
    except (DpdaskError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise VerificationFailed(
            f"the layers or other arrays on the card cannot be rebuilt ({type(error).__name__})"
        ) from None
    released = card.released
    first = max(0, len(released.beside) - len(arrays))
    recorded = released.beside[first:]
    if len(recorded) != len(arrays) or not all(
        _described(array, card) == each.model_dump(exclude={"shards", "codec"})
        for array, each in zip(arrays, recorded, strict=True)
    ):
        raise VerificationFailed(
            "the arrays on the card are not those that its noise and layers add"
        )
    others = {each.array for each in released.beside[:first]}
    if not others <= {f"{released.array}_{suffix}" for suffix in suffixes}:
        raise VerificationFailed("an array on the card is none that its query releases")


def _suffixes_of_query(card: ReleaseCard) -> tuple[str, ...]:
    rules = query_rules(card.query["name"])
    return (*rules.published_parts(card.query), *([NOISE_STD] if rules.noise_varies else []))


def noise_level_of(card: ReleaseCard, noise: Noise) -> NoiseLevel | None:
    """Return the noise of released entries by the card; None where released counts enter it."""
    rules = query_rules(card.query["name"])
    return None if rules.noise_varies else rules.noise_level(noise, card.query)


def _noise_std(card: ReleaseCard, noise: Noise) -> list[BesideArray]:
    """Return the array of the noise level, unless the query has its own, or the card none."""
    released = card.released
    level = noise_level_of(card, noise)
    listed = f"{released.array}_{NOISE_STD}" in [beside.array for beside in released.beside]
    if level is None or not listed:
        return []
    shape, names = tuple(released.shape), tuple(released.dimension_names)
    return [BesideArray.of_level(level, shape, names)]


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
    names = array.dimension_names
    if names is None:
        names = tuple(released.dimension_names[: len(array.shape)])
    return {
        "array": f"{released.array}_{array.suffix}",
        "shape": list(array.shape),
        "chunks": released.chunks if array.aligned else list(array.shape),
        "dtype": "float64",
        "dimension_names": list(names),
        "attributes": array.attributes(released.attributes),
    }

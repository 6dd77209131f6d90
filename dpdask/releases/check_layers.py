"""Check that the layers on a card are those that its arrays are named and described by."""

from __future__ import annotations

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.queries import BesideArray, layer_from_dict
from dpdask.releases.card import ReleaseCard
from dpdask.types import Json

__all__ = ["check_layers"]


def check_layers(card: ReleaseCard) -> None:
    """Raise :class:`VerificationFailed` unless every layer adds the arrays that the card lists.

    They come after those of the query, in the order of the layers.
    """
    try:
        arrays = _arrays_of_layers(card)
    except (DpdaskError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise VerificationFailed(
            f"the layers on the card cannot be rebuilt ({type(error).__name__})"
        ) from None
    released = card.released
    recorded = released.beside[len(released.beside) - len(arrays) :]
    if len(recorded) != len(arrays) or not all(
        _described(array, card) == each.model_dump(exclude={"shards", "codec"})
        for array, each in zip(arrays, recorded, strict=True)
    ):
        raise VerificationFailed("the arrays on the card are not those that its layers add")


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

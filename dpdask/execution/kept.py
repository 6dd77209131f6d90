"""The records of people that a release keeps, as tasks see them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dpdask.queries import Clip, Query
from dpdask.storage import SourceArray
from dpdask.types import Array, Floats, Integers, Mask, Region

__all__ = ["Kept", "Selected", "at_center", "left_out"]

Kept = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""A bitmap of the records of which every person has so many at most."""


def left_out(kept: Kept, records: slice) -> Mask:
    """Return which of some records are not kept."""
    first = records.start // 8
    bits = np.unpackbits(kept[first : -(-records.stop // 8)])
    absent: Mask = bits[records.start - 8 * first : records.stop - 8 * first] == 0
    return absent


class Selected:
    """A source of which only some records are present."""

    __slots__ = ("_kept", "_source")

    def __init__(self, source: SourceArray, kept: Kept) -> None:
        self._source, self._kept = source, kept

    def __repr__(self) -> str:
        return "<Selected>"

    def read(self, box: Region) -> Array:
        """Return a region, records that are left out among them."""
        return self._source.read(box)

    def pieces(self, box: Region) -> Iterator[Region]:
        """Cut a region chunk by chunk, small chunks together."""
        return self._source.pieces(box)

    def blocks(self, box: Region, axis: int) -> Iterator[tuple[slice, Array]]:
        """Yield a region in parts, records that are left out among them."""
        return self._source.blocks(box, axis)

    def codes(self, name: str, records: slice, groups: tuple[int | str, ...]) -> Integers:
        """Return the position of every record's label in ``groups``."""
        return self._source.codes(name, records, groups)

    def numbers(self, name: str, records: slice) -> Floats:
        """Return an array of one number per record."""
        return self._source.numbers(name, records)

    def left_out(self, records: slice) -> Mask:
        """Return which of some records are not kept."""
        return left_out(self._kept, records)


def at_center(query: Query, box: Region, block: Array, kept: Kept | None) -> Array:
    """Return a tile of the source with the records that are left out at the centre.

    Args:
        query: The query, by whose bound the tile is centred.
        box: The region of the source.
        block: The tile, measured from the centre where records are clipped.
        kept: The records that count, None for all.
    """
    bound, axis = query.bound, query.units_axis
    if kept is None or axis is None:
        return block
    absent = left_out(kept, box[axis]).reshape([-1 if a == axis else 1 for a in range(block.ndim)])
    if isinstance(bound, Clip):  # measured from the centre
        return np.where(absent, block.dtype.type(0), block)
    center = 0.0 if bound is None else bound.center.of(box)
    dtype = block.dtype if block.dtype.kind == "f" else np.float64
    return np.where(absent, center, block).astype(dtype, copy=False)

"""Regions of an array, cut where its chunks end."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dpdask.types import Region, Shape

__all__ = ["chunks_within", "regions_of", "shifted"]


def chunks_within(chunks: Shape, shape: Shape) -> Shape:
    """Return chunk lengths no longer than the array.

    An axis without entries counts as one with a single entry, which nobody may tell apart.
    """
    return tuple(max(1, min(chunk, n)) for chunk, n in zip(chunks, shape, strict=True))


def shifted(region: Region, axis: int, offset: int) -> Region:
    """Return a region moved by ``offset`` along one axis."""
    moved = slice(region[axis].start + offset, region[axis].stop + offset)
    return (*region[:axis], moved, *region[axis + 1 :])


def regions_of(region: Region, *, chunks: Shape, itemsize: int, size: int) -> Iterator[Region]:
    """Cut a region into parts of about ``size`` bytes that end where chunks end, in C order.

    Args:
        region: what is cut.
        chunks: the shape of a chunk.
        itemsize: the bytes of one entry.
        size: the bytes of one part; a part is never smaller than a chunk.
    """
    extent = _extent(region, chunks, itemsize, size)
    starts = [
        range(part.start - part.start % length, part.stop, length)
        for part, length in zip(region, extent, strict=True)
    ]
    for offset in np.ndindex(*(len(along) for along in starts)):
        yield tuple(
            slice(max(along[i], part.start), min(along[i] + length, part.stop))
            for along, i, length, part in zip(starts, offset, extent, region, strict=True)
        )


def _extent(region: Region, chunks: Shape, itemsize: int, size: int) -> list[int]:
    """Return the shape of a part: a chunk, made longer from the last axis on while it fits."""
    extent = [
        max(1, min(chunk, part.stop - part.start))
        for chunk, part in zip(chunks, region, strict=True)
    ]
    for axis in reversed(range(len(extent))):
        chunks_that_fit = size // max(1, math.prod(extent) * itemsize)
        chunks_wanted = -(-(region[axis].stop - region[axis].start) // chunks[axis])
        if chunks_that_fit > 1 and extent[axis] == chunks[axis]:
            extent[axis] = chunks[axis] * max(1, min(chunks_wanted, chunks_that_fit))
    return extent

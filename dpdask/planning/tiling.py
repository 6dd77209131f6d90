"""Tiles: the parts in which a release is written, fixed by the plan alone.

A tile is one write chunk of the output, or, along axes that the noise mixes, a whole row of them.
Its index names its stream of noise, so the number of workers, the size of tasks and the chunks of
the source never change a byte. A symmetric answer has tiles on and above its diagonal; each also
writes its mirror image.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpdask.types import Region

__all__ = ["Index", "Tiling"]

Index = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """The tiles of an array.

    Args:
        shape: The shape of the array.
        write_chunk: The shape of what one object of the output holds.
        spanned: The axes that every tile holds whole.
        symmetric: Whether the array equals its transpose.
    """

    shape: tuple[int, ...]
    write_chunk: tuple[int, ...]
    spanned: tuple[int, ...] = ()
    symmetric: bool = False

    @property
    def extent(self) -> tuple[int, ...]:
        """The shape of a tile away from the edges."""
        sizes = zip(self.shape, self.write_chunk, strict=True)
        return tuple(n if axis in self.spanned else min(u, n) for axis, (n, u) in enumerate(sizes))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tiles lie along each axis."""
        return tuple(-(-n // e) for n, e in zip(self.shape, self.extent, strict=True))

    @property
    def count(self) -> int:
        """How many tiles there are."""
        if self.symmetric:
            return self.counts[0] * (self.counts[0] + 1) // 2
        return math.prod(self.counts)

    def indices(self) -> Iterator[Index]:
        """Yield all tiles in C order."""
        for index in np.ndindex(*self.counts):
            if not self.symmetric or index[0] <= index[1]:
                yield index

    def box(self, index: Index) -> Region:
        """Return the region of a tile."""
        return tuple(
            slice(i * e, min((i + 1) * e, n))
            for i, e, n in zip(index, self.extent, self.shape, strict=True)
        )

    def write_chunks(self, index: Index) -> Iterator[tuple[Index, Region]]:
        """Yield the write chunks of a tile, each with its region relative to the tile."""
        box = self.box(index)
        if not self.spanned:  # a tile is a write chunk
            yield index, tuple(slice(0, part.stop - part.start) for part in box)
            return
        spans = [
            range(part.start // u, -(-part.stop // u))
            for part, u in zip(box, self.write_chunk, strict=True)
        ]
        for offset in np.ndindex(*(len(span) for span in spans)):
            chunk = tuple(span[o] for span, o in zip(spans, offset, strict=True))
            inner = tuple(
                slice(i * u - part.start, min((i + 1) * u, part.stop) - part.start)
                for i, u, part in zip(chunk, self.write_chunk, box, strict=True)
            )
            yield chunk, inner

    def owned(self, index: Index) -> Iterator[Index]:
        """Yield every write chunk that a tile writes, its mirror image included."""
        for write_chunk, _ in self.write_chunks(index):
            yield write_chunk
            if self.symmetric and write_chunk[0] != write_chunk[1] and index[0] != index[1]:
                yield write_chunk[::-1]

    def sizes(self) -> list[int]:
        """Return the number of entries of every tile, in the order of :meth:`indices`."""
        return [
            math.prod(part.stop - part.start for part in self.box(index))
            for index in self.indices()
        ]

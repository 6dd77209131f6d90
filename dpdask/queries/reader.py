"""How queries read a source: regions of it, and the arrays of one entry per record beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dpdask.types import Array, Floats, Integers, Mask, Region

__all__ = ["Reader"]


class Reader(Protocol):
    """Whatever reads regions of the source."""

    def read(self, box: Region) -> Array:
        """Return a region as a C-ordered array."""

    def pieces(self, box: Region) -> Iterator[Region]:
        """Cut a region chunk by chunk, small chunks together."""

    def blocks(self, box: Region, axis: int) -> Iterator[tuple[slice, Array]]:
        """Yield a region in parts along the records of ``axis``, each valid until the next one."""

    def codes(self, name: str, records: slice, groups: tuple[int | str, ...]) -> Integers:
        """Return the position of every record's label in ``groups``, -1 where it is not there."""

    def numbers(self, name: str, records: slice) -> Floats:
        """Return an array of one number per record, NaN where one is missing."""

    def left_out(self, records: slice) -> Mask | None:
        """Return which records are absent, as others of the same person are kept; None for none."""

"""What runs inside a task before the charge: checks of the source, norms of records, exact sums.

Everything here may hold raw values, so nothing here may show one: arguments that carry data print
redacted, and an exception leaves a task only as one of ours, with a constant text and no trace of
what it came from.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

from dpdask.errors import ReleaseError, redact_exceptions
from dpdask.privatizers.clipping import clip_factors, no_norms, record_norms
from dpdask.privatizers.grid import Grid
from dpdask.queries import Clip, ExactSum, SummedQuery
from dpdask.storage import Region, SourceArray
from dpdask.types import Array, Floats, Integers, Mask

__all__ = [
    "Kept",
    "Opaque",
    "Sums",
    "add_up",
    "check_labels",
    "check_source",
    "clip_part",
    "left_out",
    "norms_part",
    "redacted",
    "sum_part",
]

V = TypeVar("V")

Sums = dict[str, Integers]
"""Exact sums of the parts of an answer, by name."""

Kept = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""A bitmap of the records of which every person has so many at most."""

SquaredNorms = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
"""Squared norms of records, in steps of the grid, as exact integers."""


class Opaque(Generic[V]):
    """A value on its way between tasks: its printed form says nothing of it."""

    __slots__ = ("value",)

    def __init__(self, value: V) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<Opaque>"

    def __sizeof__(self) -> int:
        return 64 + int(getattr(self.value, "nbytes", 0))


redacted = redact_exceptions(ReleaseError, "a task failed ({kind}); `dpdask resume` tries again")


def left_out(kept: Kept, records: slice) -> Mask:
    """Return which of some records are not kept."""
    first = records.start // 8
    bits = np.unpackbits(kept[first : -(-records.stop // 8)])
    absent: Mask = bits[records.start - 8 * first : records.stop - 8 * first] == 0
    return absent


class _Selected:
    """A source of which only some records are present."""

    __slots__ = ("_kept", "_source")

    def __init__(self, source: SourceArray, kept: Kept) -> None:
        self._source, self._kept = source, kept

    def __repr__(self) -> str:
        return "<Selected>"

    def read(self, box: Region) -> Array:
        """Return a region, records that are left out among them."""
        return self._source.read(box)

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


@redacted
def check_labels(source: SourceArray, records: slice) -> None:
    """Read the labels of some records, so that damaged ones are refused before the charge."""
    source.check_labels(records)


@redacted
def check_source(source: SourceArray, box: Region) -> None:
    """Decode a region, so that a damaged source is refused before anything is charged."""
    for piece in source.pieces(box):
        source.read(piece)


@redacted
def norms_part(
    source: SourceArray, box: Region, bound: Clip, grid: Grid
) -> Opaque[tuple[int, SquaredNorms]]:
    """Return the squared norms of the parts of records in a region, with the first one's index.

    Args:
        source: The array to read.
        box: The region.
        bound: The clip norm, and the centre that norms are measured from.
        grid: The grid that values are rounded to.
    """
    axis = bound.record_axis
    records = box[axis]
    total = no_norms(records.stop - records.start)
    for piece in source.pieces(box):
        part = piece[axis]
        block = bound.center.shifted(source.read(piece), piece)
        norms = record_norms(block, record_axis=axis, step=grid.step)
        total[part.start - records.start : part.stop - records.start] += norms
    return Opaque((records.start, total))


@redacted
def clip_part(
    grid: Grid, records: slice, *parts: Opaque[tuple[int, SquaredNorms]]
) -> Opaque[Floats]:
    """Return clip factors from all parts of some records' norms."""
    total = no_norms(records.stop - records.start)
    for part in parts:
        start, norms = part.value
        total[start - records.start : start - records.start + len(norms)] += norms
    return Opaque(clip_factors(total, grid=grid))


@redacted
def sum_part(
    query: SummedQuery,
    exact_sum: ExactSum,
    source: SourceArray,
    answer_box: Region,
    records: slice,
    factors: Opaque[Floats] | None,
    kept: Opaque[Kept] | None = None,
) -> Opaque[Sums]:
    """Return partial sums of all parts of an answer.

    Args:
        query: The query that is answered.
        exact_sum: How records are bounded and summed exactly.
        source: The array to read.
        answer_box: The region of the answer.
        records: The records that are summed.
        factors: Their clip factors, None where a record is clipped as it is read.
        kept: The records that are summed; None for all.
    """
    values = None if factors is None else factors.value
    reader = source if kept is None else _Selected(source, kept.value)
    return Opaque(query.partials(reader, exact_sum, answer_box, records, values))


@redacted
def add_up(*parts: Opaque[Sums]) -> Opaque[Sums]:
    """Add partial sums; they are integers, so their order does not matter."""
    return Opaque(
        {
            name: functools.reduce(np.add, (part.value[name] for part in parts))
            for name in parts[0].value
        }
    )

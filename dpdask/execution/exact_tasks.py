"""What runs inside a task before the charge: checks of the source, norms of records, exact sums.

Everything here may hold raw values, so nothing here may show one: arguments that carry data print
redacted, and an exception leaves a task only as one of ours, with a constant text and no trace of
what it came from.
"""

from __future__ import annotations

import functools
from typing import Generic, TypeVar

import numpy as np

from dpdask.errors import ReleaseError, redact_exceptions
from dpdask.execution.kept import Kept, Selected
from dpdask.privatizers.clipping import clip_factors, no_norms, record_norms
from dpdask.privatizers.grid import Grid
from dpdask.queries import Clip, ExactSum, SummedQuery
from dpdask.storage import Region, SourceArray
from dpdask.types import Floats, Integers

__all__ = [
    "Opaque",
    "SquaredNorms",
    "Sums",
    "add_up",
    "added_norms",
    "check_labels",
    "check_source",
    "clip_part",
    "norms_part",
    "redacted",
    "sum_part",
]

V = TypeVar("V")

Sums = dict[str, Integers]
"""Exact sums of the parts of an answer, by name."""

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


@redacted
def check_labels(source: SourceArray, records: slice) -> None:
    """Read the labels of some records, so that damaged ones are refused before the charge."""
    source.check_labels(records)


@redacted
def check_source(source: SourceArray, box: Region) -> None:
    """Decode a region, so that a damaged source is refused before anything is charged."""
    source.check(box)


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
    return Opaque(clip_factors(added_norms(records, *parts), grid=grid))


def added_norms(records: slice, *parts: Opaque[tuple[int, SquaredNorms]]) -> SquaredNorms:
    """Return the squared norms of some records from all of their parts."""
    total = no_norms(records.stop - records.start)
    for part in parts:
        start, norms = part.value
        total[start - records.start : start - records.start + len(norms)] += norms
    return total


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
    reader = source if kept is None else Selected(source, kept.value)
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

"""The axes of a histogram: bins of numbers, and categories.

A record is in one cell at most: it needs a bin or a category along every axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dpdask.loading import when_used
from dpdask.queries.axes import AnswerAxis
from dpdask.queries.grouping import GroupKey
from dpdask.types import Array, Floats, Integers, Json, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import counting
else:
    counting = when_used("dpdask.privatizers.counting")

__all__ = ["ArrayBins", "Categories", "ColumnBins", "CountedAxis", "Records", "shape_on_card"]


class Records(Protocol):
    """Some records, as an axis of a histogram reads them."""

    def column(self, index: int) -> Array:
        """Return a column of the table that the source is."""

    def numbers(self, name: str) -> Floats:
        """Return an array beside the source as numbers, NaN where one is missing."""

    def codes(self, name: str, groups: tuple[int | str, ...]) -> Integers:
        """Return the position of every record's label in ``groups``, -1 where it is not there."""


class CountedAxis(Protocol):
    """An axis of a histogram."""

    @property
    def size(self) -> int:
        """How many bins or categories there are."""

    @property
    def labels(self) -> dict[str, tuple[int | str, ...] | None]:
        """The array that is read beside the source: its categories, None for numbers."""

    def place(self, records: Records, cells: Integers) -> None:
        """Extend the cell of every record, in place; -1 where it is in none."""

    def answer_axis(self) -> AnswerAxis:
        """Return the axis as it is published."""

    def to_dict(self) -> Json:
        """Return the axis as a card records it."""


@dataclass(frozen=True)
class ColumnBins:
    """Bins of a column of the table that the source is."""

    column: int
    edges: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1

    @property
    def labels(self) -> dict[str, tuple[int | str, ...] | None]:
        """Nothing: a column is part of the source."""
        return {}

    def place(self, records: Records, cells: Integers) -> None:
        """Extend cells by the bin of the column."""
        counting.place_in_bins(records.column(self.column), np.asarray(self.edges), cells)

    def answer_axis(self) -> AnswerAxis:
        """Return bins that are called after the column's index."""
        return AnswerAxis(name=f"column_{self.column}_bin", edges=self.edges)

    def to_dict(self) -> Json:
        """Return the column and its edges."""
        return {"column": self.column, "edges": list(self.edges)}


@dataclass(frozen=True)
class ArrayBins:
    """Bins of an array of one number per record, beside the source."""

    array: str
    edges: tuple[float, ...]

    @property
    def size(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1

    @property
    def labels(self) -> dict[str, tuple[int | str, ...] | None]:
        """The array, as numbers."""
        return {self.array: None}

    def place(self, records: Records, cells: Integers) -> None:
        """Extend cells by the bin of the number."""
        counting.place_in_bins(records.numbers(self.array), np.asarray(self.edges), cells)

    def answer_axis(self) -> AnswerAxis:
        """Return bins that are called after the array."""
        return AnswerAxis(name=f"{self.array}_bin", edges=self.edges)

    def to_dict(self) -> Json:
        """Return the array and its edges."""
        return {"array": self.array, "edges": list(self.edges)}


@dataclass(frozen=True)
class Categories:
    """A public list of labels of an array beside the source; other labels count nowhere."""

    key: GroupKey

    @property
    def size(self) -> int:
        """How many categories there are."""
        return len(self.key.groups)

    @property
    def labels(self) -> dict[str, tuple[int | str, ...] | None]:
        """The array with its categories."""
        return {self.key.array: self.key.groups}

    def place(self, records: Records, cells: Integers) -> None:
        """Extend cells by the category of the label."""
        counting.place_by_code(records.codes(self.key.array, self.key.groups), self.size, cells)

    def answer_axis(self) -> AnswerAxis:
        """Return categories that are called as the array."""
        return AnswerAxis(name=self.key.array, groups=self.key.groups)

    def to_dict(self) -> Json:
        """Return the array and its categories."""
        return self.key.to_dict()


def shape_on_card(query: Json) -> Shape:
    """Return the shape of a histogram's answer that follows from its axes on a card."""
    axes = query["axes"] if "axes" in query else [{"edges": edges} for edges in query["edges"]]
    return tuple(
        len(axis["groups"]) if "groups" in axis else len(axis["edges"]) - 1 for axis in axes
    )

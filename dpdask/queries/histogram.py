"""Counts of records in public bins and categories, in any number of dimensions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpdask.loading import when_used
from dpdask.noise.rounding import product_rounding
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.queries.axes import AnswerAxis
from dpdask.queries.base import Query, Reader, SummedQuery
from dpdask.queries.bins import ColumnBins, CountedAxis, shape_on_card
from dpdask.queries.exact_sum import ExactSum
from dpdask.queries.people import first_codes
from dpdask.queries.verification import QueryRules, RecordedAnswer, register_query_rules
from dpdask.sensitivity import SensitivitySet
from dpdask.types import Array, Floats, Integers, Json, Region, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import counting
else:
    counting = when_used("dpdask.privatizers.counting")

__all__ = ["Histogram"]


@dataclass(frozen=True, kw_only=True)
class Histogram(SummedQuery):
    """n-d counts; a record without a bin or category along some axis is not counted.

    Bins are [left, right), the last one closed, as everywhere in NumPy. What is missing, or not
    listed, is in no bin and in no category.

    Args:
        axes: Bins and categories, in the order of the answer's axes.
    """

    name: ClassVar[str] = "histogram"
    one_pass: ClassVar[bool] = True
    axes: tuple[CountedAxis, ...]

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns of the source that are counted."""
        return tuple(axis.column for axis in self.axes if isinstance(axis, ColumnBins))

    @property
    def values_per_record(self) -> int:
        """One of every array, where arrays are counted by name."""
        return super().values_per_record if self.columns else len(self.labels)

    @property
    def labels(self) -> dict[str, tuple[int | str, ...] | None]:
        """The arrays that are counted beside the source."""
        return {name: groups for axis in self.axes for name, groups in axis.labels.items()}

    @property
    def new_axes(self) -> tuple[AnswerAxis, ...]:
        """All axes; the only column of a source is called after its array."""
        axes = tuple(axis.answer_axis() for axis in self.axes)
        if len(self.source_shape) > 1 or not self.columns:
            return axes
        return (*axes[:-1], dataclasses.replace(axes[-1], name=None))

    @property
    def missing_values(self) -> str:
        """They leave their record out."""
        return "a record with one is not counted"

    def bounds(self) -> AnswerBounds:
        """Return the number of records as the bound of every count.

        One record moves from one cell to another, so two counts can be rounded otherwise.
        """
        largest = float(self.public_records)
        order = len(self.answer_shape)
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-largest,) * order,
            high=(largest,) * order,
            rounded_entries=2 * self.max_contributions,
        )

    def entry_widths(self) -> tuple[float, ...] | None:
        """Return the number of records."""
        return (float(self.records),) if self.count_is_public else None

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return the counts of some records in all cells."""
        counts = np.zeros(math.prod(self.answer_shape), np.int64)
        for part, columns in self._blocks(source, records):
            counting.count_cells(self._placed(source, part, columns), counts)
        return counts.reshape(self.answer_shape)

    def cells(self, source: Reader, records: slice) -> Integers:
        """Return the cell of every record, -1 for none."""
        columns = self._columns(source, records) if self.columns else _no_columns(records)
        return self._placed(source, records, columns)

    def _placed(self, source: Reader, records: slice, columns: Array) -> Integers:
        """Return the cell of every record, whose columns were read before."""
        cells = first_codes(source, records)
        some = _Records(source, records, columns, min(self.columns, default=0))
        for axis in self.axes:
            axis.place(some, cells)
        return cells

    def region(self, records: int) -> Shape:
        """Return the counted columns and those between them."""
        if len(self.source_shape) == 1:
            return (records,)
        width = max(self.columns) + 1 - min(self.columns)
        return (records, width) if self.record_axis == 0 else (width, records)

    def summing_bytes(self, records: int) -> int:
        """Return the cells of records, and the numbers of an axis."""
        return 16 * records

    def _blocks(self, source: Reader, records: slice) -> Iterator[tuple[slice, Array]]:
        """Yield some records after others with their counted columns, valid until the next ones."""
        if not self.columns:
            yield records, _no_columns(records)
        elif self.labels:  # which are read at once, so that none of their chunks is decoded twice
            yield records, self._columns(source, records)
        else:
            for part, block in source.blocks(self._box(records), self.record_axis):
                yield part, self._in_rows(block)

    def _columns(self, source: Reader, records: slice) -> Array:
        """Return the counted columns, and those between them, of some records."""
        return self._in_rows(source.read(self._box(records)))

    def _box(self, records: slice) -> Region:
        if len(self.source_shape) == 1:
            return (records,)
        features = slice(min(self.columns), max(self.columns) + 1)
        return (records, features) if self.record_axis == 0 else (features, records)

    def _in_rows(self, block: Array) -> Array:
        """Return a block of the source with one record per row."""
        if block.ndim == 1:
            return block[:, None]
        return block if self.record_axis == 0 else block.T

    def to_dict(self) -> Json:
        """Return also the public bins and categories."""
        content = Query.to_dict(self)
        if len(self.columns) < len(self.axes):
            return {**content, "axes": [axis.to_dict() for axis in self.axes]}
        columns = [axis.to_dict() for axis in self.axes]
        return {
            **content,
            "edges": [axis["edges"] for axis in columns],
            "columns": [axis["column"] for axis in columns],
        }

    def bound_to_dict(self, discretized: Discretized) -> Json:
        """One record, one count."""
        return {"kind": "count", "enforced": True}


def _no_columns(records: slice) -> Array:
    return np.empty((records.stop - records.start, 0))


@dataclass(frozen=True, repr=False)
class _Records:
    """Some records: columns of the source, read once, and the arrays beside it."""

    source: Reader
    records: slice
    columns: Array
    first: int

    def column(self, index: int) -> Array:
        """Return a column by its index in the source."""
        return self.columns[:, index - self.first]

    def numbers(self, name: str) -> Floats:
        """Return an array beside the source as numbers."""
        return self.source.numbers(name, self.records)

    def codes(self, name: str, groups: tuple[int | str, ...]) -> Integers:
        """Return the position of every record's label in ``groups``."""
        return self.source.codes(name, self.records, groups)


class HistogramRules(QueryRules):
    """One record, one count; only counts that differ are rounded otherwise."""

    def covers(self, sensitivity: SensitivitySet, answer: RecordedAnswer) -> bool:
        """Allow a ball, for an answer of the shape that follows from its bins and categories."""
        follows = shape_on_card(answer.query) == answer.shape
        return super().covers(sensitivity, answer) and follows

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records enter or leave, or move from one bin to another: one bin, or k of them."""
        if answer.bound["kind"] != "count":
            raise answer.mismatch()
        k = answer.contributions
        return (math.sqrt(k) if answer.distinct else k) * (
            1 if answer.private_count else math.sqrt(2)
        )

    def least_l1(self, answer: RecordedAnswer) -> float:
        """k counts change by one, or 2 k where records move from one bin to another."""
        if answer.bound["kind"] != "count":
            raise answer.mismatch()
        return answer.contributions * (1.0 if answer.private_count else 2.0)

    def rounding_l1(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding two counts per record."""
        return self.rounding_l2(answer) * math.sqrt(2 * answer.contributions)

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding two counts per record."""
        entries = 2 * answer.contributions
        return product_rounding(step=answer.step, entries=entries, most=answer.grid_bound)


register_query_rules(Histogram.name, HistogramRules())

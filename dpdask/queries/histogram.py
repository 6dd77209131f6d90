"""Counts of records in public bins, in any number of dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.noise.rounding import product_rounding
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.queries.base import Query, Reader, SummedQuery
from dpdask.queries.exact_sum import ExactSum
from dpdask.queries.verification import QueryRules, RecordedAnswer, register_query_rules
from dpdask.types import Array, Floats, Integers, Json, Region, Shape

__all__ = ["Histogram"]


@dataclass(frozen=True, kw_only=True)
class Histogram(SummedQuery):
    """n-d counts; a record outside the edges, or with a NaN in a counted column, is not counted.

    Bins are [left, right), the last one closed, as everywhere in NumPy.
    """

    name: ClassVar[str] = "histogram"
    one_pass: ClassVar[bool] = True
    edges: tuple[tuple[float, ...], ...]
    columns: tuple[int, ...]

    def bounds(self) -> AnswerBounds:
        """Return the number of records as the bound of every count.

        One record moves from one bin to another, so two counts can be rounded otherwise.
        """
        largest = float(self.public_records)
        order = len(self.answer_shape)
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-largest,) * order,
            high=(largest,) * order,
            rounded_entries=2 * self.max_contributions,
        )

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return the counts of some records in all bins."""
        bins = np.zeros(records.stop - records.start, np.int64)
        inside = np.ones(bins.size, bool)
        block = self._columns(source, records)
        for column, edges in zip(self.columns, self.edges, strict=True):
            values = block[:, column - min(self.columns)].astype(np.float64)
            place = np.searchsorted(np.asarray(edges), values, side="right") - 1
            place[values == edges[-1]] = len(edges) - 2
            inside &= (values >= edges[0]) & (values <= edges[-1])
            bins = bins * (len(edges) - 1) + np.clip(place, 0, len(edges) - 2)
        counts = np.bincount(bins[inside], minlength=math.prod(self.answer_shape))
        return counts.reshape(self.answer_shape).astype(np.int64)

    def region(self, records: int) -> Shape:
        """Return the counted columns and those between them."""
        if len(self.source_shape) == 1:
            return (records,)
        width = max(self.columns) + 1 - min(self.columns)
        return (records, width) if self.record_axis == 0 else (width, records)

    def summing_bytes(self, records: int) -> int:
        """Return a value, its bin, bins so far, and what they are computed by."""
        return 48 * records

    def _columns(self, source: Reader, records: slice) -> Array:
        """Return the counted columns, and those between them, of some records."""
        if len(self.source_shape) == 1:
            return source.read((records,))[:, None]
        features = slice(min(self.columns), max(self.columns) + 1)
        return (
            source.read((records, features))
            if self.record_axis == 0
            else source.read((features, records)).T
        )

    def to_dict(self) -> Json:
        """Return also the public edges."""
        return {
            **Query.to_dict(self),
            "edges": [list(edges) for edges in self.edges],
            "columns": list(self.columns),
        }

    def bound_to_dict(self, discretized: Discretized) -> Json:
        """One record, one count."""
        return {"kind": "count", "enforced": True}


class HistogramRules(QueryRules):
    """One record, one count; only counts that differ are rounded otherwise."""

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records enter or leave, or move from one bin to another."""
        if answer.bound["kind"] != "count":
            raise answer.mismatch()
        return answer.contributions * (1 if answer.private_count else math.sqrt(2))

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

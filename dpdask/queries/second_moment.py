"""Second moments of bounded records: integer sums of products, the same bytes in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.queries.base import Reader, RecordSumQuery
from dpdask.queries.center import ORIGIN
from dpdask.queries.exact_sum import ExactSum, SumBounds
from dpdask.queries.records import Clip, Ranges, RecordRule
from dpdask.queries.sums import LOST_STEPS
from dpdask.queries.verification import (
    QueryRules,
    RecordedAnswer,
    radius_of_ranges,
    register_query_rules,
    sum_rounding,
)
from dpdask.types import Floats, Integers, Region

__all__ = ["SecondMoment", "SecondMomentRules", "products"]

_EXACT_SUM = 2**52  # sums of integers below it are exact in doubles


@dataclass(frozen=True, kw_only=True)
class SecondMoment(RecordSumQuery):
    """X'X of bounded records, divided by their public number under replace-one.

    It is symmetrised after noise. Records are measured from the origin, clipped ones from the
    centre of their clip norm.
    """

    name: ClassVar[str] = "second-moment"
    symmetric: ClassVar[bool] = True
    bound: Clip | Ranges

    @property
    def features(self) -> int:
        """How many numbers a record holds."""
        return self.answer_shape[0]

    @property
    def reach(self) -> float:
        """How far a record may lie from where it is measured."""
        if isinstance(self.bound, Clip):
            return self.bound.norm
        return radius_of_ranges(largest_values(self.moment_ranges().pairs), self.features)

    def moment_ranges(self) -> Ranges:
        """Return the ranges of what is multiplied."""
        assert isinstance(self.bound, Ranges)
        return self.bound

    def sum_bounds(self) -> SumBounds:
        """Return the bounds of a sum of products, whose step is the square of the records' step."""
        clipped = isinstance(self.bound, Clip)
        ranges = None if clipped else self.moment_ranges()
        center = ORIGIN if ranges is self.bound else self.bound.center
        return SumBounds(
            largest=self.reach if ranges is None else ranges.largest,
            power=2,
            records=self.public_records,
            sensitivity=self.sensitivity,
            shape=self.answer_shape,
            record_axis=self.record_axis,
            ranges=ranges,
            center=center,
        )

    def entry_widths(self) -> tuple[float, ...] | None:
        """Return the square of the reach times the number of records, over the divisor."""
        if not self.count_is_public:
            return None
        return (self.reach**2 * self.records / self.divisor,)

    def bias(self, exact_sum: ExactSum) -> float:
        """Return what either factor of every record's products may lose."""
        largest = self.sum_bounds().largest
        return self.records * 2 * largest * LOST_STEPS * exact_sum.rule().grid.step

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return X_I' X_J over some records, in two words."""
        left, right = self.blocks(source, exact_sum, answer_box, records, factors)
        return products(left, right, largest=exact_sum.rule().grid.high)

    def blocks(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> tuple[Floats, Floats]:
        """Return the features of the rows and of the columns of a region, as integers."""
        rule = exact_sum.rule()
        left = self._block(source, rule, answer_box[0], records, factors)
        if answer_box[0] == answer_box[1]:
            return left, left
        return left, self._block(source, rule, answer_box[1], records, factors)

    def summing_bytes(self, records: int) -> int:
        """Return also copies: records of the second axis are transposed, others are centred."""
        copies = (self.record_axis != 0) + (not self.sum_bounds().center.zero)
        return super().summing_bytes(records) * (1 + copies)

    def _block(
        self,
        source: Reader,
        rule: RecordRule,
        features: slice,
        records: slice,
        factors: Floats | None,
    ) -> Floats:
        """Return some features of some records as integers, one record per row."""
        box = (records, features) if self.record_axis == 0 else (features, records)
        steps = rule.integers(source.read(box), factors, box)
        rows = steps if self.record_axis == 0 else np.ascontiguousarray(steps.T)
        absent = source.left_out(records)
        if absent is not None:
            rows[absent] = 0.0
        return rows


def products(left: Floats, right: Floats, *, largest: int) -> Integers:
    """Return left' right in two words.

    Products are of floats that hold integers; their sums stay below 2^53, hence exact.

    Args:
        left: Integers of some records, one record per row.
        right: Others of the same records.
        largest: The largest absolute value of an integer.
    """
    most = max(1, _EXACT_SUM // max(1, largest**2))
    words = np.zeros((2, left.shape[1], right.shape[1]), np.int64)
    for first in range(0, left.shape[0], most):
        some = slice(first, first + most)
        product = (left[some].T @ right[some]).astype(np.int64)
        words += product >> 32, product & (2**32 - 1)
    return words


def largest_values(pairs: tuple[tuple[float, float], ...]) -> list[float]:
    """Return the largest absolute value of every range."""
    return [max(abs(low), abs(high)) for low, high in pairs]


class SecondMomentRules(QueryRules):
    """Products of bounded records, symmetrised."""

    symmetric = True

    def reach(self, answer: RecordedAnswer) -> float:
        """Return how far a record may lie from where it is measured, by the bound recorded."""
        if answer.bound["kind"] == "l2-clip":
            return float(answer.bound["norm"])
        pairs = self.moment_ranges(answer)
        features, columns = answer.shape
        if features != columns or len(pairs) not in (1, features):
            raise answer.mismatch()
        return radius_of_ranges(largest_values(pairs), features)

    def moment_ranges(self, answer: RecordedAnswer) -> tuple[tuple[float, float], ...]:
        """Return the ranges of what is multiplied, by the bound recorded."""
        if answer.bound["kind"] != "ranges":
            raise answer.mismatch()
        return tuple((float(low), float(high)) for low, high in answer.bound["ranges"])

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records change their products."""
        square = self.reach(answer) ** 2
        return square * answer.contributions * (1 if answer.private_count else math.sqrt(2))

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding a sum of finer steps."""
        return sum_rounding(answer, power=2)


register_query_rules(SecondMoment.name, SecondMomentRules())

"""X'X of clipped records: integer sums of products, the same bytes in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.queries.base import Reader, RecordSumQuery
from dpdask.queries.exact_sum import ExactSum, SumBounds
from dpdask.queries.records import Clip, RecordRule
from dpdask.queries.sums import LOST_STEPS
from dpdask.queries.verification import (
    QueryRules,
    RecordedAnswer,
    register_query_rules,
    sum_rounding,
)
from dpdask.types import Floats, Integers, Region

__all__ = ["Covariance"]

_EXACT_SUM = 2**52  # sums of integers below it are exact in doubles


@dataclass(frozen=True, kw_only=True)
class Covariance(RecordSumQuery):
    """X'X of clipped records, divided by their public number under replace-one.

    It is symmetrised after noise.
    """

    name: ClassVar[str] = "covariance"
    symmetric: ClassVar[bool] = True
    bound: Clip

    def sum_bounds(self) -> SumBounds:
        """Return the bounds of a sum of products, whose step is the square of the records' step."""
        return SumBounds(
            largest=self.bound.norm,
            power=2,
            records=self.public_records,
            sensitivity=self.sensitivity,
            shape=self.answer_shape,
            record_axis=self.record_axis,
        )

    def bias(self, exact_sum: ExactSum) -> float:
        """Return what either factor of every record's products may lose."""
        return self.records * 2 * self.bound.norm * LOST_STEPS * exact_sum.rule().grid.step

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return X_I' X_J over some records, in two words.

        Products are of floats that hold integers; their sums stay below 2^53, hence exact.
        """
        rule = exact_sum.rule()
        left = self._block(source, rule, answer_box[0], records, factors)
        right = left
        if answer_box[0] != answer_box[1]:
            right = self._block(source, rule, answer_box[1], records, factors)
        most = max(1, _EXACT_SUM // max(1, rule.grid.high**2))
        words = np.zeros((2, left.shape[1], right.shape[1]), np.int64)
        for first in range(0, left.shape[0], most):
            some = slice(first, first + most)
            product = (left[some].T @ right[some]).astype(np.int64)
            words += product >> 32, product & (2**32 - 1)
        return words

    def summing_bytes(self, records: int) -> int:
        """Return twice as much for records along the second axis, which are transposed."""
        return super().summing_bytes(records) * (1 if self.record_axis == 0 else 2)

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
        return steps if self.record_axis == 0 else np.ascontiguousarray(steps.T)


class CovarianceRules(QueryRules):
    """Products of clipped records, symmetrised."""

    symmetric = True

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records change their products."""
        if answer.bound["kind"] != "l2-clip":
            raise answer.mismatch()
        square: float = float(answer.bound["norm"]) ** 2
        return square * answer.contributions * (1 if answer.private_count else math.sqrt(2))

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding a sum of finer steps."""
        return sum_rounding(answer, power=2)


register_query_rules(Covariance.name, CovarianceRules())

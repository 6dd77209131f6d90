"""Sums, means and covariances of bounded records: integer sums on a grid, the same bytes in any
order and any chunking.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpdask.errors import InvalidSensitivity
from dpdask.noise import Noise
from dpdask.queries.base import (
    Clip,
    Fitted,
    Floats,
    Integers,
    Ranges,
    Reader,
    RecordRule,
    Region,
    SummedQuery,
)
from dpdask.queries.exact_sum import Total, fit_total

__all__ = ["Covariance", "Mean", "Sum"]

# steps, by an entry of a record at most: half a one to rounding, one to clipping or to a bound
# rounded inwards
_LOST = 1.5


@dataclass(frozen=True, kw_only=True)
class Sum(SummedQuery):
    """The sum of all records."""

    name: ClassVar[str] = "sum"
    bound: Clip | Ranges

    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """Records are clipped or clamped in fine steps, their exact sum is rounded to the noise's
        grid.
        """
        bound = self.bound
        total = Total(
            largest=bound.norm if isinstance(bound, Clip) else bound.largest,
            power=1,
            records=self.public_records,
            sensitivity=self.sensitivity,
            entries=math.prod(self.answer_shape),
            record_axis=self.record_axis,
            ranges=bound if isinstance(bound, Ranges) else None,
        )
        return fit_total(noise, total, mu=mu, asked=asked)

    def summing_bytes(self, records: int) -> int:
        """Clamped records are added as 64-bit integers, since their steps are too fine for sums in
        doubles.
        """
        return super().summing_bytes(records) + (
            8 * math.prod(self.region(records)) if isinstance(self.bound, Ranges) else 0
        )

    def bias(self, fitted: Fitted) -> float:
        """What every record may lose."""
        return self.records * _LOST * _rule(fitted).grid.step

    def partial(
        self,
        source: Reader,
        fitted: Fitted,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """The sum of some records over a region of the answer."""
        rule = _rule(fitted)
        inner = answer_box if len(self.source_shape) > 1 else ()
        box = (*inner[: self.record_axis], records, *inner[self.record_axis :])
        steps = rule.integers(source.read(box), factors, tuple(part.start for part in box))
        if rule.grid.high * (records.stop - records.start) >= 2**53:
            steps = steps.astype(np.int64)
        return np.atleast_1d(np.sum(steps, axis=self.record_axis)).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Mean(Sum):
    """The sum divided by the public number of records, after noise."""

    name: ClassVar[str] = "mean"


@dataclass(frozen=True, kw_only=True)
class Covariance(SummedQuery):
    """X'X of clipped records, divided by their public number under replace-one; symmetrised after
    noise.
    """

    name: ClassVar[str] = "covariance"
    symmetric: ClassVar[bool] = True
    bound: Clip

    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """Products of grid integers are integers of a grid whose step is the square of the records'
        step.
        """
        total = Total(
            largest=self.bound.norm,
            power=2,
            records=self.public_records,
            sensitivity=self.sensitivity,
            entries=math.prod(self.answer_shape),
            record_axis=self.record_axis,
        )
        return fit_total(noise, total, mu=mu, asked=asked)

    def bias(self, fitted: Fitted) -> float:
        """What either factor of every record's products may lose."""
        return self.records * 2 * self.bound.norm * _LOST * _rule(fitted).grid.step

    def partial(
        self,
        source: Reader,
        fitted: Fitted,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """X_I' X_J over some records, in two words: float64 products of integers whose sums stay
        below 2^53, hence exact.
        """
        rule = _rule(fitted)
        left = self._block(source, rule, answer_box[0], records, factors)
        right = (
            left
            if answer_box[0] == answer_box[1]
            else self._block(source, rule, answer_box[1], records, factors)
        )
        most = max(1, 2**52 // max(1, rule.grid.high**2))
        words = np.zeros((2, left.shape[1], right.shape[1]), np.int64)
        for first in range(0, left.shape[0], most):
            product = (left[first : first + most].T @ right[first : first + most]).astype(np.int64)
            words += product >> 32, product & (2**32 - 1)
        return words

    def summing_bytes(self, records: int) -> int:
        """Records along the second axis are also transposed."""
        return super().summing_bytes(records) * (1 if self.record_axis == 0 else 2)

    def _block(
        self, source: Reader, rule: RecordRule, features: slice, records: slice, factors: Any
    ) -> Floats:
        box = (records, features) if self.record_axis == 0 else (features, records)
        steps = rule.integers(source.read(box), factors, (0, 0))
        return steps if self.record_axis == 0 else np.ascontiguousarray(steps.T)


def _rule(fitted: Fitted) -> RecordRule:
    if fitted.records is None:
        raise InvalidSensitivity(
            "summed records have no rule that bounds them; fit the query first"
        )
    return fitted.records

"""Second moments along one axis of records that are tensors: the sum of all fibres' products.

A record is read as a matrix R, the axis along its rows; the answer is the sum of R R' over records.
It is positive semi-definite and ||R R'|| <= ||R||^2, so what one record can change is what the norm
of the whole record allows, as for records that are vectors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.queries.base import Reader
from dpdask.queries.exact_sum import ExactSum, SumBounds
from dpdask.queries.records import Clip, RecordRule
from dpdask.queries.second_moment import SecondMoment, SecondMomentRules, largest_values
from dpdask.queries.verification import RecordedAnswer, radius_of_ranges, register_query_rules
from dpdask.types import Floats, Json, Region

__all__ = ["ModeMoment"]


@dataclass(frozen=True, kw_only=True)
class ModeMoment(SecondMoment):
    """The sum of R R' over bounded records, R a record unfolded along ``mode``.

    Args:
        mode: The axis of the source along which the features lie.
    """

    name: ClassVar[str] = "mode-moment"
    mode: int

    @property
    def fibres(self) -> int:
        """How many vectors of features one record has."""
        return self.values_per_record // self.features

    @property
    def reach(self) -> float:
        """How far a whole record may lie from where it is measured."""
        if isinstance(self.bound, Clip):
            return self.bound.norm
        return radius_of_ranges(largest_values(self.bound.pairs), self.values_per_record)

    def sum_bounds(self) -> SumBounds:
        """Return the bounds of a sum of products; each fibre of a range adds one."""
        bounds = super().sum_bounds()
        if isinstance(self.bound, Clip):  # all fibres of a record together have its norm
            return bounds
        return dataclasses.replace(bounds, records=bounds.records * self.fibres)

    def bias(self, exact_sum: ExactSum) -> float:
        """Return what either factor of every fibre's products may lose."""
        return super().bias(exact_sum) * self.fibres

    def summing_bytes(self, records: int) -> int:
        """Return also the copy of the records as rows of features."""
        return super().summing_bytes(records) + 8 * math.prod(self.region(records))

    def region_of(self, features: slice, records: slice) -> Region:
        """Return the region of the source that holds some features of some records."""
        own = {self.record_axis: records, self.mode: features}
        return tuple(own.get(axis, slice(0, n)) for axis, n in enumerate(self.source_shape))

    def _integers(
        self,
        source: Reader,
        features: slice,
        rule: RecordRule,
        records: slice,
        factors: Floats | None,
        most: int,
        *,
        whole: bool,
    ) -> Iterator[Floats]:
        """Yield some features as integers, one fibre per row; arguments as for second moments.

        ``most`` counts fibres, whose products add up exactly.
        """
        sizes = [
            features.stop - features.start if axis == self.mode else size
            for axis, size in enumerate(self.source_shape)
            if axis != self.record_axis
        ]
        mode = self.mode - (self.mode > self.record_axis)
        many = max(1, most // self.fibres)
        for rows in super()._integers(source, features, rule, records, factors, many, whole=whole):
            unfolded = np.moveaxis(rows.reshape(-1, *sizes), mode + 1, -1)
            fibres = np.ascontiguousarray(unfolded).reshape(-1, unfolded.shape[-1])
            for first in range(0, len(fibres), most):
                yield fibres[first : first + most]

    def to_dict(self) -> Json:
        """Return also the axis, and how many fibres a record has."""
        return {**super().to_dict(), "mode": self.mode, "fibres": self.fibres}


class ModeMomentRules(SecondMomentRules):
    """Products of all fibres of bounded records, symmetrised."""

    def reach(self, answer: RecordedAnswer) -> float:
        """Return how far a whole record may lie from where it is measured."""
        if answer.bound["kind"] == "l2-clip":
            return float(answer.bound["norm"])
        pairs = self.moment_ranges(answer)
        features, columns = answer.shape
        entries = self.values_per_record(answer)
        if features != columns or entries % len(pairs):
            raise answer.mismatch()
        return radius_of_ranges(largest_values(pairs), entries)

    def values_per_record(self, answer: RecordedAnswer) -> int:
        """A record has so many fibres of features."""
        fibres = answer.query["fibres"]
        if not isinstance(fibres, int) or fibres < 1:
            raise answer.mismatch()
        return answer.shape[0] * fibres


register_query_rules(ModeMoment.name, ModeMomentRules())

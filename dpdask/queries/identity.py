"""The tensor itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpdask.noise import KroneckerNoise, Noise
from dpdask.noise.factors import mixing_axes
from dpdask.privatizers.bounds import AnswerBounds, AxisBound
from dpdask.queries.base import Query
from dpdask.queries.records import Clip, Ranges
from dpdask.queries.verification import (
    QueryRules,
    RecordedAnswer,
    holds_ranges,
    l1_of_ranges,
    radius_of_ranges,
    register_query_rules,
)
from dpdask.sensitivity import (
    EntrywiseBox,
    L1Ball,
    L2Ball,
    RecordBall,
    RecordBox,
    SensitivitySet,
)
from dpdask.types import Floats, Region

__all__ = ["Identity"]


@dataclass(frozen=True, kw_only=True)
class Identity(Query):
    """f(X) = X, every record bounded by clipping or ranges.

    Replace-one only: the number of records shows.
    """

    name: ClassVar[str] = "identity"
    bound: Clip | Ranges

    def bounds(self) -> AnswerBounds:
        """Return the clip norm or the ranges of entries."""
        order = len(self.source_shape)
        clip_norm = None
        low: tuple[AxisBound, ...]
        high: tuple[AxisBound, ...]
        if isinstance(self.bound, Clip):
            clip_norm = self.bound.norm
            low, high = (-clip_norm,) * order, (clip_norm,) * order
        else:
            axis = self.bound.feature_axis
            low = _only_along(axis, order, self.bound.lows, -math.inf)
            high = _only_along(axis, order, self.bound.highs, math.inf)
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=low,
            high=high,
            clip_norm=clip_norm,
            record_axis=self.bound.record_axis,
            contributions=self.most_records,
        )

    @property
    def records_in_entry(self) -> int:
        """An entry is that of one record."""
        return 1

    def offset(self, box: Region) -> Floats | None:
        """Return the centre that records were clipped around."""
        if not isinstance(self.bound, Clip) or self.bound.center.zero:
            return None
        return self.bound.center.of(box)


def _only_along(
    axis: int, order: int, values: tuple[float, ...], elsewhere: float
) -> tuple[AxisBound, ...]:
    """Return bounds along one axis of a tensor of ``order`` axes."""
    bound: AxisBound = values if len(values) > 1 else values[0]
    return tuple(bound if other == axis else elsewhere for other in range(order))


def _mixes(noise: Noise) -> bool:
    """Return whether noise mixes entries, so that the changes of several records may add up."""
    return isinstance(noise, KroneckerNoise) and bool(mixing_axes(noise.factors))


class IdentityRules(QueryRules):
    """An entry is that of one record, bounded on the grid of the noise."""

    keeps_records = True

    def least_radius(self, answer: RecordedAnswer) -> float:
        """sqrt(k) records change from one end of their bound to the other."""
        contributions = math.sqrt(answer.bounds_per_unit)
        if answer.bound["kind"] == "l2-clip":
            norm: float = float(answer.bound["norm"])
            return norm * (1 if answer.private_count else 2) * contributions
        if answer.bound["kind"] == "ranges":
            return radius_of_ranges(self.least_widths(answer), self.values_per_record(answer))
        raise answer.mismatch()

    def least_l1(self, answer: RecordedAnswer) -> float:
        """k records change every entry by its whole range; nothing better for an l2 clip norm."""
        if answer.bound["kind"] != "ranges":
            return super().least_l1(answer)
        records = 1 if answer.record_axis is None else answer.contributions
        return l1_of_ranges(answer.range_widths(), self.values_per_record(answer)) * records

    def values_per_record(self, answer: RecordedAnswer) -> int:
        """All entries at one index of the record axis; all of them where there is no such axis."""
        entries = math.prod(answer.shape)
        if answer.record_axis is None:
            return entries
        return entries // answer.shape[answer.record_axis]

    def least_widths(self, answer: RecordedAnswer) -> list[float]:
        """sqrt(k) times the widths of the ranges."""
        return [width * math.sqrt(answer.contributions) for width in answer.range_widths()]

    def covers(self, sensitivity: SensitivitySet, answer: RecordedAnswer) -> bool:
        """Allow balls and boxes of records along the record axis."""
        match sensitivity:
            case L2Ball() | L1Ball(record_axis=None):
                return True
            case RecordBall() | L1Ball():  # several records could move along several whitened axes
                one = answer.contributions == 1 and not answer.together
                return one and sensitivity.record_axis == answer.record_axis
            case RecordBox():
                along = sensitivity.record_axis == answer.record_axis
                several = sensitivity.records >= answer.contributions or not _mixes(answer.noise)
                wide = holds_ranges(sensitivity, answer, self.least_widths(answer))
                return along and several and wide
            case EntrywiseBox():
                return holds_ranges(sensitivity, answer, self.least_widths(answer))
            case _:
                return False

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Nothing: records are bounded on the grid of the noise itself."""
        return 0.0


register_query_rules(Identity.name, IdentityRules())

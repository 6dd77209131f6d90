"""What is known of an answer before noise is added: all that discretization needs of a query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dpdask.sensitivity import SensitivitySet

__all__ = ["AnswerBounds", "AxisBound", "largest_entry"]

AxisBound: TypeAlias = float | tuple[float, ...]
"""A bound along one axis: one number for all indices, or one per index."""


@dataclass(frozen=True, kw_only=True)
class AnswerBounds:
    """How large an answer is, and what one privacy unit can change of it.

    Args:
        sensitivity: What one privacy unit can change.
        low: The lower bound of entries, one item per axis; an entry obeys all of them.
        high: The upper bound of entries; infinite on all axes where a result has no bound.
        clip_norm: The l2 norm to which every record is clipped; None where entries are clamped.
        record_axis: The axis of the answer along which records lie, where they keep their places.
        contributions: How many records one privacy unit has at most.
        rounded_entries: How many entries of a neighbouring answer may be rounded in another
            direction. 0 where entries are bounded on the grid of the noise itself.
        prior_rounding: The l2 distance between neighbours that an earlier rounding added.
    """

    sensitivity: SensitivitySet
    low: tuple[AxisBound, ...]
    high: tuple[AxisBound, ...]
    clip_norm: float | None = None
    record_axis: int | None = None
    contributions: int = 1
    rounded_entries: int = 0
    prior_rounding: float = 0.0

    @property
    def largest(self) -> float:
        """The largest absolute value of an entry, infinite for a result without a bound."""
        return largest_entry(self.low, self.high)

    @property
    def common_range(self) -> tuple[float, float] | None:
        """The one range of all entries; None where ranges differ along an axis."""
        lows = [bound for bound in self.low if not isinstance(bound, tuple)]
        highs = [bound for bound in self.high if not isinstance(bound, tuple)]
        if len(lows) < len(self.low) or len(highs) < len(self.high):
            return None
        return max(lows), min(highs)

    @property
    def bounded(self) -> bool:
        """Whether every entry has a finite bound."""
        return math.isfinite(self.largest)


def largest_entry(low: Sequence[AxisBound], high: Sequence[AxisBound]) -> float:
    """Return the largest absolute value that the bounds of all axes leave to an entry."""
    return min(
        float(np.max(np.abs([*np.atleast_1d(lower), *np.atleast_1d(upper)])))
        for lower, upper in zip(low, high, strict=True)
    )

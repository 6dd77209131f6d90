"""How records are bounded, by an l2 norm or by ranges, and become integers of a grid.

The value rule: a missing entry (NaN) counts as the centre, an infinite one as the bound; then the
bound is enforced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpdask.loading import when_used
from dpdask.privatizers.clipping import (
    clip_factors,
    clipped_on_grid,
    on_grid,
    record_norms,
    rows_of,
)
from dpdask.privatizers.grid import Grid
from dpdask.queries.center import ORIGIN, Center
from dpdask.types import Array, Floats, Integers, Region, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import grouped_sums
else:
    grouped_sums = when_used("dpdask.privatizers.grouped_sums")

__all__ = ["Clip", "Ranges", "RecordRule", "RecordSums"]


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Every record is shrunk towards ``center`` until it is at most ``norm`` away (l2)."""

    norm: float
    record_axis: int
    center: Center = ORIGIN

    @property
    def largest(self) -> float:
        """The largest distance of an entry from the centre."""
        return self.norm

    @property
    def widths(self) -> tuple[float, ...]:
        """How far apart two values of an entry lie at most."""
        return (2 * self.norm,)

    def typical_distance(self, entries: int) -> float:
        """Return how far from the centre an entry of a mean is taken to lie: half the bound."""
        return self.norm / (2 * math.sqrt(entries))


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Every entry is clamped to a range: one pair for all, or one per index of ``feature_axis``.

    A missing entry counts as ``center``, a point within the ranges.
    """

    pairs: tuple[tuple[float, float], ...]
    feature_axis: int
    record_axis: int | None
    center: Center = ORIGIN

    @property
    def lows(self) -> tuple[float, ...]:
        """The lower ends."""
        return tuple(low for low, _ in self.pairs)

    @property
    def highs(self) -> tuple[float, ...]:
        """The upper ends."""
        return tuple(high for _, high in self.pairs)

    @property
    def largest(self) -> float:
        """The largest absolute value of an entry."""
        return max(max(abs(low), abs(high)) for low, high in self.pairs)

    @property
    def widths(self) -> tuple[float, ...]:
        """How far apart two values of an entry lie at most."""
        return tuple(high - low for low, high in self.pairs)

    def typical_distance(self, entries: int) -> float:
        """Return how far from the centre an entry of a mean is taken to lie: half the bound."""
        return math.sqrt(math.fsum((width / 4) ** 2 for width in self.widths) / len(self.pairs))

    @property
    def centers(self) -> tuple[float, ...]:
        """The centre of every range."""
        return self.center.along(self.feature_axis, len(self.pairs))

    def centered(self) -> tuple[tuple[float, float], ...]:
        """Return the ranges as distances from their centres."""
        return tuple(
            (low - center, high - center)
            for (low, high), center in zip(self.pairs, self.centers, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class RecordRule:
    """How raw records become integers before they are summed: clipped or clamped on ``grid``.

    Args:
        grid: The grid of the records.
        record_axis: The axis along which records lie.
        ranges: The ranges that distances from ``center`` are clamped to; None where records are
            clipped.
        center: What is subtracted first.
    """

    grid: Grid
    record_axis: int
    ranges: Ranges | None = None
    center: Center = ORIGIN

    def integers(self, block: Array, factors: Floats | None, region: Region) -> Floats:
        """Return a block of records as whole numbers of steps.

        Args:
            block: Some entries of some records.
            factors: What clipped records are multiplied by; None computes it from whole records.
            region: The region of the source that the block is.
        """
        block = self.center.shifted(block, region)
        if self.ranges is not None:
            block = self.ranges.center.fill(block, region)
            return self._clamped(block, self.ranges, region)
        step, axis = self.grid.step, self.record_axis
        if factors is None:
            norms = record_norms(block, record_axis=axis, step=step)
            factors = clip_factors(norms, grid=self.grid)
        return clipped_on_grid(block, step=step, factors=factors, record_axis=axis)

    def _clamped(self, block: Array, ranges: Ranges, region: Region) -> Floats:
        """Return entries clamped to their ranges, whose ends are rounded inwards."""
        low, high = self.ends(ranges, region, block.shape)
        return on_grid(block, step=self.grid.step, low=low, high=high)

    def ends(self, ranges: Ranges, region: Region, shape: Shape) -> tuple[Floats, Floats]:
        """Return the ends of ranges in steps, rounded inwards, ready to broadcast."""
        steps_per_sigma = self.grid.steps_per_sigma
        inner = [
            Grid.for_range(
                sigma=self.grid.step * steps_per_sigma,
                low=low,
                high=high,
                steps_per_sigma=steps_per_sigma,
            )
            for low, high in ranges.pairs
        ]
        axis = ranges.feature_axis
        start = region[axis].start
        low = _along([grid.low for grid in inner], axis, start, shape)
        high = _along([grid.high for grid in inner], axis, start, shape)
        return low, high


class RecordSums:
    """Sums of records by group, as :meth:`RecordRule.integers` rounds them, block after block."""

    __slots__ = ("_bounds", "_center", "_region", "_rule", "counts", "totals")

    totals: Integers
    """The sums, flat, by group."""
    counts: Integers
    """The numbers of present entries."""

    def __init__(self, rule: RecordRule, region: Region, *, groups: int) -> None:
        """Begin with sums of zero.

        Args:
            rule: How records become integers.
            region: The region of the source that all blocks together are.
            groups: How many groups there are.
        """
        axis = rule.record_axis
        sizes = (part.stop - part.start for part in region)
        one = tuple(1 if other == axis else size for other, size in enumerate(sizes))
        self._rule, self._region = rule, region
        self._center = _spread(rule.center.of(region), one)
        self._bounds: tuple[Floats, ...] = ()
        if rule.ranges is not None:
            ends = rule.ends(rule.ranges, region, one)
            self._bounds = tuple(_spread(e, one) for e in (rule.ranges.center.of(region), *ends))
        self.totals, self.counts = np.zeros((2, groups, math.prod(one)), np.int64)

    def add(self, block: Array, codes: Integers, factors: Floats | None) -> None:
        """Add some records.

        Args:
            block: All entries of some records that lie in the region.
            codes: The group of every record, -1 for none.
            factors: What clipped records are multiplied by; None computes it from whole records.
        """
        rule, step = self._rule, self._rule.grid.step
        rows = np.ascontiguousarray(block).reshape(rows_of(block.shape, rule.record_axis))
        if rule.ranges is None:
            if factors is None:
                shifted = rule.center.shifted(block, self._region)
                norms = record_norms(shifted, record_axis=rule.record_axis, step=step)
                factors = clip_factors(norms, grid=rule.grid)
            grouped_sums.add_clipped(
                rows, codes, self._center, factors, 1 / step, self.totals, self.counts
            )
            return
        fill, low, high = self._bounds
        if block.dtype == np.float32 and rule.center.zero:  # as it is written into such a block
            fill = fill.astype(np.float32).astype(np.float64)
        bounds = (self._center, fill, low, high)
        grouped_sums.add_clamped(rows, codes, *bounds, 1 / step, self.totals, self.counts)


def _spread(values: Floats, one: Shape) -> Floats:
    """Return numbers that broadcast to one record as those of all of its entries, in C order."""
    return np.ascontiguousarray(np.broadcast_to(values, one), dtype=np.float64).reshape(-1)


def _along(values: list[int], axis: int, start: int, shape: Shape) -> Floats:
    """Return the bounds of a block's features, ready to broadcast."""
    if len(values) == 1:
        return np.asarray(values[0], dtype=np.float64)
    part = np.array(values[start : start + shape[axis]], dtype=np.float64)
    return part.reshape([-1 if i == axis else 1 for i in range(len(shape))])

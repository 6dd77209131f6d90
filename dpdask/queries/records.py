"""How records are bounded, by an l2 norm or by ranges, and become integers of a grid.

The value rule: a missing entry (NaN) counts as the centre, an infinite one as the bound; then the
bound is enforced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dpdask.loading import when_used
from dpdask.privatizers.clipping import record_factors, rows_of
from dpdask.privatizers.grid import Grid
from dpdask.queries.center import ORIGIN, Center
from dpdask.types import Array, Floats, Integers, Region, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import grouped_sums, record_steps
else:
    grouped_sums = when_used("dpdask.privatizers.grouped_sums")
    record_steps = when_used("dpdask.privatizers.record_steps")

__all__ = ["Clip", "Ranges", "RecordRule", "RecordSums", "SpreadRule"]


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


_Bounds: TypeAlias = tuple[Floats, Floats, Floats]


class SpreadRule:
    """A rule for all entries of one record in a region: what compiled loops over records take."""

    __slots__ = ("_bounds", "_region", "center", "rule")

    center: Floats
    """What is subtracted from every entry."""

    def __init__(self, rule: RecordRule, region: Region) -> None:
        """Spread a rule.

        Args:
            rule: How records become integers.
            region: The region of the source that all blocks together are.
        """
        one = _one_record(rule, region)
        self.rule, self._region = rule, region
        self.center = _spread(rule.center.of(region), one)
        self._bounds: _Bounds | None = None
        if rule.ranges is not None:
            low, high = rule.ends(rule.ranges, region, one)
            fill = rule.ranges.center.of(region)
            self._bounds = (_spread(fill, one), _spread(low, one), _spread(high, one))

    def bounds(self, block: Array) -> _Bounds:
        """Return what missing entries of a block count as, and the ends of ranges in steps."""
        assert self._bounds is not None, "records are clipped, not clamped to ranges"
        fill, low, high = self._bounds
        if block.dtype == np.float32 and self.rule.center.zero:  # as such a block would hold it
            fill = fill.astype(np.float32).astype(np.float64)
        return fill, low, high

    def factors(self, block: Array) -> Floats:
        """Return what whole records of a block are multiplied by to obey their clip norm."""
        rule = self.rule
        shifted = rule.center.shifted(block, self._region)
        return record_factors(shifted, record_axis=rule.record_axis, grid=rule.grid)

    def integers(
        self, block: Array, factors: Floats | None, many: int
    ) -> Iterator[tuple[slice, Floats]]:
        """Yield which records of a block come next, and their integers as whole numbers of steps:
        one record per row, valid until the next ones.

        Args:
            block: All entries of some records that lie in the region.
            factors: What clipped records are multiplied by; None computes it from whole records.
            many: How many records come at once, at most.
        """
        axis, step = self.rule.record_axis, self.rule.grid.step
        if self.rule.ranges is None and factors is None:
            factors = self.factors(block)
        records = block.shape[axis]
        memory = np.empty(block.size // max(1, records) * min(many, records))
        for first in range(0, records, many):
            some = slice(first, min(first + many, records))
            part = np.ascontiguousarray(block[(slice(None),) * axis + (some,)])
            rows = part.reshape(rows_of(part.shape, axis))
            out = memory[: part.size].reshape(rows.shape)
            if factors is None:
                record_steps.clamp(rows, self.center, *self.bounds(block), 1 / step, out)
            else:
                record_steps.clip(rows, self.center, factors[some], 1 / step, out)
            in_rows = out if axis == 0 else np.ascontiguousarray(np.moveaxis(out, 1, 0))
            yield some, in_rows.reshape(some.stop - some.start, -1)


class RecordSums:
    """Sums of records by group, as :class:`SpreadRule` rounds them, block after block."""

    __slots__ = ("_spread", "counts", "totals")

    totals: Integers
    """The sums, flat, by group."""
    counts: Integers | None
    """The numbers of present entries, None where they are not counted."""

    def __init__(self, rule: RecordRule, region: Region, *, groups: int, counted: bool) -> None:
        """Begin with sums of zero.

        Args:
            rule: How records become integers.
            region: The region of the source that all blocks together are.
            groups: How many groups there are.
            counted: Whether present entries are counted.
        """
        self._spread = SpreadRule(rule, region)
        self.totals = np.zeros((groups, math.prod(_one_record(rule, region))), np.int64)
        self.counts = np.zeros_like(self.totals) if counted else None

    def add(self, block: Array, codes: Integers, factors: Floats | None) -> None:
        """Add some records.

        Args:
            block: All entries of some records that lie in the region.
            codes: The group of every record, -1 for none.
            factors: What clipped records are multiplied by; None computes it from whole records.
        """
        spread, rule = self._spread, self._spread.rule
        rows = np.ascontiguousarray(block).reshape(rows_of(block.shape, rule.record_axis))
        sums = (1 / rule.grid.step, self.totals, self.counts)
        if rule.ranges is None:
            if factors is None:
                factors = spread.factors(block)
            grouped_sums.add_clipped(rows, codes, spread.center, factors, *sums)
            return
        grouped_sums.add_clamped(rows, codes, spread.center, *spread.bounds(block), *sums)


def _one_record(rule: RecordRule, region: Region) -> Shape:
    """Return the shape of the part of one record that lies in a region."""
    sizes = (part.stop - part.start for part in region)
    return tuple(1 if axis == rule.record_axis else size for axis, size in enumerate(sizes))


def _spread(values: Floats, one: Shape) -> Floats:
    """Return numbers that broadcast to one record as those of all of its entries, in C order."""
    return np.ascontiguousarray(np.broadcast_to(values, one), dtype=np.float64).reshape(-1)


def _along(values: list[int], axis: int, start: int, shape: Shape) -> Floats:
    """Return the bounds of a block's features, ready to broadcast."""
    if len(values) == 1:
        return np.asarray(values[0], dtype=np.float64)
    part = np.array(values[start : start + shape[axis]], dtype=np.float64)
    return part.reshape([-1 if i == axis else 1 for i in range(len(shape))])

"""How records are bounded, by an l2 norm or by ranges, and become integers of a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdask.privatizers.clipping import clip_factors, clipped_on_grid, on_grid, record_norms
from dpdask.privatizers.grid import Grid
from dpdask.types import Array, Floats, Shape

__all__ = ["Clip", "Ranges", "RecordRule"]


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Every record is shrunk to an l2 norm of at most ``norm``."""

    norm: float
    record_axis: int

    @property
    def largest(self) -> float:
        """The largest absolute value of an entry."""
        return self.norm


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Every entry is clamped to a range: one pair for all, or one per index of ``feature_axis``."""

    pairs: tuple[tuple[float, float], ...]
    feature_axis: int
    record_axis: int | None

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


@dataclass(frozen=True, kw_only=True)
class RecordRule:
    """How raw records become integers before they are summed: clipped or clamped on ``grid``."""

    grid: Grid
    record_axis: int
    ranges: Ranges | None = None

    def integers(self, block: Array, factors: Floats | None, offsets: Shape) -> Floats:
        """Return a block of records as whole numbers of steps.

        Args:
            block: Some entries of some records.
            factors: What clipped records are multiplied by; None computes it from whole records.
            offsets: Where the block begins, on every axis.
        """
        if self.ranges is not None:
            return self._clamped(block, self.ranges, offsets)
        step, axis = self.grid.step, self.record_axis
        if factors is None:
            norms = record_norms(block, record_axis=axis, step=step)
            factors = clip_factors(norms, grid=self.grid)
        return clipped_on_grid(block, step=step, factors=factors, record_axis=axis)

    def _clamped(self, block: Array, ranges: Ranges, offsets: Shape) -> Floats:
        """Return entries clamped to their ranges, whose ends are rounded inwards."""
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
        return on_grid(
            block,
            step=self.grid.step,
            low=_along([grid.low for grid in inner], axis, offsets[axis], block.shape),
            high=_along([grid.high for grid in inner], axis, offsets[axis], block.shape),
        )


def _along(values: list[int], axis: int, start: int, shape: Shape) -> Floats | float:
    """Return the bounds of a block's features, ready to broadcast."""
    if len(values) == 1:
        return values[0]
    part = np.array(values[start : start + shape[axis]], dtype=np.float64)
    return part.reshape([-1 if i == axis else 1 for i in range(len(shape))])

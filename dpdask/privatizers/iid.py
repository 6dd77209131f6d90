"""Independent Gaussian or Laplace noise on one grid: one fused pass over a tile."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.keystream import TileStream
from dpdask.loading import when_used
from dpdask.privatizers.base import AddNoise, Privatizer, Tile
from dpdask.privatizers.blocks import draw_and_combine, flattened, output_scale
from dpdask.privatizers.clipping import on_grid, rows_of
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.samplers import GAUSSIAN, LAPLACE, Sampler
from dpdask.types import Array, Floats, Json, Region, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import kernels
else:
    kernels = when_used("dpdask.privatizers.kernels")

__all__ = [
    "IidPrivatizer",
    "LaplacePrivatizer",
    "RangesLaplacePrivatizer",
    "add_iid",
    "add_iid_clipped",
]


@dataclass(frozen=True, kw_only=True)
class IidPrivatizer(Privatizer):
    """Independent noise on one grid; ``clips`` says that records are clipped on it too."""

    fused: ClassVar[bool] = True
    grid: Grid
    clips: bool = False

    @property
    def step(self) -> float:
        """The step of the grid."""
        return self.grid.step

    @property
    def largest(self) -> float:
        """The bound of the grid."""
        return max(abs(self.grid.low), abs(self.grid.high)) * self.grid.step

    @property
    def largest_output(self) -> float:
        """The limit of the grid."""
        return self.grid.limit

    @property
    def clip_grid(self) -> Grid | None:
        """The grid of the noise."""
        return self.grid if self.clips else None

    def apply(self, tile: Tile, out: Array) -> None:
        """Clip or clamp, round, add integers."""
        if tile.factors is None:
            add_iid(tile.values, out, stream=tile.stream, grid=self.grid, sampler=self.sampler)
            return
        add_iid_clipped(
            tile.values,
            out,
            stream=tile.stream,
            grid=self.grid,
            factors=tile.factors,
            record_axis=self.record_axis or 0,
            sampler=self.sampler,
        )

    def adder(
        self, *, shape: Shape, box: Region, stream: TileStream, factors: Floats | None
    ) -> AddNoise | None:
        """Return :func:`add_iid` or its clipping counterpart for parts of a tile."""
        if factors is None:
            return functools.partial(_add_part, stream, self.grid, self.sampler)
        _, _, inner = rows_of(shape, self.record_axis or 0)
        return functools.partial(_add_clipped_part, stream, self.grid, self.sampler, factors, inner)

    def to_dict(self) -> Json:
        """Return step, steps per sigma and integer bounds."""
        grid = self.grid
        return {
            "step": grid.step,
            "steps_per_sigma": grid.steps_per_sigma,
            "low": grid.low,
            "high": grid.high,
            **self._sampler(exact=True),
        }


@dataclass(frozen=True, kw_only=True)
class LaplacePrivatizer(IidPrivatizer):
    """Independent Laplace noise on one grid, whose steps per sigma are those per scale."""

    sampler: ClassVar[Sampler] = LAPLACE


@dataclass(frozen=True, kw_only=True)
class RangesLaplacePrivatizer(LaplacePrivatizer):
    """Independent Laplace noise on one grid, entries clamped to a range of their own feature.

    Args:
        feature_axis: The axis along which the ranges lie.
        lows: The least number of steps of every feature.
        highs: The largest one.
    """

    fused: ClassVar[bool] = False
    feature_axis: int
    lows: tuple[int, ...]
    highs: tuple[int, ...]

    def adder(
        self, *, shape: Shape, box: Region, stream: TileStream, factors: Floats | None
    ) -> AddNoise | None:
        """Return None: entries have bounds of their own."""
        return None

    def apply(self, tile: Tile, out: Array) -> None:
        """Round and clamp every entry to the range of its feature, add integers."""
        part = tile.box[self.feature_axis]
        shape = [-1 if axis == self.feature_axis else 1 for axis in range(tile.values.ndim)]
        steps = on_grid(
            tile.values,
            step=self.grid.step,
            low=np.array(self.lows[part], dtype=np.float64).reshape(shape),
            high=np.array(self.highs[part], dtype=np.float64).reshape(shape),
        )
        values, outs = flattened(np.ascontiguousarray(steps), out)
        limit, step = output_scale(out, self.grid.limit, self.grid.step)
        params = (1.0, float(self.grid.low), float(self.grid.high), limit, step)
        draw_and_combine(
            kernels.add_flat,
            tile.stream,
            self.grid.steps_per_sigma,
            values,
            outs,
            params,
            sampler=self.sampler,
        )


def add_iid(
    x: Array,
    out: Array,
    *,
    stream: TileStream,
    grid: Grid,
    start: int = 0,
    sampler: Sampler = GAUSSIAN,
) -> None:
    """Clamp to the bounds of a grid and add exact i.i.d. noise.

    Args:
        x: The data.
        out: Where the result goes.
        stream: The random bytes of the tile.
        grid: The grid and its bounds.
        start: The number of the first element within the tile.
        sampler: What draws the integers.
    """
    _add_part(stream, grid, sampler, *flattened(x, out), start)


def _add_part(
    stream: TileStream, grid: Grid, sampler: Sampler, xs: Array, outs: Array, start: int
) -> None:
    """Add noise to a part of a tile, flat, from entry ``start`` on."""
    limit, step = output_scale(outs, grid.limit, grid.step)
    params = (1 / grid.step, float(grid.low), float(grid.high), limit, step)
    steps = grid.steps_per_sigma
    draw_and_combine(
        kernels.add_flat, stream, steps, xs, outs, params, start=start, sampler=sampler
    )


def _add_clipped_part(
    stream: TileStream,
    grid: Grid,
    sampler: Sampler,
    factors: Floats,
    inner: int,
    xs: Array,
    outs: Array,
    start: int,
) -> None:
    """Add noise to a part of a tile, flat, from entry ``start`` on, its records shrunk."""
    limit, step = output_scale(outs, grid.limit, grid.step)
    params = (1 / grid.step, factors, inner, limit, step)
    steps = grid.steps_per_sigma
    draw_and_combine(
        kernels.add_clipped, stream, steps, xs, outs, params, start=start, sampler=sampler
    )


def add_iid_clipped(
    x: Array,
    out: Array,
    *,
    stream: TileStream,
    grid: Grid,
    factors: Floats,
    record_axis: int,
    sampler: Sampler = GAUSSIAN,
) -> None:
    """Shrink each record by its factor and add exact i.i.d. noise.

    Args:
        x: The data.
        out: Where the result goes.
        stream: The random bytes of the tile.
        grid: The grid on which records are clipped and noise is added.
        factors: One factor per record (:func:`dpdask.privatizers.clipping.clip_factors`).
        record_axis: The axis along which records lie.
        sampler: What draws the integers.
    """
    xs, outs = flattened(x, out)
    _, records, inner = rows_of(x.shape, record_axis)
    if factors.dtype != np.float64 or np.any(~((factors >= 0) & (factors <= 1))):
        raise InvalidNoise(
            "clip factors are not float64 numbers from 0 to 1; take them from clip_factors"
        )
    if factors.shape != (records,):
        raise InvalidNoise(
            f"{factors.size} clip factors do not fit {records} records; give one per record of"
            " the tile"
        )
    _add_clipped_part(stream, grid, sampler, np.ascontiguousarray(factors), inner, xs, outs, 0)

"""Independent Gaussian noise on one grid: one fused pass over a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.keystream import TileStream
from dpdask.privatizers import kernels
from dpdask.privatizers.base import Privatizer, Tile
from dpdask.privatizers.blocks import draw_and_combine, flattened, output_scale
from dpdask.privatizers.clipping import rows_of
from dpdask.privatizers.grid import Grid
from dpdask.types import Array, Floats, Json

__all__ = ["IidPrivatizer", "add_iid", "add_iid_clipped"]


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
            add_iid(tile.values, out, stream=tile.stream, grid=self.grid)
            return
        add_iid_clipped(
            tile.values,
            out,
            stream=tile.stream,
            grid=self.grid,
            factors=tile.factors,
            record_axis=self.record_axis or 0,
        )

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


def add_iid(x: Array, out: Array, *, stream: TileStream, grid: Grid, start: int = 0) -> None:
    """Clamp to the bounds of a grid and add exact i.i.d. Gaussian noise.

    Args:
        x: The data.
        out: Where the result goes.
        stream: The random bytes of the tile.
        grid: The grid and its bounds.
        start: The number of the first element within the tile.
    """
    xs, outs = flattened(x, out)
    limit, step = output_scale(out, grid.limit, grid.step)
    params = (1 / grid.step, float(grid.low), float(grid.high), limit, step)
    draw_and_combine(kernels.add_flat, stream, grid.steps_per_sigma, xs, outs, params, start=start)


def add_iid_clipped(
    x: Array, out: Array, *, stream: TileStream, grid: Grid, factors: Floats, record_axis: int
) -> None:
    """Shrink each record by its factor and add exact i.i.d. Gaussian noise.

    Args:
        x: The data.
        out: Where the result goes.
        stream: The random bytes of the tile.
        grid: The grid on which records are clipped and noise is added.
        factors: One factor per record (:func:`dpdask.privatizers.clipping.clip_factors`).
        record_axis: The axis along which records lie.
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
    limit, step = output_scale(out, grid.limit, grid.step)
    params = (1 / grid.step, np.ascontiguousarray(factors), inner, limit, step)
    draw_and_combine(kernels.add_clipped, stream, grid.steps_per_sigma, xs, outs, params)

"""Noise that mixes entries: a tile is whitened, rounded and un-whitened panel by panel.

Products are computed in a fixed order, so every machine writes the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from dpdask.keystream import TileStream
from dpdask.loading import when_used
from dpdask.noise.factors import Factor, LowRankFactor
from dpdask.privatizers.blocks import gaussian_integers
from dpdask.types import Array, Floats

if TYPE_CHECKING:
    from dpdask.privatizers import kernels
else:
    kernels = when_used("dpdask.privatizers.kernels")

__all__ = ["AxisFactor", "Panel", "add_low_rank", "add_to_panel", "transform"]

AxisFactor: TypeAlias = Factor | Floats | float
"""The factor of one axis of a tile: one that mixes entries, or the diagonal of another."""

_LOW_RANK_BLOCK = 65536  # numbers in a block of rows that stays in the cache


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A matrix of data, the bounds of its rows and columns, and the noise that it gets.

    Args:
        values: The data; its rows span the mode that is mixed.
        low: The lower bounds of rows and of columns.
        high: The upper bounds of rows and of columns.
        scale: The scales of the noise of the columns.
        stream: The random bytes of the tile.
        steps_per_sigma: The steps of the whitened grid per standard deviation.
        start: The number of the panel's first integer within the tile.
    """

    values: Array
    low: tuple[Floats, Floats]
    high: tuple[Floats, Floats]
    scale: Floats
    stream: TileStream
    steps_per_sigma: float
    start: int


def add_low_rank(panel: Panel, factor: LowRankFactor, out: Array, sums: Array) -> None:
    """Add noise to a panel whose rows span a low-rank mode, in three passes over blocks of rows.

    Args:
        panel: The data and its noise.
        factor: The factor of the rows.
        out: Where the result goes.
        sums: Where whitened answer plus noise is kept between passes; may be ``out``.
    """
    x, low, high, scale = panel.values, panel.low, panel.high, panel.scale
    size, width = x.shape
    rows = min(size, max(1, _LOW_RANK_BLOCK // width))
    data, integers = np.empty((2, rows, width))
    seen = kernels.low_rank_project(x, data, low, high, 1 / scale, factor.directions)
    seen *= (1 / factor.scales - 1 / factor.base)[:, None]
    drawn = np.zeros_like(seen)
    for first in range(0, size, rows):
        k = integers[: min(rows, size - first)]
        gaussian_integers(panel.stream, panel.steps_per_sigma, k, panel.start + first * width)
        kernels.low_rank_draw(
            x,
            first,
            k,
            sums,
            low,
            high,
            1 / scale,
            factor.directions,
            seen,
            1 / factor.base,
            panel.steps_per_sigma,
            drawn,
        )
    drawn *= (factor.scales - factor.base)[:, None]
    column_step = scale / panel.steps_per_sigma
    kernels.low_rank_finish(sums, out, factor.directions, drawn, factor.base, column_step)


def add_to_panel(
    values: Array,
    factors: Sequence[AxisFactor],
    low: Sequence[Floats | float],
    high: Sequence[Floats | float],
    *,
    stream: TileStream,
    steps_per_sigma: float,
    start: int = 0,
) -> Floats:
    """Return a panel with noise: clamp, whiten, round, add integers, un-whiten.

    Args:
        values: The data, with any number of axes.
        factors: One factor per axis.
        low: The lower bounds, one item per axis.
        high: The upper bounds, one item per axis.
        stream: The random bytes of the tile.
        steps_per_sigma: The steps of the whitened grid per standard deviation.
        start: The number of the panel's first integer within the tile.
    """
    with np.errstate(all="ignore"):  # no value may be told from another by a warning
        work = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=math.inf, neginf=-math.inf)
    for axis, (lower, upper) in enumerate(zip(low, high, strict=True)):
        np.clip(work, _along(lower, axis, work.ndim), _along(upper, axis, work.ndim), out=work)
    for axis, factor in enumerate(factors):
        work = transform(work, factor, axis, inverse=True)
    work *= steps_per_sigma
    np.rint(work, out=work)
    integers = np.empty(work.shape)
    gaussian_integers(stream, steps_per_sigma, integers, start)
    work += integers
    for axis, factor in enumerate(factors):
        work = transform(work, factor, axis, inverse=False)
    work /= steps_per_sigma
    return work


def transform(work: Floats, factor: AxisFactor, axis: int, *, inverse: bool) -> Floats:
    """Return U or its inverse applied along one axis, the same bits on every machine.

    Args:
        work: The array.
        factor: The factor U, or its diagonal.
        axis: The axis that it acts on.
        inverse: Whether to whiten by U instead of colouring by it.
    """
    if not isinstance(factor, Factor):
        scale = _along(factor, axis, work.ndim)
        return np.asarray(work / scale if inverse else work * scale)
    lifted = np.moveaxis(work, axis, 0)
    columns = np.ascontiguousarray(lifted).reshape(factor.size, -1)
    apply = factor.whiten if inverse else factor.colour
    mixed = apply(columns, kernels.fixed_product)
    return np.ascontiguousarray(np.moveaxis(mixed.reshape(lifted.shape), 0, axis))


def _along(values: Floats | float, axis: int, ndim: int) -> Floats:
    """Return an array along one axis, ready to broadcast."""
    array = np.asarray(values, dtype=np.float64)
    return array.reshape([-1 if i == axis else 1 for i in range(ndim)]) if array.ndim else array

"""Kronecker noise: a tile is clamped, whitened, rounded, given integers and un-whitened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.keystream import TileStream
from dpdask.loading import when_used
from dpdask.noise.distributions import KroneckerNoise
from dpdask.noise.factors import Factor, LowRankFactor, mixing_axes
from dpdask.privatizers.base import AddNoise, Privatizer, Tile, clipped_values
from dpdask.privatizers.blocks import draw_and_combine, flattened
from dpdask.privatizers.bounds import AxisBound, largest_entry
from dpdask.privatizers.clipping import rows_of
from dpdask.privatizers.grid import GRID_LIMIT, TAIL_SIGMAS, Grid, check_steps_per_sigma
from dpdask.privatizers.panels import AxisFactor, Panel, add_low_rank, add_to_panel
from dpdask.types import Array, Floats, Json, Region, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import kernels
else:
    kernels = when_used("dpdask.privatizers.kernels")

__all__ = ["KroneckerPrivatizer", "add_kronecker"]

_OUTPUT_LIMIT = float(2**52)  # steps
_WIDE_PANEL = 4096  # columns of a low-rank panel whose sums are kept in the output
_PANEL = 131072  # numbers of any other panel


@dataclass(frozen=True, kw_only=True)
class KroneckerPrivatizer(Privatizer):
    """Kronecker noise on the whitened grid of step 1 / ``steps_per_sigma``.

    Args:
        noise: The noise.
        steps_per_sigma: The steps of the whitened grid per standard deviation.
        low: The lower bounds of entries, one item per axis.
        high: The upper bounds of entries, one item per axis.
        clipping: The grid on which records are clipped; None where they are not.
    """

    noise: KroneckerNoise
    steps_per_sigma: float
    low: tuple[AxisBound, ...]
    high: tuple[AxisBound, ...]
    clipping: Grid | None = None

    @property
    def step(self) -> None:
        """None: every entry has its own."""
        return

    @property
    def largest(self) -> float:
        """The narrowest bound of all axes."""
        return largest_entry(self.low, self.high)

    @property
    def largest_output(self) -> float:
        """Infinite: outputs have no common grid."""
        return math.inf

    @property
    def spanned(self) -> tuple[int, ...]:
        """The axes of dense and low-rank factors."""
        return mixing_axes(self.noise.factors)

    @property
    def clip_grid(self) -> Grid | None:
        """A fine grid of its own."""
        return self.clipping

    def apply(self, tile: Tile, out: Array) -> None:
        """Clip, whiten, round, add integers, un-whiten."""
        add_kronecker(
            clipped_values(tile, self.clipping, self.record_axis),
            out,
            stream=tile.stream,
            factors=[
                _factor_of(factor, part)
                for factor, part in zip(self.noise.factors, tile.box, strict=True)
            ],
            steps_per_sigma=self.steps_per_sigma,
            low=[_bound_of(bound, part) for bound, part in zip(self.low, tile.box, strict=True)],
            high=[_bound_of(bound, part) for bound, part in zip(self.high, tile.box, strict=True)],
        )

    def adder(
        self, *, shape: Shape, box: Region, stream: TileStream, factors: Floats | None
    ) -> AddNoise | None:
        """Return what adds entry-wise noise; None where a factor mixes, or records are clipped."""
        if self.clipping is not None or self.spanned:
            return None
        params = _scaled_params(
            shape,
            [
                _factor_of(factor, part)
                for factor, part in zip(self.noise.factors, box, strict=True)
            ],
            check_steps_per_sigma(self.steps_per_sigma),
            [_bound_of(bound, part) for bound, part in zip(self.low, box, strict=True)],
            [_bound_of(bound, part) for bound, part in zip(self.high, box, strict=True)],
        )

        def add(values: Array, out: Array, start: int) -> None:
            draw_and_combine(
                kernels.add_scaled, stream, self.steps_per_sigma, values, out, params, start=start
            )

        return add

    def to_dict(self) -> Json:
        """Return the whitened grid, and the common bounds of entries where these are clamped."""
        grid: Json = {
            "whitened_step": 1 / self.steps_per_sigma,
            "steps_per_sigma": self.steps_per_sigma,
        }
        common = [
            (low, high)
            for low, high in zip(self.low, self.high, strict=True)
            if isinstance(low, float) and not isinstance(high, tuple)
        ]
        if common and self.clipping is None:
            grid["low"] = max(low for low, _ in common)
            grid["high"] = min(high for _, high in common)
        finite = {name: value for name, value in grid.items() if math.isfinite(value)}
        return {**finite, **self._sampler(exact=True)}


def _factor_of(factor: Factor, part: slice) -> AxisFactor:
    """Return a diagonal factor restricted to a tile, a mixing one as it is."""
    diagonal = factor.diagonal()
    if diagonal is None:
        return factor
    return diagonal[part] if isinstance(diagonal, np.ndarray) else diagonal


def _bound_of(bound: AxisBound, part: slice) -> Floats | float:
    """Return a bound along an axis restricted to a tile."""
    return np.asarray(bound[part.start : part.stop]) if isinstance(bound, tuple) else bound


def add_kronecker(
    x: Array,
    out: Array,
    *,
    stream: TileStream,
    factors: Sequence[AxisFactor],
    steps_per_sigma: float,
    low: Sequence[Floats | float],
    high: Sequence[Floats | float],
) -> None:
    """Clamp, whiten, put on the whitened grid, add exact integers, un-whiten.

    With only diagonal factors all of it is entry-wise.

    Args:
        x: The data.
        out: Where the result goes: float32 or float64.
        stream: The random bytes of the tile.
        factors: One item per axis: the diagonal of a diagonal factor restricted to the tile (an
            array or a number), or a dense or low-rank factor, whose axis the tile must span.
        steps_per_sigma: The steps of the whitened grid per standard deviation.
        low: The lower bounds of the data, one item per axis, an array along it or a number.
        high: The upper bounds; an entry is clamped to the tightest of all axes.
    """
    flattened(x, out)
    if out.dtype.kind != "f":
        raise InvalidNoise(
            f"Kronecker noise has no common grid for {out.dtype} output; use float32 or float64"
        )
    steps_per_sigma = check_steps_per_sigma(steps_per_sigma)
    mixed = _mixed_axes(factors, x.shape)
    tile = _KroneckerTile(x, stream, factors, steps_per_sigma, low, high)
    if len(mixed) > 1:  # everything is mixed with everything: one panel, a copy of the tile
        tile.reach()
        out[...] = add_to_panel(
            x, factors, low, high, stream=stream, steps_per_sigma=steps_per_sigma
        )
    elif mixed:
        tile.add_mixed(mixed[0], out)
    else:
        tile.add_scaled(out)


def _mixed_axes(factors: Sequence[AxisFactor], shape: Shape) -> list[int]:
    """Return the axes whose factors mix entries; check that the tile spans them."""
    mixed = []
    for axis, factor in enumerate(factors):
        if not isinstance(factor, Factor):
            _product([factor], [shape[axis]])
            continue
        mixed.append(axis)
        if factor.size != shape[axis]:
            raise InvalidNoise(
                f"a dense or low-rank factor on axis {axis} mixes all of it, but the tile holds"
                f" {shape[axis]} of its entries; let tiles span that axis"
            )
    return mixed


@dataclass(frozen=True, slots=True)
class _KroneckerTile:
    """The arguments of :func:`add_kronecker`, checked."""

    x: Array
    stream: TileStream
    factors: Sequence[AxisFactor]
    steps_per_sigma: float
    low: Sequence[Floats | float]
    high: Sequence[Floats | float]

    def add_mixed(self, split: int, out: Array) -> None:
        """Add noise that one factor, that of axis ``split``, mixes: panels that span the axis."""
        shape, factor = self.x.shape, self.factors[split]
        outer, size, inner = rows_of(shape, split)
        row_scale = _product(self.factors[:split], shape[:split])
        inner_scale = _product(self.factors[split + 1 :], shape[split + 1 :])
        row_low, row_high = _tightest(self.low[:split], self.high[:split], shape[:split])
        inner_low, inner_high = _tightest(
            self.low[split + 1 :], self.high[split + 1 :], shape[split + 1 :]
        )
        mode_low, mode_high = _filled(self.low[split], size), _filled(self.high[split], size)
        # Sums of answer and noise are kept in the output while they are exact there, else in a
        # narrow panel of their own.
        in_place = self.reach() < 2.0 ** (np.finfo(out.dtype).nmant + 1)
        wide = isinstance(factor, LowRankFactor) and in_place
        width = min(inner, _WIDE_PANEL if wide else max(1, _PANEL // size))
        blocks, outs = self.x.reshape(outer, size, inner), out.reshape(outer, size, inner)
        start = 0
        for row in range(outer):
            for first in range(0, inner, width):
                part = slice(first, min(first + width, inner))
                panel = Panel(
                    values=blocks[row, :, part],
                    low=(mode_low, np.maximum(row_low[row], inner_low[part])),
                    high=(mode_high, np.minimum(row_high[row], inner_high[part])),
                    scale=row_scale[row] * inner_scale[part],
                    stream=self.stream,
                    steps_per_sigma=self.steps_per_sigma,
                    start=start,
                )
                _add_panel(panel, factor, outs[row, :, part], in_place=in_place)
                start += panel.values.size

    def add_scaled(self, out: Array) -> None:
        """Add entry-wise noise: every entry has a grid of its own."""
        params = _scaled_params(
            self.x.shape, self.factors, self.steps_per_sigma, self.low, self.high
        )
        flat_x, flat_out = self.x.reshape(-1), out.reshape(-1)
        draw_and_combine(
            kernels.add_scaled, self.stream, self.steps_per_sigma, flat_x, flat_out, params
        )

    def reach(self) -> float:
        """Return a bound on answer plus noise in grid steps, by norms, since entries are mixed."""
        reach = min(
            max(float(np.max(np.abs(lower))), float(np.max(np.abs(upper))))
            for lower, upper in zip(self.low, self.high, strict=True)
        )
        for factor, size in zip(self.factors, self.x.shape, strict=True):
            if isinstance(factor, Factor):
                reach *= math.sqrt(size) / factor.smallest
            else:
                reach *= 1 / float(np.min(factor))
        return _check_reach(reach, self.steps_per_sigma)


def _check_reach(reach: float, steps_per_sigma: float) -> float:
    """Return ``reach`` standard deviations plus noise in steps, if integers are exact there."""
    steps = (reach + TAIL_SIGMAS) * steps_per_sigma
    if not steps < GRID_LIMIT:
        raise InvalidNoise(
            f"bounds of up to {reach * steps_per_sigma:.3g} grid steps exceed 2^51 or are"
            " missing; give finite bounds or a smaller steps_per_sigma"
        )
    return steps


def _scaled_params(
    shape: Shape,
    factors: Sequence[AxisFactor],
    steps_per_sigma: float,
    low: Sequence[Floats | float],
    high: Sequence[Floats | float],
) -> tuple[object, ...]:
    """Return what the kernel of entry-wise noise needs of a tile: scales and bounds of its rows and
    columns.
    """
    split = len(shape) - 1
    row_scale = _product(factors[:split], shape[:split])
    column_scale = _product(factors[split:], shape[split:])
    row_low, row_high = _tightest(low[:split], high[:split], shape[:split])
    column_low, column_high = _tightest(low[split:], high[split:], shape[split:])
    rows = np.minimum(np.maximum(np.abs(row_low), np.abs(row_high)) / row_scale, math.inf)
    columns = np.maximum(np.abs(column_low), np.abs(column_high)) / column_scale
    reach = min(
        float(np.max(rows)) / float(np.min(column_scale)),
        float(np.max(columns)) / float(np.min(row_scale)),
    )
    _check_reach(reach, steps_per_sigma)
    return (
        steps_per_sigma / row_scale,
        row_scale / steps_per_sigma,
        row_low,
        row_high,
        1 / column_scale,
        column_scale,
        column_low,
        column_high,
        _OUTPUT_LIMIT,
    )


def _add_panel(panel: Panel, factor: AxisFactor, out: Array, *, in_place: bool) -> None:
    """Add noise to one panel."""
    if isinstance(factor, LowRankFactor):
        sums = out if in_place else np.empty(panel.values.shape)
        add_low_rank(panel, factor, out, sums)
        return
    out[...] = add_to_panel(
        panel.values,
        [factor, panel.scale],
        panel.low,
        panel.high,
        stream=panel.stream,
        steps_per_sigma=panel.steps_per_sigma,
        start=panel.start,
    )


def _product(factors: Sequence[AxisFactor], shape: Sequence[int]) -> Floats:
    """Return the outer product of diagonal factors, flattened in C order."""
    total = np.ones(1)
    for factor, size in zip(factors, shape, strict=True):
        scales = np.broadcast_to(np.asarray(factor, dtype=np.float64), size)
        if np.any(~(scales > 0)) or not np.all(np.isfinite(scales)):
            raise InvalidNoise(
                "a diagonal factor holds a scale that is not finite and > 0; the noise would be"
                " singular"
            )
        total = np.multiply.outer(total, scales).reshape(-1)
    return total


def _tightest(
    low: Sequence[Floats | float], high: Sequence[Floats | float], shape: Sequence[int]
) -> tuple[Floats, Floats]:
    """Return the bounds of all axes combined entry by entry, flattened in C order."""
    bottom, top = np.full(1, -math.inf), np.full(1, math.inf)
    for lower, upper, size in zip(low, high, shape, strict=True):
        bottom = np.maximum.outer(bottom, _filled(lower, size)).reshape(-1)
        top = np.minimum.outer(top, _filled(upper, size)).reshape(-1)
    return bottom, top


def _filled(values: Floats | float, size: int) -> Floats:
    """Return a bound along an axis as a contiguous array."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=np.float64), size))

"""Tiles: one call per noise shape turns a block of data into a block of released values.

``x`` is a C-ordered float32, float64, int32 or int64 array, ``out`` an array of the same shape and
one of the same dtypes; integer outputs hold the grid integers themselves. Entry-wise noise gives
element i of a tile, in C order, the i-th integer of the tile's stream, so parts of a tile can be
computed alone; coloured noise takes them panel by panel. Beyond ``x`` and ``out`` a call needs well
under 4 MB.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.keystream import TileStream, Words
from dpdask.noise.factors import DenseFactor, Factor, Floats, LowRankFactor
from dpdask.privatizers import kernels
from dpdask.privatizers.exact_gaussian import (
    BLOCK,
    check_ratio,
    fill_block,
    settle_block,
    thresholds,
)
from dpdask.privatizers.grid import Grid, rows_of
from dpdask.types import Array

__all__ = [
    "TILE_DTYPES",
    "add_iid",
    "add_iid_clipped",
    "add_kronecker",
    "add_spherical",
    "gaussian_integers",
]

TILE_DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "int32", "int64"))
_CHUNK = 32 * BLOCK
DIRECTION_RATIO = 2.0**24

Block = Array

_RUN = {
    combine: kernels.over_blocks(combine)  # type: ignore[no-untyped-call]
    for combine in (
        kernels.keep,
        kernels.add_flat,
        kernels.add_clipped,
        kernels.add_scaled,
        kernels.add_norm,
        kernels.keep_and_norm,
        kernels.add_stretched,
    )
}


_local = threading.local()


def _words() -> Words:
    """This thread's buffer of keystream words, kept because fresh memory costs more than the
    cipher.
    """
    if not hasattr(_local, "words"):
        _local.words = np.empty(_CHUNK, np.uint64)
    kept: Words = _local.words
    return kept


def _drive(
    combine: Any, stream: TileStream, ratio: float, x: Block, out: Block, start: int, params: Any
) -> None:
    """Run a kernel over the words of elements ``start`` to ``start + x.size``, settling undecided
    blocks.
    """
    inner, outer = thresholds(check_ratio(ratio))
    if x.size == 0:
        return
    first, stop = start - start % BLOCK, start + x.size
    words = _words()[: -(-(stop - first) // BLOCK) * BLOCK]
    refill = stream.filler(first, words)
    flagged = np.empty(_CHUNK // BLOCK, np.int64)
    run = _RUN[combine]
    for at in range(first, stop, words.size):
        refill()
        part = words[: -(-(stop - at) // BLOCK) * BLOCK]
        for b in flagged[
            : run(part, x, out, at, start, stop, ratio, inner, outer, flagged, params)
        ]:
            block_words, z, block_at = (
                part[b * BLOCK : (b + 1) * BLOCK],
                np.empty(BLOCK),
                at + int(b) * BLOCK,
            )
            fill_block(block_words, z, ratio, outer)
            settle_block(stream, block_at // BLOCK, block_words, z, ratio)
            combine(
                z,
                block_at,
                max(block_at, start),
                min(block_at + BLOCK, stop),
                x,
                out,
                start,
                params,
            )


def _flat(x: Block, out: Block) -> tuple[Block, Block]:
    for name, array in (("input", x), ("output", out)):
        if array.dtype not in TILE_DTYPES:
            raise InvalidNoise(
                f"{name} dtype {array.dtype} is not float32, float64, int32 or int64; convert it"
                " first"
            )
        if not array.flags.c_contiguous:
            raise InvalidNoise(
                f"the {name} block is not C-contiguous; pass numpy.ascontiguousarray(block)"
            )
    if x.shape != out.shape:
        raise InvalidNoise(
            f"output shape {out.shape} is not the input's {x.shape}; allocate it alike"
        )
    if np.may_share_memory(x, out):
        raise InvalidNoise("input and output share memory; noise is never added in place")
    return x.reshape(-1), out.reshape(-1)


def _output(out: Block, grid_limit: int, step: float) -> tuple[float, float]:
    """The limit and the step for an output dtype: integers keep grid units and saturate at their
    own range.
    """
    if out.dtype.kind == "f":
        return float(grid_limit), step
    return float(min(grid_limit, np.iinfo(out.dtype).max)), 1.0


def gaussian_integers(stream: TileStream, ratio: float, out: Floats, start: int = 0) -> None:
    """Fill ``out`` with elements ``start``, ... of the tile's exact round(N(0, ratio^2))."""
    if not out.flags.c_contiguous:
        raise InvalidNoise("the output of integers is not C-contiguous; pass a contiguous array")
    flat = out.reshape(-1)
    _drive(kernels.keep, stream, ratio, flat, flat, start, (0.0,))


def add_iid(x: Block, out: Block, *, stream: TileStream, grid: Grid, start: int = 0) -> None:
    """Clamp to the grid's bounds and add exact i.i.d. Gaussian noise."""
    xs, outs = _flat(x, out)
    limit, step = _output(out, grid.limit, grid.step)
    params = (1 / grid.step, float(grid.low), float(grid.high), limit, step)
    _drive(kernels.add_flat, stream, grid.ratio, xs, outs, start, params)


def add_iid_clipped(
    x: Block, out: Block, *, stream: TileStream, grid: Grid, factors: Floats, record_axis: int
) -> None:
    """Shrink each record by its factor (see :func:`dpdask.privatizers.grid.clip_factors`) and add
    exact i.i.d. noise.
    """
    xs, outs = _flat(x, out)
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
    limit, step = _output(out, grid.limit, grid.step)
    params = (1 / grid.step, np.ascontiguousarray(factors), inner, limit, step)
    _drive(kernels.add_clipped, stream, grid.ratio, xs, outs, 0, params)


def add_spherical(
    x: Block, out: Block, *, stream: TileStream, step: float, radius: float, low: float, high: float
) -> None:
    """Clamp to [low, high], add a vector of norm ``radius`` in a uniform direction of this tile,
    round to ``step``.

    The direction comes from exact Gaussian integers of ratio 2^24, stretched to the radius in
    floating point. Stretched integers form a lattice; rounding the sum hides it as long as a step
    holds at least 2^10 of its points, so noise of more than 2^14 steps per entry is refused. A step
    of entry_std / 2^6 leaves ample room.

    An 8-byte output serves as scratch for the integers; for a 4-byte one they are drawn twice.
    """
    xs, outs = _flat(x, out)
    limit, scale = _output(out, 2**51 - 1, step)
    bounds = (1 / step, float(low), float(high))
    roomy = out.dtype.itemsize == 8
    total = np.zeros(1)
    _drive(
        kernels.keep_and_norm if roomy else kernels.add_norm,
        stream,
        DIRECTION_RATIO,
        xs,
        outs,
        0,
        (total,),
    )
    stretch = _stretch(radius / step, float(total[0]), x.size)
    if roomy:
        kernels.finish_spherical(xs, outs, *bounds, stretch, limit, scale)
    else:
        _drive(
            kernels.add_stretched,
            stream,
            DIRECTION_RATIO,
            xs,
            outs,
            0,
            (*bounds, stretch, limit, scale),
        )


def _stretch(radius: float, squared_norm: float, entries: int) -> float:
    """Grid steps per unit of the direction's integers; a vector of zeros, once in 2^24 one-entry
    tiles, stays zero.
    """
    if not radius <= 2.0**14 * math.sqrt(entries):
        raise InvalidNoise(
            "the noise exceeds 2^14 grid steps per entry, which shows its lattice; use a coarser"
            " grid"
        )
    return radius / math.sqrt(max(squared_norm, 1.0))


def add_kronecker(
    x: Block,
    out: Block,
    *,
    stream: TileStream,
    factors: Sequence[Factor | Floats | float],
    ratio: float,
    low: Sequence[Floats | float],
    high: Sequence[Floats | float],
) -> None:
    """Clamp, whiten, put on the grid of step 1/ratio, add exact integers, un-whiten.

    ``factors`` holds one entry per axis: the diagonal of a diagonal factor restricted to the tile
    (an array or a number), or a dense or low-rank factor, whose axis the tile must span. ``low``
    and ``high`` bound the data, one entry per axis, an array along it or a number: an entry is
    clamped to the tightest. With only diagonal factors all of it is entry-wise.
    """
    xs, outs = _flat(x, out)
    if out.dtype.kind != "f":
        raise InvalidNoise(
            f"Kronecker noise has no common grid for {out.dtype} output; use float32 or float64"
        )
    ratio = check_ratio(ratio)
    coloured = [axis for axis, factor in enumerate(factors) if isinstance(factor, Factor)]
    for axis in coloured:
        if factors[axis].size != x.shape[axis]:  # type: ignore[union-attr]
            raise InvalidNoise(
                f"a dense or low-rank factor on axis {axis} mixes all of it, but the tile holds"
                f" {x.shape[axis]} of its entries;"
                " let tiles span that axis"
            )
    for axis, factor in enumerate(factors):
        if not isinstance(factor, Factor):
            _product([factor], [x.shape[axis]])
    if (
        len(coloured) > 1
    ):  # the modes mix everything with everything: one panel, a working copy of the tile
        _coloured_reach(factors, low, high, x.shape, ratio)
        out[...] = _noisy_panel(x, list(factors), list(low), list(high), stream, ratio, 0)
        return
    split = coloured[0] if coloured else len(x.shape) - 1
    outer, size, inner = rows_of(x.shape, split)
    row_scale, inner_scale = (
        _product(factors[:split], x.shape[:split]),
        _product(factors[split + 1 :], x.shape[split + 1 :]),
    )
    row_low, row_high = _tightest(low[:split], high[:split], x.shape[:split])
    if coloured:
        inner_low, inner_high = _tightest(low[split + 1 :], high[split + 1 :], x.shape[split + 1 :])
        reach = _coloured_reach(factors, low, high, x.shape, ratio)
        low_rank = isinstance(factors[split], LowRankFactor)
        # Sums of answer and noise are kept in the output while they are exact there, else in a
        # narrow panel of their own.
        in_place = reach < 2.0 ** (np.finfo(out.dtype).nmant + 1)
        width = min(inner, 4096 if low_rank and in_place else max(1, 131072 // size))
        blocks, outs = x.reshape(outer, size, inner), out.reshape(outer, size, inner)
        start = 0
        for o in range(outer):
            for j in range(0, inner, width):
                part = slice(j, min(j + width, inner))
                panel, result = blocks[o, :, part], outs[o, :, part]
                scale = row_scale[o] * inner_scale[part]
                lows = (_filled(low[split], size), np.maximum(row_low[o], inner_low[part]))
                highs = (_filled(high[split], size), np.minimum(row_high[o], inner_high[part]))
                if low_rank:
                    sums = result if in_place else np.empty(panel.shape)
                    _add_low_rank(
                        panel,
                        result,
                        sums,
                        factors[split],
                        scale,
                        lows,
                        highs,
                        stream,
                        ratio,
                        start,
                    )
                else:
                    result[...] = _noisy_panel(
                        panel,
                        [factors[split], scale],
                        list(lows),
                        list(highs),
                        stream,
                        ratio,
                        start,
                    )
                start += panel.size
        return
    column_scale = _product(factors[split:], x.shape[split:])
    column_low, column_high = _tightest(low[split:], high[split:], x.shape[split:])
    _check_reach(row_scale, column_scale, row_low, row_high, column_low, column_high, ratio)
    params = (
        ratio / row_scale,
        row_scale / ratio,
        row_low,
        row_high,
        1 / column_scale,
        column_scale,
        column_low,
        column_high,
        float(2**52),
    )
    _drive(kernels.add_scaled, stream, ratio, xs, outs, 0, params)


def _product(factors: Sequence[Factor | Floats | float], shape: Sequence[int]) -> Floats:
    """The outer product of diagonal factors, flattened in C order."""
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
    """Per-axis bounds combined entry by entry, flattened in C order."""
    bottom, top = np.full(1, -math.inf), np.full(1, math.inf)
    for lower, upper, size in zip(low, high, shape, strict=True):
        bottom = np.maximum.outer(
            bottom, np.broadcast_to(np.asarray(lower, dtype=np.float64), size)
        ).reshape(-1)
        top = np.minimum.outer(
            top, np.broadcast_to(np.asarray(upper, dtype=np.float64), size)
        ).reshape(-1)
    return bottom, top


def _check_reach(
    row_scale: Floats,
    column_scale: Floats,
    row_low: Floats,
    row_high: Floats,
    column_low: Floats,
    column_high: Floats,
    ratio: float,
) -> None:
    """Refuse bounds that could leave the range in which integers are exact."""
    rows = np.minimum(np.maximum(np.abs(row_low), np.abs(row_high)) / row_scale, math.inf)
    columns = np.maximum(np.abs(column_low), np.abs(column_high)) / column_scale
    reach = min(
        float(np.max(rows)) / float(np.min(column_scale)),
        float(np.max(columns)) / float(np.min(row_scale)),
    )
    if not (reach + 64) * ratio < 2**51:
        raise InvalidNoise(
            f"bounds of {reach * ratio:.3g} grid steps exceed 2^51 or are missing; give finite"
            " bounds, or use a smaller ratio"
        )


def _coloured_reach(
    factors: Sequence[Any],
    low: Sequence[Any],
    high: Sequence[Any],
    shape: Sequence[int],
    ratio: float,
) -> float:
    """A bound on answer plus noise in grid steps, for factors that mix entries: norms instead of
    entries.
    """
    bound = min(
        max(
            float(np.max(np.abs(np.asarray(lower, dtype=float)))),
            float(np.max(np.abs(np.asarray(upper, dtype=float)))),
        )
        for lower, upper in zip(low, high, strict=True)
    )
    reach = bound
    for factor, size in zip(factors, shape, strict=True):
        reach *= (
            math.sqrt(size) / factor.smallest
            if isinstance(factor, Factor)
            else 1 / float(np.min(factor))
        )
    if not (reach + 64) * ratio < 2**51:
        raise InvalidNoise(
            f"bounds of up to {reach * ratio:.3g} grid steps exceed 2^51 or are missing; give"
            " finite ones or a smaller ratio"
        )
    return (reach + 64) * ratio


def _filled(values: Floats | float, size: int) -> Floats:
    """A bound along an axis as a contiguous array."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=np.float64), size))


def _add_low_rank(
    x: Block,
    out: Block,
    sums: Block,
    factor: Any,
    scale: Floats,
    low: tuple[Floats, Floats],
    high: tuple[Floats, Floats],
    stream: TileStream,
    ratio: float,
    start: int,
) -> None:
    """A panel whose rows span a low-rank mode: three passes over blocks of rows, ``sums`` holding
    answer plus noise.
    """
    size, width = x.shape
    rows = min(size, max(1, 65536 // width))
    data, integers = np.empty((2, rows, width))
    seen = kernels.low_rank_project(x, data, low, high, 1 / scale, factor.directions)
    seen *= (1 / factor.scales - 1 / factor.base)[:, None]
    drawn = np.zeros_like(seen)
    for first in range(0, size, rows):
        k = integers[: min(rows, size - first)]
        gaussian_integers(stream, ratio, k, start + first * width)
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
            ratio,
            drawn,
        )
    drawn *= (factor.scales - factor.base)[:, None]
    kernels.low_rank_finish(sums, out, factor.directions, drawn, factor.base, scale / ratio)


def _along(values: Floats | float, axis: int, ndim: int) -> Floats:
    """An array along one axis, ready to broadcast."""
    array = np.asarray(values, dtype=np.float64)
    return array.reshape([-1 if i == axis else 1 for i in range(ndim)]) if array.ndim else array


def _noisy_panel(
    panel: Block,
    factors: list[Any],
    low: list[Any],
    high: list[Any],
    stream: TileStream,
    ratio: float,
    start: int,
) -> Floats:
    """One panel: clamp, whiten, round, add the integers from element ``start`` on, un-whiten."""
    with np.errstate(all="ignore"):  # no value may be told from another by a warning
        work = np.nan_to_num(panel.astype(np.float64), nan=0.0, posinf=math.inf, neginf=-math.inf)
    for axis, (lower, upper) in enumerate(zip(low, high, strict=True)):
        np.clip(work, _along(lower, axis, work.ndim), _along(upper, axis, work.ndim), out=work)
    for axis, factor in enumerate(factors):
        work = _transform(work, factor, axis, inverse=True)
    work *= ratio
    np.rint(work, out=work)
    integers = np.empty(work.shape)
    gaussian_integers(stream, ratio, integers, start)
    work += integers
    for axis, factor in enumerate(factors):
        work = _transform(work, factor, axis, inverse=False)
    work /= ratio
    return work


def _transform(
    work: Floats, factor: Factor | Floats | float, axis: int, *, inverse: bool
) -> Floats:
    """U or its inverse along one axis; products in a fixed order, the same bits everywhere."""
    if isinstance(factor, LowRankFactor | DenseFactor):
        lifted = np.moveaxis(work, axis, 0)
        flat = np.ascontiguousarray(lifted).reshape(factor.size, -1)
        if isinstance(factor, DenseFactor):
            mixed = kernels.fixed_product(factor.inverse() if inverse else factor.matrix, flat)
        else:  # only where several modes are coloured
            base = 1 / factor.base if inverse else factor.base
            scales = 1 / factor.scales if inverse else factor.scales
            seen = kernels.fixed_product(np.ascontiguousarray(factor.directions.T), flat)
            seen *= (scales - base)[:, None]
            mixed = kernels.fixed_product(factor.directions, seen)
            mixed += base * flat
        return np.ascontiguousarray(np.moveaxis(mixed.reshape(lifted.shape), 0, axis))
    scale = _along(factor.diagonal() if isinstance(factor, Factor) else factor, axis, work.ndim)  # type: ignore[arg-type]
    return np.asarray(work / scale if inverse else work * scale)

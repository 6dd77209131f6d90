"""Compiled loops: draw a block of exact integers, combine it with the data while both are in the cache.

Every combination ends alike: integer answer + integer noise, cut to the grid's limit, times the step, cast to the output.
For integer outputs the step is 1: the grid integers themselves. None of these functions uses fused or reordered arithmetic,
so every machine writes the same bytes.
"""

# Compiled code is typed by its arguments at run time, which is why these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment"

from __future__ import annotations

import math

import numba
import numpy as np

from dpdask.noise.integers import BLOCK, fill_block

__all__ = ["add_clipped", "add_flat", "add_scaled", "finish_spherical", "keep", "low_rank_panel", "over_blocks", "sum_squares"]

_MAGIC = 6755399441055744.0
_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def keep(z, at, low, high, x, out, start, params):
    """Store the integers themselves."""
    for e in range(low, high):
        out[e - start] = z[e - at]


@_compiled
def add_flat(z, at, low, high, x, out, start, params):
    """i.i.d. noise on one grid: round, clamp, add, scale."""
    inverse, floor, ceiling, limit, step = params
    xs = x[low - start : high - start]
    outs = out[low - start : high - start]
    zs = z[low - at : high - at]
    for j in range(high - low):
        v = np.float64(xs[j])
        v = v if v == v else 0.0
        q = (v * inverse + _MAGIC) - _MAGIC
        q = min(max(q, floor), ceiling)
        outs[j] = min(max(q + zs[j], -limit), limit) * step


@_compiled
def add_clipped(z, at, low, high, x, out, start, params):
    """i.i.d. noise on records shrunk by their factor: rows of ``inner`` entries share a record when inner > 1."""
    inverse, factors, inner, limit, step = params
    e = low
    while e < high:
        row = e // inner
        stop = min(high, (row + 1) * inner)
        factor = factors[row % factors.size]
        xs = x[e - start : stop - start]
        outs = out[e - start : stop - start]
        zs = z[e - at : stop - at]
        for j in range(stop - e):
            v = np.float64(xs[j])
            v = v if v == v else 0.0
            q = (v * inverse + _MAGIC) - _MAGIC
            q = min(max(q, -2147483647.0), 2147483647.0)
            q = math.trunc(q * factor) * 1.0
            outs[j] = min(max(q + zs[j], -limit), limit) * step
        e = stop


@_compiled
def add_scaled(z, at, low, high, x, out, start, params):
    """Diagonal Kronecker noise: entry (i, j) lives on its own grid, row_step[i] * column_step[j]."""
    row_inverse, row_step, row_low, row_high, column_inverse, column_step, column_low, column_high, limit = params
    columns = column_step.size
    e = low
    while e < high:
        row = e // columns
        stop = min(high, (row + 1) * columns)
        first = e - row * columns
        inverse = row_inverse[row]
        step = row_step[row]
        floor = row_low[row]
        ceiling = row_high[row]
        xs = x[e - start : stop - start]
        outs = out[e - start : stop - start]
        zs = z[e - at : stop - at]
        cis = column_inverse[first : first + stop - e]
        css = column_step[first : first + stop - e]
        cls = column_low[first : first + stop - e]
        chs = column_high[first : first + stop - e]
        for j in range(stop - e):
            v = np.float64(xs[j])
            v = v if v == v else 0.0
            v = min(max(v, max(floor, cls[j])), min(ceiling, chs[j]))
            q = (v * (inverse * cis[j]) + _MAGIC) - _MAGIC
            outs[j] = min(max(q + zs[j], -limit), limit) * (step * css[j])
        e = stop


def over_blocks(combine):
    """The loop over the blocks of a chunk of words, with ``combine`` built in.

    Blocks with a doubtful pair are combined all the same and reported in ``flagged``: the caller settles and
    combines them again.
    """

    # Not cached on disk: numba would not notice a change of fill_block, which lives in another file.
    @numba.njit(nogil=True, error_model="numpy")
    def run(words, x, out, first, start, stop, ratio, outer, flagged, params):
        z = np.empty(BLOCK)
        found = 0
        for b in range(words.size // BLOCK):
            at = first + b * BLOCK
            if fill_block(words[b * BLOCK : (b + 1) * BLOCK], z, ratio, outer) > 0:
                flagged[found] = b
                found += 1
            combine(z, at, max(at, start), min(at + BLOCK, stop), x, out, start, params)
        return found

    return run


@_compiled
def sum_squares(k):
    """The squared norm of an array."""
    total = 0.0
    for first in range(0, k.size, BLOCK):
        part = 0.0
        for v in k[first : first + BLOCK]:
            part += np.float64(v) * np.float64(v)
        total += part
    return total


@_compiled
def finish_spherical(x, out, inverse, floor, ceiling, stretch, limit, step):
    """Replace the integers in ``out`` by data + stretch * integers, both rounded to the grid."""
    for j in range(x.size):
        v = np.float64(x[j])
        v = v if v == v else 0.0
        q = (v * inverse + _MAGIC) - _MAGIC
        q = min(max(q, floor), ceiling)
        n = (np.float64(out[j]) * stretch + _MAGIC) - _MAGIC
        out[j] = min(max(q + n, -limit), limit) * step


@_compiled
def low_rank_panel(x, out, k, data, low, high, column_scale, directions, base, scales, ratio):
    """Clamp, whiten, round, add, un-whiten a panel under base (I - VV') + V diag(scales) V', rows spanning the mode.

    ``k`` holds the panel's integers and is overwritten, ``data`` is scratch of its shape; products go by blocks of rows
    that stay in the cache. ``low`` and ``high`` bound rows and columns of the panel.
    """
    size, width = k.shape
    rows = 256
    column_inverse = 1 / column_scale
    column_step = column_scale / ratio
    row_low, column_low = low
    row_high, column_high = high
    mixed = np.empty((rows, width))
    seen = np.zeros((scales.size, width))
    for first in range(0, size, rows):
        stop = min(first + rows, size)
        for i in range(first, stop):
            floor = row_low[i]
            ceiling = row_high[i]
            for j in range(width):
                v = np.float64(x[i, j])
                v = v if v == v else 0.0
                data[i, j] = min(max(v, max(floor, column_low[j])), min(ceiling, column_high[j])) * column_inverse[j]
        seen += np.dot(directions[first:stop].T, data[first:stop])
    for r in range(scales.size):
        seen[r] *= 1 / scales[r] - 1 / base
    drawn = np.zeros((scales.size, width))
    inverse = 1 / base
    for first in range(0, size, rows):
        stop = min(first + rows, size)
        np.dot(directions[first:stop], seen, mixed[: stop - first])
        for i in range(first, stop):
            for j in range(width):
                k[i, j] += ((data[i, j] * inverse + mixed[i - first, j]) * ratio + _MAGIC) - _MAGIC
        drawn += np.dot(directions[first:stop].T, k[first:stop])
    for r in range(scales.size):
        drawn[r] *= scales[r] - base
    for first in range(0, size, rows):
        stop = min(first + rows, size)
        np.dot(directions[first:stop], drawn, mixed[: stop - first])
        for i in range(first, stop):
            for j in range(width):
                out[i, j] = (base * k[i, j] + mixed[i - first, j]) * column_step[j]

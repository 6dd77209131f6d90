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

__all__ = [
    "add_clipped",
    "add_flat",
    "add_norm",
    "add_scaled",
    "add_stretched",
    "finish_spherical",
    "keep",
    "low_rank_draw",
    "low_rank_finish",
    "low_rank_project",
    "over_blocks",
    "sum_squares",
]

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

    Blocks with a doubtful pair are left out and reported in ``flagged``: the caller settles and combines them.
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
                continue
            combine(z, at, max(at, start), min(at + BLOCK, stop), x, out, start, params)
        return found

    return run


@_compiled
def add_norm(z, at, low, high, x, out, start, params):
    """Add the squares of the integers to a running total."""
    part = 0.0
    for e in range(low, high):
        part += z[e - at] * z[e - at]
    params[0][0] += part


@_compiled
def sum_squares(k):
    """The squared norm of an array, in the order in which :func:`add_norm` adds it."""
    total = 0.0
    for first in range(0, k.size, BLOCK):
        part = 0.0
        for v in k[first : first + BLOCK]:
            part += np.float64(v) * np.float64(v)
        total += part
    return total


@_compiled
def add_stretched(z, at, low, high, x, out, start, params):
    """Data plus stretched integers, both rounded to the grid."""
    inverse, floor, ceiling, stretch, limit, step = params
    xs = x[low - start : high - start]
    outs = out[low - start : high - start]
    zs = z[low - at : high - at]
    for j in range(high - low):
        v = np.float64(xs[j])
        v = v if v == v else 0.0
        q = (v * inverse + _MAGIC) - _MAGIC
        q = min(max(q, floor), ceiling)
        n = (zs[j] * stretch + _MAGIC) - _MAGIC
        outs[j] = min(max(q + n, -limit), limit) * step


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
def _project(rows, data, count, total):
    """total += rows' data, in a fixed order, so that every machine and thread count gives the same bits."""
    for i in range(count):
        for r in range(total.shape[0]):
            weight = rows[i, r]
            for j in range(total.shape[1]):
                total[r, j] += weight * data[i, j]


@_compiled
def _lift(rows, seen, i, line):
    """line = rows[i] seen, in a fixed order."""
    for j in range(line.size):
        line[j] = rows[i, 0] * seen[0, j]
    for r in range(1, seen.shape[0]):
        weight = rows[i, r]
        for j in range(line.size):
            line[j] += weight * seen[r, j]


@_compiled
def _clamped(x, i, data, row_low, row_high, column_low, column_high, column_inverse):
    """Row i of the data by the value rule, clamped and divided by the columns' scales."""
    floor = row_low[i]
    ceiling = row_high[i]
    for j in range(column_low.size):
        v = np.float64(x[i, j])
        v = v if v == v else 0.0
        data[j] = min(max(v, max(floor, column_low[j])), min(ceiling, column_high[j])) * column_inverse[j]


@_compiled
def low_rank_project(x, data, low, high, column_inverse, directions):
    """V' times the clamped, scaled panel, by blocks of rows that stay in the cache; ``data`` is scratch of one block."""
    seen = np.zeros((directions.shape[1], x.shape[1]))
    for first in range(0, x.shape[0], data.shape[0]):
        count = min(data.shape[0], x.shape[0] - first)
        for i in range(count):
            _clamped(x, first + i, data[i], low[0], high[0], low[1], high[1], column_inverse)
        _project(directions[first : first + count], data, count, seen)
    return seen


@_compiled
def low_rank_draw(x, first, k, t, low, high, column_inverse, directions, seen, inverse, ratio, drawn):
    """Whiten and round the rows from ``first`` on, add their integers ``k``; sums go to ``t``, V' times them to ``drawn``."""
    count = k.shape[0]
    rows = directions[first : first + count]
    line = np.empty(k.shape[1])
    data = np.empty(k.shape[1])
    for i in range(count):
        _clamped(x, first + i, data, low[0], high[0], low[1], high[1], column_inverse)
        _lift(rows, seen, i, line)
        for j in range(k.shape[1]):
            k[i, j] += ((data[j] * inverse + line[j]) * ratio + _MAGIC) - _MAGIC
            t[first + i, j] = k[i, j]
    _project(rows, k, count, drawn)


@_compiled
def low_rank_finish(t, out, directions, drawn, base, column_step):
    """Un-whiten: base * t + V drawn, scaled to the data's units; ``t`` may be ``out`` itself."""
    line = np.empty(t.shape[1])
    for i in range(t.shape[0]):
        _lift(directions, drawn, i, line)
        for j in range(t.shape[1]):
            out[i, j] = (base * t[i, j] + line[j]) * column_step[j]

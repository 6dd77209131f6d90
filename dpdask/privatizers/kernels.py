"""Compiled loops: draw a block of exact integers, combine it with data that is in the cache.

Every combination ends alike: integer answer + integer noise, clamped to the grid's limit, times the
step, cast to the output. For integer outputs the step is 1: the grid integers themselves. The order
of operations is fixed, and a multiply-add is fused only where it is written so, so every machine
writes the same bytes.
"""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,assignment,call-arg"

from __future__ import annotations

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from dpdask.machine.compiling import compiled
from dpdask.noise.rounding import FOLD
from dpdask.privatizers.exact_gaussian import ROUNDER
from dpdask.privatizers.grid import ENTRY_LIMIT

__all__ = [
    "add_clipped",
    "add_flat",
    "add_scaled",
    "finish_spherical",
    "fixed_product",
    "keep",
    "keep_and_norm",
    "low_rank_draw",
    "low_rank_finish",
    "low_rank_project",
]

_ENTRY_LIMIT = float(ENTRY_LIMIT)
_TOGETHER = 1024  # integers that are read before their memory is written over
_compiled = compiled()


@_compiled
def _value(v):
    """The value rule's first step: NaN counts as 0."""
    number = np.float64(v)
    return number if number == number else 0.0


@_compiled
def _steps(v, inverse):
    """A value in grid steps, rounded to the nearest."""
    return (_value(v) * inverse + ROUNDER) - ROUNDER


@_compiled
def keep(z, at, low, high, x, out, start, params):
    """Store the integers themselves."""
    outs = out[low - start : high - start]
    zs = z[low - at : high - at]
    for j in range(high - low):
        outs[j] = zs[j]


@_compiled
def add_flat(z, at, low, high, x, out, start, params):
    """i.i.d. noise on one grid: round, clamp, add, scale."""
    inverse, floor, ceiling, limit, step = params
    xs = x[low - start : high - start]
    outs = out[low - start : high - start]
    zs = z[low - at : high - at]
    for j in range(high - low):
        q = _steps(xs[j], inverse)
        q = min(max(q, floor), ceiling)
        outs[j] = min(max(q + zs[j], -limit), limit) * step


@_compiled
def add_clipped(z, at, low, high, x, out, start, params):
    """i.i.d. noise on records shrunk by their factor: rows of ``inner`` entries share a record when
    inner > 1.
    """
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
            q = _steps(xs[j], inverse)
            q = min(max(q, -_ENTRY_LIMIT), _ENTRY_LIMIT)
            q = np.trunc(q * factor)
            outs[j] = min(max(q + zs[j], -limit), limit) * step
        e = stop


@_compiled
def add_scaled(z, at, low, high, x, out, start, params):
    """Diagonal Kronecker noise: entry (i, j) has its own grid, row_step[i] * column_step[j]."""
    (
        row_inverse,
        row_step,
        row_low,
        row_high,
        column_inverse,
        column_step,
        column_low,
        column_high,
        limit,
    ) = params
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
            v = _value(xs[j])
            v = min(max(v, max(floor, cls[j])), min(ceiling, chs[j]))
            q = (v * (inverse * cis[j]) + ROUNDER) - ROUNDER
            outs[j] = min(max(q + zs[j], -limit), limit) * (step * css[j])
        e = stop


@_compiled
def _sum_squares(z):
    """The squared norm of a short array: eight running sums in a fixed order."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = z.size - z.size % 8
    for e in range(0, whole, 8):
        s0 += z[e] * z[e]
        s1 += z[e + 1] * z[e + 1]
        s2 += z[e + 2] * z[e + 2]
        s3 += z[e + 3] * z[e + 3]
        s4 += z[e + 4] * z[e + 4]
        s5 += z[e + 5] * z[e + 5]
        s6 += z[e + 6] * z[e + 6]
        s7 += z[e + 7] * z[e + 7]
    total = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7
    for e in range(whole, z.size):
        total += z[e] * z[e]
    return total


@_compiled
def keep_and_norm(z, at, low, high, x, out, start, params):
    """Store the integers and add their squares to a running total."""
    keep(z, at, low, high, x, out, start, params)
    params[0][0] += _sum_squares(z[low - at : high - at])


@_compiled
def finish_spherical(x, kept, out, inverse, floor, ceiling, stretch, limit, step):
    """Write clamped data + stretch * integers, rounded to the grid, over the integers ``kept``,
    which lie in the memory of ``out``.
    """
    some = np.empty(_TOGETHER)
    for first in range(0, x.size, _TOGETHER):
        xs = x[first : first + _TOGETHER]
        integers = kept[first : first + _TOGETHER]
        outs = out[first : first + _TOGETHER]
        for j in range(xs.size):
            some[j] = np.float64(integers[j])
        for j in range(xs.size):
            v = min(max(_value(xs[j]), floor), ceiling) * inverse + some[j] * stretch
            outs[j] = ((min(max(v, -limit), limit) + ROUNDER) - ROUNDER) * step


@intrinsic
def _fma(_context, a, b, c):
    """a * b + c with one rounding on every machine: the same bits with vector units or not."""

    def generate(_ctx, builder, _signature, args):
        return builder.fma(*args)

    return types.float64(a, b, c), generate


@_compiled
def _project(rows, data, count, total):
    """total += rows' data in a fixed order, row after row, so that every machine gives the same
    bits; four rows and two directions at a time stay in registers.
    """
    whole, rank = count - count % 4, total.shape[0]
    for i in range(0, whole, 4):
        d0, d1, d2, d3 = data[i], data[i + 1], data[i + 2], data[i + 3]
        for r in range(0, rank - 1, 2):
            a0, a1, a2, a3 = rows[i, r], rows[i + 1, r], rows[i + 2, r], rows[i + 3, r]
            s = r + 1
            b0, b1, b2, b3 = rows[i, s], rows[i + 1, s], rows[i + 2, s], rows[i + 3, s]
            one, two = total[r], total[s]
            for j in range(one.size):
                e0, e1, e2, e3 = d0[j], d1[j], d2[j], d3[j]
                one[j] = _fma(a3, e3, _fma(a2, e2, _fma(a1, e1, _fma(a0, e0, one[j]))))
                two[j] = _fma(b3, e3, _fma(b2, e2, _fma(b1, e1, _fma(b0, e0, two[j]))))
        for r in range(rank - rank % 2, rank):
            w0, w1, w2, w3 = rows[i, r], rows[i + 1, r], rows[i + 2, r], rows[i + 3, r]
            line = total[r]
            for j in range(line.size):
                line[j] = _fma(
                    w3, d3[j], _fma(w2, d2[j], _fma(w1, d1[j], _fma(w0, d0[j], line[j])))
                )
    for i in range(whole, count):
        for r in range(rank):
            weight = rows[i, r]
            for j in range(total.shape[1]):
                total[r, j] = _fma(weight, data[i, j], total[r, j])


@_compiled
def _lift(rows, seen, first, count, lines):
    """lines += rows seen in a fixed order, direction after direction: ``count`` rows from ``first``
    on, four directions and two rows at a time.
    """
    rank = seen.shape[0]
    whole = rank - rank % 4
    for k in range(0, count - 1, 2):
        i = first + k
        one, two = lines[k], lines[k + 1]
        for r in range(0, whole, 4):
            a0, a1, a2, a3 = rows[i, r], rows[i, r + 1], rows[i, r + 2], rows[i, r + 3]
            b0, b1, b2, b3 = (
                rows[i + 1, r],
                rows[i + 1, r + 1],
                rows[i + 1, r + 2],
                rows[i + 1, r + 3],
            )
            s0, s1, s2, s3 = seen[r], seen[r + 1], seen[r + 2], seen[r + 3]
            for j in range(one.size):
                e0, e1, e2, e3 = s0[j], s1[j], s2[j], s3[j]
                one[j] = _fma(a3, e3, _fma(a2, e2, _fma(a1, e1, _fma(a0, e0, one[j]))))
                two[j] = _fma(b3, e3, _fma(b2, e2, _fma(b1, e1, _fma(b0, e0, two[j]))))
        for r in range(whole, rank):
            a0, b0 = rows[i, r], rows[i + 1, r]
            s0 = seen[r]
            for j in range(one.size):
                one[j] = _fma(a0, s0[j], one[j])
                two[j] = _fma(b0, s0[j], two[j])
    for k in range(count - count % 2, count):
        line = lines[k]
        for r in range(rank):
            weight = rows[first + k, r]
            for j in range(line.size):
                line[j] = _fma(weight, seen[r, j], line[j])


@_compiled
def _fold(part, high, low):
    """Add ``part`` to the running sum high + low, the rounding error of every addition kept in
    ``low``; clear it.
    """
    for r in range(part.shape[0]):
        for j in range(part.shape[1]):
            a = high[r, j]
            b = part[r, j]
            s = a + b
            t = s - a
            low[r, j] += (a - (s - t)) + (b - t)
            high[r, j] = s
            part[r, j] = 0.0


@_compiled
def _project_folded(rows, data, count, part, since, high, low):
    """Like _project, onto high + low, in chains of FOLD terms; ``part`` holds ``since`` of them;
    returns how many then.
    """
    i = 0
    while i < count:
        some = min(count - i, FOLD - since)
        _project(rows[i : i + some], data[i : i + some], some, part)
        since += some
        i += some
        if since == FOLD:
            _fold(part, high, low)
            since = 0
    return since


@_compiled
def fixed_product(matrix, data):
    """matrix @ data in a fixed order of fused multiply-adds, as exact as if no sum had more than
    FOLD + 2 terms.
    """
    shape = (matrix.shape[0], data.shape[1])
    part, high, low = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    columns = matrix.T.copy()
    _project_folded(columns, data, matrix.shape[1], part, 0, high, low)
    _fold(part, high, low)
    return high + low


@_compiled
def _clamped(x, i, data, row_low, row_high, column_low, column_high, column_inverse):
    """Row i of the data by the value rule, clamped and divided by the columns' scales."""
    floor = row_low[i]
    ceiling = row_high[i]
    xs = x[i]
    for j in range(column_low.size):
        v = _value(xs[j])
        data[j] = (
            min(max(v, max(floor, column_low[j])), min(ceiling, column_high[j])) * column_inverse[j]
        )


@_compiled
def low_rank_project(x, data, floor, ceiling, column_inverse, directions):
    """V' times the clamped, scaled panel, by blocks of rows that stay in the cache; ``data`` is
    scratch of one block.
    """
    shape = (directions.shape[1], x.shape[1])
    part, high, low = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    since = 0
    for first in range(0, x.shape[0], data.shape[0]):
        count = min(data.shape[0], x.shape[0] - first)
        for i in range(count):
            _clamped(
                x, first + i, data[i], floor[0], ceiling[0], floor[1], ceiling[1], column_inverse
            )
        since = _project_folded(
            directions[first : first + count], data, count, part, since, high, low
        )
    _fold(part, high, low)
    return high + low


@_compiled
def low_rank_draw(
    x, first, k, t, low, high, column_inverse, directions, seen, inverse, steps_per_sigma, drawn
):
    """Whiten and round the rows from ``first`` on, add their integers ``k``; sums go to ``t``, V'
    times them to ``drawn``.
    """
    count = k.shape[0]
    rows = directions[first : first + count]
    lines = np.empty((2, k.shape[1]))
    for i in range(0, count, 2):
        some = min(2, count - i)
        for own in range(some):
            line = lines[own]
            _clamped(x, first + i + own, line, low[0], high[0], low[1], high[1], column_inverse)
            for j in range(line.size):
                line[j] *= inverse
        _lift(rows, seen, i, some, lines)
        for own in range(some):
            line, integers, sums = lines[own], k[i + own], t[first + i + own]
            for j in range(line.size):
                integers[j] += (line[j] * steps_per_sigma + ROUNDER) - ROUNDER
                sums[j] = integers[j]
    _project(rows, k, count, drawn)


@_compiled
def low_rank_finish(t, out, directions, drawn, base, column_step):
    """Un-whiten: base * t + V drawn, scaled to the data's units; ``t`` may be ``out`` itself."""
    lines = np.empty((2, t.shape[1]))
    for i in range(0, t.shape[0], 2):
        some = min(2, t.shape[0] - i)
        for own in range(some):
            line, sums = lines[own], t[i + own]
            for j in range(line.size):
                line[j] = base * sums[j]
        _lift(directions, drawn, i, some, lines)
        for own in range(some):
            line, outs = lines[own], out[i + own]
            for j in range(line.size):
                outs[j] = line[j] * column_step[j]

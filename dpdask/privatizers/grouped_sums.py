"""Compiled sums of records by group: integers of a grid, and how many entries are present."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import numba
import numpy as np

from dpdask.privatizers.clipping import ENTRY_LIMIT, rows_of
from dpdask.privatizers.exact_gaussian import ROUNDER
from dpdask.types import Array, Floats, Integers

__all__ = ["add_clamped_records", "add_clipped_records"]

_LIMIT = float(ENTRY_LIMIT)

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def _add_clamped(x, codes, center, fill, low, high, inverse, totals, counts):
    """Clamp distances from the centre, round them to the grid, add up by group."""
    for o in range(x.shape[0]):
        for r in range(x.shape[1]):
            group = codes[r]
            if group < 0:
                continue
            first = o * x.shape[2]
            xs = x[o, r]
            sums = totals[group, first : first + x.shape[2]]
            present = counts[group, first : first + x.shape[2]]
            for i in range(xs.size):
                e = first + i
                v = np.float64(xs[i])
                there = v == v
                q = (v - center[e] if there else fill[e]) * inverse
                q = min(max(q, low[e]), high[e])
                sums[i] += np.int64((q + ROUNDER) - ROUNDER)
                present[i] += np.int64(there)


@_compiled
def _add_clipped(x, codes, center, factors, inverse, totals, counts):
    """Round distances from the centre to the grid, shrink them towards 0, add up by group."""
    for o in range(x.shape[0]):
        for r in range(x.shape[1]):
            group = codes[r]
            if group < 0:
                continue
            first = o * x.shape[2]
            factor = factors[r]
            xs = x[o, r]
            sums = totals[group, first : first + x.shape[2]]
            present = counts[group, first : first + x.shape[2]]
            for i in range(xs.size):
                v = np.float64(xs[i])
                there = v == v
                q = (v - center[first + i] if there else 0.0) * inverse
                q = min(max(q, -_LIMIT), _LIMIT)
                sums[i] += np.int64(((q + ROUNDER) - ROUNDER) * factor)  # rounds towards 0
                present[i] += np.int64(there)


def add_clamped_records(
    block: Array,
    codes: Integers,
    *,
    record_axis: int,
    groups: int,
    center: Floats,
    fill: Floats,
    low: Floats,
    high: Floats,
    step: float,
) -> tuple[Integers, Integers]:
    """Return by group the sums of clamped records, in steps, and the numbers of present entries.

    No value can make it raise.

    Args:
        block: Some entries of some records.
        codes: The group of every record, -1 for none.
        record_axis: The axis along which records lie.
        groups: How many groups there are.
        center: What is subtracted from every entry of a record, in C order.
        fill: What a missing entry (NaN) counts as, after that.
        low: The least distance from the centre, in steps.
        high: The largest one.
        step: The step of the grid.
    """
    rows, totals, counts = _rows_and_sums(block, record_axis, groups)
    _add_clamped(rows, codes, center, fill, low, high, 1 / step, totals, counts)
    return totals, counts


def add_clipped_records(
    block: Array,
    codes: Integers,
    *,
    record_axis: int,
    groups: int,
    center: Floats,
    factors: Floats,
    step: float,
) -> tuple[Integers, Integers]:
    """Return by group the sums of clipped records, in steps, and the numbers of present entries.

    A missing entry (NaN) lies at the centre. No value can make it raise.

    Args:
        block: Some entries of some records.
        codes: The group of every record, -1 for none.
        record_axis: The axis along which records lie.
        groups: How many groups there are.
        center: What is subtracted from every entry of a record, in C order.
        factors: What every record is multiplied by then.
        step: The step of the grid.
    """
    rows, totals, counts = _rows_and_sums(block, record_axis, groups)
    _add_clipped(rows, codes, center, factors, 1 / step, totals, counts)
    return totals, counts


def _rows_and_sums(block: Array, record_axis: int, groups: int) -> tuple[Array, Integers, Integers]:
    """Return records along the middle axis, and sums and counts of zero."""
    outer, records, inner = rows_of(block.shape, record_axis)
    totals, counts = np.zeros((2, groups, outer * inner), np.int64)
    return np.ascontiguousarray(block).reshape(outer, records, inner), totals, counts

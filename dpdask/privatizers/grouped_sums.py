"""Compiled sums of records by group: integers of a grid, and how many entries are present."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import numba
import numpy as np

from dpdask.privatizers.clipping import rows_of
from dpdask.privatizers.exact_gaussian import ROUNDER
from dpdask.types import Array, Floats, Integers

__all__ = ["add_clamped_records", "add_whole_records"]

_compiled = numba.njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def _add_clamped(x, codes, center, low, high, inverse, totals, counts):
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
                q = ((v if there else center[e]) - center[e]) * inverse
                q = min(max(q, low[e]), high[e])
                sums[i] += np.int64((q + ROUNDER) - ROUNDER)
                present[i] += np.int64(there)


@_compiled
def _add_steps(steps, x, codes, totals, counts):
    """Add whole numbers of steps up by group; ``x`` says which entries are present."""
    for o in range(x.shape[0]):
        for r in range(x.shape[1]):
            group = codes[r]
            if group < 0:
                continue
            first = o * x.shape[2]
            for i in range(x.shape[2]):
                v = np.float64(x[o, r, i])
                totals[group, first + i] += np.int64(steps[o, r, i])
                counts[group, first + i] += np.int64(v == v)


def add_clamped_records(
    block: Array,
    codes: Integers,
    *,
    record_axis: int,
    groups: int,
    center: Floats,
    low: Floats,
    high: Floats,
    step: float,
) -> tuple[Integers, Integers]:
    """Return by group the sums of clamped records, in steps, and the numbers of present entries.

    A missing entry (NaN) adds nothing to either. No value can make it raise.

    Args:
        block: Some entries of some records.
        codes: The group of every record, -1 for none.
        record_axis: The axis along which records lie.
        groups: How many groups there are.
        center: The centre of every entry of a record, in C order.
        low: The least distance from it, in steps.
        high: The largest one.
        step: The step of the grid.
    """
    outer, records, inner = rows_of(block.shape, record_axis)
    totals = np.zeros((groups, outer * inner), np.int64)
    counts = np.zeros((groups, outer * inner), np.int64)
    rows = np.ascontiguousarray(block).reshape(outer, records, inner)
    _add_clamped(rows, codes, center, low, high, 1 / step, totals, counts)
    return totals, counts


def add_whole_records(
    steps: Floats, block: Array, codes: Integers, *, record_axis: int, groups: int
) -> tuple[Integers, Integers]:
    """Return by group the sums of records in steps, and the numbers of present entries.

    Args:
        steps: Bounded records as whole numbers of steps, missing entries as 0.
        block: The same records as they were read.
        codes: The group of every record, -1 for none.
        record_axis: The axis along which records lie.
        groups: How many groups there are.
    """
    outer, records, inner = rows_of(block.shape, record_axis)
    totals = np.zeros((groups, outer * inner), np.int64)
    counts = np.zeros((groups, outer * inner), np.int64)
    shape = (outer, records, inner)
    rows = np.ascontiguousarray(block).reshape(shape)
    _add_steps(np.ascontiguousarray(steps).reshape(shape), rows, codes, totals, counts)
    return totals, counts

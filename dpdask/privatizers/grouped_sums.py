"""Compiled sums of records by group: integers of a grid, and how many entries are present."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import numpy as np

from dpdask.machine.compiling import compiled
from dpdask.privatizers.exact_gaussian import ROUNDER
from dpdask.privatizers.grid import ENTRY_LIMIT

__all__ = ["add_clamped", "add_clipped"]

_LIMIT = float(ENTRY_LIMIT)

_compiled = compiled()


@_compiled
def add_clamped(x, codes, center, fill, low, high, inverse, totals, counts):
    """Clamp distances from the centre, round them to the grid, add them up by group.

    ``x`` holds records along its middle axis, ``codes`` the group of each, -1 for none. Along the
    entries of a record lie ``center``, what is subtracted; ``fill``, what a missing entry (NaN)
    counts as after that; ``low`` and ``high``, the bounds in steps; and by group ``totals``, the
    sums in steps, and ``counts``, the numbers of present entries, or None. No value can make it
    raise.
    """
    for o in range(x.shape[0]):
        for r in range(x.shape[1]):
            group = codes[r]
            if group < 0:
                continue
            first = o * x.shape[2]
            xs = x[o, r]
            sums = totals[group, first : first + x.shape[2]]
            for i in range(xs.size):
                e = first + i
                v = np.float64(xs[i])
                there = v == v
                q = (v - center[e] if there else fill[e]) * inverse
                q = min(max(q, low[e]), high[e])
                sums[i] += np.int64((q + ROUNDER) - ROUNDER)
                if counts is not None:
                    counts[group, first + i] += np.int64(there)


@_compiled
def add_clipped(x, codes, center, factors, inverse, totals, counts):
    """Round distances from the centre to the grid, shrink them towards 0, add them up by group.

    As :func:`add_clamped`; ``factors`` shrink records, and a missing entry lies at the centre.
    """
    for o in range(x.shape[0]):
        for r in range(x.shape[1]):
            group = codes[r]
            if group < 0:
                continue
            first = o * x.shape[2]
            factor = factors[r]
            xs = x[o, r]
            sums = totals[group, first : first + x.shape[2]]
            for i in range(xs.size):
                v = np.float64(xs[i])
                there = v == v
                q = (v - center[first + i] if there else 0.0) * inverse
                q = min(max(q, -_LIMIT), _LIMIT)
                sums[i] += np.int64(((q + ROUNDER) - ROUNDER) * factor)  # rounds towards 0
                if counts is not None:
                    counts[group, first + i] += np.int64(there)

"""Compiled integers of records: bounded entries as whole numbers of steps, and their products."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import numpy as np

from dpdask.machine.compiling import compiled
from dpdask.privatizers.exact_gaussian import ROUNDER
from dpdask.privatizers.grid import ENTRY_LIMIT

__all__ = ["add_words", "clamp", "clip"]

_LIMIT = float(ENTRY_LIMIT)

_compiled = compiled()


@_compiled
def clamp(x, center, fill, low, high, inverse, out):
    """Write distances from the centre, clamped and rounded to the grid, to ``out``.

    ``x`` holds records along its middle axis. Along the entries of a record lie ``center``, what is
    subtracted; ``fill``, what a missing entry (NaN) counts as after that; ``low`` and ``high``, the
    bounds in steps. No value can make it raise.
    """
    for o in range(x.shape[0]):
        first = o * x.shape[2]
        for r in range(x.shape[1]):
            xs, to = x[o, r], out[o, r]
            for i in range(xs.size):
                e = first + i
                v = np.float64(xs[i])
                q = (v - center[e] if v == v else fill[e]) * inverse
                q = min(max(q, low[e]), high[e])
                to[i] = (q + ROUNDER) - ROUNDER


@_compiled
def clip(x, center, factors, inverse, out):
    """Write distances from the centre, rounded to the grid and shrunk towards 0, to ``out``.

    As :func:`clamp`; ``factors`` shrink records, and a missing entry lies at the centre.
    """
    for o in range(x.shape[0]):
        first = o * x.shape[2]
        for r in range(x.shape[1]):
            xs, to, factor = x[o, r], out[o, r], factors[r]
            for i in range(xs.size):
                v = np.float64(xs[i])
                q = (v - center[first + i] if v == v else 0.0) * inverse
                q = min(max(q, -_LIMIT), _LIMIT)
                to[i] = np.float64(np.int64(((q + ROUNDER) - ROUNDER) * factor))  # towards 0


@_compiled
def add_words(numbers, words):
    """Add whole numbers below 2^53 to sums in two words, the high one first."""
    for i in range(numbers.shape[0]):
        for j in range(numbers.shape[1]):
            whole = np.int64(numbers[i, j])
            words[0, i, j] += whole >> 32
            words[1, i, j] += whole & 0xFFFFFFFF

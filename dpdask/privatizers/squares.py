"""Compiled squares of records: exact squared norms in words of 32 bits, and clip factors."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from dpdask.machine.compiling import compiled
from dpdask.privatizers.grid import ENTRY_LIMIT

__all__ = ["add_squares", "clip_factors", "factors_of"]

_EXACT_RUN = 1024  # entries whose squares are added in floating point, as long as that is exact
_EXACT_SUM = 2.0**52
_HALF = 25  # bits; an entry of 50 bits is squared in halves
_LIMIT = float(ENTRY_LIMIT)


@compiled(fastmath={"reassoc"})
def _run_of_squares(xs, inverse_step):
    """Return the sum of squares of a short run; below 2^52 it is exact in any order."""
    total = 0.0
    for j in range(xs.size):
        v = np.float64(xs[j])
        q = np.rint(abs(v) * inverse_step)
        q = q if q < _LIMIT else _LIMIT
        q = q if v == v else 0.0
        total += q * q
    return total


@compiled()
def add_squares(x, inverse_step, sums):
    """Add the squared norms, in steps, of the records along the middle axis to their words."""
    mask = np.uint64(0xFFFFFFFF)
    for o in range(x.shape[0]):
        for r in range(x.shape[1]):
            words = sums[r]
            for first in range(0, x.shape[2], _EXACT_RUN):
                xs = x[o, r, first : first + _EXACT_RUN]
                total = _run_of_squares(xs, inverse_step)
                if total < _EXACT_SUM:
                    square = np.uint64(np.int64(total))
                    words[0] += square & mask
                    words[1] += square >> np.uint64(32)
                    continue
                for j in range(xs.size):
                    v = np.float64(xs[j])
                    q = np.rint(abs(v) * inverse_step)
                    q = q if q < _LIMIT else _LIMIT
                    q = q if v == v else np.float64(0.0)
                    whole = np.uint64(np.int64(q))
                    high = whole >> np.uint64(_HALF)
                    low = whole & np.uint64(2**_HALF - 1)
                    # the square is square + 2^26 cross + 2^50 top
                    square, cross, top = low * low, high * low, high * high
                    words[0] += (square & mask) + ((cross & np.uint64(2**6 - 1)) << np.uint64(26))
                    words[1] += (square >> np.uint64(32)) + ((cross >> np.uint64(6)) & mask)
                    words[1] += (top & np.uint64(2**14 - 1)) << np.uint64(18)
                    words[2] += (cross >> np.uint64(38)) + ((top >> np.uint64(14)) & mask)
                    words[3] += top >> np.uint64(46)


@compiled()
def factors_of(norms, bound, factors):
    """Write the clip factor of every row of squared norms, which become words below 2^32."""
    mask = np.uint64(0xFFFFFFFF)
    square = np.uint64(bound) * np.uint64(bound)
    for r in range(norms.shape[0]):
        words = norms[r]
        for k in range(3):
            words[k + 1] += words[k] >> np.uint64(32)
            words[k] &= mask
        high, low = square >> np.uint64(32), square & mask
        over = (words[1] > high) | ((words[1] == high) & (words[0] > low))
        over |= (words[2] | words[3]) > 0
        factors[r] = 1.0
        if over:
            total = np.float64(words[0]) + np.float64(words[1]) * 2.0**32
            total += np.float64(words[2]) * 2.0**64
            total += np.float64(words[3]) * 2.0**96
            factors[r] = bound / math.sqrt(total) * (1 - 2.0**-48)


@compiled()
def clip_factors(x, inverse_step, bound):
    """Return the clip factors of whole records along the middle axis."""
    norms = np.zeros((x.shape[1], 4), np.uint64)
    add_squares(x, inverse_step, norms)
    factors = np.empty(x.shape[1])
    factors_of(norms, bound, factors)
    return factors

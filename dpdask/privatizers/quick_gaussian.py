"""The same pairs of draws as :mod:`dpdask.privatizers.exact_gaussian`, by shorter polynomials.

Minimax polynomials need fewer terms than Taylor's and are less exact: the distance from any
completion of the bits is proved below ``QUICK * S`` (docs/exact-noise.md). A block with a draw that
this cannot decide is drawn again by that module, so both give the same integers.
"""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,call-arg,var-annotated"

from __future__ import annotations

import math

import numpy as np

from dpdask.machine.compiling import compiled
from dpdask.privatizers.exact_gaussian import (
    HALF,
    OUTER_HIGH,
    OUTER_LOW,
    ROUNDER,
    as_bits,
    as_float,
)

__all__ = ["COSINE", "LOGARITHM", "QUICK", "SINE", "fill_quickly", "quick_limit"]

QUICK = 2.0**-39
MOST_STEPS_PER_SIGMA = 2.0**26  # beyond it most blocks would be drawn twice

# 2 atanh(s) = 2 s + s w P(w), cos y = 1 + q P(q), sin y = y + y q P(q), w = s^2, q = y^2
LOGARITHM = (
    0.6666666667384318,
    0.3999999586179558,
    0.28572114016521444,
    0.22175102873607228,
    0.19608897794848876,
)
COSINE = (
    -0.4999999999963953,
    0.04166666656730221,
    -0.0013888881001371228,
    2.479897823412226e-05,
    -2.717345684253698e-07,
)
SINE = (
    -0.166666666666389,
    0.00833333332567974,
    -0.00019841263766273747,
    2.7555309971429684e-06,
    -2.4756576793514552e-08,
)

_LN2 = math.log(2)
_HALF_PI = math.pi / 2


@compiled(inline="always", fastmath={"contract"})
def _polynomial(c, x):
    """A polynomial of five terms."""
    return (((c[4] * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0]


@compiled(inline="always", fastmath={"contract"})
def _pair(one, two, steps_per_sigma):
    """The rounded integers of a pair, how far its draws lie from them at most, and -ln U."""
    bits = as_bits(np.float64(one))
    # the word is 2^e f with f in [sqrt(1/2), sqrt(2))
    shifted = bits - np.uint64(0x3FE6A09E667F3BCD)
    f = as_float(bits - (shifted & np.uint64(0xFFF0000000000000)))
    e = as_float((shifted >> np.uint64(52)) | np.uint64(0x4330000000000000))
    s = (f - 1.0) / (f + 1.0)
    w = s * s
    t = (4503599627370560.0 - e) * _LN2
    minus_log = (t - 2.0 * s) - s * w * _polynomial(LOGARITHM, w)
    radius = math.sqrt(minus_log) * steps_per_sigma
    # 52 of the 62 bits of the angle
    r = as_float(((two << np.uint64(2)) >> np.uint64(12)) | np.uint64(0x3FF0000000000000))
    y = (r - 1.5) * _HALF_PI
    q = y * y
    along = _polynomial(COSINE, q) * q * radius + radius
    ry = radius * y
    across = _polynomial(SINE, q) * q * ry + ry
    z1 = as_float(as_bits(along - across) ^ (two & np.uint64(0x8000000000000000)))
    z2 = as_float(as_bits(along + across) ^ ((two << np.uint64(1)) & np.uint64(0x8000000000000000)))
    # not rint, which gives -0 where this gives 0
    k1 = (z1 + ROUNDER) - ROUNDER
    k2 = (z2 + ROUNDER) - ROUNDER
    return k1, k2, max(abs(z1 - k1), abs(z2 - k2)), minus_log


@compiled(fastmath={"contract"})
def fill_quickly(words, z, steps_per_sigma, limit):
    """Round one block into ``z`` and count the pairs that are not decided. Vectorised: no branch,
    no table.
    """
    doubtful = 0
    for j in range(HALF):
        k1, k2, far, minus_log = _pair(words[j], words[HALF + j], steps_per_sigma)
        z[j] = k1
        z[HALF + j] = k2
        # a word of zero makes minus_log negative, so it is caught here too
        doubtful += (far > limit) | (minus_log < OUTER_LOW) | (minus_log > OUTER_HIGH)
    return doubtful


def quick_limit(steps_per_sigma: float) -> float | None:
    """Return how far from its integer a draw may lie and still be decided; None for ratios at which
    too few are.
    """
    if steps_per_sigma > MOST_STEPS_PER_SIGMA:
        return None
    return 0.5 - steps_per_sigma * QUICK

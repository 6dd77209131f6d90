"""Exact integers distributed as ``round(N(0, S^2))``, S a power of two, from 64 keystream bits per
element.

Elements come in blocks of 1,024: words 0 to 511 of a block give radii, words 512 to 1,023 angles,
and pair j yields the elements j and 512 + j of the block (Box and Muller):

    U = (word 1) / 2^64,  y = (r - 1/2) pi/2 with r the low 62 bits of word 2,  signs from its top
    two bits z1, z2 = +- S sqrt(-ln U) (cos y - sin y),  +- S sqrt(-ln U) (cos y + sin y)

which are independent N(0, S^2) when U and y have infinitely many bits. The fast path evaluates them
by Taylor polynomials in double precision, whose distance from any completion of the 64 bits is
proved below ``INNER * S`` for -ln U in the inner range and ``OUTER * S`` in the outer one
(docs/exact-noise.md). A draw that lies so close to a rounding boundary, or whose radius is outside
both ranges, takes the exact path: rigorous interval arithmetic with more bits of the same pair
until both roundings are decided. So the result is exact, and machines with different vector units
agree on it.
"""

# The compiled functions are typed by their arguments at run time and carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,call-arg"
# mypy: disable-error-code="var-annotated,assignment"

from __future__ import annotations

import math
import threading
from typing import Any, Protocol, TypeAlias

import mpmath
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from dpdask.keystream import TileStream, Words
from dpdask.machine.compiling import compiled
from dpdask.privatizers.grid import check_steps_per_sigma
from dpdask.privatizers.samplers import BLOCK
from dpdask.types import Floats, Integers

__all__ = [
    "ROUNDER",
    "Integers",
    "as_bits",
    "as_float",
    "exact_integers",
    "exact_pair",
    "fill_block",
    "find_undecided",
    "minus_log_of",
    "rounded_logarithm",
    "settle_block",
    "thresholds",
]

HALF = BLOCK // 2

INNER, OUTER = 2.0**-45, 2.0**-41
INNER_LOW, INNER_HIGH = 2.0**-9, 10 * math.log(2)
OUTER_LOW, OUTER_HIGH = 2.0**-23, 24 * math.log(2) * (1 - 2.0**-40)

ROUNDER = 6755399441055744.0  # 1.5 * 2^52: adding and subtracting it rounds to the nearest integer
_LN2 = math.log(2)
_HALF_PI = math.pi / 2


@intrinsic
def as_float(_context, bits):
    """The double with these bits."""

    def generate(_ctx, builder, _signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(bits), generate


@intrinsic
def as_bits(_context, number):
    """The bits of this double."""

    def generate(_ctx, builder, _signature, args):
        return builder.bitcast(args[0], ir.IntType(64))

    return types.uint64(number), generate


_fused = compiled(fastmath={"contract"})


@compiled(inline="always", fastmath={"contract"})
def minus_log_of(word, bits):
    """-ln(word / 2^bits); negative for a word of zero."""
    # the word as a double, rounded once
    high = as_float((word >> np.uint64(32)) | np.uint64(0x4530000000000000))
    low = as_float((word & np.uint64(0xFFFFFFFF)) | np.uint64(0x4330000000000000))
    v = (high - 19342813118337666422669312.0) + low
    # v = 2^e f with f in [sqrt(1/2), sqrt(2))
    shifted = as_bits(v) - np.uint64(0x3FE6A09E667F3BCD)
    f = as_float(as_bits(v) - (shifted & np.uint64(0xFFF0000000000000)))
    e = as_float((shifted >> np.uint64(52)) | np.uint64(0x4330000000000000)) - 4503599627370496.0
    s = (f - 1.0) / (f + 1.0)
    w = s * s
    p = 1 / 17.0
    p = p * w + 1 / 15.0
    p = p * w + 1 / 13.0
    p = p * w + 1 / 11.0
    p = p * w + 1 / 9.0
    p = p * w + 1 / 7.0
    p = p * w + 1 / 5.0
    p = p * w + 1 / 3.0
    return (bits - e) * _LN2 - 2.0 * (s + s * w * p)


@compiled(inline="always", fastmath={"contract"})
def _pair(one, two, steps_per_sigma):
    """The rounded integers of a pair, how far its draws lie from them at most, and -ln U."""
    minus_log = minus_log_of(one, 64.0)
    radius = math.sqrt(minus_log) * steps_per_sigma
    # 52 of the 62 bits of the angle, at the middle of their interval
    r = (
        as_float(((two << np.uint64(2)) >> np.uint64(12)) | np.uint64(0x3FF0000000000000))
        - 1.5
        + 2.0**-53
    )
    y = r * _HALF_PI
    q = y * y
    c = -1 / 87178291200.0
    c = c * q + 1 / 479001600.0
    c = c * q - 1 / 3628800.0
    c = c * q + 1 / 40320.0
    c = c * q - 1 / 720.0
    c = c * q + 1 / 24.0
    c = c * q - 0.5
    c = c * q + 1.0
    d = -1 / 1307674368000.0
    d = d * q + 1 / 6227020800.0
    d = d * q - 1 / 39916800.0
    d = d * q + 1 / 362880.0
    d = d * q - 1 / 5040.0
    d = d * q + 1 / 120.0
    d = d * q - 1 / 6.0
    d = d * q * y + y
    z1 = as_float(as_bits(radius * (c - d)) ^ (two & np.uint64(0x8000000000000000)))
    z2 = as_float(
        as_bits(radius * (c + d)) ^ ((two << np.uint64(1)) & np.uint64(0x8000000000000000))
    )
    k1 = (z1 + ROUNDER) - ROUNDER
    k2 = (z2 + ROUNDER) - ROUNDER
    return k1, k2, max(abs(z1 - k1), abs(z2 - k2)), minus_log


@_fused
def fill_block(words, z, steps_per_sigma, outer):
    """Round one block into ``z`` and count the pairs that may need the exact path. Vectorised: no
    branch, no table.
    """
    doubtful = 0
    for j in range(HALF):
        k1, k2, far, minus_log = _pair(words[j], words[HALF + j], steps_per_sigma)
        z[j] = k1
        z[HALF + j] = k2
        # a word of zero makes minus_log negative, so it is caught here too
        doubtful += (far > outer) | (minus_log < OUTER_LOW) | (minus_log > OUTER_HIGH)
    return doubtful


@_fused
def find_undecided(words, steps_per_sigma, inner, outer, pairs):
    """Write the numbers of the pairs of one block that do need the exact path into ``pairs``;
    return how many.
    """
    count = 0
    for j in range(HALF):
        _, _, far, minus_log = _pair(words[j], words[HALF + j], steps_per_sigma)
        wide = (minus_log < INNER_LOW) | (minus_log > INNER_HIGH)
        if (
            (far > inner)
            | (wide & (far > outer))
            | (minus_log < OUTER_LOW)
            | (minus_log > OUTER_HIGH)
        ):
            pairs[count] = j
            count += 1
    return count


def thresholds(steps_per_sigma: float) -> tuple[float, float]:
    """Return how far from its integer a draw may lie and still be decided, in both ranges."""
    return 0.5 - steps_per_sigma * INNER, 0.5 - steps_per_sigma * OUTER


def undecided_pairs(words: Words, steps_per_sigma: float) -> list[int]:
    """Return the numbers of the pairs of one block that need the exact path."""
    pairs = np.empty(HALF, np.int64)
    count = find_undecided(words, steps_per_sigma, *thresholds(steps_per_sigma), pairs)
    return [int(j) for j in pairs[:count]]


# mpmath memoises constants in module state, so one thread at a time takes the exact path.
_INTERVALS = mpmath.ctx_iv.MPIntervalContext()
_ONE_AT_A_TIME = threading.Lock()


def exact_pair(
    stream: TileStream, pair: int, one: int, two: int, steps_per_sigma: float
) -> tuple[int, int]:
    """Return the two integers of a pair by rigorous intervals, with as many more bits as it takes.

    Args:
        stream: The random bytes of the tile.
        pair: The number of the pair within the tile; it names the extra bits.
        one: The word of the radius.
        two: The word of the angle.
        steps_per_sigma: The standard deviation of the integers.
    """
    more = 128
    while True:
        radius_bits = (one << more) | stream.more_bits(pair, 0, more)
        angle_bits = ((two & ((1 << 62) - 1)) << more) | stream.more_bits(pair, 1, more)
        with _ONE_AT_A_TIME:
            rounded = _round_intervals(radius_bits, angle_bits, more, int(steps_per_sigma))
        if rounded is not None:
            first, second = rounded
            return (-first if two >> 63 & 1 else first), (-second if two >> 62 & 1 else second)
        more *= 2


def _round_intervals(
    radius_bits: int, angle_bits: int, more: int, steps_per_sigma: int
) -> tuple[int, int] | None:
    """Return both integers if 64 + ``more`` and 62 + ``more`` bits decide them, else None."""
    iv = _INTERVALS
    iv.prec = 128 + more
    one_bit = iv.mpf(2) ** -(64 + more)
    minus_log = _minus_log(radius_bits, one_bit)
    if minus_log is None:
        return None
    radius = steps_per_sigma * iv.sqrt(minus_log)
    y = (iv.mpf([angle_bits, angle_bits + 1]) * (4 * one_bit) - iv.mpf(1) / 2) * iv.pi / 2
    cos, sin = iv.cos(y), iv.sin(y)
    first, second = _rounded(radius * (cos - sin)), _rounded(radius * (cos + sin))
    return None if first is None or second is None else (first, second)


def _minus_log(bits: int, one_bit: Any) -> Any:
    """Return -ln U between those of the two ends of an interval; None where it reaches 0."""
    if bits == 0:
        return None
    iv = _INTERVALS
    # at most 1 because bits + 1 is at most 1 / one_bit, both exact at this precision
    minus_log = -iv.log(iv.mpf([bits, bits + 1]) * one_bit)
    return iv.mpf([0, minus_log.b]) if minus_log.a < 0 else minus_log


def rounded_logarithm(bits: int, count: int, scale: int) -> int | None:
    """Return round(scale * -ln U) if the first ``count`` bits of U decide it, else None.

    Args:
        bits: The first bits of U, as one number.
        count: How many they are.
        scale: What the logarithm is multiplied by.
    """
    with _ONE_AT_A_TIME:
        iv = _INTERVALS
        iv.prec = 64 + count
        minus_log = _minus_log(bits, iv.mpf(2) ** -count)
        return None if minus_log is None else _rounded(scale * minus_log)


Endpoint: TypeAlias = tuple[int, int, int, int]
"""mpmath's raw number: sign, mantissa, exponent, bits."""


class Interval(Protocol):
    """What we read of an interval of mpmath."""

    _mpi_: tuple[Endpoint, Endpoint]


def _rounded(z: Interval) -> int | None:
    """Return the integer to which every point of the interval rounds, or None."""
    low, high = (_nearest(end) for end in z._mpi_)
    return low if low == high else None


def _nearest(number: Endpoint) -> int:
    """Return floor(x + 1/2) of mpmath's raw (sign, mantissa, exponent, bits), in integers."""
    sign, mantissa, exponent, _ = number
    signed = -int(mantissa) if sign else int(mantissa)
    if exponent >= 0:
        return signed << exponent
    return (2 * signed + (1 << -exponent)) >> (1 - exponent)


def exact_integers(stream: TileStream, steps_per_sigma: float, start: int, count: int) -> Integers:
    """Return elements ``start`` to ``start + count`` of the tile's integers.

    Args:
        stream: The random bytes of the tile.
        steps_per_sigma: The standard deviation of the integers.
        start: The number of the first element.
        count: How many elements.
    """
    steps_per_sigma = check_steps_per_sigma(steps_per_sigma)
    first_block, last_block = start // BLOCK, -(-(start + count) // BLOCK)
    result = np.empty((last_block - first_block) * BLOCK)
    words = np.empty(BLOCK, np.uint64)
    refill = stream.filler(first_block * BLOCK, words)
    for number in range(first_block, last_block):
        refill()
        z = result[(number - first_block) * BLOCK :][:BLOCK]
        if fill_block(words, z, steps_per_sigma, thresholds(steps_per_sigma)[1]):
            settle_block(stream, number, words, z, steps_per_sigma)
    offset = start - first_block * BLOCK
    return result[offset : offset + count].astype(np.int64)


def settle_block(
    stream: TileStream, number: int, words: Words, z: Floats, steps_per_sigma: float
) -> list[int]:
    """Put the exact integers of a block's undecided pairs into ``z``; return those pairs."""
    pairs = undecided_pairs(words, steps_per_sigma)
    for j in pairs:
        z[j], z[HALF + j] = exact_pair(
            stream, number * HALF + j, int(words[j]), int(words[HALF + j]), steps_per_sigma
        )
    return pairs

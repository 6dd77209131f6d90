"""Exact integers distributed as ``round(Lap(S))``, S a power of two, from 64 keystream bits per
element.

The top bit of an element's word is the sign, the other 63 bits begin the binary expansion of a
uniform U:

    z = +- S (-ln U),

which is Laplace noise of scale S when U has infinitely many bits. The fast path evaluates it in
double precision, whose distance from any completion of the 63 bits is proved below ``INNER * S``
for -ln U in the inner range and ``OUTER * S`` in the outer one (docs/exact-noise.md). A draw that
lies so close to a rounding boundary, or in the tail beyond both ranges, takes the exact path:
rigorous interval arithmetic with more bits of the same element until the rounding is decided. So
the result is exact, and machines with different vector units agree on it.
"""

# The compiled functions are typed by their arguments at run time and carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call,call-arg"
# mypy: disable-error-code="var-annotated"

from __future__ import annotations

import math

import numpy as np

from dpdask.keystream import TileStream, Words
from dpdask.machine.compiling import compiled
from dpdask.privatizers.exact_gaussian import (
    ROUNDER,
    as_bits,
    as_float,
    minus_log_of,
    rounded_logarithm,
)
from dpdask.privatizers.samplers import BLOCK
from dpdask.types import Floats

__all__ = [
    "exact_element",
    "fill_block",
    "find_undecided",
    "settle_block",
    "thresholds",
]

INNER, OUTER = 2.0**-47, 2.0**-38
INNER_HIGH = 10 * math.log(2)
OUTER_HIGH = 24 * math.log(2) * (1 - 2.0**-40)

_MAGNITUDE = (1 << 63) - 1

_fused = compiled(fastmath={"contract"})


@compiled(inline="always", fastmath={"contract"})
def _element(word, scale):
    """The rounded integer of an element, how far its draw lies from it, and -ln U."""
    minus_log = minus_log_of(word & np.uint64(0x7FFFFFFFFFFFFFFF), 63.0)
    z = as_float(as_bits(minus_log * scale) ^ (word & np.uint64(0x8000000000000000)))
    k = (z + ROUNDER) - ROUNDER
    return k, abs(z - k), minus_log


@_fused
def fill_block(words, z, scale, outer):
    """Round one block into ``z`` and count the elements that may need the exact path. Vectorised:
    no branch, no table.
    """
    doubtful = 0
    for j in range(BLOCK):
        k, far, minus_log = _element(words[j], scale)
        z[j] = k
        # 63 bits of zero make minus_log negative, so they are caught here too
        doubtful += (far > outer) | (minus_log < 0.0) | (minus_log > OUTER_HIGH)
    return doubtful


@_fused
def find_undecided(words, scale, inner, outer, elements):
    """Write the numbers of the elements of one block that do need the exact path into
    ``elements``; return how many.
    """
    count = 0
    for j in range(BLOCK):
        _, far, minus_log = _element(words[j], scale)
        if (
            (far > inner)
            | ((minus_log > INNER_HIGH) & (far > outer))
            | (minus_log < 0.0)
            | (minus_log > OUTER_HIGH)
        ):
            elements[count] = j
            count += 1
    return count


def thresholds(scale: float) -> tuple[float, float]:
    """Return how far from its integer a draw may lie and still be decided, in both ranges."""
    return 0.5 - scale * INNER, 0.5 - scale * OUTER


def exact_element(stream: TileStream, element: int, word: int, scale: float) -> int:
    """Return the integer of an element by rigorous intervals, with as many bits as it takes.

    Args:
        stream: The random bytes of the tile.
        element: The number of the element within the tile; it names the extra bits.
        word: Its word.
        scale: The scale of the integers.
    """
    more = 128
    while True:
        bits = ((word & _MAGNITUDE) << more) | stream.more_bits(element // 2, element % 2, more)
        rounded = rounded_logarithm(bits, 63 + more, int(scale))
        if rounded is not None:
            return -rounded if word >> 63 else rounded
        more *= 2


def settle_block(
    stream: TileStream, number: int, words: Words, z: Floats, scale: float
) -> list[int]:
    """Put the exact integers of a block's undecided elements into ``z``; return those elements."""
    elements = np.empty(BLOCK, np.int64)
    count = find_undecided(words, scale, *thresholds(scale), elements)
    undecided = [int(j) for j in elements[:count]]
    for j in undecided:
        z[j] = exact_element(stream, number * BLOCK + j, int(words[j]), scale)
    return undecided

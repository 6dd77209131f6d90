"""The Laplace sampler is exact: its error bound holds, doubtful draws are settled by intervals, and
parts equal the whole.
"""

from __future__ import annotations

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from dpdask.keystream import ReleaseKey, TileStream
from dpdask.privatizers import exact_laplace as sampler
from dpdask.privatizers.blocks import drawn_integers
from dpdask.privatizers.exact_gaussian import minus_log_of
from dpdask.privatizers.exact_laplace import exact_element, fill_block, settle_block
from dpdask.privatizers.samplers import BLOCK, LAPLACE

SIGN = 1 << 63
Draws = np.ndarray[Any, np.dtype[np.float64]]


def stream(*index: int) -> TileStream:
    return ReleaseKey(bytes(32)).tile(fingerprint=bytes(32), component="noise", index=index)


def true_draw(word: int, tail: float) -> mp.mpf:
    """z in units of S for a word, completed by the fraction ``tail`` of its last bit; 40 digits."""
    with mp.workdps(40):
        u = (mp.mpf(word & (SIGN - 1)) + mp.mpf(tail)) / mp.mpf(2) ** 63
        return mp.log(u) if word & SIGN else -mp.log(u)


def fast_draws(words: list[int], scale: float) -> Draws:
    z = np.empty(BLOCK)
    fill_block(np.resize(np.array(words, np.uint64), BLOCK), z, scale, 0.5)
    return z[: len(words)]


def words_between(low: float, high: float) -> list[int]:
    """Words whose -ln U covers [low, high]: evenly, at both ends, around powers of two of U, and
    around the ends of the logarithm's reduced range.
    """
    levels = [*np.linspace(low, high, 256), *np.geomspace(max(low, 1e-17), high, 128)]
    turns = [n * math.log(2) + e for n in range(26) for e in (0.0, math.log(2) / 2)]
    levels += [level for level in turns if low <= level <= high]
    found: list[int] = []
    for level in levels:
        with mp.workdps(40):
            middle = int(mp.exp(-mp.mpf(float(level))) * 2**63)
        found += [min(SIGN - 1, max(1, middle + shift)) for shift in (-1, 0, 1)]
    kept = [word for word in found if low <= -math.log(word / 2**63) <= high * (1 + 1e-15)]
    return [word | (SIGN if number % 2 else 0) for number, word in enumerate(kept)][:BLOCK]


@pytest.mark.parametrize(
    ("low", "high", "bound", "idle"),
    [
        (0.0, sampler.INNER_HIGH, sampler.INNER, 64),
        (sampler.INNER_HIGH, sampler.OUTER_HIGH, sampler.OUTER, 4),
    ],
)
def test_the_fast_path_stays_within_its_proved_error(
    low: float, high: float, bound: float, idle: float
) -> None:
    """At S = 2^46 rounding hides nothing larger than 2^-47; any completion of the bits is within
    the bound plus that.
    """
    scale = 2.0**46
    hidden = 0.5 / scale
    words = words_between(low, high)
    worst = 0.0
    for word, draw in zip(words, fast_draws(words, scale) / scale, strict=True):
        for tail in (0.0, 1.0):
            worst = max(worst, abs(float(mp.mpf(float(draw)) - true_draw(word, tail))))
    assert worst <= bound + hidden
    assert worst > bound / idle  # the bound is not idle


def test_the_error_before_rounding_is_below_the_sum_of_its_table() -> None:
    """The table of docs/exact-noise.md for the inner range: 28.3 units of 2^-53."""
    worst = 0.0
    for word in words_between(0.0, sampler.INNER_HIGH):
        magnitude = word & (SIGN - 1)
        computed = minus_log_of(np.uint64(magnitude), 63.0)
        for tail in (0.0, 1.0):
            exact = abs(true_draw(magnitude, tail))
            worst = max(worst, abs(float(mp.mpf(float(computed)) - exact)))
    assert worst < 28.3 * 2.0**-53 < sampler.INNER


@pytest.mark.parametrize("scale", [2.0**6, 2.0**14, 2.0**22, 2.0**30])
def test_fast_and_exact_paths_agree(scale: float) -> None:
    source, words, whole = stream(5), np.empty(BLOCK, np.uint64), np.empty(BLOCK)
    source.filler(0, words)()
    drawn_integers(LAPLACE, source, scale, whole)
    for j in range(0, BLOCK, 3):
        assert exact_element(source, j, int(words[j]), scale) == whole[j]


@pytest.mark.parametrize("integer", [0, 1, 7, 40_000, 150_000])
@pytest.mark.parametrize("sign", [0, SIGN])
def test_forced_ties_take_the_exact_path_and_are_right(integer: int, sign: int) -> None:
    """The word whose interval of U holds a rounding boundary is decided by further bits alone."""
    scale, source = 2.0**14, stream(6)
    with mp.workdps(60):
        boundary = mp.exp(-(mp.mpf(integer) + mp.mpf(1) / 2) / scale) * mp.mpf(2) ** 63
        word, rest = int(boundary), boundary - int(boundary)
        extra = source.more_bits(5, 1, 128) / mp.mpf(2) ** 128
        expected = integer if extra > rest else integer + 1
    words = np.full(BLOCK, 2**62, np.uint64)
    words[11] = word | sign
    z = np.empty(BLOCK)
    assert fill_block(words, z, scale, LAPLACE.thresholds(scale)[1]) > 0
    assert settle_block(source, 0, words, z, scale) == [11]
    assert z[11] == (-expected if sign else expected)


@pytest.mark.parametrize("word", [0, SIGN, 1, SIGN + 1, 2**20, 2**38, SIGN + 2**38])
def test_far_tails_take_the_exact_path(word: int) -> None:
    scale, source = 2.0**14, stream(7)
    words = np.full(BLOCK, 2**62, np.uint64)
    words[3] = word
    z = np.empty(BLOCK)
    assert settle_block(source, 2, words, z, scale) == [3]
    bits = ((word & (SIGN - 1)) << 128) | source.more_bits((2 * BLOCK + 3) // 2, 1, 128)
    with mp.workdps(80):
        expected = int(mp.nint(-scale * mp.log(mp.mpf(bits) / mp.mpf(2) ** 191)))
    assert z[3] == (-expected if word & SIGN else expected)


def test_any_part_of_a_tile_equals_that_part_of_the_whole() -> None:
    whole = np.empty(5 * BLOCK + 17)
    drawn_integers(LAPLACE, stream(8), 2.0**14, whole)
    for start, stop in ((0, 1), (1, 1023), (1000, 3000), (1024, 2048), (5000, 5137)):
        part = np.empty(stop - start)
        drawn_integers(LAPLACE, stream(8), 2.0**14, part, start)
        np.testing.assert_array_equal(part, whole[start:stop])


def test_elements_share_no_further_bits() -> None:
    source = stream(9)
    bits = {source.more_bits(element // 2, element % 2, 128) for element in range(2 * BLOCK)}
    assert len(bits) == 2 * BLOCK

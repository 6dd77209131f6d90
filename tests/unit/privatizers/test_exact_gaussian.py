"""The sampler is exact: its error bound holds, doubtful draws are settled by intervals, and parts
equal the whole.
"""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest

from dpdask.errors import InvalidNoise
from dpdask.keystream import ReleaseKey, TileStream
from dpdask.privatizers import exact_gaussian as sampler
from dpdask.privatizers.exact_gaussian import (
    HALF,
    exact_integers,
    exact_pair,
    fill_block,
    thresholds,
)
from dpdask.privatizers.grid import check_steps_per_sigma
from dpdask.privatizers.samplers import BLOCK

ANGLE_MASK = (1 << 62) - 1


def stream(*index: int) -> TileStream:
    return ReleaseKey(bytes(32)).tile(fingerprint=bytes(32), component="noise", index=index)


def true_draws(one: int, two: int, tail: float) -> tuple[mp.mpf, mp.mpf]:
    """z1 and z2 in units of S for the given words, completed by the fraction ``tail`` of their last
    bit; 40 digits.
    """
    with mp.workdps(40):
        u = (mp.mpf(one) + mp.mpf(tail)) / mp.mpf(2) ** 64
        y = (
            ((mp.mpf(two & ANGLE_MASK) + mp.mpf(tail)) / mp.mpf(2) ** 62 - mp.mpf(1) / 2)
            * mp.pi
            / 2
        )
        radius = mp.sqrt(-mp.log(u))
        first, second = radius * (mp.cos(y) - mp.sin(y)), radius * (mp.cos(y) + mp.sin(y))
        return -first if two >> 63 else first, -second if two >> 62 & 1 else second


def fast_draws(ones: list[int], twos: list[int], steps_per_sigma: float) -> np.ndarray:
    words = np.empty(BLOCK, np.uint64)
    words[:HALF] = np.resize(np.array(ones, np.uint64), HALF)
    words[HALF:] = np.resize(np.array(twos, np.uint64), HALF)
    z = np.empty(BLOCK)
    fill_block(words, z, steps_per_sigma, 0.5)
    return z.reshape(2, HALF)[:, : len(ones)]


def spread_words(low: float, high: float, seed: int) -> list[int]:
    """Words whose -ln U covers [low, high] evenly in its logarithm, ends included."""
    levels = np.exp(np.linspace(math.log(low), math.log(high), 256))
    jitter = np.random.default_rng(seed).integers(0, 1 << 30, 256)
    found = []
    for level, extra in zip(levels, jitter, strict=True):
        with mp.workdps(40):
            found.append(
                max(1, min(2**64 - 1, int(mp.exp(-mp.mpf(level)) * 2**64) ^ (int(extra) >> 20)))
            )
    return found


@pytest.mark.parametrize(
    ("low", "high", "bound"),
    [
        (sampler.INNER_LOW, sampler.INNER_HIGH, sampler.INNER),
        (sampler.OUTER_LOW, sampler.INNER_LOW, sampler.OUTER),
        (sampler.INNER_HIGH, sampler.OUTER_HIGH, sampler.OUTER),
    ],
)
def test_the_fast_path_stays_within_its_proved_error(low: float, high: float, bound: float) -> None:
    """At S = 2^48 rounding hides nothing larger than 2^-49; any completion of the bits is within
    the bound.
    """
    steps_per_sigma = 2.0**48
    ones = spread_words(low, high, 1)
    angles = np.random.default_rng(2).integers(0, 2**64, 256, dtype=np.uint64)
    angles[:4] = [0, 2**62 - 1, 2**61, 2**63]
    twos = [int(a) for a in angles]
    found = fast_draws(ones, twos, steps_per_sigma) / steps_per_sigma
    worst = 0.0
    for i, (one, two) in enumerate(zip(ones, twos, strict=True)):
        for tail in (0.0, 1.0):
            for draw, exact in zip(found[:, i], true_draws(one, two, tail), strict=True):
                worst = max(worst, abs(float(mp.mpf(float(draw)) - exact)))
    assert worst <= bound
    assert worst > bound / 4096  # the bound is not idle


@pytest.mark.parametrize("steps_per_sigma", [2.0**6, 2.0**14, 2.0**22, 2.0**30])
def test_fast_and_exact_paths_agree(steps_per_sigma: float) -> None:
    words = np.empty(BLOCK, np.uint64)
    source = stream(5)
    source.filler(0, words)()
    whole = exact_integers(source, steps_per_sigma, 0, BLOCK)
    for j in range(0, HALF, 3):
        assert exact_pair(source, j, int(words[j]), int(words[HALF + j]), steps_per_sigma) == (
            whole[j],
            whole[HALF + j],
        )


class ChosenBits:
    """A stream whose words and extra bits a test chooses."""

    def __init__(self, words: np.ndarray, extra: dict[int, int]) -> None:
        self.words, self.extra, self.asked = words, extra, []

    def filler(self, start: int, buffer: np.ndarray):  # type: ignore[no-untyped-def]
        def fill() -> None:
            buffer[:] = self.words[start : start + buffer.size]

        return fill

    def more_bits(self, pair: int, lane: int, count: int) -> int:
        """A choice of 128 bits gives each word 64, followed by zeros."""
        self.asked.append((pair, count))
        bits = self.extra.get(pair, 0)
        return (bits & (2**64 - 1) if lane else bits >> 64) << (count - 64)


def angle_word_at_boundary(one: int, steps_per_sigma: int, integer: int, side: int) -> int:
    """The angle word whose z1 lies closest to integer + 1/2 on the given side, by bisection."""
    low, high = 0, ANGLE_MASK
    target = mp.mpf(2 * integer + 1) / 2
    with mp.workdps(40):
        while high - low > 1:
            middle = (low + high) // 2
            draw, _ = true_draws(one, middle, 0.5)
            low, high = (middle, high) if draw * steps_per_sigma > target else (low, middle)
    return low if side else high


@pytest.mark.parametrize("integer", [3, 1000, 9001])
@pytest.mark.parametrize("side", [0, 1])
def test_forced_ties_take_the_exact_path_and_are_right(integer: int, side: int) -> None:
    """Draws a few 2^-60 from a rounding boundary, decided only by their extra bits."""
    steps_per_sigma = 2**14
    one = 0x5123456789ABCDEF
    two = angle_word_at_boundary(one, steps_per_sigma, integer, side)
    words = np.random.default_rng(9).integers(0, 2**64, BLOCK, dtype=np.uint64)
    words[77], words[HALF + 77] = one, two
    for extra in (0, 2**128 - 1, 0x0123456789ABCDEF_FEDCBA9876543210):
        chosen = ChosenBits(words, {77: extra})
        found = exact_integers(chosen, float(steps_per_sigma), 0, BLOCK)  # type: ignore[arg-type]
        assert chosen.asked[0] == (77, 128)
        with mp.workdps(60):
            u = (mp.mpf(one) + mp.mpf(extra >> 64) / mp.mpf(2) ** 64) / mp.mpf(2) ** 64
            angle = mp.mpf(two & ANGLE_MASK) + mp.mpf(extra & (2**64 - 1)) / mp.mpf(2) ** 64
            y = (angle / mp.mpf(2) ** 62 - mp.mpf(1) / 2) * mp.pi / 2
            expected = [
                int(
                    mp.floor(
                        steps_per_sigma * mp.sqrt(-mp.log(u)) * (mp.cos(y) + sign * mp.sin(y))
                        + mp.mpf(1) / 2
                    )
                )
                for sign in (-1, 1)
            ]
        assert [found[77], found[HALF + 77]] == expected
        assert found[77] in (integer, integer + 1)


@pytest.mark.parametrize("one", [0, 1, 2**40 - 1, 2**64 - 1, 2**64 - 2**20])
def test_far_tails_and_tiny_radii_take_the_exact_path(one: int) -> None:
    words = np.random.default_rng(9).integers(0, 2**64, BLOCK, dtype=np.uint64)
    words[5] = one
    chosen = ChosenBits(words, {5: 2**127 + 12345})
    found = exact_integers(chosen, 2.0**14, 0, BLOCK)  # type: ignore[arg-type]
    assert chosen.asked[0] == (5, 128)
    radius = math.sqrt(-2 * math.log((one + 0.5) / 2**64)) if one < 2**63 else 0.0
    assert abs(math.hypot(found[5], found[HALF + 5]) - radius * 2**14) < 2**14 * 0.2 + 2


def test_any_part_of_a_tile_equals_that_part_of_the_whole() -> None:
    whole = exact_integers(stream(1), 2.0**14, 0, 10_000)
    for start, count in (
        (0, 1),
        (1, 1),
        (1023, 2),
        (511, 1030),
        (4096, 1024),
        (9999, 1),
        (777, 5000),
    ):
        assert np.array_equal(
            exact_integers(stream(1), 2.0**14, start, count), whole[start : start + count]
        )


def test_settling_finds_the_doubtful_pairs_only() -> None:
    words = np.random.default_rng(4).integers(0, 2**64, BLOCK, dtype=np.uint64)
    inner, outer = thresholds(2.0**30)
    z = np.empty(BLOCK)
    doubtful = fill_block(words, z, 2.0**30, outer)
    assert len(sampler.undecided_pairs(words, 2.0**30)) <= doubtful
    assert inner > outer


@pytest.mark.parametrize("steps_per_sigma", [0.0, 3.0, 2.0**5, 2.0**31, math.nan, math.inf, -64.0])
def test_other_ratios_are_refused(steps_per_sigma: float) -> None:
    with pytest.raises(InvalidNoise, match="power of two"):
        check_steps_per_sigma(steps_per_sigma)

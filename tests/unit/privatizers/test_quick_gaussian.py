"""The quick path of the sampler: its polynomials and its error bound are as proved, and what it
cannot decide is drawn again, so that it gives the integers of the exact path.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from dpdask.keystream import ReleaseKey, TileStream
from dpdask.machine.aes import aes_available
from dpdask.privatizers import exact_gaussian
from dpdask.privatizers.blocks import gaussian_integers
from dpdask.privatizers.exact_gaussian import HALF, OUTER_HIGH, OUTER_LOW, exact_integers
from dpdask.privatizers.quick_gaussian import (
    COSINE,
    LOGARITHM,
    QUICK,
    SINE,
    fill_quickly,
    quick_limit,
)
from dpdask.privatizers.samplers import BLOCK
from tests.unit.privatizers.test_exact_gaussian import spread_words, true_draws

E = mp.mpf(2) ** -53
LARGEST_S = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * (1 + mp.mpf(2) ** -40)
LARGEST_Y = mp.pi / 4 * (1 + mp.mpf(2) ** -40)
LARGEST_R = mp.sqrt(24 * mp.log(2))
TERMS = 25


def stream(*index: int) -> TileStream:
    return ReleaseKey(bytes(32)).tile(fingerprint=bytes(32), component="quick", index=index)


def differences(polynomial: tuple[float, ...], series: Callable[[int], mp.mpf]) -> list[mp.mpf]:
    """The coefficients of polynomial - series; the polynomial begins with the second term."""
    own = [series(0), *(mp.mpf(c) for c in polynomial)]
    own += [mp.mpf(0)] * (TERMS - len(own))
    return [mine - series(k) for k, mine in enumerate(own)]


def largest(
    coefficients: list[mp.mpf], odd: bool, top: mp.mpf, weight: Callable[[mp.mpf], mp.mpf]
) -> mp.mpf:
    """A bound on |weight(x) sum_k c_k x^(2k + odd)| on [0, top], weight falling.

    On each of 1,200 intervals the value and the slope at the middle, and the largest curvature
    anywhere, bound the sum; the first ones are bounded by the absolute terms.
    """
    powers = [2 * k + odd for k in range(TERMS)]
    curvature = sum(
        abs(c) * n * (n - 1) * top ** (n - 2)
        for c, n in zip(coefficients, powers, strict=True)
        if n > 1
    )
    half = top / 2400
    found = mp.mpf(0)
    for number in range(1200):
        low, middle = number * 2 * half, (2 * number + 1) * half
        if number < 12:
            high = low + 2 * half
            total = sum(abs(c) * high**n for c, n in zip(coefficients, powers, strict=True) if c)
            # |D| / weight falls towards 0 with x^3 at least
            found = max(found, total * weight(high))
            continue
        value = abs(sum(c * middle**n for c, n in zip(coefficients, powers, strict=True)))
        slope = abs(
            sum(c * n * middle ** (n - 1) for c, n in zip(coefficients, powers, strict=True) if n)
        )
        found = max(found, (value + half * slope + half**2 / 2 * curvature) * weight(low))
    return found


def plain(_: mp.mpf) -> mp.mpf:
    return mp.mpf(1)


def log_differences() -> list[mp.mpf]:
    return differences(LOGARITHM, lambda k: mp.mpf(2) / (2 * k + 1))


@functools.cache
def errors_of_polynomials() -> dict[str, mp.mpf]:
    """Proved bounds of the three polynomials; what is cut off after 25 terms is below 2^-100."""
    sign = lambda k: mp.mpf((-1) ** k)  # noqa: E731
    cosine = differences(COSINE, lambda k: sign(k) / mp.factorial(2 * k))
    sine = differences(SINE, lambda k: sign(k) / mp.factorial(2 * k + 1))
    rest = mp.mpf(2) ** -100

    def root(s: mp.mpf) -> mp.mpf:
        """1 / (2 sqrt(L)): L >= 2 s, and L >= ln(2)/2 - 2^-40 where it is not so small."""
        return 1 / (2 * mp.sqrt(2 * s)) if s > 0 else mp.inf

    with mp.workdps(40):
        log = log_differences()
        return {
            "cosine": largest(cosine, False, LARGEST_Y, plain) + rest,
            "sine": largest(sine, True, LARGEST_Y, plain) + rest,
            "logarithm": largest(log, True, LARGEST_S, plain) + rest,
            "logarithm as radius": max(
                largest(log, True, LARGEST_S, root),
                largest(log, True, LARGEST_S, plain) / (2 * mp.sqrt(mp.mpf("0.3465"))),
            )
            + rest,
        }


def test_the_polynomials_are_within_the_errors_that_the_proof_states() -> None:
    found = errors_of_polynomials()
    stated = {"cosine": -42.9, "sine": -47.4, "logarithm": -45.9, "logarithm as radius": -45.9}
    for name, power in stated.items():
        assert mp.log(found[name], 2) <= power, (name, mp.log(found[name], 2))
        assert mp.log(found[name], 2) >= power - 1  # the statement is not idle


def test_the_sources_of_error_sum_to_less_than_the_constant() -> None:
    """The table of docs/exact-noise.md, added up."""
    found = errors_of_polynomials()
    unseen = max(
        mp.sqrt(2) * (E + mp.mpf(2) ** -40) / (2 * LARGEST_R),
        mp.sqrt(2) * (E + mp.mpf(2) ** -63) / (2 * mp.sqrt(mp.mpf(2) ** -23)),
    )
    logarithm = mp.sqrt(2) * (found["logarithm as radius"] + 13.5 * E)
    angle = mp.sqrt(2) * LARGEST_R * 4.8 * E
    polynomials = LARGEST_R * (found["cosine"] + found["sine"])
    evaluation = LARGEST_R * 6.5 * E
    total = unseen + logarithm + angle + polynomials + evaluation
    assert total < mp.mpf(2) ** -40.1
    assert 2 * total < QUICK


def quick_draws(ones: list[int], twos: list[int], steps_per_sigma: float) -> np.ndarray:
    words = np.empty(BLOCK, np.uint64)
    words[:HALF] = np.resize(np.array(ones, np.uint64), HALF)
    words[HALF:] = np.resize(np.array(twos, np.uint64), HALF)
    z = np.empty(BLOCK)
    fill_quickly(words, z, steps_per_sigma, 0.5)
    return z.reshape(2, HALF)[:, : len(ones)]


def worst_angles() -> list[int]:
    """Angle words at the extrema of the cosine's error, on both sides of 0, and both ends."""
    with mp.workdps(40):
        points = [mp.mpf(i) / 400 * mp.pi / 4 for i in range(400)]
        error = [abs(1 + y**2 * mp.polyval(list(COSINE)[::-1], y**2) - mp.cos(y)) for y in points]
        extrema = [
            points[i]
            for i in range(1, 399)
            if error[i] > max(error[i - 1], error[i + 1]) and error[i] > 2.0**-43.5
        ]
        assert [round(float(y), 2) for y in extrema] == [0.37, 0.56, 0.7]  # as the proof says
        both = [sign * y for y in extrema for sign in (1, -1)]
        words = [int((y * 2 / mp.pi + mp.mpf(1) / 2) * 2**62) for y in both]
    return [*words, 0, 2**61, 2**62 - 1]


@pytest.mark.parametrize(("low", "high"), [(OUTER_LOW, 0.01), (0.01, 10.0), (10.0, OUTER_HIGH)])
def test_draws_at_the_worst_points_stay_within_the_proved_error(low: float, high: float) -> None:
    steps_per_sigma = 2.0**48
    ones = spread_words(low, high, 3)
    angles = worst_angles()
    twos = [angles[i % len(angles)] | (i % 4) << 62 for i in range(len(ones))]
    found = quick_draws(ones, twos, steps_per_sigma) / steps_per_sigma
    worst = 0.0
    for i, (one, two) in enumerate(zip(ones, twos, strict=True)):
        for tail in (0.0, 1.0):
            for draw, exact in zip(found[:, i], true_draws(one, two, tail), strict=True):
                worst = max(worst, abs(float(mp.mpf(float(draw)) - exact)))
    assert worst <= 2.0**-40.1
    assert worst >= QUICK / (8 if high > 10 else 2**10)  # the bound is not idle


def test_a_tie_that_the_quick_path_would_round_wrongly_is_left_undecided() -> None:
    """At the largest radius and the angle of the largest error there are words whose quick rounding
    is wrong: the threshold catches every one, and without a threshold none would be noticed.
    """
    steps_per_sigma = 2.0**26
    one = int(mp.exp(-mp.mpf(OUTER_HIGH) * 0.999) * 2**64)
    wrong = 0
    for start in worst_angles()[:6]:
        for two in _angles_at_ties(one, start, steps_per_sigma):
            exact = exact_gaussian.exact_pair(stream(0), 0, one, two, steps_per_sigma)
            found = quick_draws([one], [two], steps_per_sigma)[:, 0]
            words = np.full(BLOCK, 2**63, np.uint64)
            words[0], words[HALF] = one, two
            limit = quick_limit(steps_per_sigma)
            assert fill_quickly(words, np.empty(BLOCK), steps_per_sigma, limit) > 0
            wrong += (int(found[0]), int(found[1])) != exact
    assert wrong > 0


def _angles_at_ties(one: int, start: int, steps_per_sigma: float) -> list[int]:
    """The angle words near ``start`` between which z1 passes half an integer, by bisection."""
    low, high = max(start - 2**38, 0), min(start + 2**38, 2**62 - 1)
    with mp.workdps(40):
        target = mp.floor(true_draws(one, start, 0.5)[0] * steps_per_sigma) + mp.mpf(1) / 2
        while high - low > 1:
            middle = (low + high) // 2
            draw = true_draws(one, middle, 0.5)[0] * steps_per_sigma
            low, high = (middle, high) if draw > target else (low, middle)
    return [low, high]


@pytest.mark.parametrize("one", [0, 1, 2**40 - 1, 2**64 - 1, 2**64 - 2**20])
def test_far_tails_and_tiny_radii_are_left_undecided(one: int) -> None:
    words = np.random.default_rng(9).integers(0, 2**64, BLOCK, dtype=np.uint64)
    words[5] = one
    assert fill_quickly(words, np.empty(BLOCK), 2.0**14, quick_limit(2.0**14)) == 1


@pytest.mark.parametrize("power", [6, 14, 18, 24, 26, 27, 30])
def test_the_integers_are_those_of_the_exact_path(power: int) -> None:
    count = 200_000
    found = np.empty(count)
    gaussian_integers(stream(power), 2.0**power, found, start=777)
    assert np.array_equal(found, exact_integers(stream(power), 2.0**power, 777, count))


@pytest.mark.parametrize("power", [6, 14, 27])
def test_kernel_and_library_give_the_same_bytes(
    power: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signs of zeros included: they would show in what is released."""
    found, expected = np.empty(100_000), np.empty(100_000)
    gaussian_integers(stream(2), 2.0**power, found, start=1)
    monkeypatch.setattr(TileStream, "has_round_keys", False)
    gaussian_integers(stream(2), 2.0**power, expected, start=1)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("power", [14, 18, 24])
def test_many_integers_are_those_of_the_exact_path(power: int) -> None:
    """3 times 2^26 = 6.7e7 integers, in parts."""
    source, part = stream(1, power), 2**21
    found = np.empty(part)
    for start in range(0, 2**26, part):
        gaussian_integers(source, 2.0**power, found, start=start)
        assert np.array_equal(found, exact_integers(source, 2.0**power, start, part))


def test_the_kernel_that_is_compared_is_the_one_in_use() -> None:
    """Where a processor has AES, the tests above compare two paths and not one with itself."""
    assert stream(0).has_round_keys == aes_available()
    assert math.isclose(quick_limit(2.0**14), 0.5, abs_tol=1e-6)
    assert quick_limit(2.0**30) is None

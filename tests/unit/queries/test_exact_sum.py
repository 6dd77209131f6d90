"""Sums of many records on their way to the noise's grid: integers that fit, rounding that is paid
for, little of it lost.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpdask.errors import InvalidSensitivity, OutOfReach
from dpdask.noise import IidNoise, KroneckerNoise
from dpdask.noise.factors import DiagonalFactor, ScaledIdentity
from dpdask.privacy import Adjacency
from dpdask.privatizers.grid import CLIP_LIMIT
from dpdask.queries.exact_sum import ExactSum, SumBounds, discretize_sum
from dpdask.queries.records import Ranges
from dpdask.sensitivity import L2Ball, Origin


def a_total(**changes: Any) -> SumBounds:
    radius = changes.pop("radius", 2.0)
    sensitivity = L2Ball(l2=radius, adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED)
    sizes = {
        "largest": 1.0,
        "power": 1,
        "records": 1000,
        "sensitivity": sensitivity,
        "shape": (1,),
        "record_axis": 0,
    }
    return SumBounds(**{**sizes, **changes})


sizes = st.floats(1e-6, 1e6)


@settings(max_examples=400, deadline=None)
@given(
    largest=sizes,
    records=st.integers(1, 2**36),
    loud=st.floats(1e-3, 1e4),
    entries=st.integers(1, 10**10),
    power=st.sampled_from([1, 2]),
    ranged=st.booleans(),
    steps_per_sigma=st.sampled_from([None, 2**10, 2**14, 2**20]),
)
def test_every_number_fits_and_rounding_is_paid_for(
    largest: float,
    records: int,
    loud: float,
    entries: int,
    power: int,
    ranged: bool,
    steps_per_sigma: int | None,
) -> None:
    """Whatever the sizes: sums stay in 64 bits, answers exact in doubles, records within their
    bound, the noise grown.
    """
    assume(power == 1 or not ranged)
    ranges = Ranges(pairs=((-largest, largest),), feature_axis=0, record_axis=0) if ranged else None
    total = a_total(
        largest=largest,
        power=power,
        records=records,
        radius=2 * largest**power,
        shape=(entries,),
        ranges=ranges,
    )
    noise = IidNoise((entries,), loud * total.sensitivity.radius)
    try:
        discretized, exact_sum = discretize_sum(
            noise, total, mu=1 / loud, steps_per_sigma=steps_per_sigma
        )
    except (OutOfReach, InvalidSensitivity):  # so few steps that a record is below one
        assume(False)
    grid = discretized.privatizer.grid  # type: ignore[attr-defined]
    high = exact_sum.rule().grid.high
    largest_sum = high**power * records
    fine = Fraction(exact_sum.answer_step) / 2**exact_sum.shift
    assert largest_sum + 2**exact_sum.shift < 2 ** (63 if power == 1 else 94)
    assert (largest_sum >> exact_sum.shift) + 1 < 2**50
    assert high**power * fine <= Fraction(largest) ** power
    assert ranged or high <= CLIP_LIMIT
    assert grid.step == exact_sum.answer_step
    sigma = discretized.noise.sigma  # type: ignore[attr-defined]
    assert grid.step * grid.steps_per_sigma == sigma
    if steps_per_sigma is not None:
        assert grid.steps_per_sigma == steps_per_sigma
    if exact_sum.shift == 0:
        assert sigma == noise.sigma
    else:
        needed = Fraction(noise.sigma) * (
            1
            + Fraction(math.sqrt(entries))
            * Fraction(exact_sum.answer_step)
            / Fraction(total.sensitivity.radius)
        )
        assert needed <= sigma <= 1.011 * noise.sigma


@pytest.mark.parametrize("shift", [0, 1, 7])
def test_rounding_an_answer_parts_two_of_them_by_one_step_at_most(shift: int) -> None:
    exact_sum = ExactSum(answer_step=0.5, shift=shift)
    numbers = np.arange(-1000, 1000)
    answers = exact_sum.answer(numbers)
    words = dataclasses.replace(exact_sum, words=2).answer(
        np.stack([numbers >> 32, numbers & (2**32 - 1)])
    )
    assert np.array_equal(words, answers)
    apart = np.abs(answers[:, None] - answers[None, :]) / 0.5
    exact = np.abs(numbers[:, None] - numbers[None, :]) / 2**shift
    assert np.max(apart - exact) < 1 if shift else np.all(apart == exact)
    assert np.max(np.abs(answers / 0.5 - numbers / 2**shift)) <= 0.5


@pytest.mark.parametrize("shift", [0, 1, 13, 31, 32, 33, 45])
def test_two_words_are_rounded_as_one_number(shift: int) -> None:
    """Also when the low words were added up beyond 32 bits, and for sums that no 64 bits hold."""
    rng = np.random.default_rng(shift)
    answers, rests = (
        rng.integers(-(2**49), 2**49, 500).tolist(),
        rng.integers(0, 2**shift, 500).tolist(),
    )
    numbers = [(answer << shift) + rest for answer, rest in zip(answers, rests, strict=True)]
    carried = rng.integers(0, 2**20, 500).tolist()
    high = [(n >> 32) - c for n, c in zip(numbers, carried, strict=True)]
    low = [(n & (2**32 - 1)) + (c << 32) for n, c in zip(numbers, carried, strict=True)]
    rounded = ExactSum(shift=shift, words=2).answer(np.array([high, low]))
    assert rounded.tolist() == [(n + (1 << shift >> 1)) >> shift for n in numbers]


@pytest.mark.parametrize(("power", "radius", "most"), [(1, 2.0, 0.02), (2, math.sqrt(2), 0.4)])
def test_what_a_million_records_lose_stays_below_the_noise(
    power: int, radius: float, most: float
) -> None:
    """At epsilon 1. On the noise's own grid of 2^14 steps, the twin, they would lose many times the
    noise.
    """
    total = a_total(power=power, records=10**6, radius=radius, shape=(100,))
    sigma = 3.73 * radius
    noise = IidNoise((100,), sigma)
    _, exact_sum = discretize_sum(noise, total, mu=0.25, steps_per_sigma=None)

    def lost(step: float) -> float:
        return total.records * 1.5 * step * power / sigma

    assert lost(exact_sum.rule().grid.step) < most
    assert lost((sigma / 2**14) ** (1 / power)) > 50


def test_a_range_far_from_zero_has_its_own_fine_steps() -> None:
    ranges = Ranges(pairs=((1e6, 1e6 + 1),), feature_axis=0, record_axis=0)
    total = a_total(largest=1e6 + 1, records=10**6, radius=1.0, ranges=ranges)
    _, exact_sum = discretize_sum(IidNoise((1,), 4.0), total, mu=0.25, steps_per_sigma=None)
    assert exact_sum.rule().grid.step * 10**6 < 4.0 / 10


def test_directional_noise_grows_by_what_rounding_the_answer_costs() -> None:
    total = a_total(power=2, records=10**6, shape=(3, 3))
    noise = KroneckerNoise((DiagonalFactor(np.array([4.0, 8.0, 16.0])), ScaledIdentity(3)))
    noisy, fine = discretize_sum(noise, total, mu=0.5, steps_per_sigma=2**20)
    assert fine.shift > 0
    parted = 3 * fine.answer_step / 4.0  # whitened, along the quietest direction
    few = dataclasses.replace(total, records=2)
    less_noisy, coarse = discretize_sum(noise, few, mu=0.5, steps_per_sigma=2**20)
    assert coarse.shift == 0
    scale = [float(d.noise.factors[0].smallest) for d in (noisy, less_noisy)]  # type: ignore[attr-defined]
    assert scale[0] / scale[1] - 1 >= parted / 0.5 * 0.99

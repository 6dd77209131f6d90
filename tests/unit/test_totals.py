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
from dpdask.queries.base import Fitted, Ranges
from dpdask.queries.exact_sum import Total, fit_total
from dpdask.sensitivity import L2Ball, Origin


def a_total(**changes: Any) -> Total:
    radius = changes.pop("radius", 2.0)
    sensitivity = L2Ball(l2=radius, adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED)
    facts = {
        "largest": 1.0,
        "power": 1,
        "records": 1000,
        "sensitivity": sensitivity,
        "entries": 1,
        "record_axis": 0,
    }
    return Total(**{**facts, **changes})


sizes = st.floats(1e-6, 1e6)


@settings(max_examples=400, deadline=None)
@given(
    largest=sizes,
    records=st.integers(1, 2**36),
    loud=st.floats(1e-3, 1e4),
    entries=st.integers(1, 10**10),
    power=st.sampled_from([1, 2]),
    ranged=st.booleans(),
    asked=st.sampled_from([None, 2**10, 2**14, 2**20]),
)
def test_every_number_fits_and_rounding_is_paid_for(
    largest: float,
    records: int,
    loud: float,
    entries: int,
    power: int,
    ranged: bool,
    asked: int | None,
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
        entries=entries,
        ranges=ranges,
    )
    noise = IidNoise((entries,), loud * total.sensitivity.radius)
    try:
        fitted = fit_total(noise, total, mu=1 / loud, asked=asked)
    except (OutOfReach, InvalidSensitivity):  # so few steps that a record is below one
        assume(False)
    grid, high = fitted.recipe.grid, fitted.records.grid.high  # type: ignore[attr-defined, union-attr]
    largest_sum = high**power * records
    fine = Fraction(fitted.answer_step) / 2**fitted.shift
    assert largest_sum + 2**fitted.shift < 2 ** (63 if power == 1 else 94)
    assert (largest_sum >> fitted.shift) + 1 < 2**50
    assert high**power * fine <= Fraction(largest) ** power
    assert ranged or high <= CLIP_LIMIT
    assert grid.step == fitted.answer_step
    sigma = fitted.recipe.noise.sigma  # type: ignore[attr-defined]
    assert grid.step * grid.ratio == sigma
    if asked is not None:
        assert grid.ratio == asked
    if fitted.shift == 0:
        assert sigma == noise.sigma
    else:
        needed = Fraction(noise.sigma) * (
            1
            + Fraction(math.sqrt(entries))
            * Fraction(fitted.answer_step)
            / Fraction(total.sensitivity.radius)
        )
        assert needed <= sigma <= 1.011 * noise.sigma


@pytest.mark.parametrize("shift", [0, 1, 7])
def test_rounding_an_answer_parts_two_of_them_by_one_step_at_most(shift: int) -> None:
    fitted = Fitted(recipe=None, mu=None, answer_step=0.5, shift=shift)  # type: ignore[arg-type]
    numbers = np.arange(-1000, 1000)
    answers = fitted.answer(numbers)
    words = dataclasses.replace(fitted, words=2).answer(
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
    found = Fitted(recipe=None, mu=None, shift=shift, words=2).answer(np.array([high, low]))  # type: ignore[arg-type]
    assert found.tolist() == [(n + (1 << shift >> 1)) >> shift for n in numbers]


@pytest.mark.parametrize(("power", "radius", "most"), [(1, 2.0, 0.02), (2, math.sqrt(2), 0.4)])
def test_what_a_million_records_lose_stays_below_the_noise(
    power: int, radius: float, most: float
) -> None:
    """At epsilon 1. On the noise's own grid of 2^14 steps, the twin, they would lose many times the
    noise.
    """
    total = a_total(power=power, records=10**6, radius=radius, entries=100)
    sigma = 3.73 * radius
    fitted = fit_total(IidNoise((100,), sigma), total, mu=0.25, asked=None)

    def lost(step: float) -> float:
        return total.records * 1.5 * step * power / sigma

    assert lost(fitted.records.grid.step) < most  # type: ignore[union-attr]
    assert lost((sigma / 2**14) ** (1 / power)) > 50


def test_a_range_far_from_zero_has_its_own_fine_steps() -> None:
    ranges = Ranges(pairs=((1e6, 1e6 + 1),), feature_axis=0, record_axis=0)
    total = a_total(largest=1e6 + 1, records=10**6, radius=1.0, ranges=ranges)
    fitted = fit_total(IidNoise((1,), 4.0), total, mu=0.25, asked=None)
    assert fitted.records.grid.step * 10**6 < 4.0 / 10  # type: ignore[union-attr]


def test_directional_noise_grows_by_what_rounding_the_answer_costs() -> None:
    total = a_total(power=2, records=10**6, entries=9)
    noise = KroneckerNoise((DiagonalFactor(np.array([4.0, 8.0, 16.0])), ScaledIdentity(3)))
    fine = fit_total(noise, total, mu=0.5, asked=2**20)
    assert fine.shift > 0
    parted = 3 * fine.answer_step / 4.0  # whitened, along the quietest direction
    coarse = fit_total(noise, dataclasses.replace(total, records=2, entries=9), mu=0.5, asked=2**20)
    assert coarse.shift == 0
    scale = [float(f.recipe.noise.factors[0].smallest) for f in (fine, coarse)]  # type: ignore[attr-defined]
    assert scale[0] / scale[1] - 1 >= parted / 0.5 * 0.99

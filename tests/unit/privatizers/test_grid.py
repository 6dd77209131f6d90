"""The grid: bounds are integers, clipped records never exceed theirs, overflow is refused before
anything runs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdask.errors import InvalidSensitivity, OutOfReach
from dpdask.privatizers.clipping import (
    clip_factors,
    clipped_on_grid,
    fine_clip_grid,
    record_norms,
)
from dpdask.privatizers.grid import ENTRY_LIMIT, Grid, steps_for_rounding

ODD = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -5e-324, -0.0, 0.0, 1e-310]


def quantised(block: np.ndarray, step: float) -> np.ndarray:
    """The value rule in exact Python integers."""
    rows = []
    for value in block.ravel():
        number = float(value)
        if math.isnan(number):
            rows.append(0)
        elif math.isinf(number) or abs(number / step) > ENTRY_LIMIT:
            rows.append(int(math.copysign(ENTRY_LIMIT, number)))
        else:
            rows.append(int(np.rint(number * (1 / step))))
    return np.array(rows, dtype=object).reshape(block.shape)


def test_range_bounds_are_rounded_inwards() -> None:
    grid = Grid.for_range(sigma=0.3, low=-1.0, high=2.5)
    assert Fraction(grid.low) * Fraction(grid.step) >= -1
    assert Fraction(grid.high) * Fraction(grid.step) <= Fraction(5, 2)
    assert Fraction(grid.low - 1) * Fraction(grid.step) < -1
    assert grid.step * grid.steps_per_sigma == 0.3


@pytest.mark.parametrize(
    ("recipe", "error"),
    [
        (lambda: Grid.for_range(sigma=1e-12, low=-1e9, high=1e9), OutOfReach),
        (
            lambda: Grid.for_range(sigma=1.0, low=-3e6, high=3e6, steps_per_sigma=2.0**30),
            OutOfReach,
        ),  # between 2^51 and 2^52
        (lambda: Grid.for_range(sigma=1.0, low=0.000001, high=0.000002), InvalidSensitivity),
        (lambda: Grid.for_clip(sigma=1e-9, norm=1e3), OutOfReach),
        (lambda: Grid.for_clip(sigma=1e9, norm=1e-3), InvalidSensitivity),
        (lambda: Grid.for_clip(sigma=math.nan, norm=1.0), InvalidSensitivity),
        (lambda: Grid.for_range(sigma=1e-310, low=-1e-300, high=1e-300), OutOfReach),
        (lambda: steps_for_rounding(sigma=1e6, sensitivity=1e-3, entries=10**9), OutOfReach),
    ],
)
def test_what_cannot_be_exact_is_refused(recipe: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        recipe()


def test_a_declared_sensitivity_is_inflated_by_at_most_a_thousandth() -> None:
    steps_per_sigma, inflated = steps_for_rounding(sigma=3.7, sensitivity=1.0, entries=10**6)
    assert 1.0 < inflated <= 1.001
    noise_for_inflated = 3.7 * inflated
    assert (
        inflated >= 1 + noise_for_inflated / steps_per_sigma * 1000
    )  # the grid of the noise that is really added
    assert steps_for_rounding(sigma=1.0, sensitivity=1.0, entries=1)[0] == 2.0**14


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_partial_norms_are_exact_and_add_up_in_any_order(dtype: str) -> None:
    generator = np.random.default_rng(3)
    block = (generator.standard_normal((5, 7, 11)) * 1000).astype(dtype)
    if dtype.startswith("float"):
        with np.errstate(over="ignore"):
            block.ravel()[: len(ODD)] = np.array(ODD).astype(dtype)
    else:
        block.ravel()[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    step = 0.37
    whole = record_norms(block, record_axis=1, step=step)
    parts = record_norms(block[..., 6:], record_axis=1, step=step) + record_norms(
        block[..., :6], record_axis=1, step=step
    )
    exact = [sum(q * q for q in quantised(block[:, r], step).ravel()) for r in range(7)]
    for norms in (whole, parts):
        assert [sum(int(word) << 32 * k for k, word in enumerate(row)) for row in norms] == exact


values = (
    st.floats(allow_nan=True, allow_infinity=True, width=64)
    | st.sampled_from(ODD)
    | st.floats(-3, 3)
)


def clipped_square(record: np.ndarray, grid: Grid) -> tuple[int, int]:
    """The exact squared norm of a clipped record and of the record before."""
    q = quantised(record, grid.step)
    factor = float(
        clip_factors(record_norms(record[None, :], record_axis=0, step=grid.step), grid=grid)[0]
    )
    clipped = [math.trunc(float(v) * factor) for v in q]
    return sum(v * v for v in clipped), sum(int(v) * int(v) for v in q)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(
    record=st.lists(values, min_size=1, max_size=12),
    sigma=st.floats(1e-3, 1e3),
    norm=st.floats(1e-2, 1e4),
)
def test_a_clipped_record_never_exceeds_its_bound(
    record: list[float], sigma: float, norm: float
) -> None:
    try:
        grid = Grid.for_clip(sigma=sigma, norm=norm)
    except (OutOfReach, InvalidSensitivity):
        return
    after, before = clipped_square(np.array(record), grid)
    assert after <= grid.high**2
    if before <= grid.high**2:
        assert after == before


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 9),
    log_sigma=st.floats(-3, 3),
    log_ratio=st.floats(-2, 5),
    magnitude=st.integers(0, 300),
)
def test_a_hundred_thousand_records_on_the_edge_never_exceed_their_bound(
    seed: int, width: int, log_sigma: float, log_ratio: float, magnitude: int
) -> None:
    """A hundred records a case, with norms within a few parts in 2^50 of the bound, where rounding
    would tip them over.
    """
    generator = np.random.default_rng(seed)
    grid = Grid.for_clip(sigma=math.exp(log_sigma), norm=math.exp(log_sigma + log_ratio))
    direction = generator.standard_normal((100, width))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    records = (
        direction * grid.high * grid.step * (1 + generator.integers(-8, 9, (100, 1)) * 2.0**-50)
    )
    records[::5] *= 10.0**magnitude
    records[::7, 0] = generator.choice(ODD, len(records[::7]))
    factors = clip_factors(record_norms(records, record_axis=0, step=grid.step), grid=grid)
    q = quantised(records, grid.step).astype(np.float64)
    clipped = np.trunc(q * factors[:, None]).astype(np.int64)
    assert np.all(np.sum(clipped * clipped, axis=1) <= grid.high**2)


@settings(max_examples=500, deadline=None)
@given(entries=st.lists(st.integers(-(2**50) + 1, 2**50 - 1), min_size=1, max_size=40))
def test_squares_of_any_entries_add_up_exactly(entries: list[int]) -> None:
    block = np.array([entries], dtype=np.float64)
    [row] = record_norms(block, record_axis=0, step=1.0)
    assert sum(int(word) << 32 * k for k, word in enumerate(row)) == sum(q * q for q in entries)


def test_clipping_keeps_the_direction_and_nearly_the_norm() -> None:
    grid = Grid.for_clip(sigma=0.01, norm=1.0)
    record = np.array([[300.0, -400.0]])
    factor = clip_factors(record_norms(record, record_axis=0, step=grid.step), grid=grid)[0]
    clipped = np.trunc(np.rint(record / grid.step) * factor) * grid.step
    assert np.allclose(clipped, [[0.6, -0.8]], atol=2 * grid.step)


@pytest.mark.parametrize("bits", [12, 20, 24, 30])
@pytest.mark.parametrize("times", [1.5, 10, 1e3, 1e5])
def test_outliers_are_clipped_to_their_own_direction(bits: int, times: float) -> None:
    """However many clip norms away: an entry that saturates would turn the record."""
    grid = fine_clip_grid(1.0, bits=bits)
    record = times * np.array([[0.96, -0.28, 0.0]])
    factors = clip_factors(record_norms(record, record_axis=0, step=grid.step), grid=grid)
    clipped = clipped_on_grid(record, step=grid.step, factors=factors, record_axis=0) * grid.step
    assert np.allclose(clipped, [[0.96, -0.28, 0.0]], atol=3 * grid.step)

"""One factor for all records of a person: their bound holds exactly, in integers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdask.privatizers.clipping import (
    ENTRY_LIMIT,
    clip_factors,
    clipped_on_grid,
    fine_clip_grid,
    record_norms,
)
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.person_clipping import person_factors, record_measures

Anything = np.ndarray[Any, Any]
NORM = 1.3


def _factors(block: Anything, codes: Anything, grid: Grid, power: int) -> Anything:
    norms = record_norms(block, record_axis=0, step=grid.step)
    measures = record_measures(norms, power=power)
    return person_factors(codes, int(codes.max()) + 1, measures, grid=grid, power=power)


def _integers(block: Anything, factors: Anything, grid: Grid) -> list[list[int]]:
    steps = clipped_on_grid(block, step=grid.step, factors=factors, record_axis=0)
    return [[int(entry) for entry in row] for row in steps]


def _root_up(square: int) -> Fraction:
    """The root of an integer, rounded up in its 80th bit."""
    return Fraction(math.isqrt(square << 160) + 1, 1 << 80) if square else Fraction(0)


def _measure(rows: list[list[int]], power: int) -> Fraction:
    """What the bound is on: the squared norms of all records, or the square of their norms."""
    squares = [sum(entry**2 for entry in row) for row in rows]
    if power == 2:
        return Fraction(sum(squares))
    return sum((_root_up(square) for square in squares), Fraction(0)) ** 2


def _check(block: Anything, codes: Anything, power: int, bits: int) -> None:
    grid = fine_clip_grid(NORM, bits=bits)
    factors = _factors(block, codes, grid, power)
    whole = _integers(block, np.ones(len(block)), grid)
    shrunk = _integers(block, factors, grid)
    for person in range(int(codes.max()) + 1):
        mine = [row for row, code in zip(shrunk, codes, strict=True) if code == person]
        before = [row for row, code in zip(whole, codes, strict=True) if code == person]
        assert _measure(mine, power) <= Fraction(grid.high) ** 2 * (1 + Fraction(1, 2**70))
        [factor] = {float(factors[i]) for i in np.flatnonzero(codes == person)} or {1.0}
        # not much less than what the bound allows
        exact = min(1.0, grid.high / math.sqrt(float(_measure(before, power)) or 1.0))
        slack = len(before) / 2**8 / grid.high + 2.0**-40
        assert factor >= exact * (1 - slack)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("bits", [8, 20, 30])
@pytest.mark.parametrize("size", [1e-6, 0.1, 1.0, 1e6, 1e300])
def test_records_of_a_person_obey_the_norm_together(power: int, bits: int, size: float) -> None:
    rng = np.random.default_rng(7)
    block = rng.standard_normal((60, 3)) * size
    block[3, 0], block[4, 1], block[5, 2] = np.nan, np.inf, -np.inf
    for codes in (np.zeros(60, np.int64), np.arange(60) % 7, np.arange(60)):
        _check(block, codes, power, bits)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from([1, 2]),
)
def test_any_values_of_any_people_obey_it(rows: list[list[float]], people: int, power: int) -> None:
    _check(np.array(rows), np.arange(len(rows)) % people, power, 24)


@pytest.mark.parametrize("power", [1, 2])
def test_parts_and_orders_do_not_change_a_factor(power: int) -> None:
    rng = np.random.default_rng(1)
    block, codes = rng.standard_normal((500, 4)) * 1e3, rng.integers(0, 20, 500)
    grid = fine_clip_grid(NORM)
    factors = _factors(block, codes, grid, power)
    order = rng.permutation(500)
    assert np.array_equal(_factors(block[order], codes[order], grid, power), factors[order])


@pytest.mark.parametrize("power", [1, 2])
def test_a_person_of_one_record_is_clipped_as_a_record(power: int) -> None:
    rng = np.random.default_rng(2)
    block = rng.standard_normal((50, 4))
    grid = fine_clip_grid(NORM)
    own = clip_factors(record_norms(block, record_axis=0, step=grid.step), grid=grid)
    assert _factors(block, np.arange(50), grid, power) == pytest.approx(own, rel=1e-8)
    assert np.all(own <= 1)


def test_the_bound_of_every_record_is_not_that_of_a_person() -> None:
    """The factors of records, which a person of several must not have, break its bound."""
    block = np.full((4, 2), 5.0)
    grid = fine_clip_grid(NORM)
    own = clip_factors(record_norms(block, record_axis=0, step=grid.step), grid=grid)
    for power in (1, 2):
        assert _measure(_integers(block, own, grid), power) > 3.9 * Fraction(grid.high) ** 2


@pytest.mark.parametrize("power", [1, 2])
def test_the_largest_records_there_may_be_are_measured(power: int) -> None:
    """Entries of 2^50 steps each: sums of squares beyond 2^128 are exact, too."""
    grid = fine_clip_grid(NORM, bits=30)
    norms = np.tile(
        record_norms(np.full((1, 1000), np.inf), record_axis=0, step=grid.step), (1000, 1)
    )
    norms *= np.uint64(2**20)  # as many entries of every record
    measures = record_measures(norms, power=power)
    square = 1000 * 2**20 * ENTRY_LIMIT**2
    least = square if power == 2 else math.isqrt(square) * 2**8
    assert Fraction(float(measures[0])) >= least
    codes = np.zeros(1000, np.int64)
    factor = person_factors(codes, 1, measures, grid=grid, power=power)[0]
    total = 1000 * square if power == 2 else 1000**2 * square
    assert Fraction(float(factor)) ** 2 * total <= grid.high**2
    assert factor == pytest.approx(grid.high / math.sqrt(total), rel=1e-9)

"""The compiled sums of records are the sums of the integers that records become, to the last bit,
whatever the shape, the type, the bound, the centre, the groups and the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdask.privatizers.clipping import clip_factors, clipped_on_grid, on_grid, record_norms
from dpdask.privatizers.grid import Grid
from dpdask.queries.center import ORIGIN, Center
from dpdask.queries.records import Ranges, RecordRule, RecordSums, SpreadRule

SHAPES = [((7,), 0), ((1,), 0), ((9, 4), 0), ((4, 9), 1), ((3, 8, 5), 1), ((2, 3, 11), 2)]
TYPES = ["f4", "f8", "i4", "i8"]


def awkward_values(generator: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Values inside, outside and on the edge of bounds, halves of steps, missing and infinite."""
    values = generator.normal(3, 40, shape)
    halves = generator.integers(-40, 40, shape) / 2
    values = np.where(generator.random(shape) < 0.3, halves, values)
    if dtype[0] == "i":
        return np.rint(values * 1e3).astype(dtype)
    values = values.astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, np.finfo(dtype).max, -0.0], dtype)
    chosen = generator.choice(special, shape)
    return np.where(generator.random(shape) < 0.3, chosen, values)


def rules(shape: tuple[int, ...], axis: int, generator: Any) -> list[RecordRule]:
    features = max((other for other in range(len(shape)) if other != axis), default=0)
    count = 1 if len(shape) == 1 else shape[features]
    middles = tuple(generator.normal(2, 5, count))
    center = Center.per_feature(middles, axis=features, order=len(shape))
    pairs = tuple((middle - 7.3, middle + 4.1) for middle in middles)
    around = tuple((-7.3, 4.1) for _ in middles)
    grid = Grid(step=0.5, steps_per_sigma=1024, low=-100, high=100)
    fine = Grid(step=2.0**-30, steps_per_sigma=1024, low=-(2**40), high=2**40)
    found = []
    for each in (grid, fine):
        plain = Ranges(pairs=pairs, feature_axis=features, record_axis=axis, center=center)
        shifted = Ranges(pairs=around, feature_axis=features, record_axis=axis)
        found += [
            RecordRule(grid=each, record_axis=axis, ranges=plain),
            RecordRule(grid=each, record_axis=axis, ranges=shifted, center=center),
        ]
    clip = Grid(step=2.0**-12, steps_per_sigma=1024, low=-(2**18), high=2**18)
    found += [RecordRule(grid=clip, record_axis=axis, center=each) for each in (ORIGIN, center)]
    return found


def integers(rule: RecordRule, block: Any, factors: Any, region: Any) -> Any:
    """The integers of records, step by step in NumPy."""
    block = rule.center.shifted(block, region)
    step, axis = rule.grid.step, rule.record_axis
    if rule.ranges is not None:
        low, high = rule.ends(rule.ranges, region, block.shape)
        return on_grid(rule.ranges.center.fill(block, region), step=step, low=low, high=high)
    if factors is None:
        norms = record_norms(block, record_axis=axis, step=step)
        factors = clip_factors(norms, grid=rule.grid)
    return clipped_on_grid(block, step=step, factors=factors, record_axis=axis)


def added(
    rule: RecordRule, block: Any, region: Any, codes: Any, groups: int, factors: Any
) -> tuple[Any, Any]:
    """The sums of records that are added in blocks of three."""
    sums = RecordSums(rule, region, groups=groups, counted=True)
    axis = rule.record_axis
    for first in range(0, block.shape[axis], 3):
        here = slice(first, first + 3)
        part = block[(slice(None),) * axis + (here,)]
        sums.add(part, codes[here], None if factors is None else factors[here])
    return sums.totals, sums.counts


def reference(
    rule: RecordRule, block: Any, region: Any, codes: Any, groups: int, factors: Any
) -> tuple[Any, Any]:
    """The sums by group of the integers that records become."""
    steps = integers(rule, block.copy(), factors, region).astype(np.int64)
    axis = rule.record_axis
    present = np.asarray(~np.isnan(block) if block.dtype.kind == "f" else np.ones_like(block, "?"))
    totals = [np.compress(codes == group, steps, axis).sum(axis) for group in range(groups)]
    counts = [np.compress(codes == group, present, axis).sum(axis) for group in range(groups)]
    return np.reshape(totals, (groups, -1)), np.reshape(counts, (groups, -1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_compiled_sums_are_the_sums_of_integers(
    shape: tuple[int, ...], axis: int, dtype: str
) -> None:
    generator = np.random.default_rng(len(shape) * 10 + axis)
    for rule in rules(shape, axis, generator):
        block = awkward_values(generator, shape, dtype)
        region = tuple(slice(0, size) for size in shape)
        codes = generator.integers(-1, 3, shape[axis])
        given = None if rule.ranges is not None else generator.random(shape[axis])
        for factors in (None, given):
            sums, counts = added(rule, block, region, codes, 3, factors)
            wanted = reference(rule, block, region, codes, 3, factors)
            np.testing.assert_array_equal(sums, wanted[0])
            np.testing.assert_array_equal(counts, wanted[1])
            assert np.any(sums) or block.size < 5  # the twin: there is something to compare


@pytest.mark.parametrize("counted", [True, False])
def test_sums_are_the_same_with_and_without_counts(counted: bool) -> None:
    generator = np.random.default_rng(3)
    region = (slice(0, 9), slice(0, 4))
    for rule in rules((9, 4), 0, generator):
        block = awkward_values(generator, (9, 4), "f8")
        sums = RecordSums(rule, region, groups=2, counted=counted)
        codes = generator.integers(-1, 2, 9)
        sums.add(block, codes, None)
        wanted, counts = reference(rule, block, region, codes, 2, None)
        np.testing.assert_array_equal(sums.totals, wanted)
        assert (sums.counts is not None) == counted
        if sums.counts is not None:
            np.testing.assert_array_equal(sums.counts, counts)


@pytest.mark.parametrize("many", [1, 4, 100])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_compiled_integers_are_those_of_numpy(
    shape: tuple[int, ...], axis: int, dtype: str, many: int
) -> None:
    generator = np.random.default_rng(len(shape) * 10 + axis)
    region = tuple(slice(0, size) for size in shape)
    for rule in rules(shape, axis, generator):
        block = awkward_values(generator, shape, dtype)
        given = None if rule.ranges is not None else generator.random(shape[axis])
        for factors in (None, given):
            pieces = SpreadRule(rule, region).integers(block.copy(), factors, many)
            rows = np.concatenate([part.copy() for _, part in pieces])
            wanted = np.moveaxis(integers(rule, block.copy(), factors, region), axis, 0)
            np.testing.assert_array_equal(rows, wanted.reshape(rows.shape))
            assert np.any(rows) or block.size < 5


def test_a_part_of_the_features_has_its_own_bounds() -> None:
    """A region that begins in the middle of the features takes their ranges and centres."""
    generator = np.random.default_rng(5)
    rule = rules((6, 5), 0, generator)[1]
    block = awkward_values(generator, (6, 5), "f8")
    codes = np.zeros(6, np.int64)
    whole, _ = added(rule, block, (slice(0, 6), slice(0, 5)), codes, 1, None)
    part, _ = added(rule, block[:, 2:4], (slice(0, 6), slice(2, 4)), codes, 1, None)
    shifted, _ = added(rule, block[:, 2:4], (slice(0, 6), slice(0, 2)), codes, 1, None)
    np.testing.assert_array_equal(part, whole[:, 2:4])
    assert np.any(part != shifted)

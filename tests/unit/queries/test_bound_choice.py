"""How a bound follows from noisy counts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from dpdask.queries.bound_choice import (
    BINS,
    BoundRule,
    ChosenBound,
    _falling,
    norm_edges,
    value_edges,
)

Anything = np.ndarray[Any, Any]
RULES = [BoundRule(quantile=0.95), BoundRule(above=8.0), BoundRule(quantiles=(0.01, 0.99))]


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=30))
def test_sums_that_should_fall_are_fitted_as_scipy_fits_them(values: list[int]) -> None:
    fitted = [float(value) for value in _falling([Fraction(value) for value in values])]
    expected = isotonic_regression(np.asarray(values, float), increasing=False).x
    np.testing.assert_allclose(fitted, expected, atol=1e-9)


@pytest.mark.parametrize(
    "between", [(0.1, 1e4), (1.0, 1.01), (1e-3, 1e9), (2.5, 7.5), (1e90, 9e99)]
)
def test_norms_rise_from_end_to_end(between: tuple[float, float]) -> None:
    edges = norm_edges(*between)
    assert (edges[0], edges[-1], len(edges)) == (*between, BINS + 1)
    assert np.all(np.diff(edges) > 0)
    ratios = np.log(edges[1:]) - np.log(edges[:-1])
    np.testing.assert_allclose(
        ratios, np.log(between[1] / between[0]) / BINS, atol=2e-5
    )  # to six digits


@pytest.mark.parametrize("between", [(-100.0, 100.0), (0.0, 1.0), (1e6, 1e6 + 10.0), (-1e99, 1e99)])
def test_ends_of_ranges_rise_from_end_to_end(between: tuple[float, float]) -> None:
    edges = value_edges(*between)
    assert (edges[0], edges[-1], len(edges)) == (*between, BINS + 1)
    assert np.all(np.diff(edges) > 0)


def histogram(norms: Anything, edges: Anything) -> Anything:
    bins = np.minimum(np.searchsorted(edges, norms, side="left"), edges.size - 1)
    return np.bincount(bins, minlength=edges.size).astype(float)


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99])
def test_without_noise_a_norm_is_the_first_edge_above_the_quantile(quantile: float) -> None:
    edges = np.asarray(norm_edges(0.1, 1e4))
    norms = np.random.default_rng(0).lognormal(2, 1, 10_000)
    chosen = BoundRule(quantile=quantile).choose(histogram(norms, edges), edges, std=1e-6).norm
    assert chosen == edges[np.searchsorted(edges, np.quantile(norms, quantile))]


def test_without_noise_the_best_norm_leaves_so_many_above() -> None:
    edges = np.asarray(norm_edges(0.1, 1e4))
    norms = np.random.default_rng(0).lognormal(2, 1, 10_000)
    chosen = BoundRule(above=100.0).choose(histogram(norms, edges), edges, std=1e-6).norm
    costs = [np.maximum(norms - edge, 0).sum() + 100 * edge for edge in edges]
    assert abs(int(np.argmin(costs)) - edges.tolist().index(chosen)) <= 1


def test_without_noise_ranges_are_the_quantiles() -> None:
    edges = np.asarray([value_edges(-100.0, 100.0), value_edges(0.0, 50.0)])
    values = np.random.default_rng(0).normal([[10], [20]], [[5], [2]], (2, 10_000))
    counts = np.asarray([np.histogram(v, e)[0] for v, e in zip(values, edges, strict=True)])
    chosen = BoundRule(quantiles=(0.01, 0.99)).choose(counts.astype(float), edges, std=1e-6)
    for (low, high), own, ends in zip(chosen.ranges, values, edges, strict=True):
        width = ends[1] - ends[0]
        true_low, true_high = np.quantile(own, [0.01, 0.99])
        assert low <= true_low < low + width
        assert high - width < true_high <= high


def test_noise_of_empty_bins_does_not_hide_where_the_data_end() -> None:
    """At a noise of 24 per count, 70 empty bins add up to 200 records more or less."""
    rng = np.random.default_rng(0)
    edges = np.asarray(norm_edges(0.1, 1e4))
    norms = np.linalg.norm(rng.standard_normal((5000, 4)) * [1, 2, 3, 4], axis=1)
    counts = histogram(norms, edges)
    for rule in RULES[:2]:
        chosen = [
            rule.choose(counts + rng.normal(0, 24, counts.size), edges, std=24.0).norm
            for _ in range(200)
        ]
        kept = [float(np.mean(norms <= bound)) for bound in chosen]
        assert np.quantile(kept, 0.05) > 0.9
        assert np.quantile(chosen, 0.95) < 3 * norms.max()


@pytest.mark.parametrize("rule", RULES, ids=["quantile", "best", "ranges"])
@given(
    counts=st.lists(st.floats(-1e12, 1e12, allow_nan=False), min_size=BINS + 1, max_size=BINS + 1),
    std=st.floats(1e-3, 1e6),
)
def test_whatever_the_counts_are_a_bound_is_chosen(
    rule: BoundRule, counts: list[float], std: float
) -> None:
    values = np.asarray(counts)
    if rule.quantiles is None:
        edges = np.asarray(norm_edges(0.1, 1e4))
        assert rule.choose(values, edges, std=std).norm in edges
        return
    edges = np.asarray([value_edges(-5.0, 7.0)])
    [(low, high)] = rule.choose(values[None, :-1], edges, std=std).ranges
    assert -5 <= low < high <= 7


@pytest.mark.parametrize("counts", [np.zeros(BINS + 1), np.full(BINS + 1, -50.0)])
def test_counts_of_nothing_choose_a_bound_too(counts: Anything) -> None:
    edges = np.asarray(norm_edges(0.1, 1e4))
    for rule in RULES[:2]:
        assert rule.choose(counts, edges, std=10.0).norm in edges


def test_a_bound_is_the_same_after_json() -> None:
    for bound in (ChosenBound(norm=3.5), ChosenBound(ranges=((0.0, 1.0), (-2.0, 5.5)))):
        assert ChosenBound.from_dict(bound.to_dict()) == bound
    for rule in RULES:
        assert BoundRule.from_dict(rule.to_dict()) == rule


def test_an_end_is_called_one() -> None:
    assert ChosenBound(norm=0.1).at_end([[0.1, 9.0]])
    assert ChosenBound(norm=9.0).at_end([[0.1, 9.0]])
    assert not ChosenBound(norm=1.0).at_end([[0.1, 9.0]])
    assert ChosenBound(ranges=((1.0, 2.0), (0.0, 2.0))).at_end([[0.0, 9.0], [0.0, 9.0]])
    assert not ChosenBound(ranges=((1.0, 2.0),)).at_end([[0.0, 9.0]])

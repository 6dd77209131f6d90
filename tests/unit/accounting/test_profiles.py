"""Profiles against 60-digit arithmetic, against each other, and in their direction of rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import mpmath as mp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdask import Adjacency, GaussianProfile, PrivacyBudget, SphericalProfile
from dpdask.accounting import (
    Chi,
    ComposedProfile,
    Gamma,
    HalfNormal,
    RadialLaw,
    SampledProfile,
    compose,
)
from dpdask.errors import InvalidBudget, InvalidMechanism

log_mus = st.floats(math.log(1e-9), math.log(60))
log_epsilons = st.floats(math.log(1e-9), math.log(1e3))
log_deltas = st.floats(math.log(1e-300), math.log(0.5))
dimensions = st.integers(3, 40) | st.sampled_from([100, 10**4, 10**6, 10**9, 10**12])


def exact_gaussian_delta(mu: float, epsilon: float) -> mp.mpf:
    with mp.workdps(80):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


@settings(max_examples=300, deadline=None)
@given(log_mus, log_epsilons)
def test_gaussian_delta_is_never_below_the_exact_one_and_within_5e_10(
    log_mu: float, log_epsilon: float
) -> None:
    mu, epsilon = math.exp(log_mu), math.exp(log_epsilon)
    exact = exact_gaussian_delta(mu, epsilon)
    found = GaussianProfile(mu).delta(epsilon)
    if exact < mp.mpf(10) ** -300:
        assert 0 < found < 1e-299
    else:
        assert found >= float(exact)
        assert found <= min(1.0, float(exact) * (1 + 5e-10))


@settings(max_examples=150, deadline=None)
@given(log_epsilons, log_deltas)
def test_the_calibrated_gaussian_meets_its_budget_and_wastes_nothing(
    log_epsilon: float, log_delta: float
) -> None:
    budget = PrivacyBudget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    mu = GaussianProfile.meeting(budget).mu
    assert exact_gaussian_delta(mu, budget.epsilon) <= budget.delta
    assert exact_gaussian_delta(mu * (1 + 1e-8), budget.epsilon) > budget.delta


@settings(max_examples=100, deadline=None)
@given(log_mus, log_deltas)
def test_delta_of_epsilon_of_delta_is_delta(log_mu: float, log_delta: float) -> None:
    profile, delta = GaussianProfile(math.exp(log_mu)), math.exp(log_delta)
    epsilon = profile.epsilon(delta)
    if epsilon == 0:
        assert profile.delta(0.0) <= delta * (1 + 1e-9)
    else:
        # delta can move by 700 times the relative rounding of epsilon
        assert math.isclose(profile.delta(epsilon), delta, rel_tol=1e-8)


@settings(max_examples=60, deadline=None)
@given(dimensions, log_mus, log_epsilons)
def test_chi_noise_is_exactly_the_gaussian(
    dimension: int, log_mu: float, log_epsilon: float
) -> None:
    mu, epsilon = math.exp(log_mu), math.exp(log_epsilon)
    exact = exact_gaussian_delta(mu, epsilon)
    found = SphericalProfile(dimension=dimension, law=Chi(1 / mu), sensitivity=1.0).delta(epsilon)
    if exact > mp.mpf(10) ** -300:
        assert math.isclose(found, float(exact), rel_tol=1e-9)
        assert found >= float(exact) * (1 - 1e-15)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    dimensions, st.sampled_from([HalfNormal, Chi, Gamma]), st.floats(-2, 12), st.floats(-30, -0.7)
)
def test_spherical_delta_of_epsilon_of_delta_is_delta(
    dimension: int, law: type[RadialLaw], log_scale: float, log_delta: float
) -> None:
    profile = SphericalProfile(dimension=dimension, law=law(math.exp(log_scale)), sensitivity=1.0)
    delta = math.exp(log_delta)
    epsilon = profile.epsilon(delta)
    if 0 < epsilon < 1e3:
        assert math.isclose(profile.delta(epsilon), delta, rel_tol=1e-7)
    elif epsilon == 0:
        assert profile.delta(0.0) <= delta * (1 + 1e-9)


def half_normal_delta_in_three_dimensions(
    scale: float, sensitivity: float, epsilon: float
) -> mp.mpf:
    """In R^3 the cosine is uniform; integrate by brute force over radius and cosine, splitting at
    every kink.
    """
    with mp.workdps(25):
        b, s, e = mp.mpf(scale), mp.mpf(sensitivity), mp.mpf(epsilon)

        def loss(r: mp.mpf, c: mp.mpf) -> mp.mpf:
            q2 = r * r + s * s + 2 * r * s * c
            return (q2 - r * r) / (2 * b * b) + mp.log(q2 / (r * r)) if q2 > 0 else -mp.inf

        def bisect(inside: Callable[[mp.mpf], bool], low: mp.mpf, high: mp.mpf) -> mp.mpf:
            """The point between low (where inside holds) and high (where it does not)."""
            for _ in range(90):
                middle = (low + high) / 2
                low, high = (middle, high) if inside(middle) else (low, middle)
            return (low + high) / 2

        def given_radius(r: mp.mpf) -> mp.mpf:
            if loss(r, mp.mpf(1)) <= e:
                return mp.mpf(0)
            start = mp.mpf(-1)
            if loss(r, start) < e:
                start = bisect(lambda c: loss(r, c) < e, start, mp.mpf(1))
            return mp.quad(lambda c: (1 - mp.exp(e - loss(r, c))) / 2, [start, 1])

        grid = [s * mp.mpf(2) ** (mp.mpf(k) / 8) for k in range(-160, 120)]
        kinks = []
        for c in (mp.mpf(1), mp.mpf(-1)):
            for low, high in itertools.pairwise(grid):
                if (loss(low, c) > e) != (loss(high, c) > e):
                    first = loss(low, c) > e
                    kinks.append(
                        bisect(lambda r, c=c, first=first: (loss(r, c) > e) == first, low, high)
                    )
        breaks = sorted([mp.mpf(0), min(kinks) / 8, min(kinks) / 2, *kinks, 14 * b])
        breaks = [r for r in breaks if r <= 14 * b]

        def density(r: mp.mpf) -> mp.mpf:
            return mp.sqrt(2 / mp.pi) / b * mp.exp(-r * r / (2 * b * b))

        return mp.quad(lambda r: density(r) * given_radius(r), breaks, maxdegree=6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "sensitivity", "epsilon"),
    [
        (10.0, 1.0, 0.5),
        (300.0, 1.0, 2.0),
        (40.0, 1.0, 5.0),
        # small radii and large ones lose more than epsilon, those between do not
        (1.0, 0.9595, 2.801),
        (1.0, 0.6065, 2.3811),
    ],
)
def test_rank_one_profile_agrees_with_brute_force(
    scale: float, sensitivity: float, epsilon: float
) -> None:
    exact = float(half_normal_delta_in_three_dimensions(scale, sensitivity, epsilon))
    found = SphericalProfile(dimension=3, law=HalfNormal(scale), sensitivity=sensitivity).delta(
        epsilon
    )
    assert math.isclose(found, exact, rel_tol=1e-8)
    assert found >= exact * (1 - 1e-10)


@pytest.mark.parametrize("dimension", [2, 3, 50, 10**6, 10**12])
def test_k_norm_noise_is_purely_private(dimension: int) -> None:
    profile = SphericalProfile(dimension=dimension, law=Gamma(2.0), sensitivity=1.0)
    assert profile.delta(0.5) == 0.0
    assert profile.delta(0.5001) == 0.0
    assert profile.delta(0.49) > 0.0


@pytest.mark.parametrize("law", [HalfNormal, Chi, Gamma])
@pytest.mark.parametrize("dimension", [3, 1000, 10**12])
def test_spherical_delta_falls_with_epsilon_and_grows_with_sensitivity(
    law: type[RadialLaw], dimension: int
) -> None:
    scale = 3.0 if law is not HalfNormal else 3.0 * math.sqrt(dimension)
    by_epsilon = [
        SphericalProfile(dimension=dimension, law=law(scale), sensitivity=1.0).delta(e)
        for e in (0.0, 1e-9, 0.1, 0.3)
    ]
    assert by_epsilon == sorted(by_epsilon, reverse=True)
    by_sensitivity = [
        SphericalProfile(dimension=dimension, law=law(scale), sensitivity=s).delta(0.1)
        for s in (0.1, 0.5, 1.0, 4.0)
    ]
    assert by_sensitivity == sorted(by_sensitivity)


@pytest.mark.parametrize("epsilon", [1e-9, 1.0, 1e3])
@pytest.mark.parametrize("scale", [1e-3, 1e150, 1e300])
@pytest.mark.parametrize("dimension", [3, 10**12])
def test_rank_one_profile_is_total_at_the_extremes(
    epsilon: float, scale: float, dimension: int
) -> None:
    delta = SphericalProfile(dimension=dimension, law=HalfNormal(scale), sensitivity=1.0).delta(
        epsilon
    )
    assert 0 < delta <= 1


@pytest.mark.parametrize("epsilon", [5.0, 13.5, 19.4])
def test_a_narrow_transition_of_the_rank_one_profile_is_resolved(epsilon: float) -> None:
    """In R^3, far from the exponential: given r, the loss is 2 ln(q/r) with q^2 uniform on
    [(1-r)^2, (1+r)^2].
    """
    scale = 1e4
    with mp.workdps(30):
        e = mp.mpf(epsilon)

        def given_radius(r: mp.mpf) -> mp.mpf:
            low, high, level = (1 - r) ** 2, (1 + r) ** 2, r * r * mp.exp(e)
            start = max(low, level)
            if start >= high:
                return mp.mpf(0)
            return ((high - start) - level * mp.log(high / start)) / (high - low)

        kinks = [1 / (mp.exp(e / 2) + 1), 1 / (mp.exp(e / 2) - 1)]
        density = mp.sqrt(2 / mp.pi) / scale
        exact = density * (
            mp.quad(given_radius, [0, kinks[0] / 2, kinks[0]]) + mp.quad(given_radius, kinks)
        )
    found = SphericalProfile(dimension=3, law=HalfNormal(scale), sensitivity=1.0).delta(epsilon)
    assert math.isclose(
        found, float(exact), rel_tol=1e-7
    )  # the exponential part of the loss is of order 1e-8
    assert found >= float(exact) * (1 - 1e-9)


@pytest.mark.slow
def test_composition_beyond_its_resolution_says_so() -> None:
    hopeless = compose([(SampledProfile(GaussianProfile(30.0), 1.0, Adjacency.REPLACE_ONE), 2)])
    assert hopeless.delta(921.0) == 1.0
    assert hopeless.epsilon(1e-6) == math.inf
    with pytest.raises(InvalidMechanism, match="analytic-gaussian"):
        compose([(SphericalProfile(dimension=20, law=Gamma(4.0), sensitivity=1.0), 10**6)])


def test_gaussian_composition_is_exact() -> None:
    whole = compose([(GaussianProfile(0.3), 4), (GaussianProfile(0.8), 1)])
    assert isinstance(whole, GaussianProfile)
    assert math.isclose(whole.mu, 1.0, rel_tol=1e-12)
    assert whole.mu >= 1.0


@pytest.mark.slow
def test_mixtures_lie_between_their_largest_part_and_basic_composition() -> None:
    gaussian, k_norm = (
        GaussianProfile(0.5),
        SphericalProfile(dimension=20, law=Gamma(4.0), sensitivity=1.0),
    )
    mixed = compose([(gaussian, 1), (k_norm, 1)])
    assert isinstance(mixed, ComposedProfile)
    delta = 1e-6
    assert gaussian.epsilon(delta) < mixed.epsilon(delta) < gaussian.epsilon(delta) + 0.25 + 1e-3
    assert math.isclose(mixed.delta(mixed.epsilon(delta)), delta, rel_tol=1e-2)


def test_connecting_the_dots_of_a_gaussian_curve_stays_above_it_and_close() -> None:
    """A chi profile is a Gaussian that the composition does not recognise as one."""
    disguised = SphericalProfile(dimension=50, law=Chi(1 / 0.5), sensitivity=1.0)
    composed = compose([(disguised, 4)])
    exact = GaussianProfile(1.0)
    for epsilon in (0.5, 1.0, 3.0):
        assert exact.delta(epsilon) <= composed.delta(epsilon) <= exact.delta(epsilon) * 1.05


def test_composition_is_flat() -> None:
    k_norm = SphericalProfile(dimension=20, law=Gamma(4.0), sensitivity=1.0)
    nested = compose([(compose([(k_norm, 2), (GaussianProfile(0.3), 1)]), 3)])
    assert isinstance(nested, ComposedProfile)
    assert dict(nested.parts)[k_norm] == 6


def test_sampling_with_rate_one_changes_nothing() -> None:
    step = GaussianProfile(0.7)
    sampled = SampledProfile(step, 1.0, Adjacency.REPLACE_ONE)
    assert math.isclose(sampled.delta(0.4), step.delta(0.4), rel_tol=1e-12)
    assert math.isclose(sampled.epsilon(1e-6), step.epsilon(1e-6), rel_tol=1e-9)


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf])
def test_mu_must_be_a_size(mu: float) -> None:
    with pytest.raises(InvalidBudget, match="finite and > 0"):
        GaussianProfile(mu)


def test_a_single_entry_has_no_sphere() -> None:
    with pytest.raises(InvalidMechanism, match="at least 2 entries"):
        SphericalProfile(dimension=1, law=Chi(1.0), sensitivity=1.0)

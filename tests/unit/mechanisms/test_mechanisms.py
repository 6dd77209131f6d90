"""Properties every mechanism must have, whatever it is asked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdask import Adjacency, Calibration, GaussianProfile, Origin, PrivacyBudget, Steps
from dpdask.errors import InvalidMechanism, InvalidNoise, OutOfReach
from dpdask.mechanisms import (
    Binary,
    FixedShares,
    MaxPnr,
    analytic_gaussian,
    classic_gaussian,
    directional,
    idn,
    imgm,
    k_norm,
    mgm,
    mvg,
    rank_one,
    udn,
    utility_weights,
)
from dpdask.noise import (
    DenseFactor,
    DiagonalFactor,
    IidNoise,
    KroneckerNoise,
    LowRankFactor,
    ScaledIdentity,
    SphericalNoise,
)
from dpdask.sensitivity import EntrywiseBox, RecordBall, RecordBox
from tests.conftest import ball

PUBLIC: dict[str, Any] = {"adjacency": Adjacency.REPLACE_ONE, "origin": Origin.PUBLIC_RANGE}
BUDGET = PrivacyBudget(epsilon=1.0, delta=1e-5)

Recipe = Callable[[PrivacyBudget, float, tuple[int, ...]], Calibration]


def box_of(shape: tuple[int, ...], width: float) -> EntrywiseBox:
    return EntrywiseBox(shape=shape, feature_axis=0, widths=(width,), **PUBLIC)


MECHANISMS: dict[str, Recipe] = {
    "analytic-gaussian": lambda b, s, n: analytic_gaussian(budget=b, sensitivity=ball(s), shape=n),
    "imgm dense": lambda b, s, n: imgm(
        budget=b,
        sensitivity=ball(s),
        shape=n,
        factors=[DenseFactor(np.tri(n[0]) + np.eye(n[0])), *map(ScaledIdentity, n[1:])],
    ),
    "mvg general": lambda b, s, n: mvg(budget=b, sensitivity=ball(s), shape=n, gamma=s),
    "mvg least gamma": lambda b, s, n: mvg(
        budget=b, sensitivity=ball(s), shape=n, gamma=s / 2, axis=1
    ),
    "mvg psd": lambda b, s, n: mvg(
        budget=b, sensitivity=ball(s), shape=(n[0], n[0]), gamma=s / math.sqrt(2), theorem="psd"
    ),
    "mvg binary": lambda b, s, n: mvg(
        budget=b, sensitivity=ball(s), shape=n, gamma=s, allocation=Binary(tau=0.7, chosen=[0])
    ),
    "mgm": lambda b, s, n: mgm(budget=b, sensitivity=ball(s), shape=n),
    "udn": lambda b, s, n: udn(
        budget=b, sensitivity=ball(s), shape=n, weights=np.arange(1.0, n[0] + 1).tolist()
    ),
    "idn": lambda b, s, n: idn(
        budget=b, sensitivity=box_of(n, s), shape=n, weights=np.arange(1.0, n[0] + 1).tolist()
    ),
    "directional": lambda b, s, n: directional(
        budget=b, sensitivity=box_of(n, s), shape=n, weights=np.arange(1.0, n[0] + 1).tolist()
    ),
    "rank-one exact": lambda b, s, n: rank_one(budget=b, sensitivity=ball(s), shape=n),
    "k-norm": lambda b, s, n: k_norm(budget=b, sensitivity=ball(s), shape=n),
}
GAUSSIAN = [name for name in MECHANISMS if name not in ("rank-one exact", "k-norm")]

log_epsilons = st.floats(math.log(1e-6), math.log(500))
log_deltas = st.floats(math.log(1e-60), math.log(0.4))
shapes = st.tuples(st.integers(2, 12), st.integers(2, 12), st.integers(1, 4))


@pytest.mark.parametrize("name", GAUSSIAN)
@settings(max_examples=40, deadline=None)
@given(log_epsilon=log_epsilons, log_delta=log_deltas, log_s=st.floats(-8, 8), shape=shapes)
def test_verified_is_at_least_as_strong_as_claimed(
    name: str, log_epsilon: float, log_delta: float, log_s: float, shape: tuple[int, ...]
) -> None:
    budget = PrivacyBudget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    assert MECHANISMS[name](budget, math.exp(log_s), shape).guarantee.certified


@pytest.mark.parametrize("name", ["rank-one exact", "k-norm"])
@settings(max_examples=8, deadline=None)
@given(log_epsilon=st.floats(-10, 4), log_delta=st.floats(-60, -1), shape=shapes)
def test_spherical_noise_honours_its_budget(
    name: str, log_epsilon: float, log_delta: float, shape: tuple[int, ...]
) -> None:
    """In exact arithmetic; what is drawn is not that exact, so it is not certified."""
    budget = PrivacyBudget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    guarantee = MECHANISMS[name](budget, 1.0, shape).guarantee
    assert guarantee.verified.delta(budget.epsilon) <= budget.delta
    assert not guarantee.certified
    assert "lattice" in guarantee.reason


@settings(max_examples=30, deadline=None)
@given(log_epsilon=st.floats(-8, -0.01), log_delta=log_deltas)
def test_the_classic_gaussian_is_certified_below_epsilon_one(
    log_epsilon: float, log_delta: float
) -> None:
    budget = PrivacyBudget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    calibration = classic_gaussian(budget=budget, sensitivity=ball(2.0), shape=(4,))
    best = analytic_gaussian(budget=budget, sensitivity=ball(2.0), shape=(4,))
    if budget.delta <= 0.1:  # the textbook proof needs a small delta
        assert calibration.guarantee.certified
        assert calibration.noise.expected_squared_loss > best.noise.expected_squared_loss


@pytest.mark.parametrize("name", MECHANISMS)
@settings(max_examples=12, deadline=None)
@given(
    log_epsilon=st.floats(-6, 4),
    log_delta=st.floats(-40, -2),
    shrink_epsilon=st.floats(0.2, 1.0),
    shrink_delta=st.floats(1e-3, 1.0),
)
def test_more_privacy_never_means_less_noise(
    name: str, log_epsilon: float, log_delta: float, shrink_epsilon: float, shrink_delta: float
) -> None:
    loose = PrivacyBudget(epsilon=math.exp(log_epsilon), delta=math.exp(log_delta))
    tight = PrivacyBudget(epsilon=loose.epsilon * shrink_epsilon, delta=loose.delta * shrink_delta)
    loss = [
        MECHANISMS[name](budget, 1.0, (3, 4, 2)).noise.expected_squared_loss
        for budget in (loose, tight)
    ]
    assert loss[1] >= loss[0] * (1 - 1e-9)


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_scales_with_the_sensitivity(name: str) -> None:
    small, large = (
        MECHANISMS[name](BUDGET, s, (3, 4)).noise.expected_squared_loss for s in (1.0, 10.0)
    )
    assert math.isclose(large / small, 100, rel_tol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=8),
    seed=st.integers(0, 2**32 - 1),
    records=st.booleans(),
)
def test_directional_noise_is_never_worse_than_iid_on_the_same_box(
    widths: list[float], seed: int, records: bool
) -> None:
    weights = np.exp(np.random.default_rng(seed).normal(0, 2, len(widths)))
    shape = (len(widths), 7)
    sensitivity: EntrywiseBox | RecordBox = EntrywiseBox(
        shape=shape, feature_axis=0, widths=tuple(widths), **PUBLIC
    )
    if records:
        sensitivity = RecordBox(
            shape=shape, record_axis=1, feature_axis=0, widths=tuple(widths), **PUBLIC
        )
    calibration = directional(
        budget=BUDGET, sensitivity=sensitivity, shape=shape, weights=weights.tolist()
    )
    plain = analytic_gaussian(budget=BUDGET, sensitivity=sensitivity, shape=shape)
    ours = float(np.dot(weights, calibration.noise.variances_along(0)))
    theirs = float(np.sum(weights) * plain.noise.variances_along(0)[0])
    expected = np.dot(widths, np.sqrt(weights)) ** 2 / (np.sum(weights) * np.dot(widths, widths))
    assert ours <= theirs * (1 + 1e-9)
    assert math.isclose(ours / theirs, expected, rel_tol=1e-8)
    assert calibration.guarantee.certified


def test_directional_noise_beats_every_neighbouring_diagonal() -> None:
    """The formula is a minimum: moving any variance along the privacy constraint costs weighted
    error.
    """
    widths, weights, shape = (1.0, 3.0, 0.2), np.array([5.0, 1.0, 2.0]), (3, 4)
    sensitivity = RecordBox(shape=shape, record_axis=1, feature_axis=0, widths=widths, **PUBLIC)
    calibration = directional(
        budget=BUDGET, sensitivity=sensitivity, shape=shape, weights=weights.tolist()
    )
    assert isinstance(calibration.noise, KroneckerNoise)
    best = float(np.dot(weights, calibration.noise.variances_along(0)))
    scales = np.asarray(calibration.noise.factors[0].diagonal())
    generator = np.random.default_rng(7)
    for _ in range(200):
        tried = scales * np.exp(generator.normal(0, 0.1, 3))
        tried *= (
            sensitivity.whitened([DiagonalFactor(tried), ScaledIdentity(4)])
            / calibration.quantities["mu"]
        )
        assert float(np.dot(weights, tried**2)) >= best * (1 - 1e-9)


def random_orthonormal(size: int, rank: int, seed: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, rank)))[0]


@settings(max_examples=50, deadline=None)
@given(
    size=st.integers(3, 20),
    seed=st.integers(0, 10**6),
    base=st.floats(0.01, 100),
    spread=st.floats(0.1, 3),
    data=st.data(),
)
def test_low_rank_factors_equal_their_dense_twins(
    size: int, seed: int, base: float, spread: float, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(1, size - 1))
    scales = base * np.exp(np.random.default_rng(seed).normal(0, spread, rank))
    low = LowRankFactor(base, random_orthonormal(size, rank, seed), scales)
    dense = DenseFactor(low.to_dense())
    for power in (2, -2, -4, 4):
        assert math.isclose(low.power_sum(power), dense.power_sum(power), rel_tol=1e-6)
    assert math.isclose(low.smallest, dense.smallest, rel_tol=1e-6)
    assert math.isclose(low.largest_whitened_axis(), dense.largest_whitened_axis(), rel_tol=1e-6)
    assert np.allclose(low.row_variances(), dense.row_variances(), rtol=1e-9)
    other = ScaledIdentity(3)
    for sensitivity in (
        ball(2.0),
        RecordBall(l2=2.0, record_axis=0, adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED),
    ):
        assert math.isclose(
            sensitivity.whitened([low, other]), sensitivity.whitened([dense, other]), rel_tol=1e-6
        )
        calibrations = [
            imgm(budget=BUDGET, sensitivity=sensitivity, shape=(size, 3), factors=[f, other])
            for f in (low, dense)
        ]
        assert math.isclose(
            calibrations[0].noise.expected_squared_loss,
            calibrations[1].noise.expected_squared_loss,
            rel_tol=1e-6,
        )


def test_nearly_orthonormal_directions_are_made_orthonormal_not_trusted() -> None:
    """A direction too long by 1e-10 beside a base of 1e9 would hide noise ten times too small."""
    direction = np.array([[1 + 5e-11], [0.0], [0.0]])
    factor = LowRankFactor(1e9, direction, [1.0])
    calibration = imgm(budget=BUDGET, sensitivity=ball(1.0), shape=(3,), factors=[factor])
    assert isinstance(calibration.noise, KroneckerNoise)
    smallest = float(np.linalg.svd(calibration.noise.factors[0].to_dense(), compute_uv=False)[-1])
    assert 1 / smallest <= calibration.quantities["mu"] * (1 + 1e-5)
    with pytest.raises(InvalidNoise, match="too far apart"):
        LowRankFactor(1e14, np.array([[0.6], [0.8], [0.0]]), [1.0])


def test_an_ill_conditioned_dense_factor_is_still_certified() -> None:
    matrix = [[1.0, 1.0, 1.0], [1.0, 1 + 1e-9, 1.0], [1.0, 1.0, 1 + 1e-7]]
    calibration = imgm(
        budget=BUDGET,
        sensitivity=ball(1.0),
        shape=(3, 2),
        factors=[DenseFactor(matrix), ScaledIdentity(2)],
    )
    assert calibration.guarantee.certified


def test_a_million_rows_with_ten_directions_cost_ten_vectors() -> None:
    directions = random_orthonormal(1_000_000, 10, 3)
    calibration = mvg(
        budget=BUDGET,
        sensitivity=ball(1.0),
        shape=(1_000_000, 50),
        gamma=10.0,
        allocation=Binary(tau=0.9, directions=directions.T),
    )
    assert isinstance(calibration.noise, KroneckerNoise)
    factor = calibration.noise.factors[0]
    assert isinstance(factor, LowRankFactor)
    assert factor.directions.nbytes == 10 * 8_000_000
    assert float(np.max(factor.scales)) < factor.base
    assert calibration.guarantee.certified


def test_whitening_bounds_hold_for_random_differences() -> None:
    """sup ||W D|| really is a supremum: no sampled D exceeds it, and the worst case attains it."""
    generator = np.random.default_rng(11)
    left, right = (
        generator.normal(size=(5, 5)) + 3 * np.eye(5),
        np.diag(generator.uniform(0.5, 2, 4)),
    )
    factors = [DenseFactor(left), DiagonalFactor(np.diag(right))]
    inverse = np.kron(np.linalg.inv(left), np.linalg.inv(right))
    whole = ball(2.0).whitened(factors)
    assert math.isclose(whole, 2 * np.linalg.norm(inverse, 2), rel_tol=1e-9)
    records = RecordBall(
        l2=2.0, record_axis=0, adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED
    )
    worst = max(np.linalg.norm(inverse[:, 4 * j : 4 * j + 4], 2) for j in range(5))
    assert math.isclose(records.whitened(factors), 2 * worst, rel_tol=1e-9)
    for _ in range(500):
        difference = generator.normal(size=20)
        difference *= 2 / np.linalg.norm(difference)
        assert np.linalg.norm(inverse @ difference) <= whole


def test_box_bounds_equal_brute_force() -> None:
    generator = np.random.default_rng(5)
    shape, scales = (3, 4, 2), [generator.uniform(0.5, 2, n) for n in (3, 4, 2)]
    factors = [DiagonalFactor(s) for s in scales]
    widths = (0.3, 1.0, 2.0, 5.0)
    reach = np.array(widths)[None, :, None] / (
        scales[0][:, None, None] * scales[1][None, :, None] * scales[2][None, None, :]
    )
    whole = EntrywiseBox(shape=shape, feature_axis=1, widths=widths, **PUBLIC)
    assert math.isclose(whole.whitened(factors), math.sqrt(np.sum(reach**2)), rel_tol=1e-12)
    one = RecordBox(shape=shape, record_axis=0, feature_axis=1, widths=widths, **PUBLIC)
    assert math.isclose(
        one.whitened(factors), math.sqrt(np.max(np.sum(reach**2, axis=(1, 2)))), rel_tol=1e-12
    )
    assert math.isclose(one.radius, math.sqrt(2 * np.dot(widths, widths)), rel_tol=1e-12)


def test_allocations_spend_no_more_than_the_bound() -> None:
    shape, size = (6, 40), 6
    basis = random_orthonormal(size, size, 1).T
    allocations = [
        Binary(tau=0.5, chosen=[0, 2]),
        Binary(tau=0.5, chosen=[0], directions=basis),
        Binary(tau=0.8, directions=basis[:2]),
        FixedShares(shares=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]),
        FixedShares(shares=[0.5, 0.2], directions=basis[:2]),
        MaxPnr(eigenvalues=[9.0, 5.0, 3.0, 1.0, 0.5, 0.1]),
        MaxPnr(eigenvalues=[9.0, 5.0, 3.0, 1.0, 0.5, 0.1], directions=basis),
    ]
    for allocation in allocations:
        calibration = mvg(
            budget=BUDGET, sensitivity=ball(1.0), shape=shape, gamma=3.0, allocation=allocation
        )
        assert isinstance(calibration.noise, KroneckerNoise)
        spent = math.prod(math.sqrt(factor.power_sum(-4)) for factor in calibration.noise.factors)
        assert spent <= calibration.quantities["bound"] * (1 + 1e-12)
        assert calibration.guarantee.certified


def test_water_filling_gives_the_larger_eigenvalue_the_smaller_noise() -> None:
    calibration = mvg(
        budget=PrivacyBudget(epsilon=500.0, delta=0.4),
        sensitivity=ball(1e-3),
        shape=(3, 2),
        gamma=1.0,
        allocation=MaxPnr(eigenvalues=[1e9, 1e8, 1e7]),
    )
    variances = calibration.noise.variances_along(0)
    assert variances[0] < variances[1] < variances[2]


def test_equi_modal_noise_colours_both_modes_alike() -> None:
    calibration = mvg(
        budget=BUDGET,
        sensitivity=ball(1.0),
        shape=(4, 4),
        gamma=2.0,
        theorem="psd",
        allocation=FixedShares(shares=[0.4, 0.3, 0.2, 0.1]),
    )
    assert isinstance(calibration.noise, KroneckerNoise)
    assert calibration.noise.factors[0] == calibration.noise.factors[1]
    assert math.isclose(
        calibration.noise.factors[0].power_sum(-4), calibration.quantities["bound"], rel_tol=1e-9
    )


def test_mgm_weights_minimise_the_weighted_error() -> None:
    first, second = [4.0, 1.0, 9.0], [1.0, 16.0]
    calibration = mgm(budget=BUDGET, sensitivity=ball(1.0), shape=(3, 2), weights=[first, second])
    assert isinstance(calibration.noise, KroneckerNoise)
    error = math.prod(
        float(np.dot(weights, factor.row_variances()))
        for weights, factor in zip((first, second), calibration.noise.factors, strict=True)
    )
    assert math.isclose(
        error, (2 + 1 + 3) ** 2 * (1 + 4) ** 2 / calibration.quantities["bound"], rel_tol=1e-9
    )


def test_utility_weights_are_column_norms_in_the_noise_basis() -> None:
    utility = np.array([[1.0, 2.0], [3.0, 4.0], [0.0, 1.0]])
    basis = random_orthonormal(2, 2, 9)
    assert np.allclose(utility_weights(utility), [10.0, 21.0])
    assert np.allclose(utility_weights(utility, basis), np.sum((utility @ basis) ** 2, axis=0))


@pytest.mark.parametrize("recipe", [imgm, mgm])
def test_given_factors_on_a_tensor_keep_their_shape(recipe: Any) -> None:
    factors = [
        DiagonalFactor([1.0, 2.0]),
        ScaledIdentity(3, 2.0),
        DenseFactor([[2.0, 1.0], [0.0, 1.0]]),
    ]
    calibration = recipe(budget=BUDGET, sensitivity=ball(1.0), shape=(2, 3, 2), factors=factors)
    assert calibration.noise.factors[1:] == tuple(factors[1:])
    assert calibration.guarantee.certified


def test_kronecker_noise_on_a_ball_never_beats_iid() -> None:
    plain = analytic_gaussian(budget=BUDGET, sensitivity=ball(1.0), shape=(3, 3))
    coloured = imgm(
        budget=BUDGET,
        sensitivity=ball(1.0),
        shape=(3, 3),
        factors=[DiagonalFactor([1.0, 2.0, 3.0]), ScaledIdentity(3)],
    )
    assert coloured.noise.expected_squared_loss > plain.noise.expected_squared_loss


def test_steps_cost_the_square_root_of_their_number() -> None:
    one, many = (
        analytic_gaussian(budget=BUDGET, sensitivity=ball(1.0), shape=(3,), steps=Steps(count=t))
        for t in (1, 49)
    )
    assert math.isclose(many.quantities["sigma"] / one.quantities["sigma"], 7, rel_tol=1e-9)
    assert isinstance(many.guarantee.verified, GaussianProfile)
    assert many.guarantee.certified


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        lambda steps: mgm(budget=BUDGET, sensitivity=ball(1.0), shape=(3, 4), steps=steps),
        lambda steps: mvg(
            budget=BUDGET, sensitivity=ball(1.0), shape=(3, 4), gamma=1.0, steps=steps
        ),
        lambda steps: classic_gaussian(
            budget=PrivacyBudget(epsilon=0.9, delta=1e-5),
            sensitivity=ball(1.0),
            shape=(3,),
            steps=steps,
        ),
        lambda steps: k_norm(budget=BUDGET, sensitivity=ball(1.0), shape=(30,), steps=steps),
        lambda steps: rank_one(budget=BUDGET, sensitivity=ball(1.0), shape=(30,), steps=steps),
    ],
)
def test_composed_steps_honour_their_budget(recipe: Callable[[Steps], Calibration]) -> None:
    calibration = recipe(Steps(count=3))
    claimed = calibration.guarantee.claimed
    assert calibration.guarantee.verified.delta(claimed.epsilon) <= claimed.delta
    assert calibration.guarantee.certified is not isinstance(calibration.noise, SphericalNoise)


def test_wrong_noise_is_not_certified() -> None:
    """The twin of every certificate: a tenth less noise than calibrated must fail."""
    calibration = analytic_gaussian(budget=BUDGET, sensitivity=ball(1.0), shape=(3,))
    assert isinstance(calibration.noise, IidNoise)
    assert GaussianProfile(1 / calibration.noise.sigma).delta(1.0) <= 1e-5
    assert GaussianProfile(1 / (0.999 * calibration.noise.sigma)).delta(1.0) > 1e-5


def test_rank_one_beyond_floating_point_is_refused() -> None:
    with pytest.raises(OutOfReach, match="analytic-gaussian"):
        rank_one(
            budget=PrivacyBudget(epsilon=1.0, delta=1e-300), sensitivity=ball(1.0), shape=(10,)
        )


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda: rank_one(budget=BUDGET, sensitivity=ball(1.0), shape=(2,)), "needs M > 2"),
        (lambda: idn(budget=BUDGET, sensitivity=ball(1.0), shape=(2, 2)), "ranges"),
        (lambda: directional(budget=BUDGET, sensitivity=ball(1.0), shape=(2, 2)), "ranges"),
        (
            lambda: mvg(budget=BUDGET, sensitivity=ball(1.0), shape=(2, 2), gamma=0.4),
            "half the sensitivity",
        ),
        (
            lambda: mvg(
                budget=BUDGET, sensitivity=ball(1.0), shape=(2, 3), gamma=1.0, theorem="psd"
            ),
            "not symmetric",
        ),
        (lambda: mvg(budget=BUDGET, sensitivity=ball(1.0), shape=(4,), gamma=1.0), "two axes"),
        (
            lambda: mvg(
                budget=BUDGET,
                sensitivity=ball(1.0),
                shape=(2, 2),
                gamma=1.0,
                allocation=FixedShares(shares=[0.9, 0.2]),
            ),
            "sum to 1.1",
        ),
        (
            lambda: mvg(
                budget=BUDGET,
                sensitivity=ball(1.0),
                shape=(2, 2),
                gamma=1.0,
                allocation=Binary(tau=1.0, chosen=[0]),
            ),
            "0 < tau < 1",
        ),
        (
            lambda: mgm(
                budget=BUDGET, sensitivity=ball(1.0), shape=(2, 2), weights=[[1.0, 0.0], None]
            ),
            "weight > 0",
        ),
        (lambda: udn(budget=BUDGET, sensitivity=ball(1.0), shape=(2, 2), axis=2), "not an axis"),
        (lambda: Steps(count=0), "at least 1"),
        (lambda: Steps(sampling_rate=1.5), "probability"),
    ],
)
def test_what_a_theorem_does_not_cover_is_refused(recipe: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidMechanism, match=message):
        recipe()


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda: DenseFactor([[1.0, 2.0], [2.0, 4.0]]), "singular"),
        (lambda: DenseFactor([[1.0, 2.0]]), "not square"),
        (lambda: DenseFactor.from_covariance([[1.0, 2.0], [2.0, 1.0]]), "not positive definite"),
        (lambda: DenseFactor.from_covariance([[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (lambda: DiagonalFactor([1.0, 0.0]), r"diagonal\[1\]=0"),
        (lambda: DiagonalFactor([1.0, math.nan]), "finite and > 0"),
        (lambda: LowRankFactor(1.0, [[1.0], [1.0]], [2.0]), "not orthonormal"),
        (lambda: LowRankFactor(1.0, [[1.0, 0.0], [0.0, 1.0]], [2.0, 3.0]), "not low-rank"),
        (lambda: ScaledIdentity(3, -1.0), "finite and > 0"),
    ],
)
def test_singular_or_misshapen_factors_are_refused(recipe: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidNoise, match=message):
        recipe()

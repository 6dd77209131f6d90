"""Boxes under factors that mix entries, shares that spend all of a bound, weights of zero, and the
classic formula beyond its theorem: against brute force.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdask import Adjacency, GaussianProfile, Origin, PrivacyBudget
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms import (
    MaxPnr,
    amortise,
    classic_gaussian,
    directional,
    idn,
    imgm,
    mgm,
    mvg,
    udn,
)
from dpdask.noise import DenseFactor, Factor, KroneckerNoise, ScaledIdentity
from dpdask.sensitivity import EntrywiseBox, RecordBox
from tests.conftest import ball

PUBLIC: dict[str, Any] = {"adjacency": Adjacency.REPLACE_ONE, "origin": Origin.PUBLIC_RANGE}
BUDGET = PrivacyBudget(epsilon=1.0, delta=1e-5)


def factors_of(noise: Any) -> tuple[Factor, ...]:
    assert isinstance(noise, KroneckerNoise)
    return noise.factors


def corners(widths: tuple[float, ...]) -> list[np.ndarray[Any, Any]]:
    signs = itertools.product((-1.0, 1.0), repeat=len(widths))
    return [np.array(each) * widths for each in signs]


def dense(size: int, seed: int) -> DenseFactor:
    generator = np.random.default_rng(seed)
    return DenseFactor(generator.normal(size=(size, size)) + 2 * np.eye(size))


@settings(max_examples=40, deadline=None)
@given(
    widths=st.lists(st.floats(1e-2, 1e2), min_size=2, max_size=6),
    seed=st.integers(0, 10**6),
    mixed=st.sampled_from(["features", "records", "both"]),
)
def test_no_corner_of_a_box_exceeds_the_bound_under_dense_factors(
    widths: list[float], seed: int, mixed: str
) -> None:
    size, records = len(widths), 3
    first: Factor = ScaledIdentity(size) if mixed == "records" else dense(size, seed)
    second: Factor = ScaledIdentity(records) if mixed == "features" else dense(records, seed + 1)
    box = RecordBox(
        shape=(size, records), record_axis=1, feature_axis=0, widths=tuple(widths), **PUBLIC
    )
    bound = box.whitened([first, second])
    left, right = np.linalg.inv(first.to_dense()), np.linalg.inv(second.to_dense())
    reached = max(
        float(np.linalg.norm(left @ corner)) * float(np.linalg.norm(right[:, record]))
        for corner in corners(tuple(widths))
        for record in range(records)
    )
    assert reached <= bound
    assert reached >= bound / math.sqrt(size) / np.linalg.cond(left)  # it is not infinity either


def test_several_records_that_a_factor_mixes_count_together() -> None:
    """Two records that change at once may add up under a dense record factor, beyond what a
    record's own ball allows.
    """
    record_factor = np.linalg.inv(np.array([[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    factors = [ScaledIdentity(1), DenseFactor(record_factor)]
    one, two = (
        RecordBox(
            shape=(1, 3), record_axis=1, feature_axis=0, widths=(1.0,), records=records, **PUBLIC
        ).whitened(factors)
        for records in (1, 2)
    )
    together = np.linalg.norm(np.linalg.inv(record_factor) @ np.array([1.0, 1.0, 0.0]) / np.sqrt(2))
    assert one < together <= two


def test_all_entries_of_a_box_under_a_dense_factor_count() -> None:
    box = EntrywiseBox(shape=(2, 2), feature_axis=0, widths=(1.0, 3.0), **PUBLIC)
    factor = dense(2, 4)
    inverse = np.kron(np.linalg.inv(factor.to_dense()), np.eye(2))
    reached = max(float(np.linalg.norm(inverse @ each)) for each in corners((1.0, 1.0, 3.0, 3.0)))
    assert reached <= box.whitened([factor, ScaledIdentity(2)])


def test_dense_noise_on_a_box_is_certified_and_less_would_not_be() -> None:
    box = RecordBox(shape=(3, 5), record_axis=1, feature_axis=0, widths=(1.0, 2.0, 0.5), **PUBLIC)
    calibration = imgm(
        budget=BUDGET, sensitivity=box, shape=(3, 5), factors=[dense(3, 8), ScaledIdentity(5)]
    )
    assert calibration.guarantee.certified
    mu = calibration.quantities["mu"]
    assert GaussianProfile(mu * 1.001).delta(1.0) > 1e-5


@settings(max_examples=100, deadline=None)
@given(
    logs=st.lists(st.floats(-60, 60), min_size=2, max_size=12),
    columns=st.integers(2, 300),
    log_epsilon=st.floats(-4, 6),
    floor=st.floats(1e-6, 0.9),
    equal=st.booleans(),
)
def test_max_pnr_spends_all_of_the_precision_and_no_more(
    logs: list[float], columns: int, log_epsilon: float, floor: float, equal: bool
) -> None:
    rows = len(logs)
    shape = (rows, rows) if equal else (rows, columns)
    calibration = mvg(
        budget=PrivacyBudget(epsilon=math.exp(log_epsilon), delta=1e-5),
        sensitivity=ball(1.0),
        shape=shape,
        gamma=3.0,
        modality="equi-modal" if equal else "unimodal",
        allocation=MaxPnr(eigenvalues=np.exp(logs).tolist(), floor=floor),
    )
    spent = math.prod(
        math.sqrt(math.fsum(np.linalg.svd(factor.to_dense(), compute_uv=False) ** -4.0))
        for factor in factors_of(calibration.noise)
    )
    assert 0.999 <= spent / calibration.quantities["bound"] <= 1.0
    assert calibration.guarantee.certified


def test_max_pnr_of_the_regression_example() -> None:
    """MVG's Experiment I: its best direction has 5.0e5, the shares of Thm 7 all of P."""
    box = RecordBox(shape=(6, 248), record_axis=1, feature_axis=0, widths=(2.0,), **PUBLIC)
    calibration = mvg(
        budget=PrivacyBudget(epsilon=1.0, delta=1 / 248),
        sensitivity=box,
        shape=(6, 248),
        gamma=math.sqrt(6 * 248),
        allocation=MaxPnr(eigenvalues=[120.0, 60.0, 30.0, 20.0, 10.0, 5.0]),
    )
    stds = np.sqrt(calibration.noise.variances_along(0))
    assert math.isclose(stds[0], 5.0e5, rel_tol=0.01)
    assert np.allclose(stds[1:], stds[0] * (0.95 / (0.05 / 6) + 1) ** 0.25)


def test_max_pnr_beats_other_shares_by_the_ratio_that_it_maximises() -> None:
    """Under the l1 bound of Problem 2, no other precisions have a larger |K + N| / |N|."""
    kappa = np.array([5e3, 2e3, 3e2])
    calibration = mvg(
        budget=PrivacyBudget(epsilon=500.0, delta=0.4),
        sensitivity=ball(1e-3),
        shape=(3, 2),
        gamma=1.0,
        allocation=MaxPnr(eigenvalues=kappa.tolist(), floor=1e-12),
    )
    precisions = 1 / calibration.noise.variances_along(0)
    best = float(np.sum(np.log1p(kappa * precisions)))
    generator = np.random.default_rng(3)
    for _ in range(300):
        other = generator.dirichlet(np.ones(3)) * np.sum(precisions)
        assert np.sum(np.log1p(kappa * other)) <= best * (1 + 1e-3)


BOX = RecordBox(shape=(3, 4), record_axis=1, feature_axis=0, widths=(1.0,), **PUBLIC)
WEIGHTED: dict[str, Any] = {
    "mgm": lambda weights, floor: mgm(
        budget=BUDGET, sensitivity=BOX, shape=(3, 4), weights=[weights, None], floor=floor
    ),
    "udn": lambda weights, floor: udn(
        budget=BUDGET, sensitivity=BOX, shape=(3, 4), weights=weights, floor=floor
    ),
    "idn": lambda weights, floor: idn(
        budget=BUDGET, sensitivity=BOX, shape=(3, 4), weights=weights, floor=floor
    ),
    "directional": lambda weights, floor: directional(
        budget=BUDGET, sensitivity=BOX, shape=(3, 4), weights=weights, floor=floor
    ),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_zero_take_a_floor_and_all_of_the_bound(name: str) -> None:
    """Alg 1 with a utility subspace: directions that are left out get the floor's share alone."""
    weighted = WEIGHTED[name]
    with pytest.raises(InvalidMechanism, match="floor"):
        weighted([4.0, 1.0, 0.0], 0.0)
    with pytest.raises(InvalidMechanism, match="none is above 0"):
        weighted([0.0, 0.0, 0.0], 0.5)
    with pytest.raises(InvalidMechanism, match="0 <= floor < 1"):
        weighted([4.0, 1.0, 0.0], 1.0)
    plain = weighted([4.0, 1.0, 1e-12], 0.0)
    calibration = weighted([4.0, 1.0, 0.0], 0.05)
    inverse = 1 / calibration.noise.variances_along(0)
    shares = inverse / np.sum(inverse)
    expected = 0.95 * np.array([2, 1, 0]) / 3 + 0.05 / 3
    assert np.allclose(shares, expected, rtol=1e-12)
    assert math.isclose(np.sum(inverse), np.sum(1 / plain.noise.variances_along(0)), rel_tol=1e-11)
    assert calibration.guarantee.certified


def test_a_floor_without_weights_is_refused() -> None:
    for calibrate in (mgm, udn, idn):
        with pytest.raises(InvalidMechanism, match="goes with weights"):
            calibrate(budget=BUDGET, sensitivity=BOX, shape=(3, 4), floor=0.1)


def test_the_classic_formula_beyond_its_theorem_is_judged_by_its_profile() -> None:
    """At epsilon 1 it holds with a margin; at epsilon 10 it does not, by a factor of two."""
    for epsilon, sigma, certified in (
        (1.0, 4.8448, True),
        (1.6, 3.0280, True),
        (10.0, 0.4845, False),
    ):
        calibration = classic_gaussian(
            budget=PrivacyBudget(epsilon=epsilon, delta=1e-5), sensitivity=ball(1.0), shape=(3,)
        )
        assert math.isclose(calibration.quantities["sigma"], sigma, rel_tol=1e-4)
        assert calibration.guarantee.certified is certified
        assert "beyond its epsilon < 1" in calibration.guarantee.theorem
        assert "outside the classic theorem" in calibration.warnings[0]
    true_delta = calibration.guarantee.verified.delta(10.0)
    assert math.isclose(true_delta, 2.3e-5, rel_tol=0.02)
    below = classic_gaussian(
        budget=PrivacyBudget(epsilon=0.5, delta=1e-5), sensitivity=ball(1.0), shape=(3,)
    )
    assert below.warnings == ()


def test_strong_composition_takes_the_papers_fraction_of_a_step() -> None:
    """T = E/q is 7,031.25 in R1SMG 7.3; 7,031 whole steps have the same epsilon_0 to 4 digits."""
    rate = 256 / 60000
    fractional, whole = (
        amortise(
            PrivacyBudget(epsilon=1.795, delta=1e-5), steps=steps, sampling_rate=rate, slack=1e-10
        )
        for steps in (30 / rate, 7031)
    )
    assert 30 / rate == 7031.25
    assert round(fractional.epsilon, 4) == 0.7125
    assert math.isclose(fractional.epsilon, whole.epsilon, rel_tol=1e-4)
    assert math.isclose(fractional.delta, 3.3333e-7, rel_tol=1e-4)

"""Laplace noise and the choice of ``auto``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpdask import Adjacency, Origin, PrivacyBudget, Steps
from dpdask.accounting import PureProfile
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms import Calibration, analytic_gaussian, auto, laplace
from dpdask.noise import LaplaceNoise, noise_from_dict
from dpdask.sensitivity import EntrywiseBox, L1Ball
from tests.conftest import VECTORS, ball, budget_of

BUDGET = PrivacyBudget(epsilon=1.0, delta=1e-6)
COUNTS = L1Ball(
    l1_radius=2.0, l2=math.sqrt(2), adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED
)


def box(*widths: float, entries: int | None = None) -> EntrywiseBox:
    return EntrywiseBox(
        shape=(entries or len(widths),),
        feature_axis=0,
        widths=widths,
        adjacency=Adjacency.REPLACE_ONE,
        origin=Origin.PUBLIC_RANGE,
    )


@pytest.mark.parametrize("vector", VECTORS["laplace"])
def test_scale_and_charge(vector: dict[str, Any]) -> None:
    sensitivity = L1Ball(
        l1_radius=vector["l1_sensitivity"],
        l2=vector["l1_sensitivity"],
        adjacency=Adjacency.REPLACE_ONE,
        origin=Origin.DECLARED,
    )
    calibration = laplace(budget=budget_of(vector), sensitivity=sensitivity, shape=(4,))
    assert calibration.quantities["scale"] == pytest.approx(vector["scale"], rel=1e-9)
    assert calibration.quantities["scale"] >= vector["scale"]
    assert calibration.noise.entry_std == pytest.approx(vector["std"], rel=1e-9)
    profile = calibration.guarantee.verified
    assert isinstance(profile, PureProfile)
    half = vector["epsilon"] / 2
    assert profile.delta(half) == pytest.approx(vector["delta_at_half"], rel=1e-9)
    assert calibration.guarantee.certified


def test_it_spends_none_of_the_delta() -> None:
    tiny = PrivacyBudget(epsilon=0.7, delta=1e-300)
    calibration = laplace(budget=tiny, sensitivity=COUNTS, shape=(9,))
    assert calibration.guarantee.certified
    assert calibration.guarantee.verified.delta(0.7) == 0


def test_an_l2_ball_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidMechanism, match="give ranges or an l1 bound"):
        laplace(budget=BUDGET, sensitivity=ball(1.0), shape=(3,))


def test_steps_share_epsilon() -> None:
    calibration = laplace(budget=BUDGET, sensitivity=COUNTS, shape=(3,), steps=Steps(count=4))
    assert calibration.quantities["scale"] == pytest.approx(8.0)
    assert calibration.guarantee.certified


@pytest.mark.parametrize("entries", [1, 3, 50])
def test_moments_of_the_loss_are_those_of_draws(entries: int) -> None:
    noise = LaplaceNoise((entries,), 2.5)
    draws = np.random.default_rng(1).laplace(scale=2.5, size=(400_000, entries))
    losses = np.sum(draws**2, axis=1) / noise.expected_squared_loss
    assert losses.mean() == pytest.approx(1.0, rel=0.02)
    assert np.mean(losses**2) == pytest.approx(noise.loss_moments()[1], rel=0.1)
    assert noise_from_dict(noise.to_dict()) == noise


def test_moments_of_one_entry_are_exact() -> None:
    """E[X^2k] = (2k)! for scale 1."""
    exact = tuple(math.factorial(2 * k) / 2**k for k in range(1, 5))
    assert LaplaceNoise((1,), 7.0).loss_moments() == pytest.approx(exact, rel=1e-12)


def chosen(calibration: Calibration) -> str:
    assert calibration.choice is not None
    return calibration.choice.name


def test_auto_takes_laplace_for_counts_and_says_what_the_ledger_charges() -> None:
    calibration = auto(budget=BUDGET, sensitivity=COUNTS, shape=(10,))
    assert chosen(calibration) == "laplace"
    assert calibration.choice is not None
    reason = calibration.choice.reason()
    assert reason.startswith("laplace: std 2.83 per entry; analytic-gaussian 5.9")
    assert "total epsilon" in reason
    assert "mechanism: analytic-gaussian" in reason
    assert calibration.choice.note in calibration.warnings


def test_auto_takes_the_gaussian_for_a_mean_over_ten_thousand_entries() -> None:
    calibration = auto(budget=BUDGET, sensitivity=box(1.0, entries=10_000), shape=(10_000,))
    assert chosen(calibration) == "analytic-gaussian"
    assert calibration.warnings == ()


@pytest.mark.parametrize("widths", [(1.0, 1e6), (1.0, 1e6) * 20])
def test_auto_takes_directional_noise_for_ranges_that_differ(widths: tuple[float, ...]) -> None:
    """Laplace noise of one scale would bury the narrow range, however small its mean square is."""
    calibration = auto(budget=BUDGET, sensitivity=box(*widths), shape=(len(widths),))
    assert chosen(calibration) == "directional"


def test_auto_takes_laplace_where_it_is_quieter_in_every_feature() -> None:
    calibration = auto(budget=BUDGET, sensitivity=box(1.0, 1.1), shape=(2,))
    assert chosen(calibration) == "laplace"


def test_auto_takes_the_gaussian_where_no_ledger_could_charge_laplace() -> None:
    loud = PrivacyBudget(epsilon=1e5, delta=1e-6)
    calibration = auto(budget=loud, sensitivity=box(1.0, 1.1), shape=(2,))
    assert chosen(calibration) == "directional"


def test_auto_takes_the_gaussian_for_balls_steps_and_samples() -> None:
    for steps in (Steps(count=3), Steps(count=1, sampling_rate=0.1)):
        calibration = auto(budget=BUDGET, sensitivity=COUNTS, shape=(10,), steps=steps)
        assert chosen(calibration) == "analytic-gaussian"
    plain = auto(budget=BUDGET, sensitivity=ball(1.0), shape=(10,))
    assert chosen(plain) == "analytic-gaussian"
    same = analytic_gaussian(budget=BUDGET, sensitivity=ball(1.0), shape=(10,))
    assert plain.noise == same.noise

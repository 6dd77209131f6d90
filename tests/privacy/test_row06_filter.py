"""Row 6: releases chosen after earlier ones were seen stay within the total.

0.1.0 composed what was reserved by privacy loss distributions, as if all of it had been fixed in
advance. After a Gaussian release it admitted either of the two below; whoever looks at the first
result and then takes the worse of the two loses delta 1.78e-5 at epsilon 1, of a total of 1e-5.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest

from dpdask import Adjacency, GaussianProfile, PrivacyBudget, SphericalProfile
from dpdask.accounting import (
    Chi,
    Dominated,
    Gamma,
    HalfNormal,
    SampledProfile,
    compose,
    dominating_gaussian,
)
from dpdask.errors import BudgetExceeded, OutOfReach
from dpdask.ledger import Ledger
from dpdask.privacy import PrivacyProfile

TOTAL = PrivacyBudget(epsilon=1.0, delta=1e-5)
FIRST = GaussianProfile(0.134)
GAUSSIAN = GaussianProfile(0.2321)
K_NORM = SphericalProfile(dimension=2, law=Gamma(1.0), sensitivity=0.6)


def delta_at(profile: PrivacyProfile, epsilon: float) -> float:
    """delta at any epsilon, of a profile that is symmetric in the two neighbours."""
    return (
        profile.delta(epsilon)
        if epsilon >= 0
        else 1 - math.exp(epsilon) * (1 - profile.delta(-epsilon))
    )


def chosen_after_seeing(options: list[PrivacyProfile]) -> float:
    """delta at the total's epsilon, when the second release is the worse option for each result of
    the first.
    """
    z = np.linspace(-7, 7, 121)
    losses = FIRST.mu**2 / 2 + FIRST.mu * z
    worst = [max(delta_at(option, TOTAL.epsilon - loss) for option in options) for loss in losses]
    return float(np.trapezoid(np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * worst, z))


def admitted(ledger: Ledger) -> list[PrivacyProfile]:
    accepted: list[PrivacyProfile] = []
    for option in (GAUSSIAN, K_NORM):
        try:
            ledger.forecast("people", option)
        except BudgetExceeded:
            continue
        accepted.append(option)
    return accepted


def test_row_06_choosing_after_seeing_does_not_pass_the_total(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.open_dataset("people", TOTAL)
    ledger.reserve("people", hashlib.sha256(b"first").hexdigest(), FIRST)
    options = admitted(ledger)
    assert options
    assert chosen_after_seeing(options) <= TOTAL.delta


def test_row_06_each_option_alone_fits_and_both_together_do_not() -> None:
    """The attack is one: what 0.1.0 checked holds of each option, and the choice between them is
    worth more than the total.
    """
    for option in (GAUSSIAN, K_NORM):
        assert compose([(FIRST, 1), (option, 1)]).delta(TOTAL.epsilon) <= TOTAL.delta
    assert chosen_after_seeing([GAUSSIAN, K_NORM]) > 1.5 * TOTAL.delta


CURVES: list[tuple[PrivacyProfile, float]] = [
    (K_NORM, 0.0),
    (SphericalProfile(dimension=50, law=Gamma(0.5), sensitivity=1.0), 0.0),
    (SphericalProfile(dimension=30, law=HalfNormal(3000.0), sensitivity=1.0), 1e-3),
    (SampledProfile(GaussianProfile(1.0), 0.05, Adjacency.ADD_REMOVE_ONE), 1e-8),
    (
        compose(
            [
                (SampledProfile(GaussianProfile(0.5), 0.1, Adjacency.ADD_REMOVE_ONE), 20),
                (GaussianProfile(0.1), 1),
            ]
        ),
        1e-8,
    ),
]


@pytest.mark.parametrize(
    ("profile", "delta0"), CURVES, ids=["k-norm-2", "k-norm-50", "rank-one", "sampled", "steps"]
)
def test_row_06_the_charge_lies_above_the_profile_and_hardly_less_would_do(
    profile: PrivacyProfile, delta0: float
) -> None:
    charge = dominating_gaussian(profile, delta0=delta0)

    def shortfall(mu: float) -> float:
        """The largest ratio by which the profile passes what is charged, at epsilons that the
        search did not use.
        """
        gaussian = GaussianProfile(mu)
        epsilons = [0.0, *np.geomspace(1e-3, 30, 45)]
        return max(
            profile.delta(e) / (delta0 + (1 - delta0) * gaussian.delta(e) + 1e-300)
            for e in epsilons
        )

    assert charge.delta0 == delta0
    assert shortfall(charge.mu) <= 1 + 1e-9
    assert shortfall(charge.mu * 0.9) > 1 + 1e-6  # the twin: a smaller charge does not cover it


def test_row_06_known_charges() -> None:
    assert dominating_gaussian(GAUSSIAN, delta0=0.0) == Dominated(GAUSSIAN.mu, 0.0)
    chi = dominating_gaussian(
        SphericalProfile(dimension=9, law=Chi(4.0), sensitivity=1.0), delta0=0.0
    )
    assert (chi.delta0, math.isclose(chi.mu, 0.25, rel_tol=1e-12)) == (0.0, True)
    with pytest.raises(OutOfReach, match="no Gaussian lies above"):
        dominating_gaussian(
            SphericalProfile(dimension=30, law=HalfNormal(30.0), sensitivity=1.0), delta0=0.0
        )


def test_row_06_a_pure_mechanism_is_charged_no_more_than_any_of_its_epsilon() -> None:
    """mu = -2 Phi^-1(1 / (1 + e^epsilon)) covers every mechanism with that epsilon and delta 0."""
    from scipy import stats

    for epsilon in (0.1, 1.0, 3.0):
        pure = SphericalProfile(dimension=2, law=Gamma(1.0), sensitivity=epsilon)
        assert dominating_gaussian(pure, delta0=0.0).mu <= -2 * stats.norm.ppf(
            1 / (1 + math.exp(epsilon))
        )


def test_row_06_masses_that_no_gaussian_covers_add_up_and_use_up_delta(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.open_dataset("people", PrivacyBudget(epsilon=50.0, delta=1e-6))
    step = SampledProfile(GaussianProfile(0.3), 0.1, Adjacency.ADD_REMOVE_ONE)
    masses = []
    for number in range(3):
        ledger.reserve("people", hashlib.sha256(bytes([number])).hexdigest(), step)
        spent = ledger.state("people").spent
        assert isinstance(spent, Dominated)
        masses.append(spent.delta0)
    assert masses[0] > 0
    assert masses[2] == pytest.approx(3 * masses[0])
    assert ledger.verify() == 4
    assert Dominated(0.1, 1e-6).epsilon(1e-6) == math.inf

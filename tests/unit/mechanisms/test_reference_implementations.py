"""Numbers from packages we did not write: dp-accounting and OpenDP."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.pld import privacy_loss_distribution
from opendp.combinators import make_fix_delta, make_zCDP_to_approxDP
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features

from dpdask import Adjacency, GaussianProfile, PrivacyBudget, Steps
from dpdask.accounting import SampledProfile, compose
from dpdask.mechanisms import analytic_gaussian
from tests.conftest import ball


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_gaussian_profile_agrees_with_dp_accounting(mu: float, epsilon: float) -> None:
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=1e-4
    )
    assert math.isclose(
        GaussianProfile(mu).delta(epsilon),
        theirs.get_delta_for_epsilon(epsilon),
        rel_tol=1e-3,
        abs_tol=1e-15,
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-9)])
def test_analytic_sigma_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    theirs = dp_accounting.get_sigma_gaussian(epsilon, delta)
    ours = analytic_gaussian(
        budget=PrivacyBudget(epsilon=epsilon, delta=delta), sensitivity=ball(1.0), shape=(5,)
    )
    assert math.isclose(ours.quantities["sigma"], theirs, rel_tol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mu", "rate", "steps"), [(1.0, 0.01, 1000), (0.5, 0.1, 50), (2.0, 0.001, 5000)]
)
def test_sampled_steps_agree_with_dp_accounting(mu: float, rate: float, steps: int) -> None:
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1 / mu))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    ours = compose([(SampledProfile(GaussianProfile(mu), rate, Adjacency.ADD_REMOVE_ONE), steps)])
    assert math.isclose(ours.epsilon(1e-6), accountant.get_epsilon(1e-6), rel_tol=2e-3)


def test_replace_one_sampling_costs_no_less_than_add_remove() -> None:
    """The same mu: replace-one pairs are dominated by a symmetric curve that covers both add and
    remove.
    """
    step = GaussianProfile(1.0)
    pairs = {
        adjacency: compose([(SampledProfile(step, 0.01, adjacency), 1000)]).epsilon(1e-6)
        for adjacency in Adjacency
    }
    assert pairs[Adjacency.REPLACE_ONE] >= pairs[Adjacency.ADD_REMOVE_ONE] * (1 - 1e-3)


@pytest.mark.slow
def test_sampled_calibration_meets_the_budget_in_dp_accountings_books() -> None:
    budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    calibration = analytic_gaussian(
        budget=budget,
        sensitivity=ball(1.0, Adjacency.ADD_REMOVE_ONE),
        shape=(10,),
        steps=Steps(count=2000, sampling_rate=0.004),
    )
    assert calibration.guarantee.certified
    accountant = dp_accounting.pld.PLDAccountant(
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    step = dp_accounting.PoissonSampledDpEvent(
        0.004, dp_accounting.GaussianDpEvent(calibration.quantities["sigma"])
    )
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, 2000))
    assert 1.98 < accountant.get_epsilon(1e-5) < 2.002


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-5), (4.0, 1e-8)])
def test_opendps_gaussian_map_agrees_that_our_noise_suffices(epsilon: float, delta: float) -> None:
    """OpenDP reaches (epsilon, delta) through zero-concentrated DP, a looser road: never below
    ours, never far off.
    """
    enable_features("contrib")
    ours = analytic_gaussian(
        budget=PrivacyBudget(epsilon=epsilon, delta=delta), sensitivity=ball(1.0), shape=(5,)
    )
    sigma = ours.quantities["sigma"]
    space = vector_domain(atom_domain(T=float, nan=False)), l2_distance(T=float)
    gaussian = make_gaussian(*space, scale=sigma)
    rho = gaussian.map(d_in=1.0)
    assert math.isclose(rho, ours.quantities["mu"] ** 2 / 2, rel_tol=1e-9)
    theirs, _ = make_fix_delta(make_zCDP_to_approxDP(gaussian), delta=delta).map(d_in=1.0)
    assert epsilon * (1 - 1e-9) <= theirs <= epsilon * 1.25

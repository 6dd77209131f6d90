"""How several variables share one budget."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpdask import PrivacyBudget
from dpdask.accounting import GaussianProfile, compose
from dpdask.errors import InvalidSpec
from dpdask.planning.build_query import build_query
from dpdask.planning.shares import budget_of_share, equal_error_shares, given_shares
from dpdask.queries import Query
from dpdask.spec.query import MeanSection
from dpdask.spec.release import PrivacyUnitSection, StackSection


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 10.0, 300.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_noise_that_meets_the_budgets_of_all_shares_meets_the_budget(
    epsilon: float, delta: float
) -> None:
    budget = PrivacyBudget(epsilon=epsilon, delta=delta)
    rng = np.random.default_rng(3)
    for count in (2, 3, 17):
        shares = rng.dirichlet(np.full(count, 0.3)).clip(1e-9)
        shares /= shares.sum()
        parts = [GaussianProfile.meeting(budget_of_share(budget, share)) for share in shares]
        joint = compose([(part, 1) for part in parts])
        assert joint.delta(epsilon) <= delta
        whole = GaussianProfile.meeting(budget).mu
        assert isinstance(joint, GaussianProfile)
        assert whole * (1 - 1e-6) < joint.mu <= whole
        for part, share in zip(parts, shares, strict=True):
            assert part.mu == pytest.approx(whole * math.sqrt(share), rel=1e-6)


def _mean(shape: tuple[int, ...], **unit: object) -> Query:
    section = PrivacyUnitSection.model_validate({"record_dim": 0, "missing": "center", **unit})
    return build_query(MeanSection(name="mean"), section, shape, StackSection())


def test_default_shares_give_noise_in_proportion_to_the_bounds() -> None:
    queries = [
        _mean((100, 7, 3), ranges=[250, 320]),
        _mean((100, 4), ranges=[0, 1e-3]),
        _mean((100, 50), ranges=[-1e6, 1e6], max_contributions=1),
    ]
    shares = equal_error_shares(queries)
    assert math.fsum(shares) == pytest.approx(1)
    np.testing.assert_allclose(shares, np.array([21, 4, 50]) / 75)
    radii = np.array([query.sensitivity.radius for query in queries])
    noise = radii / np.sqrt(shares)
    np.testing.assert_allclose(noise / [70, 1e-3, 2e6], noise[0] / 70)


def test_a_clip_norm_shares_as_ranges_of_its_diameter_do() -> None:
    clipped = _mean((100, 16), l2_clip_norm=5.0)
    ranged = _mean((100, 16), ranges=[0, 3])
    np.testing.assert_allclose(equal_error_shares([clipped, ranged]), [0.5, 0.5])


def test_shares_are_given_for_all_and_add_up_to_one() -> None:
    assert given_shares([None, None]) is None
    assert given_shares([0.25, 0.75]) == [0.25, 0.75]
    with pytest.raises(InvalidSpec, match=r"add up to 0\.9"):
        given_shares([0.4, 0.5])
    with pytest.raises(InvalidSpec, match="others have none"):
        given_shares([0.4, None])


def test_a_share_of_a_budget_that_is_out_of_range_is_refused() -> None:
    for epsilon, delta in ((1e-12, 1e-6), (1e6, 0.5)):
        with pytest.raises(InvalidSpec, match=r"a share of 0\.5 of epsilon"):
            budget_of_share(PrivacyBudget(epsilon=epsilon, delta=delta), 0.5)

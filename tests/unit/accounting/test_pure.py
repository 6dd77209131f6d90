"""The profile of pure epsilon: randomised response's, above that of Laplace noise, composed and
charged as such.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpdask.accounting import (
    GaussianProfile,
    PureProfile,
    compose,
    dominating_gaussian,
    profile_from_dict,
)
from dpdask.errors import InvalidBudget


@given(loss=st.floats(1e-6, 50.0), share=st.floats(0.0, 1.5))
@settings(max_examples=200, deadline=None)
def test_delta_is_that_of_randomised_response(loss: float, share: float) -> None:
    """Both answers of randomised response, and the best set of them, added up."""
    epsilon, truth, lie = loss * share, 1 / (1 + math.exp(-loss)), 1 / (1 + math.exp(loss))
    expected = max(0.0, truth - math.exp(epsilon) * lie)
    delta = PureProfile(loss).delta(epsilon)
    assert delta == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert (delta == 0) == (epsilon >= loss)


@given(loss=st.floats(1e-3, 50.0), delta=st.floats(1e-12, 0.4))
@settings(max_examples=200, deadline=None)
def test_epsilon_at_a_delta_meets_it(loss: float, delta: float) -> None:
    profile = PureProfile(loss)
    epsilon = profile.epsilon(delta)
    assert profile.delta(epsilon) <= delta * (1 + 1e-12)
    assert epsilon == 0 or profile.delta(epsilon * (1 - 1e-9)) >= delta * (1 - 1e-6)


@pytest.mark.parametrize("entries", [1, 2, 5])
def test_the_profile_lies_above_that_of_laplace_noise(entries: int) -> None:
    """Differences spread over some entries or concentrated in one, by their exact losses."""
    loss = 1.3
    for epsilon in (0.0, 0.3, 0.9, 1.29):
        exact = _laplace_delta(loss / entries, entries, epsilon)
        assert exact <= PureProfile(loss).delta(epsilon) + 1e-3  # of the discretised convolution
    assert _laplace_delta(loss, 1, 0.0) > 0.4 * PureProfile(loss).delta(0.0)


def _laplace_delta(shift: float, entries: int, epsilon: float) -> float:
    """delta of Laplace noise of scale 1 whose neighbours differ by ``shift`` in every entry."""
    points = np.linspace(-30, 30, 200_001)
    weights = stats.laplace.pdf(points) * (points[1] - points[0])
    losses = np.abs(points - shift) - np.abs(points)
    edges = np.linspace(-shift, shift, 2001)
    mass = np.histogram(losses, edges, weights=weights)[0]
    total = mass
    for _ in range(entries - 1):
        total = np.convolve(total, mass)
    values = np.linspace(-entries * shift, entries * shift, total.size)
    return float(np.sum(total * np.maximum(0.0, 1 - np.exp(epsilon - values))))


@pytest.mark.parametrize(
    # at 20 the profile is within its numerical error of 1, which is charged too
    ("loss", "above"),
    [(0.01, 1e-4), (0.5, 1e-4), (1.0, 1e-4), (5.0, 1e-4), (20.0, 5e-3)],
)
def test_the_charge_is_the_gaussian_that_dominates_randomised_response(
    loss: float, above: float
) -> None:
    charge = dominating_gaussian(PureProfile(loss), delta0=0.0)
    expected = -2 * float(stats.norm.ppf(1 / (1 + math.exp(loss))))
    assert charge.delta0 == 0
    assert expected * (1 - 1e-8) <= charge.mu <= expected * (1 + above)


def test_composition_with_a_gaussian_is_above_both_and_below_their_sum() -> None:
    pure, gaussian = PureProfile(0.5), GaussianProfile(0.3)
    both = compose([(pure, 1), (gaussian, 1)])
    alone = gaussian.epsilon(1e-6)
    assert max(alone, 0.5) < both.epsilon(1e-6) <= (alone + 0.5) * (1 + 1e-3)
    twice = compose([(pure, 2)])
    assert twice.epsilon(1e-12) <= 1.0 * (1 + 1e-3)
    assert twice.delta(0.9) > 0


def test_a_profile_is_read_as_it_was_written() -> None:
    profile = PureProfile(0.1 + 0.2)
    assert profile_from_dict(profile.to_dict()) == profile
    with pytest.raises(InvalidBudget):
        PureProfile(0.0)

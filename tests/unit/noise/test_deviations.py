"""Half-widths hold the share of entries that they state, by the noise that is really drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dpdask.noise import (
    DiagonalFactor,
    IidNoise,
    KroneckerNoise,
    LaplaceNoise,
    ScaledIdentity,
    Tail,
)
from dpdask.noise.deviations import Deviations


def share_within(deviations: Deviations, width: float) -> float:
    """Compute the share of entries within ``width`` by scipy's distributions."""
    law = stats.laplace(scale=1 / math.sqrt(2)) if deviations.tail is Tail.LAPLACE else stats.norm()
    inside = law.cdf(width / deviations.values) - law.cdf(-width / deviations.values)
    return float(np.sum(deviations.shares * inside))


WIDTHS = {
    "iid": IidNoise((3, 4), 0.7).deviations(),
    "laplace": LaplaceNoise((5,), 2.0).deviations(),
    "two features": KroneckerNoise(
        (ScaledIdentity(9, 2.0), DiagonalFactor(np.array([1.0, 40.0])))
    ).deviations(),
    "symmetric": IidNoise((6, 6), 1.5).deviations().symmetrised(6),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_the_half_width_holds_the_stated_share_of_entries(name: str) -> None:
    deviations = WIDTHS[name]
    width = deviations.within(0.95)
    assert width is not None
    assert share_within(deviations, width) == pytest.approx(0.95, abs=1e-9)
    assert share_within(deviations, 0.9 * width) < 0.94  # the twin


def test_known_half_widths() -> None:
    assert IidNoise((2,), 1.0).deviations().within(0.95) == pytest.approx(1.959963985)
    assert LaplaceNoise((2,), 1.0).deviations().within(0.95) == pytest.approx(math.log(20))


def test_half_widths_of_unequal_noise_are_not_those_of_its_root_mean_square() -> None:
    unequal = KroneckerNoise((DiagonalFactor(np.array([1.0, 1.0, 1.0, 40.0])),)).deviations()
    width = unequal.within(0.95)
    assert width is not None
    assert width > 1.2 * 1.96 * unequal.rms
    assert (unequal.least, unequal.largest) == (1.0, 40.0)


def test_deviations_are_those_of_the_noise() -> None:
    rows, columns = np.array([1.0, 2.0]), np.array([0.5, 3.0, 3.0])
    noise = KroneckerNoise((DiagonalFactor(rows), DiagonalFactor(columns)))
    deviations = noise.deviations()
    assert deviations.rms == pytest.approx(noise.entry_std)
    shares: dict[float, float] = {}
    for std in np.outer(rows, columns).reshape(-1):
        shares[std] = shares.get(std, 0.0) + 1 / 6
    found = dict(zip(deviations.values, deviations.shares, strict=True))
    assert found == pytest.approx(shares)


def test_symmetrised_noise_has_the_deviations_of_its_entries() -> None:
    rng = np.random.default_rng(5)
    drawn = rng.standard_normal((20000, 4, 4)) * 1.5
    symmetrised = (drawn + drawn.transpose(0, 2, 1)) / 2
    deviations = IidNoise((4, 4), 1.5).deviations().symmetrised(4)
    stds = symmetrised.std(axis=0)
    assert np.diag(stds) == pytest.approx(deviations.largest, rel=0.03)
    assert stds[~np.eye(4, dtype=bool)] == pytest.approx(deviations.least, rel=0.03)
    assert deviations.rms == pytest.approx(float(np.sqrt(np.mean(symmetrised**2))), rel=0.02)


def test_one_entry_is_symmetric_already() -> None:
    alone = IidNoise((1, 1), 1.5).deviations().symmetrised(1)
    assert (alone.least, alone.largest) == (1.5, 1.5)
    assert alone.within(0.95) == pytest.approx(1.5 * 1.959963985)


def test_many_different_deviations_are_merged_without_changing_their_mean() -> None:
    rng = np.random.default_rng(3)
    factors = tuple(DiagonalFactor(rng.uniform(1, 9, 700)) for _ in range(2))
    noise = KroneckerNoise(factors)
    deviations = noise.deviations()
    assert deviations.values.size <= 4096
    assert deviations.rms == pytest.approx(noise.entry_std, rel=1e-9)
    stds = np.outer(*(factor.scales for factor in factors))
    exact = Deviations(stds.reshape(-1), np.full(stds.size, 1 / stds.size), Tail.GAUSSIAN)
    assert deviations.within(0.95) == pytest.approx(exact.within(0.95), rel=1e-3)


def test_noise_of_an_unknown_distribution_states_no_half_width() -> None:
    assert Deviations.same(1.0, Tail.OTHER).within(0.95) is None

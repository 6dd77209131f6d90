"""The integers have the law round(N(0, S^2)): over all cells and tails, with twins that the same
tests reject.

Keys are fixed, so the tests never flake; the thresholds are far below what a correct sampler
reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dpdask.keystream import ReleaseKey
from dpdask.privatizers.blocks import gaussian_integers

KEY = ReleaseKey(b"a fixed key for statistics, 32 b")
REJECT = 1e-12
Draws = np.ndarray[Any, np.dtype[np.float64]]


def draws(steps_per_sigma: float, count: int, tile: int = 0) -> Draws:
    out = np.empty(count)
    gaussian_integers(
        KEY.tile(fingerprint=bytes(32), component="law", index=(tile,)), steps_per_sigma, out
    )
    return out


def cell_edges(steps_per_sigma: float) -> Draws:
    """Half-integers: every integer within 4 sigma for small S, 2,000 cells for large S, and tails
    to 5 sigma.
    """
    reach = 4 * steps_per_sigma
    core = (
        np.arange(-reach, reach + 1) if reach <= 1000 else np.rint(np.linspace(-reach, reach, 2001))
    )
    tails = np.rint(steps_per_sigma * np.arange(4.25, 5.01, 0.25))
    return np.concatenate([-np.inf, -tails[::-1], core, tails, np.inf], axis=None)[...] + 0.5


def chi_square_p(counts: Draws, steps_per_sigma: float) -> float:
    """How likely counts as uneven as these are under round(N(0, steps_per_sigma^2))."""
    edges = cell_edges(steps_per_sigma) / steps_per_sigma
    lower, upper = edges[:-1], edges[1:]
    flip = lower > 0
    probabilities = np.where(
        flip, special.ndtr(-lower) - special.ndtr(-upper), special.ndtr(upper) - special.ndtr(lower)
    )
    expected = probabilities * counts.sum()
    assert expected.min() > 5
    return float(stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), counts.size - 1))


def count_cells(values: Draws, steps_per_sigma: float) -> Draws:
    return np.histogram(values, cell_edges(steps_per_sigma))[0].astype(float)


def law_p(values: Draws, steps_per_sigma: float) -> float:
    """The least of three: all cells, the second moment S^2 + 1/12, the balance of signs; three
    times it, for the choice.
    """
    n = values.size
    spread = (
        np.mean((values / steps_per_sigma) ** 2) - 1 - 1 / (12 * steps_per_sigma**2)
    ) * np.sqrt(n / 2)
    balance = np.sum(np.sign(values)) / np.sqrt(n)
    moments = (2 * float(stats.norm.sf(abs(score))) for score in (spread, balance))
    return 3 * min(chi_square_p(count_cells(values, steps_per_sigma), steps_per_sigma), *moments)


@pytest.mark.parametrize("steps_per_sigma", [2.0**6, 2.0**10, 2.0**14, 2.0**20])
def test_the_law_over_all_cells_and_tails(steps_per_sigma: float) -> None:
    assert law_p(draws(steps_per_sigma, 1 << 25), steps_per_sigma) > REJECT


def wrong_scale(values: Draws, steps_per_sigma: float) -> Draws:
    """As if S were 0.1 % larger."""
    return np.rint((values + np.random.default_rng(1).random(values.size) - 0.5) * 1.001)


def sign_bias(values: Draws, steps_per_sigma: float) -> Draws:
    """One value in 500 loses its sign."""
    biased = values.copy()
    biased[::500] = np.abs(biased[::500])
    return biased


def missing_tail(values: Draws, steps_per_sigma: float) -> Draws:
    """Nothing beyond 4.5 sigma."""
    return np.clip(values, -4.5 * steps_per_sigma, 4.5 * steps_per_sigma)


def truncated_not_rounded(values: Draws, steps_per_sigma: float) -> Draws:
    """Rounding towards zero, as a cast would."""
    return np.trunc(values + np.random.default_rng(2).random(values.size) - 0.5)


@pytest.mark.parametrize("twin", [wrong_scale, sign_bias, missing_tail, truncated_not_rounded])
def test_the_same_test_rejects_its_twins(twin: Callable[[Draws, float], Draws]) -> None:
    steps_per_sigma = 2.0**6
    values = draws(steps_per_sigma, 1 << 25)
    assert law_p(twin(values, steps_per_sigma), steps_per_sigma) < REJECT


@pytest.mark.slow
def test_a_hundred_million_draws_at_the_default_ratio() -> None:
    steps_per_sigma = 2.0**14
    counts = sum(
        count_cells(draws(steps_per_sigma, 1 << 24, tile), steps_per_sigma) for tile in range(7, 14)
    )
    assert counts.sum() > 1e8
    assert chi_square_p(counts, steps_per_sigma) > REJECT


def test_pairs_and_neighbours_are_uncorrelated() -> None:
    """The two draws of a Box-Muller pair, neighbours, and squares of both."""
    n = 1 << 24
    values = draws(2.0**14, n) / 2**14
    blocks = values.reshape(-1, 2, 512)
    for left, right in ((blocks[:, 0], blocks[:, 1]), (values[:-1], values[1:])):
        for power in (1, 2):
            a, b = left.ravel() ** power, right.ravel() ** power
            z = np.corrcoef(a, b)[0, 1] * np.sqrt(a.size)
            assert abs(z) < 7.5


def test_tiles_components_and_fingerprints_are_uncorrelated_and_reused_noise_is_not() -> None:
    n = 1 << 22
    base = draws(2.0**14, n)
    others = [
        KEY.tile(fingerprint=bytes(32), component="law", index=(1,)),
        KEY.tile(fingerprint=bytes(32), component="law2", index=(0,)),
        KEY.tile(fingerprint=b"\x01" + bytes(31), component="law", index=(0,)),
    ]
    out = np.empty(n)
    for stream in others:
        gaussian_integers(stream, 2.0**14, out)
        assert abs(np.corrcoef(base, out)[0, 1]) * np.sqrt(n) < 7.5
    gaussian_integers(KEY.tile(fingerprint=bytes(32), component="law", index=(0,)), 2.0**14, out)
    assert abs(np.corrcoef(base, out)[0, 1]) * np.sqrt(n) > 1000  # the twin: the same tile again


@pytest.mark.slow
def test_opendps_exact_sampler_draws_from_the_same_law() -> None:
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T=float, nan=False)), l2_distance(T=float)
    theirs = np.rint(make_gaussian(*space, scale=64.0)([0.0] * 60_000))
    edges = np.concatenate([[-np.inf], np.arange(-160, 161, 8) + 0.5, [np.inf]])

    def two_sample_p(ours: Draws) -> float:
        table = np.array([np.histogram(sample, edges)[0] for sample in (ours, theirs)])
        return float(stats.chi2_contingency(table).pvalue)

    ours = draws(64.0, 1 << 22)
    assert two_sample_p(ours) > REJECT
    assert two_sample_p(ours * 1.05) < REJECT

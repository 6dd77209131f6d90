"""The integers have the law round(Lap(S)): over all cells and tails, with twins that the same test
rejects. Keys are fixed, so the tests never flake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpdask.keystream import ReleaseKey
from dpdask.privatizers.blocks import drawn_integers
from dpdask.privatizers.samplers import GAUSSIAN, LAPLACE

KEY = ReleaseKey(b"a fixed key for statistics, 32 b")
REJECT = 1e-12
Draws = np.ndarray[Any, np.dtype[np.float64]]


def draws(scale: float, count: int, tile: int = 0) -> Draws:
    out = np.empty(count)
    tile_stream = KEY.tile(fingerprint=bytes(32), component="laplace", index=(tile,))
    drawn_integers(LAPLACE, tile_stream, scale, out)
    return out


def cell_edges(scale: float) -> Draws:
    """Half-integers: every integer within 5 scales for small S, 2,000 cells for large S, tails to
    11 scales.
    """
    reach = 5 * scale
    core = np.arange(-reach, reach + 1) if reach <= 1000 else np.linspace(-reach, reach, 2001)
    tails = np.rint(scale * np.arange(5.5, 11.1, 0.5))
    return np.concatenate([-np.inf, -tails[::-1], np.rint(core), tails, np.inf], axis=None) + 0.5


def law_p(values: Draws, scale: float) -> float:
    """The least of three: all cells, the mean size 1 / (2 sinh(1 / 2 S)), the balance of signs;
    three times it, for the choice.
    """
    edges = cell_edges(scale)
    lower, upper = edges[:-1] / scale, edges[1:] / scale
    below = stats.laplace.cdf(upper) - stats.laplace.cdf(lower)
    above = stats.laplace.sf(lower) - stats.laplace.sf(upper)
    expected = np.where(lower > 0, above, below) * values.size
    counts = np.histogram(values, edges)[0]
    assert expected.min() > 5
    cells = stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), counts.size - 1)
    root = np.sqrt(values.size)
    size = (np.mean(np.abs(values)) - 1 / (2 * np.sinh(1 / (2 * scale)))) / scale * root
    balance = np.sum(np.sign(values)) / root
    moments = (2 * float(stats.norm.sf(abs(score))) for score in (size, balance))
    return 3 * min(float(cells), *moments)


@pytest.mark.parametrize("scale", [2.0**6, 2.0**10, 2.0**14, 2.0**20])
def test_the_law_over_all_cells_and_tails(scale: float) -> None:
    assert law_p(draws(scale, 1 << 23), scale) > REJECT


def wrong_scale(values: Draws) -> Draws:
    """As if S were 0.4 % larger."""
    return np.rint((values + np.random.default_rng(1).random(values.size) - 0.5) * 1.004)


def sign_bias(values: Draws) -> Draws:
    """One value in 200 loses its sign."""
    biased = values.copy()
    biased[::200] = np.abs(biased[::200])
    return biased


def missing_tail(values: Draws) -> Draws:
    """Nothing beyond 10 scales."""
    return np.clip(values, -10 * 64.0, 10 * 64.0)


def truncated_not_rounded(values: Draws) -> Draws:
    """Rounding towards zero, as a cast would."""
    return np.trunc(values + np.random.default_rng(2).random(values.size) - 0.5)


def gaussian_instead(values: Draws) -> Draws:
    """Gaussian noise of the same variance."""
    out = np.empty(values.size)
    drawn_integers(GAUSSIAN, KEY.tile(fingerprint=bytes(32), component="g", index=(0,)), 64.0, out)
    return np.rint(out * np.sqrt(2))


@pytest.mark.parametrize(
    "twin", [wrong_scale, sign_bias, missing_tail, truncated_not_rounded, gaussian_instead]
)
def test_the_same_test_rejects_its_twins(twin: Callable[[Draws], Draws]) -> None:
    assert law_p(twin(draws(2.0**6, 1 << 23)), 2.0**6) < REJECT


def test_neighbours_and_tiles_are_uncorrelated_and_reused_noise_is_not() -> None:
    one, other = draws(2.0**14, 1 << 22), draws(2.0**14, 1 << 22, tile=1)
    for a, b in ((one[:-1], one[1:]), (np.abs(one[:-1]), np.abs(one[1:])), (one, other)):
        assert abs(np.corrcoef(a, b)[0, 1]) * np.sqrt(a.size) < 7.5
    again = draws(2.0**14, 1 << 22)
    assert abs(np.corrcoef(one, again)[0, 1]) * np.sqrt(one.size) > 1000

"""Row 1: whitening in floating point is part of the sensitivity.

0.1.0 rounded the products of dense and low-rank factors before the noise and covered that by "twice
sqrt(d)/ratio", whatever the length of the mode and the size of the answer. A finished result with a
large offset and a change that every addition rounds up: verified mu 0.043, and the neighbours
really lay 0.0625 apart.

Both neighbours go through the real recipe with one key, so the noise cancels: the difference of the
integers that noise is added to, divided by the steps per sigma, is the exact whitened distance.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpdask.keystream import ReleaseKey
from dpdask.noise import DenseFactor, KroneckerNoise, LowRankFactor, ScaledIdentity
from dpdask.privacy import Adjacency
from dpdask.privatizers import kernels
from dpdask.privatizers.base import Tile
from dpdask.queries.precomputed import Precomputed
from dpdask.sensitivity import L2Ball, Origin

KEY = ReleaseKey(bytes(range(32)))


def declared(factor: Any, mu: float) -> tuple[Precomputed, KroneckerNoise, float]:
    noise = KroneckerNoise((factor, ScaledIdentity(1)))
    sensitivity = L2Ball(
        l2=mu * factor.smallest, adjacency=Adjacency.REPLACE_ONE, origin=Origin.DECLARED
    )
    shape = (factor.size, 1)
    query = Precomputed(
        source_shape=shape, answer_shape=shape, sensitivity=sensitivity, bound=None, norm_bound=None
    )
    return query, noise, sensitivity.whitened(noise.factors)


def distance(
    recipe: Any, one: np.ndarray, other: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> float:
    """The whitened distance of two answers, from the integers that the recipe un-whitens."""
    seen: list[np.ndarray] = []
    finish = kernels.low_rank_finish

    def watched_finish(sums: np.ndarray, *rest: Any) -> None:
        seen.append(sums.copy())
        finish(sums, *rest)

    monkeypatch.setattr(kernels, "low_rank_finish", watched_finish)
    for answer in (one, other):
        stream = KEY.tile(fingerprint=bytes(32), component="data", index=(0,))
        box = tuple(slice(0, n) for n in answer.shape)
        recipe.apply(Tile(values=answer, box=box, stream=stream), np.empty(answer.shape))
    return float(np.linalg.norm(seen[1] - seen[0])) / recipe.steps_per_sigma


@pytest.mark.parametrize("share", [0.51, 1.02, 1.51, 2.0])
@pytest.mark.parametrize("offset", [0.999, 0.85])
def test_a_long_low_rank_mode_with_a_large_offset(
    share: float, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the entries make a large projection; each of the others changes it by a little more
    than half a last place.
    """
    n = 2**18
    half = n // 2
    direction = np.repeat([1.0, 2.0], half)[:, None] / math.sqrt(5 * half)
    factor = LowRankFactor(1000.0, direction, [1.0])
    change = (
        share * 2.0**-21 / direction[-1, 0]
    )  # 0.1.0's running sum, near 2^31, had a last place of 2^-21
    query, noise, mu = declared(factor, change * math.sqrt(half) * (1 + 1e-9))
    discretized, _ = query.discretize(noise, mu=mu, steps_per_sigma=None)
    one = np.zeros((n, 1))
    one[:half] = math.floor(discretized.privatizer.largest * offset)
    other = one.copy()
    other[half:] = change
    assert np.linalg.norm(other - one) <= query.sensitivity.l2
    real = distance(discretized.privatizer, one, other, monkeypatch)
    assert 0.85 * mu < real <= discretized.mu


def test_what_is_verified_is_charged_and_the_cut_is_stated() -> None:
    n = 2**18
    factor = LowRankFactor(1000.0, np.full((n, 1), 1 / math.sqrt(n)), [1.0])
    query, noise, mu = declared(factor, 0.9)
    discretized, _ = query.discretize(noise, mu=mu, steps_per_sigma=None)
    assert discretized.mu == mu  # the noise grew instead
    assert (
        query.bound_to_dict(discretized)["clamped_at"] == discretized.privatizer.largest >= 2.0**16
    )
    assert discretized.privatizer.noise.entry_std <= noise.entry_std * 1.01


def test_the_inverse_that_is_applied_bounds_the_sensitivity() -> None:
    """W is not quite U^-1: its own norm counts, proved by a Cholesky factorisation, not that of the
    exact inverse.
    """
    rng = np.random.default_rng(7)
    left, right = (np.linalg.qr(rng.standard_normal((40, 40)))[0] for _ in range(2))
    factor = DenseFactor((left * np.geomspace(1, 1e-9, 40)) @ right)
    applied = float(np.linalg.norm(factor.inverse(), 2))
    assert 1 / factor.smallest >= applied
    assert 1 / factor.smallest <= applied * (1 + 1e-9)

"""Joint laws: coloured noise has its factors' covariance, spherical noise one uniform direction
however it is chunked.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpdask.accounting import Chi, Gamma, HalfNormal, RadialLaw
from dpdask.keystream import ReleaseKey, TileStream
from dpdask.noise import DenseFactor, LowRankFactor
from dpdask.privatizers.chunk_radii import chunk_radii
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.kronecker import add_kronecker
from dpdask.privatizers.spherical import add_spherical

KEY = ReleaseKey(b"a fixed key for statistics, 32 b")
REJECT = 1e-12
STEPS = 2.0**14


def stream(*index: int, component: str = "joint") -> TileStream:
    return KEY.tile(fingerprint=bytes(32), component=component, index=index)


def covariance_p(samples: np.ndarray, covariance: np.ndarray) -> float:
    """How likely whitened samples (n x d) are i.i.d. N(0, 1) in their second moments, over all
    pairs.
    """
    white = samples @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    n, d = white.shape
    second = white.T @ white / math.sqrt(n) - math.sqrt(n) * np.eye(d)
    scores = second[np.triu_indices(d)] ** 2 / np.where(np.equal(*np.triu_indices(d)), 2, 1)
    return float(stats.chi2.sf(scores.sum(), scores.size))


DIRECTION = np.linalg.qr(np.random.default_rng(5).standard_normal((4, 2)))[0]
FACTORS: list[Any] = [
    np.array([1.0, 2.0, 3.0, 0.5]),
    LowRankFactor(1.0, DIRECTION, [3.0, 0.4]),
    DenseFactor(
        [[2.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.5, 3.0, 0.0], [0.2, 0.0, 0.0, 1.0]]
    ),
]


@pytest.mark.parametrize("factor", FACTORS, ids=["diagonal", "low-rank", "dense"])
def test_kronecker_noise_has_the_covariance_of_its_factors(factor: Any) -> None:
    columns, scales = 3, np.array([1.0, 0.3, 2.0])
    matrix = np.diag(factor) if isinstance(factor, np.ndarray) else factor.to_dense()
    covariance = np.kron(matrix @ matrix.T, np.diag(scales**2))
    samples = np.empty((20_000, 4, columns))
    zeros = np.zeros((4, columns))
    for i in range(len(samples)):
        add_kronecker(
            zeros,
            samples[i],
            stream=stream(i),
            factors=[factor, scales],
            steps_per_sigma=STEPS,
            low=[-1.0] * 2,
            high=[1.0] * 2,
        )
    flat = samples.reshape(len(samples), -1)
    assert covariance_p(flat, covariance) > REJECT
    assert covariance_p(flat * 1.05, covariance) < REJECT
    assert covariance_p(flat[:, ::-1], covariance) < REJECT


def spherical_releases(chunks: list[int], law: RadialLaw, count: int, component: str) -> np.ndarray:
    """Many releases of spherical noise on zeros, each drawn chunk by chunk."""
    grid = Grid.for_range(sigma=law.scale / 4, low=-1.0, high=1.0, steps_per_sigma=2.0**6)
    made = np.empty((count, sum(chunks)))
    for release in range(count):
        fingerprint = release.to_bytes(32, "big")
        radii = chunk_radii(
            KEY, fingerprint=fingerprint, component=component, law=law, chunk_sizes=chunks
        )
        start = 0
        for index, (size, radius) in enumerate(zip(chunks, radii, strict=True)):
            out = np.empty(size)
            tile = KEY.tile(fingerprint=fingerprint, component=component, index=(index,))
            add_spherical(
                np.zeros(size),
                out,
                stream=tile,
                step=grid.step,
                low=-4.0,
                high=4.0,
                radius=float(radius),
            )
            made[release, start : start + size] = out
            start += size
    return made


def direction_p(samples: np.ndarray) -> float:
    """Uniform directions: every coordinate's square is Beta(1/2, (M-1)/2), and so is that of a
    fixed mixed direction.
    """
    unit = samples / np.linalg.norm(samples, axis=1, keepdims=True)
    m = unit.shape[1]
    probes = np.vstack(
        [
            np.eye(m),
            np.ones(m) / math.sqrt(m),
            np.where(np.arange(m) < m // 2, 1, -1) / math.sqrt(m),
        ]
    )
    law = stats.beta(0.5, (m - 1) / 2)
    return min(float(stats.kstest((unit @ probe) ** 2, law.cdf).pvalue) for probe in probes)


@pytest.mark.parametrize("chunks", [[12], [5, 4, 3], [1, 1, 10], [2] * 6])
def test_the_direction_is_uniform_however_it_is_chunked(chunks: list[int]) -> None:
    samples = spherical_releases(chunks, HalfNormal(1.0), 12_000, f"direction{chunks}")
    radii = np.linalg.norm(samples, axis=1)
    assert (
        direction_p(samples[radii > 0.5]) > REJECT
    )  # smaller vectors feel the grid; radius and direction are independent
    assert stats.kstest(radii, stats.halfnorm.cdf).pvalue > REJECT


def test_equal_chunk_shares_are_not_uniform() -> None:
    """The twin: chunks that each get a fixed share of the radius."""
    generator = np.random.default_rng(3)
    parts = generator.standard_normal((12_000, 6, 2))
    parts /= np.linalg.norm(parts, axis=2, keepdims=True) * math.sqrt(6)
    assert direction_p(parts.reshape(12_000, 12)) < REJECT


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (HalfNormal(2.0), stats.halfnorm(scale=2.0)),
        (Chi(0.5), stats.chi(df=300, scale=0.5)),
        (Gamma(0.1), stats.gamma(300, scale=0.1)),
    ],
)
def test_radii_follow_their_law(law: RadialLaw, expected: Any) -> None:
    radii = np.array(
        [
            math.sqrt(
                np.sum(
                    chunk_radii(
                        KEY,
                        fingerprint=i.to_bytes(32, "big"),
                        component="r",
                        law=law,
                        chunk_sizes=[100, 150, 50],
                    )
                    ** 2
                )
            )
            for i in range(20_000)
        ]
    )
    assert stats.kstest(radii, expected.cdf).pvalue > REJECT
    assert stats.kstest(radii * 1.1, expected.cdf).pvalue < REJECT


@pytest.mark.slow
def test_rank_one_loss_has_the_papers_kurtosis_and_skewness() -> None:
    """Raw moments of the loss R^2: E[L^4]/E[L^2]^2 = 35/3, E[L^3]/E[L^2]^(3/2) = 5 sqrt(3)/3."""
    count = 150_000
    loss = np.array(
        [
            np.sum(
                chunk_radii(
                    KEY,
                    fingerprint=i.to_bytes(32, "big"),
                    component="loss",
                    law=HalfNormal(1.0),
                    chunk_sizes=[50, 50],
                )
                ** 2
            )
            for i in range(count)
        ]
    )
    second, third, fourth = (np.mean(loss**t) for t in (2, 3, 4))
    assert math.isclose(fourth / second**2, 35 / 3, rel_tol=0.15)
    assert math.isclose(third / second**1.5, 5 * math.sqrt(3) / 3, rel_tol=0.05)
    gaussian = np.random.default_rng(1).chisquare(3, count)
    assert not math.isclose(np.mean(gaussian**4) / np.mean(gaussian**2) ** 2, 35 / 3, rel_tol=0.15)

"""Noise shapes: what they say of themselves matches brute force, and they survive a round trip
through JSON.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dpdask.accounting import Chi, Gamma, HalfNormal
from dpdask.errors import InvalidNoise
from dpdask.noise import (
    DenseFactor,
    DiagonalFactor,
    IidNoise,
    KroneckerNoise,
    LaplaceNoise,
    LowRankFactor,
    Noise,
    ScaledIdentity,
    SphericalNoise,
    noise_from_dict,
)

DIRECTION = np.array([[0.6], [0.8], [0.0]])
NOISES: list[Noise] = [
    IidNoise((4, 5), 2.5),
    KroneckerNoise(
        (ScaledIdentity(2), DiagonalFactor([1.0, 3.0]), DenseFactor([[2.0, 1.0], [0.0, 1.0]]))
    ),
    KroneckerNoise((LowRankFactor(1.5, DIRECTION, [4.0]), ScaledIdentity(2, 0.5))),
    SphericalNoise((3, 4), HalfNormal(7.0)),
    SphericalNoise((3, 4), Chi(2.0)),
    SphericalNoise((3, 4), Gamma(0.25)),
]


@pytest.mark.parametrize("noise", NOISES)
def test_a_noise_is_its_description(noise: Noise) -> None:
    text = json.dumps(noise.to_dict(), allow_nan=False)
    assert noise_from_dict(json.loads(text)) == noise


@pytest.mark.parametrize("noise", NOISES[1:3])
def test_kronecker_moments_match_the_full_covariance(noise: KroneckerNoise) -> None:
    root = np.eye(1)
    for factor in noise.factors:
        root = np.kron(root, factor.to_dense())
    eigenvalues = np.linalg.eigvalsh(root @ root.T)
    traces = [float(np.sum(eigenvalues**t)) for t in range(1, 5)]
    k = [2 ** (t - 1) * math.factorial(t - 1) * traces[t - 1] for t in range(1, 5)]
    second = k[1] + k[0] ** 2
    third = k[2] + 3 * k[1] * k[0] + k[0] ** 3
    fourth = k[3] + 4 * k[2] * k[0] + 3 * k[1] ** 2 + 6 * k[1] * k[0] ** 2 + k[0] ** 4
    assert math.isclose(noise.expected_squared_loss, traces[0], rel_tol=1e-12)
    assert math.isclose(noise.kurtosis, fourth / second**2, rel_tol=1e-9)
    assert math.isclose(noise.skewness, third / second**1.5, rel_tol=1e-9)
    variances = np.diag(root @ root.T).reshape(noise.tensor_shape)
    for axis in range(len(noise.tensor_shape)):
        others = tuple(i for i in range(len(noise.tensor_shape)) if i != axis)
        expected = np.mean(variances, axis=others)
        assert np.allclose(np.broadcast_to(noise.variances_along(axis), expected.shape), expected)


SQUARE: list[Noise] = [
    IidNoise((4, 4), 1.5),
    LaplaceNoise((4, 4), 0.5),
    KroneckerNoise((DenseFactor(np.eye(3) + 0.4), DenseFactor(np.eye(3) * 2 + 0.9))),
    KroneckerNoise((DenseFactor([[2.0, 1.0], [0.0, 1.0]]), DenseFactor([[1.0, 0.0], [-3.0, 1.0]]))),
    KroneckerNoise((LowRankFactor(1.5, DIRECTION, [4.0]), DiagonalFactor([1.0, 3.0, 0.1]))),
    KroneckerNoise((DiagonalFactor([1.0, 3.0]), DiagonalFactor([5.0, 0.25]))),
    KroneckerNoise((DiagonalFactor([1.0, 3.0, 2.0]), DenseFactor(np.eye(3) + 0.4))),
    KroneckerNoise((DenseFactor(np.eye(3) + 0.4), LowRankFactor(1.5, DIRECTION, [4.0]))),
    KroneckerNoise(
        (LowRankFactor(1.5, DIRECTION, [4.0]), LowRankFactor(0.5, DIRECTION[::-1], [0.1]))
    ),
    KroneckerNoise((ScaledIdentity(3, 2.0), DiagonalFactor([5.0, 0.25, 1.0]))),
]


def _symmetrised_variance(noise: Noise) -> float:
    """The mean variance of (Z + Z')/2 from the whole covariance of all entries of Z."""
    d = noise.tensor_shape[0]
    covariance = np.eye(d * d) * noise.entry_std**2
    if isinstance(noise, KroneckerNoise):
        root = np.kron(*(factor.to_dense() for factor in noise.factors))
        covariance = root @ root.T
    swap = np.eye(d * d)[np.arange(d * d).reshape(d, d).T.reshape(-1)]
    average = (np.eye(d * d) + swap) / 2
    return float(np.mean(np.diag(average @ covariance @ average.T)))


@pytest.mark.parametrize("noise", SQUARE)
def test_noise_of_a_symmetrised_matrix_is_that_of_its_whole_covariance(noise: Noise) -> None:
    assert noise.symmetrised_std**2 == pytest.approx(_symmetrised_variance(noise), rel=1e-12)


def test_few_directions_in_a_long_mode_need_no_matrix_of_all_entries() -> None:
    size = 200_000
    direction = np.full((size, 1), 1 / math.sqrt(size))
    factor = LowRankFactor(2.0, direction, [3.0])
    noise = KroneckerNoise((factor, factor))
    trace = (size - 1) * 4.0 + 9.0
    squares = (size - 1) * 16.0 + 81.0
    expected = math.sqrt((trace**2 + squares) / 2) / size
    assert noise.symmetrised_std == pytest.approx(expected, rel=1e-12)
    diagonal = KroneckerNoise((factor, ScaledIdentity(size, 1.5)))
    expected = math.sqrt((trace * size * 2.25 + trace * 2.25) / 2) / size
    assert diagonal.symmetrised_std == pytest.approx(expected, rel=1e-12)


def test_correlated_factors_do_not_follow_the_formula_of_independent_entries() -> None:
    for noise in SQUARE[2:4]:
        rows = noise.tensor_shape[0]
        independent = noise.entry_std * math.sqrt((rows + 1) / (2 * rows))
        assert abs(noise.symmetrised_std / independent - 1) > 0.05


def test_rank_one_stability_figures_of_the_paper() -> None:
    noise = SphericalNoise((1000, 1000), HalfNormal(3.0))
    assert math.isclose(noise.kurtosis, 35 / 3, rel_tol=1e-12)
    assert math.isclose(noise.skewness, 5 * math.sqrt(3) / 3, rel_tol=1e-12)
    assert math.isclose(noise.expected_squared_loss, 9.0, rel_tol=1e-12)


def test_iid_noise_is_kronecker_is_chi_noise() -> None:
    same = [
        IidNoise((6, 7), 1.5),
        KroneckerNoise((ScaledIdentity(6, 1.5), ScaledIdentity(7))),
        SphericalNoise((6, 7), Chi(1.5)),
    ]
    for noise in same[1:]:
        for name in ("expected_squared_loss", "kurtosis", "skewness", "entry_std"):
            assert math.isclose(getattr(noise, name), getattr(same[0], name), rel_tol=1e-9)


def test_gamma_radius_moments_match_quadrature() -> None:
    from scipy import integrate, stats

    noise = SphericalNoise((3, 2), Gamma(0.5))
    law = stats.gamma(6, scale=0.5)
    moments = [
        integrate.quad(lambda r, t=t: r ** (2 * t) * law.pdf(r), 0, 60)[0] for t in range(1, 5)
    ]
    assert math.isclose(noise.expected_squared_loss, moments[0], rel_tol=1e-8)
    assert math.isclose(noise.kurtosis, moments[3] / moments[1] ** 2, rel_tol=1e-6)
    assert math.isclose(noise.skewness, moments[2] / moments[1] ** 1.5, rel_tol=1e-6)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_no_noise_is_no_noise(sigma: float) -> None:
    with pytest.raises(InvalidNoise, match="finite and > 0"):
        IidNoise((2,), sigma)

"""The noise level of every released entry, against the covariance of all entries at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpdask.accounting.radial import Chi
from dpdask.noise import (
    DenseFactor,
    DiagonalFactor,
    IidNoise,
    KroneckerNoise,
    LaplaceNoise,
    LowRankFactor,
    Noise,
    NoiseLevel,
    ScaledIdentity,
    SphericalNoise,
)
from dpdask.noise.levels import _MOST_AT_ONCE
from dpdask.types import Floats

DENSE = DenseFactor([[2.0, 0.1, 0.3], [0.0, 1.0, -0.4], [0.5, 0.2, 3.0]])
LOW_RANK = LowRankFactor(0.5, np.array([[0.6], [0.8], [0.0]]), np.array([2.0]))

NOISES: dict[str, Noise] = {
    "iid": IidNoise((3, 3), 1.5),
    "laplace": LaplaceNoise((3, 3), 0.7),
    "scaled": KroneckerNoise((ScaledIdentity(3, 2.0), ScaledIdentity(3))),
    "diagonal": KroneckerNoise((ScaledIdentity(3, 2.0), DiagonalFactor([1.0, 2.0, 5.0]))),
    "two diagonals": KroneckerNoise((DiagonalFactor([3.0, 1, 1]), DiagonalFactor([1.0, 2.0, 5]))),
    "dense": KroneckerNoise((ScaledIdentity(3), DENSE)),
    "low-rank": KroneckerNoise((LOW_RANK, DENSE)),
    "low-rank and diagonal": KroneckerNoise((LOW_RANK, DiagonalFactor([1.0, 2.0, 5.0]))),
}


def covariance(noise: Noise) -> Floats:
    """The covariance of all entries of a 3 x 3 matrix, in C order."""
    if isinstance(noise, KroneckerNoise):
        first, second = (factor.to_dense() for factor in noise.factors)
        colour = np.kron(first, second)
        return np.asarray(colour @ colour.T)
    return np.eye(9) * noise.entry_std**2


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_levels_are_the_diagonal_of_the_covariance(name: str, symmetric: bool) -> None:
    noise = NOISES[name]
    turned = np.eye(9)[[3 * j + i for i in range(3) for j in range(3)]]
    average = (np.eye(9) + turned) / 2 if symmetric else np.eye(9)
    exact = np.sqrt(np.diag(average @ covariance(noise) @ average.T)).reshape(3, 3) / 7
    level = NoiseLevel(noise=noise, divisor=7, symmetric=symmetric)
    whole = (slice(0, 3), slice(0, 3))
    assert np.allclose(np.broadcast_to(level.of(whole), (3, 3)), exact, rtol=1e-12)
    for box in [(slice(0, 1), slice(1, 3)), (slice(1, 3), slice(0, 2)), (slice(2, 3), slice(0, 3))]:
        shape = tuple(part.stop - part.start for part in box)
        assert np.allclose(np.broadcast_to(level.of(box), shape), exact[box], rtol=1e-12)
    assert level.rms == pytest.approx(math.sqrt(np.mean(exact**2)), rel=1e-12)
    assert level.extremes() == pytest.approx((exact.min(), exact.max()), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("iid", ()),
        ("laplace", ()),
        ("scaled", ()),
        ("diagonal", (1,)),
        ("two diagonals", (0, 1)),
        ("dense", (1,)),
        ("low-rank", (0, 1)),
    ],
)
def test_levels_lie_along_the_axes_where_they_vary(name: str, axes: tuple[int, ...]) -> None:
    level = NoiseLevel(noise=NOISES[name])
    assert level.axes == axes
    assert level.values().shape == (3,) * len(axes)
    shape = [3 if axis in axes else 1 for axis in range(2)]
    whole = level.of((slice(0, 3), slice(0, 3)))
    assert np.array_equal(level.values().reshape(shape), whole)
    assert NoiseLevel(noise=NOISES[name], symmetric=True).axes == (0, 1)


def test_every_entry_of_spherical_noise_has_the_same_level() -> None:
    noise = SphericalNoise((4, 3), Chi(2.0))
    assert NoiseLevel(noise=noise).values() == pytest.approx(noise.entry_std)


def test_a_large_level_is_not_one_chunk() -> None:
    side = math.isqrt(_MOST_AT_ONCE)
    assert NoiseLevel(noise=IidNoise((side, side), 1.0), symmetric=True).small
    large = NoiseLevel(noise=IidNoise((side + 1, side + 1), 1.0), symmetric=True)
    assert not large.small
    assert large.extremes() == pytest.approx((math.sqrt(0.5), 1.0))
    assert NoiseLevel(noise=IidNoise((10**9,), 1.0)).small


def test_one_entry_is_its_own_transpose() -> None:
    level = NoiseLevel(noise=IidNoise((1, 1), 3.0), symmetric=True)
    assert level.axes == ()
    assert level.values() == pytest.approx(3.0)

"""Noise distributions: four frozen, serialisable values that say which noise to add.

The loss of a release is ``L = ||noise||^2``. Each distribution knows E[L] and the two stability
figures of the R1SMG paper (section 6): kurtosis E[L^4]/E[L^2]^2 and skewness E[L^3]/E[L^2]^(3/2),
both of raw moments.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.accounting.radial import RadialLaw, radial_law_from_dict
from dpdask.errors import InvalidNoise
from dpdask.noise.deviations import Deviations, Tail
from dpdask.noise.diagonal import on_diagonal
from dpdask.noise.factors import Factor, Floats, factor_from_dict
from dpdask.types import Json, Region

__all__ = [
    "IidNoise",
    "KroneckerNoise",
    "LaplaceNoise",
    "Noise",
    "SphericalNoise",
    "noise_from_dict",
]


def _check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape or any(n < 1 for n in shape):
        raise InvalidNoise(
            f"shape={tuple(shape)} has no entries; every axis needs a length of at least 1"
        )
    if math.prod(shape) > 10**18:
        raise InvalidNoise(f"shape={tuple(shape)} has more than 1e18 entries; split the tensor")
    return tuple(int(n) for n in shape)


@dataclass(frozen=True, slots=True)
class Noise(abc.ABC):
    """Noise to be added to a tensor."""

    name: ClassVar[str]

    @property
    @abc.abstractmethod
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor it is added to."""

    @abc.abstractmethod
    def loss_moments(self) -> tuple[float, float, float, float]:
        """E[(L / E[L])^k] for k = 1 to 4; the first is 1."""

    @property
    @abc.abstractmethod
    def expected_squared_loss(self) -> float:
        """E||noise||^2."""

    @abc.abstractmethod
    def variances_along(self, axis: int) -> Floats:
        """The mean variance of an entry for each index along ``axis``; a single number when
        constant.
        """

    def deviations(self) -> Deviations:
        """The standard deviations of all entries, and their distribution where it is known."""
        return Deviations.same(self.entry_std, Tail.OTHER)

    @abc.abstractmethod
    def to_dict(self) -> Json:
        """``{"name": ..., "configuration": ...}``."""

    @property
    def entries(self) -> int:
        """How many numbers the tensor holds."""
        return math.prod(self.tensor_shape)

    @property
    def entry_std(self) -> float:
        """The root mean square of the noise of one entry."""
        return math.sqrt(self.expected_squared_loss / self.entries)

    def varies(self, axis: int) -> bool:
        """Whether the variance of an entry depends on its index along ``axis``."""
        return False

    def entry_variances(self, box: Region) -> Floats:
        """The variance of every entry of a region, of length 1 along axes where it is constant."""
        return np.full((1,) * len(box), self.entry_std**2)

    def mirror_covariances(self, box: Region) -> Floats:
        """The covariance of entries (i, j) and (j, i) in a region of a square matrix."""
        rows, columns = box
        return on_diagonal(self.entry_std**2, rows, columns)

    @property
    def symmetrised_std(self) -> float:
        """The root mean square of an entry of (Z + Z')/2, Z the noise of a square matrix.

        Entries of equal variance without correlation keep half of it off the diagonal.
        """
        rows = self.tensor_shape[0]
        return self.entry_std * math.sqrt((rows + 1) / (2 * rows))

    @property
    def kurtosis(self) -> float:
        """E[L^4] / E[L^2]^2."""
        _, second, _, fourth = self.loss_moments()
        return fourth / second**2

    @property
    def skewness(self) -> float:
        """E[L^3] / E[L^2]^(3/2)."""
        _, second, third, _ = self.loss_moments()
        return third / math.sqrt(second) ** 3


@dataclass(frozen=True, slots=True)
class IidNoise(Noise):
    """Independent N(0, sigma^2) on every entry."""

    name: ClassVar[str] = "iid"
    shape: tuple[int, ...]
    sigma: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _check_shape(self.shape))
        if not 1e-150 <= self.sigma <= 1e150:
            raise InvalidNoise(
                f"sigma={self.sigma:g} is not a valid noise scale; it must be finite and > 0"
                " (1e-150 to 1e150)"
            )

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.shape

    @property
    def expected_squared_loss(self) -> float:
        """M sigma^2."""
        return self.entries * self.sigma**2

    def loss_moments(self) -> tuple[float, float, float, float]:
        """Those of chi-square with M degrees of freedom."""
        m = self.entries
        second = 1 + 2 / m
        third = second * (1 + 4 / m)
        return 1.0, second, third, third * (1 + 6 / m)

    def variances_along(self, axis: int) -> Floats:
        """sigma^2."""
        return np.array([self.sigma**2])

    def deviations(self) -> Deviations:
        """Sigma everywhere."""
        return Deviations.same(self.sigma)

    def to_dict(self) -> Json:
        """``iid``."""
        return {
            "name": self.name,
            "configuration": {"shape": list(self.shape), "sigma": self.sigma},
        }


@dataclass(frozen=True, slots=True)
class LaplaceNoise(Noise):
    """Independent Laplace noise on every entry: density exp(-|n| / scale) / (2 scale)."""

    name: ClassVar[str] = "laplace"
    shape: tuple[int, ...]
    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _check_shape(self.shape))
        if not 1e-150 <= self.scale <= 1e150:
            raise InvalidNoise(
                f"scale={self.scale:g} is not a valid noise scale; it must be finite and > 0"
                " (1e-150 to 1e150)"
            )

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.shape

    @property
    def expected_squared_loss(self) -> float:
        """2 M scale^2."""
        return self.entries * 2 * self.scale**2

    def loss_moments(self) -> tuple[float, float, float, float]:
        """From the cumulants 2, 20, 592, 33888 of a squared entry of scale 1, M of them added."""
        m = float(self.entries)
        return _moments(20 / (4 * m), 592 / (8 * m**2), 33888 / (16 * m**3))

    def variances_along(self, axis: int) -> Floats:
        """2 scale^2."""
        return np.array([2 * self.scale**2])

    def deviations(self) -> Deviations:
        """sqrt(2) scale everywhere."""
        return Deviations.same(math.sqrt(2) * self.scale, Tail.LAPLACE)

    def to_dict(self) -> Json:
        """``laplace``."""
        return {
            "name": self.name,
            "configuration": {"shape": list(self.shape), "scale": self.scale},
        }


def _moments(k2: float, k3: float, k4: float) -> tuple[float, float, float, float]:
    """Return raw moments 1 to 4 from the cumulants of a variable with mean 1."""
    second = k2 + 1
    third = k3 + 3 * k2 + 1
    return 1.0, second, third, k4 + 4 * k3 + 3 * k2**2 + 6 * k2 + 1


@dataclass(frozen=True, slots=True)
class KroneckerNoise(Noise):
    """N x_1 U_1 ... x_k U_k with N standard normal: one factor per mode."""

    name: ClassVar[str] = "kronecker"
    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", tuple(self.factors))
        if not self.factors:
            raise InvalidNoise(
                "Kronecker noise without factors has no shape; give one factor per axis"
            )

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The sizes of the factors."""
        return tuple(factor.size for factor in self.factors)

    @property
    def expected_squared_loss(self) -> float:
        """The product of tr(U_k U_k')."""
        return math.prod(factor.power_sum(2) for factor in self.factors)

    def varies(self, axis: int) -> bool:
        """Whether the factor of the mode has rows of different lengths."""
        return np.ndim(self.factors[axis].row_variances()) > 0

    def entry_variances(self, box: Region) -> Floats:
        """The product of the row variances of all modes."""
        variances = np.ones((1,) * len(box))
        for axis, (factor, part) in enumerate(zip(self.factors, box, strict=True)):
            rows = np.asarray(factor.row_variances(), dtype=np.float64)
            if rows.ndim:
                rows = rows[part].reshape([-1 if i == axis else 1 for i in range(len(box))])
            variances = variances * rows
        return variances

    def mirror_covariances(self, box: Region) -> Floats:
        """S1_ij S2_ij, S = U U' of either mode."""
        first, second = self.factors
        rows, columns = box
        return first.covariances(rows, columns) * second.covariances(rows, columns)

    @property
    def symmetrised_std(self) -> float:
        """sqrt((tr S1 tr S2 + tr(S1 S2)) / 2) / d, S = U U' of either mode of length d.

        The variance of entry (i, j) is (S1_ii S2_jj + S1_jj S2_ii + 2 S1_ij S2_ij) / 4.
        """
        first, second = self.factors
        common = first.common_power(second)
        return math.sqrt((self.expected_squared_loss + common) / 2) / first.size

    def loss_moments(self) -> tuple[float, float, float, float]:
        """From the cumulants 2^(t-1) (t-1)! tr(Xi^t) of a Gaussian quadratic form."""
        trace = [
            math.prod(_relative_power_sum(factor, t) for factor in self.factors)
            for t in range(1, 5)
        ]  # tr(Xi^t) / tr(Xi)^t
        return _moments(2 * trace[1], 8 * trace[2], 48 * trace[3])

    def variances_along(self, axis: int) -> Floats:
        """The row variances of the axis' factor times the mean variance of the other modes."""
        others = math.prod(f.power_sum(2) / f.size for i, f in enumerate(self.factors) if i != axis)
        return np.atleast_1d(np.asarray(self.factors[axis].row_variances(), dtype=float)) * others

    def deviations(self) -> Deviations:
        """Products of the factors' rows."""
        rows = [np.atleast_1d(np.asarray(f.row_variances(), dtype=float)) for f in self.factors]
        return Deviations.of_products(rows)

    def to_dict(self) -> Json:
        """``kronecker``."""
        return {
            "name": self.name,
            "configuration": {"factors": [factor.to_dict() for factor in self.factors]},
        }


def _relative_power_sum(factor: Factor, t: int) -> float:
    """tr(Sigma^t) / tr(Sigma)^t, computed on a rescaled factor so that no power overflows."""
    rescaled = factor.times(1 / math.sqrt(factor.power_sum(2) / factor.size))
    return rescaled.power_sum(2 * t) / float(factor.size) ** t


@dataclass(frozen=True, slots=True)
class SphericalNoise(Noise):
    """R v: a radius R of law ``law`` along one uniform direction v shared by all entries."""

    name: ClassVar[str] = "spherical"
    shape: tuple[int, ...]
    law: RadialLaw

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _check_shape(self.shape))

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return self.shape

    @property
    def expected_squared_loss(self) -> float:
        """E[R^2]."""
        return self.law.scale**2 * math.exp(self.law.log_raw_moment(1, self.entries))

    def loss_moments(self) -> tuple[float, float, float, float]:
        """Those of R^2."""
        logs = [self.law.log_raw_moment(t, self.entries) for t in range(1, 5)]
        second, third, fourth = (math.exp(logs[t - 1] - t * logs[0]) for t in (2, 3, 4))
        return 1.0, second, third, fourth

    def variances_along(self, axis: int) -> Floats:
        """E[R^2] / M, by symmetry."""
        return np.array([self.expected_squared_loss / self.entries])

    def to_dict(self) -> Json:
        """``spherical``."""
        return {
            "name": self.name,
            "configuration": {"shape": list(self.shape), "radius": self.law.to_dict()},
        }


def _iid_from_dict(configuration: Json) -> IidNoise:
    return IidNoise(tuple(configuration["shape"]), configuration["sigma"])


def _laplace_from_dict(configuration: Json) -> LaplaceNoise:
    return LaplaceNoise(tuple(configuration["shape"]), configuration["scale"])


def _kronecker_from_dict(configuration: Json) -> KroneckerNoise:
    return KroneckerNoise(tuple(factor_from_dict(factor) for factor in configuration["factors"]))


def _spherical_from_dict(configuration: Json) -> SphericalNoise:
    law = radial_law_from_dict(configuration["radius"])
    return SphericalNoise(tuple(configuration["shape"]), law)


_FROM_DICT: dict[str, Callable[[Json], Noise]] = {
    "iid": _iid_from_dict,
    "laplace": _laplace_from_dict,
    "kronecker": _kronecker_from_dict,
    "spherical": _spherical_from_dict,
}


def noise_from_dict(description: Json) -> Noise:
    """Return the noise that :meth:`Noise.to_dict` wrote."""
    name = description["name"]
    if name not in _FROM_DICT:
        raise InvalidNoise(f"noise {name!r} is unknown; use {', '.join(_FROM_DICT)}")
    return _FROM_DICT[name](description["configuration"])

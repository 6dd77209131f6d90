"""Noise factors: the matrix U_k that colours one mode of Kronecker noise, ``Z = N x_1 U_1 ... x_k U_k``.

Four frozen values: a scaled identity (two numbers), a diagonal, a dense matrix, and an identity plus low rank, which acts
as ``scales[i]`` along the i-th of a few orthonormal directions and as ``base`` on everything orthogonal to them; a million
rows with ten special directions cost ten vectors. Spectra are never expanded: all a mechanism needs of a factor is its
power sums, its smallest singular value and its longest whitened axis.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdask.errors import InvalidNoise

__all__ = [
    "DenseFactor",
    "DiagonalFactor",
    "Factor",
    "Floats",
    "LowRankFactor",
    "ScaledIdentity",
    "along_directions",
    "check_orthonormal",
    "factor_from_description",
]

Floats = np.ndarray[Any, np.dtype[np.float64]]

_UP = 1 + 1e-14


def _frozen_array(values: Any) -> Floats:
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def _positive_scales(name: str, values: Floats) -> None:
    bad = ~((values >= 1e-100) & (values <= 1e100))
    if np.any(bad):
        index = int(np.flatnonzero(bad.ravel())[0])
        raise InvalidNoise(
            f"{name}[{index}]={values.ravel()[index]:g} makes the noise singular; scales must be finite and > 0 (1e-100..1e100)"
        )


@dataclass(frozen=True, eq=False)
class Factor(abc.ABC):
    """A non-singular square matrix U acting on one mode."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The length of the mode."""

    @property
    @abc.abstractmethod
    def smallest(self) -> float:
        """The smallest singular value, rounded down."""

    @abc.abstractmethod
    def power_sum(self, power: int) -> float:
        """The sum of sigma_i(U)^power: 2 gives tr(UU'), -2 gives ||U^-1||_F^2, -4 gives ||sigma(Sigma^-1)||_2^2."""

    @abc.abstractmethod
    def largest_whitened_axis(self) -> float:
        """max_j ||U^-1 e_j||, rounded up."""

    @abc.abstractmethod
    def row_variances(self) -> Floats | float:
        """The diagonal of U U', a number when constant."""

    @abc.abstractmethod
    def times(self, scale: float) -> Factor:
        """The factor scale * U."""

    @abc.abstractmethod
    def to_dense(self) -> Floats:
        """U as a matrix; for small sizes."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """``{"name": ..., "configuration": ...}``."""

    def diagonal(self) -> Floats | float | None:
        """The diagonal of U when U is diagonal (a number when constant), else None."""
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.size, self.smallest))


@dataclass(frozen=True, eq=False)
class ScaledIdentity(Factor):
    """scale * I."""

    length: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidNoise(f"size={self.length} is no mode; a factor has at least one row")
        object.__setattr__(self, "scale", float(self.scale))
        _positive_scales("scale", np.array([self.scale]))

    @property
    def size(self) -> int:
        """The length of the mode."""
        return self.length

    @property
    def smallest(self) -> float:
        """The scale."""
        return self.scale

    def power_sum(self, power: int) -> float:
        """size * scale^power."""
        return self.length * self.scale**power

    def largest_whitened_axis(self) -> float:
        """1 / scale."""
        return 1 / self.scale * _UP

    def row_variances(self) -> Floats | float:
        """scale^2."""
        return self.scale**2

    def diagonal(self) -> Floats | float | None:
        """The scale, constant."""
        return self.scale

    def times(self, scale: float) -> Factor:
        """Another scaled identity."""
        return ScaledIdentity(self.length, self.scale * scale)

    def to_dense(self) -> Floats:
        """scale * I."""
        return self.scale * np.eye(self.length)

    def describe(self) -> dict[str, Any]:
        """``identity`` or ``scaled``."""
        if self.scale == 1.0:
            return {"name": "identity", "configuration": {"size": self.length}}
        return {"name": "scaled", "configuration": {"size": self.length, "scale": self.scale}}


@dataclass(frozen=True, eq=False)
class DiagonalFactor(Factor):
    """diag(scales)."""

    scales: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", _frozen_array(self.scales))
        if self.scales.ndim != 1 or not self.scales.size:
            raise InvalidNoise(f"a diagonal of shape {self.scales.shape} is no vector; give one scale per row")
        _positive_scales("diagonal", self.scales)

    @property
    def size(self) -> int:
        """The length of the mode."""
        return int(self.scales.size)

    @property
    def smallest(self) -> float:
        """The smallest scale."""
        return float(np.min(self.scales))

    def power_sum(self, power: int) -> float:
        """sum of scales^power."""
        return math.fsum(self.scales**power)

    def largest_whitened_axis(self) -> float:
        """1 / the smallest scale."""
        return 1 / self.smallest * _UP

    def row_variances(self) -> Floats | float:
        """scales^2."""
        return self.scales**2

    def diagonal(self) -> Floats | float | None:
        """The scales."""
        return self.scales

    def times(self, scale: float) -> Factor:
        """Another diagonal."""
        return DiagonalFactor(self.scales * scale)

    def to_dense(self) -> Floats:
        """diag(scales)."""
        return np.diag(self.scales)

    def describe(self) -> dict[str, Any]:
        """``diagonal``."""
        return {"name": "diagonal", "configuration": {"scales": self.scales.tolist()}}


@dataclass(frozen=True, eq=False)
class DenseFactor(Factor):
    """Any non-singular square matrix."""

    matrix: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _frozen_array(self.matrix))
        if self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1] or not self.matrix.size:
            raise InvalidNoise(f"a factor of shape {self.matrix.shape} is not square; give a square matrix")
        if not np.all(np.isfinite(self.matrix)):
            raise InvalidNoise("a factor holds NaN or infinity; every entry must be finite")
        object.__setattr__(self, "_singular", _frozen_array(np.linalg.svd(self.matrix, compute_uv=False)))
        if self.smallest <= 0:
            raise InvalidNoise(
                f"a dense factor of size {self.size} is singular to working precision"
                f" (smallest singular value {self.singular[-1]:.3g}); give a non-singular matrix"
            )

    @classmethod
    def from_covariance(cls, covariance: Any) -> DenseFactor:
        """The Cholesky factor of a symmetric positive definite covariance."""
        sigma = np.array(covariance, dtype=np.float64)
        if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1]:
            raise InvalidNoise(f"a covariance of shape {sigma.shape} is not square; give a square matrix")
        if not np.allclose(sigma, sigma.T, rtol=1e-12, atol=0):
            raise InvalidNoise("the covariance is not symmetric; give (S + S')/2")
        try:
            return cls(_frozen_array(np.linalg.cholesky(sigma)))
        except np.linalg.LinAlgError:
            lowest = float(np.linalg.eigvalsh(sigma)[0])
            raise InvalidNoise(
                f"the covariance is not positive definite (smallest eigenvalue {lowest:.3g}); add a multiple of the identity"
            ) from None

    @property
    def singular(self) -> Floats:
        """The singular values, largest first."""
        values: Floats = self.__dict__["_singular"]
        return values

    def inverse(self) -> Floats:
        """U^-1, computed once."""
        if "_inverse" not in self.__dict__:
            object.__setattr__(self, "_inverse", _frozen_array(np.linalg.inv(self.matrix)))
        found: Floats = self.__dict__["_inverse"]
        return found

    @property
    def size(self) -> int:
        """The length of the mode."""
        return int(self.matrix.shape[0])

    @property
    def smallest(self) -> float:
        """The smallest singular value less the backward error of its computation."""
        return float(self.singular[-1] - 4 * self.size * np.finfo(float).eps * self.singular[0])

    def power_sum(self, power: int) -> float:
        """sum of singular values^power."""
        return math.fsum(self.singular**power)

    def largest_whitened_axis(self) -> float:
        """max_j ||U^-1 e_j|| by solving, enlarged by the solver's error."""
        columns = np.linalg.norm(self.inverse(), axis=0)
        condition = float(self.singular[0]) / self.smallest
        return float(np.max(columns)) * (1 + 8 * self.size * np.finfo(float).eps * condition)

    def row_variances(self) -> Floats | float:
        """diag(U U')."""
        return np.asarray(np.sum(self.matrix**2, axis=1), dtype=np.float64)

    def times(self, scale: float) -> Factor:
        """Another dense matrix; its singular values are scaled, not computed again, so that bounds scale exactly."""
        made = object.__new__(DenseFactor)
        object.__setattr__(made, "matrix", _frozen_array(self.matrix * scale))
        object.__setattr__(made, "_singular", _frozen_array(self.singular * scale))
        return made

    def to_dense(self) -> Floats:
        """The matrix."""
        return self.matrix

    def describe(self) -> dict[str, Any]:
        """``dense``."""
        return {"name": "dense", "configuration": {"matrix": self.matrix.tolist()}}


def check_orthonormal(directions: Floats) -> None:
    """Refuse columns that are not orthonormal to 1e-9."""
    if not np.all(np.isfinite(directions)):
        raise InvalidNoise("directions hold NaN or infinity; every entry must be finite")
    gram = directions.T @ directions
    worst = float(np.max(np.abs(gram - np.eye(gram.shape[0]))))
    if worst > 1e-9:
        raise InvalidNoise(
            f"directions are not orthonormal (V'V differs from I by {worst:.3g}); orthonormalise them, e.g. by numpy.linalg.qr"
        )


@dataclass(frozen=True, eq=False)
class LowRankFactor(Factor):
    """base * (I - VV') + V diag(scales) V': ``scales`` along the columns of V (size x rank), ``base`` elsewhere."""

    base: float
    directions: Floats
    scales: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", float(self.base))
        object.__setattr__(self, "directions", _frozen_array(self.directions))
        object.__setattr__(self, "scales", _frozen_array(self.scales))
        if self.directions.ndim != 2 or self.directions.shape[1] != self.scales.size or self.scales.ndim != 1:
            raise InvalidNoise(
                f"directions of shape {self.directions.shape} do not go with {self.scales.size} scales;"
                " give one column per scale"
            )
        if self.directions.shape[1] >= self.directions.shape[0]:
            raise InvalidNoise(
                f"{self.directions.shape[1]} directions in a mode of length {self.directions.shape[0]} are not low-rank;"
                " give a dense factor"
            )
        _positive_scales("base", np.array([self.base]))
        _positive_scales("scales", self.scales)
        check_orthonormal(self.directions)
        if self._defect() > 1e-14:  # orthonormal to 1e-9 is what was meant; make it so to working precision
            object.__setattr__(self, "directions", _frozen_array(np.linalg.qr(self.directions)[0]))
        if self._looseness() > 0.01:
            raise InvalidNoise(
                f"scales from {min(self.base, float(np.min(self.scales))):g} to {max(self.base, float(np.max(self.scales))):g}"
                " are too far apart for a low-rank factor in floating point; bring them within a factor of 1e12"
            )

    @property
    def size(self) -> int:
        """The length of the mode."""
        return int(self.directions.shape[0])

    @property
    def smallest(self) -> float:
        """The least of base and scales, less the error that inexact orthonormality makes."""
        return min(self.base, float(np.min(self.scales))) * (1 - self._looseness())

    def _looseness(self) -> float:
        """A bound on the relative error that inexact orthonormality makes in singular values."""
        spread = max(self.base, float(np.max(self.scales))) / min(self.base, float(np.min(self.scales)))
        return 2 * max(self._defect(), 1e-15) * spread + 1e-14

    def _defect(self) -> float:
        """||V'V - I||, computed once."""
        if "_gram_defect" not in self.__dict__ or self.__dict__["_gram_defect"][0] is not self.directions:
            gram = self.directions.T @ self.directions
            found = float(np.linalg.norm(gram - np.eye(gram.shape[0]), 2))
            object.__setattr__(self, "_gram_defect", (self.directions, found))
        return float(self.__dict__["_gram_defect"][1])

    def power_sum(self, power: int) -> float:
        """(size - rank) base^power + sum of scales^power."""
        return (self.size - self.scales.size) * self.base**power + math.fsum(self.scales**power)

    def largest_whitened_axis(self) -> float:
        """sqrt of max_j base^-2 + sum_i (scales_i^-2 - base^-2) V_ji^2."""
        squares = self.directions**2 @ (self.scales**-2.0 - self.base**-2.0) + self.base**-2.0
        return math.sqrt(float(np.max(squares))) * (1 + self._looseness())

    def row_variances(self) -> Floats | float:
        """base^2 + sum_i (scales_i^2 - base^2) V_ji^2."""
        return self.directions**2 @ (self.scales**2 - self.base**2) + self.base**2

    def times(self, scale: float) -> Factor:
        """Another low-rank factor."""
        return LowRankFactor(self.base * scale, self.directions, self.scales * scale)

    def to_dense(self) -> Floats:
        """The symmetric matrix."""
        spread = (self.directions * (self.scales - self.base)) @ self.directions.T
        return self.base * np.eye(self.size) + spread

    def describe(self) -> dict[str, Any]:
        """``low-rank``."""
        return {
            "name": "low-rank",
            "configuration": {
                "base": self.base,
                "directions": self.directions.tolist(),
                "scales": self.scales.tolist(),
            },
        }


def factor_from_description(description: dict[str, Any]) -> Factor:
    """The factor that ``describe`` wrote."""
    name, given = description["name"], description["configuration"]
    if name in ("identity", "scaled"):
        return ScaledIdentity(given["size"], given.get("scale", 1.0))
    if name == "diagonal":
        return DiagonalFactor(given["scales"])
    if name == "dense":
        return DenseFactor(given["matrix"])
    if name == "low-rank":
        return LowRankFactor(given["base"], given["directions"], given["scales"])
    raise InvalidNoise(f"factor {name!r} is unknown; use identity, scaled, diagonal, dense or low-rank")


def along_directions(size: int, directions: Floats | None, scales: Sequence[float] | Floats, rest: float | None) -> Factor:
    """The symmetric factor with ``scales`` along ``directions`` (None: the standard basis) and ``rest`` elsewhere."""
    values = np.asarray(scales, dtype=np.float64)
    if directions is None:
        return DiagonalFactor(values)
    if directions.shape[1] == size:
        check_orthonormal(directions)
        _positive_scales("scales", values)
        return DenseFactor((directions * values) @ directions.T)
    if rest is None:
        raise InvalidNoise(f"{directions.shape[1]} directions leave {size - directions.shape[1]} without a scale")
    return LowRankFactor(rest, directions, values)

"""Noise factors that mix the entries of a mode: any non-singular matrix, and identities plus low
rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpdask.errors import InvalidNoise
from dpdask.noise.diagonal import Factor, Floats, Product, frozen_array, positive_scales
from dpdask.noise.rounding import (
    UNIT,
    coarsened_up,
    dot_error,
    gamma,
    same_inverse,
    spectral_norm,
)
from dpdask.types import Json

__all__ = ["DenseFactor", "LowRankFactor", "check_orthonormal"]

_UP = 1 + 1e-14


@dataclass(frozen=True, eq=False)
class DenseFactor(Factor):
    """Any non-singular square matrix."""

    matrix: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", frozen_array(self.matrix))
        if (
            self.matrix.ndim != 2
            or self.matrix.shape[0] != self.matrix.shape[1]
            or not self.matrix.size
        ):
            raise InvalidNoise(
                f"a factor of shape {self.matrix.shape} is not square; give a square matrix"
            )
        if not np.all(np.isfinite(self.matrix)):
            raise InvalidNoise("a factor holds NaN or infinity; every entry must be finite")
        object.__setattr__(
            self, "_singular", frozen_array(np.linalg.svd(self.matrix, compute_uv=False))
        )
        if self.singular[-1] <= 4 * self.size * np.finfo(float).eps * self.singular[0]:
            raise InvalidNoise(
                f"a dense factor of size {self.size} is singular to working precision"
                f" (smallest singular value {self.singular[-1]:.3g}); give a non-singular matrix"
            )

    @classmethod
    def from_covariance(cls, covariance: ArrayLike) -> DenseFactor:
        """The Cholesky factor of a symmetric positive definite covariance."""
        sigma = np.array(covariance, dtype=np.float64)
        if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1]:
            raise InvalidNoise(
                f"a covariance of shape {sigma.shape} is not square; give a square matrix"
            )
        if not np.allclose(sigma, sigma.T, rtol=1e-12, atol=0):
            raise InvalidNoise("the covariance is not symmetric; give (S + S')/2")
        try:
            return cls(frozen_array(np.linalg.cholesky(sigma)))
        except np.linalg.LinAlgError:
            lowest = float(np.linalg.eigvalsh(sigma)[0])
            raise InvalidNoise(
                f"the covariance is not positive definite (smallest eigenvalue {lowest:.3g});"
                " add a multiple of the identity"
            ) from None

    @property
    def singular(self) -> Floats:
        """The singular values, largest first."""
        values: Floats = self.__dict__["_singular"]
        return values

    def inverse(self) -> Floats:
        """W, the computed inverse, computed once; the same on every machine."""
        if "_inverse" not in self.__dict__:
            object.__setattr__(self, "_inverse", frozen_array(same_inverse(self.matrix)))
        inverse: Floats = self.__dict__["_inverse"]
        return inverse

    @property
    def size(self) -> int:
        """The length of the mode."""
        return int(self.matrix.shape[0])

    @property
    def smallest(self) -> float:
        """1 / ||W||, from a proved bound on the norm of the computed inverse."""
        if "_smallest" not in self.__dict__:
            object.__setattr__(
                self, "_smallest", 1 / spectral_norm(self.inverse()) * (1 - 4 * UNIT)
            )
        return float(self.__dict__["_smallest"])

    def whitening_error(self) -> float:
        """The error of its dot products: gamma_66 || |W| || <= gamma_66 ||W||_F."""
        return (dot_error(self.size) + gamma(2)) * float(np.linalg.norm(self.inverse())) * 1.01

    def looseness(self) -> float:
        """Scaled before or after, inverses differ by 8 n eps times the condition number, and their
        norms by the steps to which these are rounded.
        """
        condition = self.singular[0] / self.singular[-1]
        return float(8 * self.size * np.finfo(float).eps * condition) + 2.0**-39

    def power_sum(self, power: int) -> float:
        """sum of singular values^power."""
        return math.fsum(self.singular**power)

    def largest_whitened_axis(self) -> float:
        """The longest column of W."""
        longest = float(np.max(np.linalg.norm(self.inverse(), axis=0)))
        return coarsened_up(longest * (1 + 4 * gamma(self.size + 4)))

    def row_variances(self) -> Floats | float:
        """diag(U U')."""
        return np.asarray(np.sum(self.matrix**2, axis=1), dtype=np.float64)

    def times(self, scale: float) -> Factor:
        """Another dense matrix; its singular values and its W are scaled, not computed again.

        Every entry of W is rounded once more, which adds at most u ||W||_F <= u sqrt(n) ||W|| to
        its norm.
        """
        smallest = self.smallest * scale * (1 - UNIT * (math.sqrt(self.size) + 8))
        scaled = object.__new__(DenseFactor)
        object.__setattr__(scaled, "matrix", frozen_array(self.matrix * scale))
        object.__setattr__(scaled, "_singular", frozen_array(self.singular * scale))
        object.__setattr__(scaled, "_inverse", frozen_array(self.inverse() / scale))
        object.__setattr__(scaled, "_smallest", smallest)
        return scaled

    def whiten(self, columns: Floats, product: Product) -> Floats:
        """Multiply by the computed inverse."""
        return product(self.inverse(), columns)

    def colour(self, columns: Floats, product: Product) -> Floats:
        """Multiply by the matrix."""
        return product(self.matrix, columns)

    def to_dense(self) -> Floats:
        """The matrix."""
        return self.matrix

    def to_dict(self) -> Json:
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
            f"directions are not orthonormal (V'V differs from I by {worst:.3g}); orthonormalise"
            " them, e.g. by numpy.linalg.qr"
        )


@dataclass(frozen=True, eq=False)
class LowRankFactor(Factor):
    """base * (I - VV') + V diag(scales) V': ``scales`` along the columns of V (size x rank),
    ``base`` elsewhere.
    """

    base: float
    directions: Floats
    scales: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", float(self.base))
        object.__setattr__(self, "directions", frozen_array(self.directions))
        object.__setattr__(self, "scales", frozen_array(self.scales))
        if (
            self.directions.ndim != 2
            or self.directions.shape[1] != self.scales.size
            or self.scales.ndim != 1
        ):
            raise InvalidNoise(
                f"directions of shape {self.directions.shape} do not go with {self.scales.size}"
                " scales;"
                " give one column per scale"
            )
        if self.directions.shape[1] >= self.directions.shape[0]:
            raise InvalidNoise(
                f"{self.directions.shape[1]} directions in a mode of length"
                f" {self.directions.shape[0]} are not low-rank;"
                " give a dense factor"
            )
        positive_scales("base", np.array([self.base]))
        positive_scales("scales", self.scales)
        check_orthonormal(self.directions)
        if self._gram()[0] > 1e-14:  # orthonormal to 1e-9: make it so to working precision
            object.__setattr__(self, "directions", frozen_array(np.linalg.qr(self.directions)[0]))
        least = min(self.base, float(np.min(self.scales)))
        largest = max(self.base, float(np.max(self.scales)))
        spread = largest / least
        if 2 * max(self._gram()[0], 1e-15) * spread > 0.01:  # what is whitened could not be undone
            raise InvalidNoise(
                f"scales from {least:g} to {largest:g} are too far apart for a low-rank factor in"
                " floating point; bring them within a factor of 1e12"
            )

    @property
    def size(self) -> int:
        """The length of the mode."""
        return int(self.directions.shape[0])

    @property
    def smallest(self) -> float:
        """1 / ||W||: the least of base and scales, less the error that inexact orthonormality
        makes.
        """
        return min(self.base, float(np.min(self.scales))) * (1 - self._looseness())

    def _gains(self) -> tuple[float, float]:
        """What W multiplies by: 1/base, and the largest |1/scale - 1/base|; W = I / base + V
        diag(1/scales - 1/base) V'.
        """
        return 1 / self.base, float(np.max(np.abs(1 / self.scales - 1 / self.base)))

    def _looseness(self) -> float:
        """A bound on how far ||W|| exceeds the largest of 1/base and 1/scales, relatively.

        With V'V = I + D, ||D|| <= d, W acts on the span of V like 1/base + K G K with K = (I +
        D)^(1/2): at most 3 d max |G| away from 1/scales. The roundings of 1/base, 1/scales and
        their differences add at most 3 u (1/base + 1/scales).
        """
        inverse, gain = self._gains()
        largest = max(inverse, float(np.max(1 / self.scales)))
        return 3 * self._defect() * gain / largest + 16 * UNIT

    def whitening_error(self) -> float:
        """The error of V' y, of the gains and of adding up: gamma_(R+6) / base + sqrt(R) gain
        (gamma_(R+6) + gamma_66).
        """
        inverse, gain = self._gains()
        rank = self.scales.size
        return 1.05 * (
            gamma(rank + 6) * inverse
            + math.sqrt(rank) * gain * (gamma(rank + 6) + dot_error(self.size))
        )

    def _defect(self) -> float:
        """A bound on ||V'V - I||."""
        return self._gram()[1]

    def _gram(self) -> tuple[float, float]:
        """||V'V - I|| as computed, 4,096 rows at a time, and with all its rounding; once."""
        if "_defects" not in self.__dict__ or self.__dict__["_defects"][0] is not self.directions:
            size, rank = self.directions.shape
            gram = -np.eye(rank)
            for first in range(0, size, 4096):
                block = self.directions[first : first + 4096]
                gram += block.T @ block
            computed = float(np.linalg.norm(gram, 2))
            bound = (
                float(np.linalg.norm(gram))
                + 1.01 * gamma(min(size, 4096) + size // 4096 + 2) * rank
            )
            object.__setattr__(self, "_defects", (self.directions, computed, bound))
        _, computed, bound = self.__dict__["_defects"]
        return computed, bound

    def power_sum(self, power: int) -> float:
        """(size - rank) base^power + sum of scales^power."""
        return (self.size - self.scales.size) * self.base**power + math.fsum(self.scales**power)

    def largest_whitened_axis(self) -> float:
        """sqrt of max_j base^-2 + sum_i (scales_i^-2 - base^-2) V_ji^2, and what rounding and
        inexact orthonormality add.
        """
        inverse, gain = self._gains()
        squares = self.directions**2 @ (self.scales**-2.0 - self.base**-2.0) + self.base**-2.0
        largest = max(inverse, float(np.max(1 / self.scales)))
        slack = self._defect() * gain**2 + (self.scales.size + 8) * 4 * UNIT * largest**2
        return math.sqrt(float(np.max(squares)) + slack) * _UP

    def row_variances(self) -> Floats | float:
        """base^2 + sum_i (scales_i^2 - base^2) V_ji^2."""
        return self.directions**2 @ (self.scales**2 - self.base**2) + self.base**2

    def common_power(self, other: Factor) -> float:
        """From V' W alone for another low-rank factor of directions W: no matrix of all entries."""
        if not isinstance(other, LowRankFactor):
            return super().common_power(other)
        own, others = self.scales**2 - self.base**2, other.scales**2 - other.base**2
        overlap = np.square(self.directions.T @ other.directions)
        return (
            self.size * self.base**2 * other.base**2
            + other.base**2 * math.fsum(own)
            + self.base**2 * math.fsum(others)
            + float(own @ overlap @ others)
        )

    def times(self, scale: float) -> Factor:
        """Another low-rank factor."""
        return LowRankFactor(self.base * scale, self.directions, self.scales * scale)

    def whiten(self, columns: Floats, product: Product) -> Floats:
        """Multiply by W."""
        return self._multiply(columns, product, 1 / self.base, 1 / self.scales)

    def colour(self, columns: Floats, product: Product) -> Floats:
        """Multiply by U."""
        return self._multiply(columns, product, self.base, self.scales)

    def _multiply(self, columns: Floats, product: Product, base: float, scales: Floats) -> Floats:
        """Return base * x + V diag(scales - base) V' x."""
        seen = product(np.ascontiguousarray(self.directions.T), columns)
        seen *= (scales - base)[:, None]
        mixed = product(self.directions, seen)
        mixed += base * columns
        return mixed

    def to_dense(self) -> Floats:
        """The symmetric matrix."""
        spread = (self.directions * (self.scales - self.base)) @ self.directions.T
        return self.base * np.eye(self.size) + spread

    def to_dict(self) -> Json:
        """``low-rank``."""
        return {
            "name": "low-rank",
            "configuration": {
                "base": self.base,
                "directions": self.directions.tolist(),
                "scales": self.scales.tolist(),
            },
        }

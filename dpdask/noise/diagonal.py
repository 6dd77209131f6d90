"""Noise factors that do not mix entries: the base class, scaled identities, diagonals."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from dpdask.errors import InvalidNoise
from dpdask.noise.rounding import gamma
from dpdask.types import Floats, Json

__all__ = [
    "DiagonalFactor",
    "Factor",
    "Floats",
    "Product",
    "ScaledIdentity",
    "frozen_array",
    "positive_scales",
]

Product: TypeAlias = Callable[[Floats, Floats], Floats]
"""A matrix product whose sums are taken in a fixed order, with a proved error."""

_UP = 1 + 1e-14  # rounds up what a few operations computed


def frozen_array(values: ArrayLike) -> Floats:
    """Return a read-only copy in doubles."""
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


def positive_scales(name: str, values: Floats) -> None:
    """Refuse scales that make noise singular or cannot be inverted."""
    bad = ~((values >= 1e-100) & (values <= 1e100))
    if np.any(bad):
        index = int(np.flatnonzero(bad.ravel())[0])
        raise InvalidNoise(
            f"{name}[{index}]={values.ravel()[index]:g} makes the noise singular; scales must be"
            " finite and > 0 (1e-100..1e100)"
        )


def on_diagonal(values: Floats | float, rows: slice, columns: slice) -> Floats:
    """Return a region of a matrix with ``values`` on its diagonal and 0 elsewhere."""
    row = np.arange(rows.start, rows.stop)[:, None]
    column = np.arange(columns.start, columns.stop)[None, :]
    own = np.asarray(values, dtype=np.float64)
    return np.where(row == column, own[rows][:, None] if own.ndim else own, 0.0)


@dataclass(frozen=True, eq=False)
class Factor(abc.ABC):
    """A non-singular square matrix U acting on one mode, and the matrix W that whitens by it.

    W is the inverse of U as it is really applied: for dense and low-rank factors a matrix of
    doubles that is only nearly U^-1. Sensitivities are those of W; whatever undoes it after the
    noise is post-processing.
    """

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The length of the mode."""

    @property
    @abc.abstractmethod
    def smallest(self) -> float:
        """1 / ||W||, rounded down: the smallest singular value of U, as far as W is its inverse."""

    def whitening_error(self) -> float:
        """c with ||fl(W y) - W y|| <= c ||y||, rounded up: at most six roundings of every entry,
        unless a factor mixes them.
        """
        return gamma(6) / self.smallest * _UP

    def looseness(self) -> float:
        """The relative amount by which ``smallest`` may differ between machines."""
        return 0.0

    @abc.abstractmethod
    def power_sum(self, power: int) -> float:
        """The sum of sigma_i(U)^power: 2 gives tr(UU'), -2 gives ||U^-1||_F^2, -4 gives
        ||sigma(Sigma^-1)||_2^2.
        """

    @abc.abstractmethod
    def largest_whitened_axis(self) -> float:
        """max_j ||W e_j||, rounded up."""

    @abc.abstractmethod
    def row_variances(self) -> Floats | float:
        """The diagonal of U U', a number when constant."""

    def covariances(self, rows: slice, columns: slice) -> Floats:
        """A region of U U'."""
        matrix = self.to_dense()
        return np.asarray(matrix[rows] @ matrix[columns].T)

    def common_power(self, other: Factor) -> float:
        """tr(S T) of S = U U' and of T = V V', V another factor of the size: ||U' V||_F^2."""
        for one, two in ((self, other), (other, self)):
            diagonal = one.diagonal()
            if diagonal is not None:
                squares = np.square(diagonal) * two.row_variances()
                return math.fsum(np.broadcast_to(squares, self.size))
        return float(np.linalg.norm(self.to_dense().T @ other.to_dense())) ** 2

    @abc.abstractmethod
    def times(self, scale: float) -> Factor:
        """The factor scale * U."""

    @abc.abstractmethod
    def to_dense(self) -> Floats:
        """U as a matrix; for small sizes."""

    @abc.abstractmethod
    def to_dict(self) -> Json:
        """``{"name": ..., "configuration": ...}``."""

    def diagonal(self) -> Floats | float | None:
        """The diagonal of U when U is diagonal (a number when constant), else None."""
        return None

    @abc.abstractmethod
    def whiten(self, columns: Floats, product: Product) -> Floats:
        """Return W times the columns of a matrix."""

    @abc.abstractmethod
    def colour(self, columns: Floats, product: Product) -> Floats:
        """Return U times the columns of a matrix."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.size, self.smallest))


@dataclass(frozen=True, eq=False)
class ScaledIdentity(Factor):
    """scale * I."""

    length: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InvalidNoise(
                f"size={self.length} is not a valid size of a factor; it has at least one row"
            )
        object.__setattr__(self, "scale", float(self.scale))
        positive_scales("scale", np.array([self.scale]))

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

    def covariances(self, rows: slice, columns: slice) -> Floats:
        """Variances where row and column are one."""
        return on_diagonal(self.row_variances(), rows, columns)

    def diagonal(self) -> Floats | float | None:
        """The scale, constant."""
        return self.scale

    def times(self, scale: float) -> Factor:
        """Another scaled identity."""
        return ScaledIdentity(self.length, self.scale * scale)

    def whiten(self, columns: Floats, product: Product) -> Floats:
        """Divide by the scale."""
        return columns / self.scale

    def colour(self, columns: Floats, product: Product) -> Floats:
        """Multiply by the scale."""
        return columns * self.scale

    def to_dense(self) -> Floats:
        """scale * I."""
        return self.scale * np.eye(self.length)

    def to_dict(self) -> Json:
        """``identity`` or ``scaled``."""
        if self.scale == 1.0:
            return {"name": "identity", "configuration": {"size": self.length}}
        return {"name": "scaled", "configuration": {"size": self.length, "scale": self.scale}}


@dataclass(frozen=True, eq=False)
class DiagonalFactor(Factor):
    """diag(scales)."""

    scales: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", frozen_array(self.scales))
        if self.scales.ndim != 1 or not self.scales.size:
            raise InvalidNoise(
                f"a diagonal of shape {self.scales.shape} is not a vector; give one scale per row"
            )
        positive_scales("diagonal", self.scales)

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

    def covariances(self, rows: slice, columns: slice) -> Floats:
        """Variances where row and column are one."""
        return on_diagonal(self.row_variances(), rows, columns)

    def diagonal(self) -> Floats | float | None:
        """The scales."""
        return self.scales

    def times(self, scale: float) -> Factor:
        """Another diagonal."""
        return DiagonalFactor(self.scales * scale)

    def whiten(self, columns: Floats, product: Product) -> Floats:
        """Divide every row by its scale."""
        return columns / self.scales[:, None]

    def colour(self, columns: Floats, product: Product) -> Floats:
        """Multiply every row by its scale."""
        return columns * self.scales[:, None]

    def to_dense(self) -> Floats:
        """diag(scales)."""
        return np.diag(self.scales)

    def to_dict(self) -> Json:
        """``diagonal``."""
        return {"name": "diagonal", "configuration": {"scales": self.scales.tolist()}}

"""How MVG's precision is shared among the directions of an axis (MVG sections 6 and 7).

Direction i gets the share theta_i of the precision P, sum theta_i <= 1, and so the variance
1/sqrt(theta_i P). Directions are rows of an orthonormal matrix; None stands for the standard basis.
With fewer rows than the axis is long, the other directions have one common share: a low-rank
factor.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpdask.errors import InvalidMechanism
from dpdask.noise import Factor, ScaledIdentity
from dpdask.noise.factors import along_directions, check_orthonormal
from dpdask.types import Floats

__all__ = ["Allocation", "Binary", "FixedShares", "MaxPnr", "Uniform"]

_UP = 1 + 1e-14
_Rows = Sequence[Sequence[float]]


def _columns(directions: _Rows | None, size: int) -> Floats | None:
    """Return the directions as orthonormal columns."""
    if directions is None:
        return None
    rows = np.asarray(directions, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != size or not 0 < rows.shape[0] <= size:
        raise InvalidMechanism(
            f"directions of shape {rows.shape} do not fit an axis of length {size}; give at most"
            f" {size} rows of {size} numbers"
        )
    check_orthonormal(rows.T)
    return rows.T


def _shared(
    size: int, columns: Floats | None, shares: Floats, rest: float | None, precision: float
) -> Factor:
    """Return the factor with variance 1/sqrt(share * precision) along each direction."""
    other = None if rest is None else (rest * precision) ** -0.25 * _UP
    return along_directions(size, columns, (shares * precision) ** -0.25 * _UP, other)


@dataclass(frozen=True, kw_only=True, eq=False)
class Allocation(abc.ABC):
    """A rule that turns a bound on the precision into a factor."""

    @abc.abstractmethod
    def factor(self, size: int, *, precision: float) -> Factor:
        """Return the factor of an axis of length ``size``.

        Args:
            size: The length of the axis.
            precision: The bound P on sum 1/variance_i^2, all of which is spent.
        """


@dataclass(frozen=True, kw_only=True, eq=False)
class Uniform(Allocation):
    """The same share for every direction."""

    def factor(self, size: int, *, precision: float) -> Factor:
        """Return a scaled identity."""
        return ScaledIdentity(size, (precision / size) ** -0.25 * _UP)


@dataclass(frozen=True, kw_only=True, eq=False)
class Binary(Allocation):
    """The share ``tau`` for the chosen directions together, the rest for all others.

    The chosen directions are the indices ``chosen`` of a full basis (the standard one by default),
    or all ``directions`` where these are fewer than the axis is long.
    """

    tau: float
    chosen: Sequence[int] | None = None
    directions: _Rows | None = None

    def factor(self, size: int, *, precision: float) -> Factor:
        """Return a factor with two levels of noise."""
        if not 0 < self.tau < 1:
            raise InvalidMechanism(
                f"tau={self.tau:g} leaves some directions without precision; choose 0 < tau < 1"
            )
        columns = _columns(self.directions, size)
        if columns is not None and columns.shape[1] < size:
            count = columns.shape[1]
            return _shared(
                size,
                columns,
                np.full(count, self.tau / count),
                (1 - self.tau) / (size - count),
                precision,
            )
        picked = sorted(set(self.chosen or ()))
        if not 0 < len(picked) < size or picked[0] < 0 or picked[-1] >= size:
            raise InvalidMechanism(
                f"chosen={list(self.chosen or ())} does not split {size} directions in two;"
                f" choose some, not all, of 0 to {size - 1}"
            )
        shares = np.full(size, (1 - self.tau) / (size - len(picked)))
        shares[picked] = self.tau / len(picked)
        return _shared(size, columns, shares, None, precision)


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedShares(Allocation):
    """The caller's own shares; what they leave is spread over the directions without one."""

    shares: Sequence[float]
    directions: _Rows | None = None

    def factor(self, size: int, *, precision: float) -> Factor:
        """Return the factor of these shares."""
        theta = np.asarray(self.shares, dtype=np.float64)
        columns = _columns(self.directions, size)
        expected = size if columns is None else columns.shape[1]
        if theta.shape != (expected,):
            raise InvalidMechanism(
                f"{theta.size} shares do not fit {expected} directions; give one share per"
                " direction"
            )
        total = float(np.sum(theta))
        if not total <= 1 + 1e-12 or np.any(~(theta > 0)):
            raise InvalidMechanism(
                f"shares sum to {total:g}; every share must be > 0 and their sum at most 1"
            )
        theta = theta / max(1.0, total)
        if expected == size:
            return _shared(size, columns, theta, None, precision)
        if total >= 1:
            raise InvalidMechanism(
                f"shares sum to {total:g} and leave nothing for the other {size - expected}"
                " directions; let them sum to less than 1"
            )
        return _shared(size, columns, theta, (1 - total) / (size - expected), precision)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaxPnr(Allocation):
    """The largest power-to-noise ratio: 1/variance_i = (c - 1/kappa_i)+ by water-filling on the
    eigenvalues kappa of the query's covariance (MVG Thm 7).

    The level c is that of sum 1/variance_i = sqrt(P), which Thm 2 lets Psi = I have. Their squares
    then define the shares theta, so that all of P is spent (Alg 1). Directions with kappa_i < 1/c
    would get infinite noise, so the share ``floor`` is spread evenly first.

    Args:
        eigenvalues: kappa, in the units of ||f||^2: those of K_f = f f', not divided by n.
        directions: The eigenvectors, as rows.
        floor: The share of P that all directions have in equal parts.
    """

    eigenvalues: Sequence[float]
    directions: _Rows | None = None
    floor: float = 0.05

    def factor(self, size: int, *, precision: float) -> Factor:
        """Return the factor of the water-filled shares."""
        kappa = np.asarray(self.eigenvalues, dtype=np.float64)
        if kappa.shape != (size,) or not np.all((kappa >= 1e-100) & (kappa <= 1e100)):
            raise InvalidMechanism(
                f"max-pnr needs {size} eigenvalues from 1e-100 to 1e100, one per direction; got"
                f" {kappa.size}"
            )
        if not 0 < self.floor < 1:
            raise InvalidMechanism(
                f"floor={self.floor:g} is not a valid share; choose 0 < floor < 1"
            )
        columns = _columns(self.directions, size)
        if columns is not None and columns.shape[1] != size:
            raise InvalidMechanism(
                f"max-pnr needs all {size} directions, got {columns.shape[1]}; give the full"
                " orthonormal basis"
            )
        filled = _water_fill(1 / kappa, math.sqrt((1 - self.floor) * precision))
        squares = np.square(filled / np.max(filled))
        shares = (1 - self.floor) * squares / np.sum(squares) + self.floor / size
        return _shared(size, columns, shares, None, precision)


def _water_fill(depths: Floats, volume: float) -> Floats:
    """Return (c - depth_i)+, with the level c for which they sum to ``volume``."""
    rises = np.sort(depths) - np.min(depths)
    held = np.arange(1, rises.size + 1) * rises - np.cumsum(rises)
    wet = int(np.searchsorted(held, volume, side="right"))
    level = (volume + float(np.sum(rises[:wet]))) / wet
    return np.maximum(level - (depths - np.min(depths)), 0.0)

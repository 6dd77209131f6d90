"""The standard deviations of a tensor's entries, and how many of them lie within a bound."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, erfinv

from dpdask.types import Floats

__all__ = ["Deviations", "Tail"]

_MOST_VALUES = 4096


class Tail(enum.StrEnum):
    """The distribution of one entry's noise, up to its scale."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    OTHER = "other"

    def within(self, ratio: Floats) -> Floats:
        """Return the probability that an entry lies within ``ratio`` standard deviations."""
        if self is Tail.LAPLACE:
            return np.asarray(-np.expm1(-math.sqrt(2) * ratio))
        return np.asarray(erf(ratio / math.sqrt(2)))

    def ratio(self, probability: float) -> float:
        """Return within how many standard deviations an entry lies with ``probability``."""
        if self is Tail.LAPLACE:
            return -math.log1p(-probability) / math.sqrt(2)
        return float(erfinv(probability)) * math.sqrt(2)


@dataclass(frozen=True, eq=False)
class Deviations:
    """Which standard deviations the noise of a tensor's entries has.

    Args:
        values: The standard deviations that occur.
        shares: The share of entries that have each; they sum to 1.
        tail: The distribution of one entry.
    """

    values: Floats
    shares: Floats
    tail: Tail

    @classmethod
    def same(cls, std: float, tail: Tail = Tail.GAUSSIAN) -> Deviations:
        """Return those of entries with the same noise."""
        return cls(np.array([std]), np.array([1.0]), tail)

    @classmethod
    def of_products(cls, axes: Sequence[Floats]) -> Deviations:
        """Return those of Gaussian entries whose variance is a product of one number per axis."""
        values, shares = np.array([1.0]), np.array([1.0])
        for variances in axes:
            distinct, counts = np.unique(variances, return_counts=True)
            along, along_shares = _merged(distinct, counts / counts.sum())
            values = np.outer(values, along).reshape(-1)
            values, shares = _merged(values, np.outer(shares, along_shares).reshape(-1))
        return cls(np.sqrt(values), shares, Tail.GAUSSIAN)

    @property
    def rms(self) -> float:
        """The root mean square over all entries."""
        return math.sqrt(float(np.sum(self.shares * self.values**2)))

    @property
    def least(self) -> float:
        """The smallest one."""
        return float(np.min(self.values))

    @property
    def largest(self) -> float:
        """The largest one."""
        return float(np.max(self.values))

    def scaled(self, factor: float) -> Deviations:
        """Return those of noise that is multiplied by a number."""
        return Deviations(self.values * factor, self.shares, self.tail)

    def symmetrised(self, rows: int) -> Deviations:
        """Return those of (N + N') / 2 for a square N whose entries have the same noise."""
        std = self.rms
        if rows == 1:
            return Deviations.same(std, self.tail)
        values = np.array([std, std / math.sqrt(2)])
        return Deviations(values, np.array([1 / rows, 1 - 1 / rows]), self.tail)

    def within(self, probability: float) -> float | None:
        """Return the half-width that holds such a share of all entries' noise, on average.

        None where the distribution of an entry is not known.
        """
        if self.tail is Tail.OTHER:
            return None
        ratio = self.tail.ratio(probability)
        low, high = self.least * ratio, self.largest * ratio
        if high <= low * (1 + 1e-9):
            return high

        def excess(width: float) -> float:
            inside = self.tail.within(width / self.values)
            return float(np.sum(self.shares * inside)) - probability

        return float(brentq(excess, low, high, rtol=1e-9))


def _merged(values: Floats, shares: Floats) -> tuple[Floats, Floats]:
    """Return at most 4096 variances: neighbours become their mean, so the mean stays."""
    if values.size <= _MOST_VALUES:
        return values, shares
    order = np.argsort(values)
    values, shares = values[order], shares[order]
    starts = np.linspace(0, values.size, _MOST_VALUES, endpoint=False).astype(int)
    merged = np.add.reduceat(shares, starts)
    return np.add.reduceat(values * shares, starts) / merged, merged

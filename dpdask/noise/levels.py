"""The standard deviation of every released entry's noise: public, and known before any is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpdask.noise.distributions import Noise
from dpdask.noise.factors import Floats
from dpdask.types import Region, Shape

__all__ = ["NoiseLevel"]

_MOST_AT_ONCE = 2**20  # entries


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """The noise of released entries: divided as the answer is, averaged where that is symmetrised.

    Args:
        noise: The noise of the answer.
        divisor: What the noisy answer is divided by.
        symmetric: Whether it is averaged with its transpose. The variance of entry (i, j) is then
            (V_ij + V_ji + 2 C_ij) / 4, C_ij the covariance of the two that are averaged.
    """

    noise: Noise
    divisor: float = 1.0
    symmetric: bool = False

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes along which it varies."""
        shape = self.noise.tensor_shape
        if self.symmetric:
            return (0, 1) if shape[0] > 1 else ()
        return tuple(axis for axis in range(len(shape)) if self.noise.varies(axis))

    @property
    def shape(self) -> Shape:
        """The lengths of these axes."""
        return tuple(self.noise.tensor_shape[axis] for axis in self.axes)

    @property
    def small(self) -> bool:
        """Whether it is published as one chunk; else in the chunks of the answer."""
        return math.prod(self.shape) <= _MOST_AT_ONCE

    @property
    def rms(self) -> float:
        """The root mean square over all entries."""
        noise = self.noise
        return (noise.symmetrised_std if self.symmetric else noise.entry_std) / self.divisor

    def of(self, box: Region) -> Floats:
        """Return it in a region, of length 1 along axes where it is constant."""
        variances = self.noise.entry_variances(box)
        if self.symmetric:
            rows, columns = box
            mirrored = self.noise.entry_variances((columns, rows)).T
            variances = (variances + mirrored + 2 * self.noise.mirror_covariances(box)) / 4
        return np.sqrt(variances) / self.divisor

    def values(self) -> Floats:
        """Return all of it along :attr:`axes`: a single number where it is constant."""
        whole = tuple(slice(0, length) for length in self.noise.tensor_shape)
        return np.asarray(self.of(whole).reshape(self.shape))

    def extremes(self) -> tuple[float, float]:
        """Return the smallest and the largest of all entries."""
        if self.symmetric:
            parts = [self.of(box) for box in self._bands()]
            smallest, largest = min(map(np.min, parts)), max(map(np.max, parts))
            return float(smallest), float(largest)
        first = tuple(slice(0, 1) for _ in self.noise.tensor_shape)
        lows, highs = [float(self.of(first).item())], [1.0]
        for axis, length in enumerate(self.noise.tensor_shape):  # a product over the axes
            line = self.of((*first[:axis], slice(0, length), *first[axis + 1 :])) / lows[0]
            lows.append(float(np.min(line)))
            highs.append(float(np.max(line)))
        return math.prod(lows), lows[0] * math.prod(highs)

    def _bands(self) -> Iterator[Region]:
        """Yield regions of a square matrix with all variances that there are."""
        rows = self.noise.tensor_shape[0]
        if not any(self.noise.varies(axis) for axis in (0, 1)):
            rows = min(rows, 2)  # one entry of the diagonal stands for all, and one beside it
        many = max(1, _MOST_AT_ONCE // rows)
        for first in range(0, rows, many):
            yield slice(first, min(first + many, rows)), slice(0, rows)

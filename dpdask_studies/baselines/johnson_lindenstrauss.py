"""The Johnson-Lindenstrauss transform as a mechanism (Blocki, Blum, Datta & Sheffet 2012, Alg. 3).

Records A, of norm at most 1, become r random combinations: rows of N(0, A'A + w² I). The published
threshold is w = 16 sqrt(r ln(2/delta)) / epsilon * ln(16 r / delta).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpdask.types import Floats

__all__ = ["SketchProfile", "sketch", "threshold"]


def threshold(*, rows: int, epsilon: float, delta: float) -> float:
    """Return the published w."""
    return 16 * math.sqrt(rows * math.log(2 / delta)) / epsilon * math.log(16 * rows / delta)


def sketch(records: Floats, *, rows: int, epsilon: float, delta: float, seed: int) -> Floats:
    """Return r rows of N(0, A'A + w² I); their mean square less w² estimates A'A without bias.

    Args:
        records: n x d, of norm at most 1.
        rows: r, the free parameter.
        epsilon: Of the guarantee.
        delta: Of the guarantee.
        seed: Of the random combinations.

    Guarantee: :class:`SketchProfile` where a record is added or removed. The paper's neighbours,
    one record changed by a vector of norm at most 1, are not checked here.
    """
    w = threshold(rows=rows, epsilon=epsilon, delta=delta)
    features = records.shape[1]
    generator = np.random.default_rng(seed)
    combined = generator.normal(size=(rows, len(records))) @ records
    return np.asarray(combined + w * generator.normal(size=(rows, features)))


@dataclass(frozen=True, slots=True)
class SketchProfile:
    """The exact privacy profile of a sketch where one record of norm at most 1 is added or removed.

    The added record v raises the variance of one whitened coordinate from 1 to 1 + lambda, lambda =
    v'(A'A + w² I)^-1 v <= 1/w², and nothing else. So the loss is a function of a chi-square
    variable of r degrees of freedom.
    """

    rows: int
    w: float

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta at ``epsilon``, of both directions."""
        excess = 1 / self.w**2
        half_log = self.rows / 2 * math.log1p(excess)
        scale = 2 * (1 + excess) / excess
        below = (half_log - epsilon) * scale
        removed = 0.0
        if below > 0:
            removed = self._below(below) - math.exp(epsilon) * self._below(below / (1 + excess))
        above = (half_log + epsilon) * scale
        added = self._above(above / (1 + excess)) - math.exp(epsilon) * self._above(above)
        return max(0.0, removed, added)

    def _below(self, value: float) -> float:
        return float(special.gammainc(self.rows / 2, value / 2))

    def _above(self, value: float) -> float:
        return float(special.gammaincc(self.rows / 2, value / 2))

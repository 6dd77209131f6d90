"""The constants of the R1SMG paper's Theorems 4 and 7: expected squared loss >= C s^2, as printed.

C_C (classic) and C_R (rank-one, as published) are what the formulas add exactly. C_M (MVG) is a
lower bound. C_A is not one: it comes from sufficient conditions, so the analytic Gaussian adds
less than C_A s^2 (docs/mechanisms/rank-one.md).
"""

from __future__ import annotations

import math

from scipy import special

from dpdask.mechanisms.reproductions.mvg import harmonic, harmonic_half
from dpdask.mechanisms.spherical import paper_psi
from dpdask.privacy import PrivacyBudget
from dpdask.types import Shape

__all__ = ["loss_constants"]


def loss_constants(*, budget: PrivacyBudget, shape: Shape, axis: int = 0) -> dict[str, float]:
    """Return C_C, C_A, C_M and C_R by name, those that the shape has.

    Args:
        budget: (epsilon, delta) of one release.
        shape: The shape of the tensor; C_M needs two axes, C_R more than two entries.
        axis: The axis of the rows where a tensor is read as a matrix.
    """
    entries = math.prod(shape)
    epsilon, delta = budget.epsilon, budget.delta
    constants = {
        "C_C": 2 * math.log(1.25 / delta) / epsilon**2 * entries,
        "C_A": (float(special.ndtri(delta)) ** 2 + epsilon) / epsilon**2 * entries,
    }
    if len(shape) > 1:
        rank = min(shape[axis], entries // shape[axis])
        spread = 5 / 4 * harmonic(rank) + 1 / 4 * harmonic_half(rank)
        constants["C_M"] = spread / (2 * epsilon) * entries
    if entries > 2:
        constants["C_R"] = 2 / (epsilon * paper_psi(dimension=entries, delta=delta))
    return constants

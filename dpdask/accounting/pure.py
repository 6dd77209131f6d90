"""The privacy profile of noise whose privacy loss is bounded: pure epsilon-DP.

Of all mechanisms with losses of at most L, randomised response, which tells the truth with
probability e^L / (1 + e^L), reveals the most: every other one is a post-processing of it (Kairouz,
Oh & Viswanath 2015, Thm 2.3). Its profile therefore bounds theirs, and it composes:

    delta(epsilon) = (e^L - e^epsilon) / (1 + e^L) for epsilon < L, and 0 from L on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdask.errors import InvalidBudget
from dpdask.types import Json

__all__ = ["PureProfile"]

_UP = 1 + 1e-14


@dataclass(frozen=True, slots=True)
class PureProfile:
    """Pure differential privacy: no privacy loss exceeds ``largest_loss``.

    Guarantee: an upper bound for every such mechanism, reached by randomised response; rounded
    towards more loss.
    """

    largest_loss: float

    def __post_init__(self) -> None:
        if not (self.largest_loss > 0 and math.isfinite(self.largest_loss)):
            raise InvalidBudget(
                f"epsilon={self.largest_loss:g} is not a valid bound on a privacy loss; it must be"
                " finite and > 0"
            )

    def delta(self, epsilon: float) -> float:
        """The smallest delta at ``epsilon``, rounded up; 0 from the largest loss on."""
        if epsilon >= self.largest_loss:
            return 0.0
        share = -math.expm1(epsilon - self.largest_loss) / (1 + math.exp(-self.largest_loss))
        return min(1.0, max(share * _UP, 5e-324))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at ``delta``, rounded up."""
        spent = delta / _UP**2 * (1 + math.exp(-self.largest_loss))
        if spent >= 1:
            return 0.0
        least = (self.largest_loss + math.log1p(-spent)) * _UP
        return min(self.largest_loss, max(0.0, least))

    def to_dict(self) -> Json:
        """``{"name": "pure", "configuration": {"epsilon": ...}}``."""
        return {"name": "pure", "configuration": {"epsilon": self.largest_loss}}

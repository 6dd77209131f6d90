"""Privacy values: what is promised, between which neighbours, and what is verified.

A mechanism has two numbers that are never confused. *Claimed* is the budget its theorem promises.
*Verified* is the exact privacy profile of the noise that is really added. It is *certified* when
the second is at least as strong as the first, and when the noise is drawn so exactly that the
profile is proved to be its own.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dpdask.errors import InvalidBudget
from dpdask.types import Json

__all__ = ["Adjacency", "Guarantee", "PrivacyBudget", "PrivacyProfile", "PureBudget"]


class Adjacency(enum.StrEnum):
    """Which datasets count as neighbours."""

    REPLACE_ONE = "replace-one"
    ADD_REMOVE_ONE = "add-remove-one"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBudget:
    """An (epsilon, delta) differential-privacy budget with epsilon > 0 and 0 < delta < 1."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidBudget(
                    f"{name}={value!r} is not a number; give {name} as a plain number"
                )
            object.__setattr__(self, name, float(value))
        if self.epsilon > 1e6 and math.isfinite(self.epsilon):
            raise InvalidBudget(
                f"epsilon={self.epsilon:g} protects nobody; choose an epsilon of at most 1e6"
            )
        if not (self.epsilon > 0 and math.isfinite(self.epsilon)):
            raise InvalidBudget(
                f"epsilon={self.epsilon:g} bounds no privacy loss; choose a finite epsilon > 0"
            )
        if not 0 < self.delta < 1:
            raise InvalidBudget(
                f"delta={self.delta:g} cannot be met by noise; choose 0 < delta < 1 (laplace"
                " spends none of it)"
            )
        if self.epsilon < 1e-12 or self.delta < 1e-300:
            raise InvalidBudget(
                f"epsilon={self.epsilon:g}, delta={self.delta:g} is out of range; choose epsilon"
                " >= 1e-12, delta >= 1e-300"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PureBudget(PrivacyBudget):
    """A budget of pure differential privacy: epsilon alone, delta is 0."""

    delta: float = 0.0

    def __post_init__(self) -> None:
        PrivacyBudget(epsilon=self.epsilon, delta=0.5)  # checks epsilon
        object.__setattr__(self, "epsilon", float(self.epsilon))
        if self.delta != 0:
            raise InvalidBudget(
                f"delta={self.delta:g} is spent by nothing in a pure budget; leave it out"
            )


@runtime_checkable
class PrivacyProfile(Protocol):
    """The privacy of a mechanism as a curve: delta for every epsilon, never below the true one."""

    def delta(self, epsilon: float) -> float:
        """The smallest delta at ``epsilon``, rounded up."""

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at ``delta``, rounded up."""

    def to_dict(self) -> Json:
        """``{"name": ..., "configuration": ...}``, enough to build the same profile again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What a theorem claims and what the added noise verifiably gives.

    ``doubt`` says why the noise that is drawn may be less private than its profile, where that is
    not proved; such noise is never certified.
    """

    claimed: PrivacyBudget
    theorem: str
    verified: PrivacyProfile
    doubt: str | None = None

    @property
    def certified(self) -> bool:
        """Whether the verified profile is at least as strong as the claimed budget, and that of the
        noise that is drawn.
        """
        return (
            self.doubt is None and self.verified.delta(self.claimed.epsilon) <= self.claimed.delta
        )

    @property
    def reason(self) -> str:
        """One line saying why the guarantee is, or is not, certified."""
        delta = self.verified.delta(self.claimed.epsilon)
        relation = "at most" if delta <= self.claimed.delta else "above"
        profile = (
            f"verified delta({self.claimed.epsilon:.6g}) = {delta:.6g} is {relation} the"
            f" claimed {self.claimed.delta:.6g}"
        )
        return profile if self.doubt is None else f"{self.doubt} ({profile} in exact arithmetic)"

    def to_dict(self) -> Json:
        """Return the guarantee as it is recorded on the release card."""
        return {
            "claimed": {
                "epsilon": self.claimed.epsilon,
                "delta": self.claimed.delta,
                "theorem": self.theorem,
            },
            "verified": {
                **self.verified.to_dict(),
                "epsilon_at_delta": self.verified.epsilon(self.claimed.delta),
                "delta_at_epsilon": self.verified.delta(self.claimed.epsilon),
            },
            "certified": self.certified,
            "reason": self.reason,
        }

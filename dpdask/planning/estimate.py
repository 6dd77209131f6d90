"""What is drawn before the data: a noisy answer that decides on how they are released.

The answer has noise of its own and is charged with the data. What follows from it is public: the
ledger notes it once, so that a retry takes the same, and whoever reads the release can check it.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpdask.planning.answer import Component
from dpdask.types import Floats, Json

if TYPE_CHECKING:
    from dpdask.planning.plan import ReleasePlan, Variable

__all__ = ["Estimate"]


@dataclass(frozen=True, kw_only=True)
class Estimate(abc.ABC):
    """A noisy answer from which noise directions, or bounds, are chosen.

    Args:
        component: The noisy answer.
    """

    kind: ClassVar[str]
    """What is chosen: the name of it in the ledger, and of the arrays that are published of it."""
    decides_on_sums: ClassVar[bool]
    """Whether records are clipped or summed otherwise, so that this waits until it is known."""
    shares_mu: ClassVar[bool]
    """Whether it has a share of the squared mu of the release, else one of epsilon and delta."""
    exact: ClassVar[bool]
    """Whether every machine chooses the same, so that a retry can check it."""
    component: Component

    @abc.abstractmethod
    def choose(self, noisy: Floats) -> str:
        """Return what follows from the noisy answer, as JSON.

        Guarantee: post-processing; no value of the answer can make it fail.
        """

    @abc.abstractmethod
    def settle(self, plan: ReleasePlan, variable: Variable, chosen: str) -> Variable:
        """Return the variable as it is released.

        Guarantee: its verified privacy cost is at most the planned one, and it is stored as
        planned, whatever was chosen.

        Args:
            plan: What was planned.
            variable: The variable as it was planned.
            chosen: What :meth:`choose` returned, in this run or in an earlier one.
        """

    @abc.abstractmethod
    def arrays(self, noisy: Floats, chosen: str) -> Mapping[str, Floats]:
        """Return what is published of it, by the ending of its name."""

    def to_dict(self) -> Json | None:
        """Return how a bound is chosen, for a plan; None where it chooses something else."""
        return None

"""Finished results with a declared sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpdask.noise.rounding import product_rounding
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.queries.base import Query
from dpdask.queries.verification import QueryRules, RecordedAnswer, register_query_rules
from dpdask.sensitivity import Origin
from dpdask.types import Json

__all__ = ["Precomputed"]


@dataclass(frozen=True, kw_only=True)
class Precomputed(Query):
    """A finished query result, whose sensitivity the caller declares; ``steps`` slices compose.

    A finished result has no bound of its own; entries beyond what the grid holds are clamped, and
    plan and card say where.
    """

    name: ClassVar[str] = "precomputed"
    steps: int = 1

    @property
    def missing_values(self) -> str:
        """There is no centre."""
        return "count as 0"

    def bounds(self) -> AnswerBounds:
        """Return no bounds: discretization chooses where to clamp."""
        order = len(self.source_shape)
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-math.inf,) * order,
            high=(math.inf,) * order,
            rounded_entries=math.prod(self.source_shape) // self.steps,
        )

    def bound_to_dict(self, discretized: Discretized) -> Json:
        """Return the declared sensitivities, and where entries are clamped."""
        l1 = {} if self.sensitivity.l1 is None else {"l1_sensitivity": self.sensitivity.l1}
        return {
            "kind": "declared",
            "l2_sensitivity": self.sensitivity.radius,
            **l1,
            "enforced": False,
            "origin": str(Origin.DECLARED),
            "clamped_at": discretized.privatizer.largest,
        }


class PrecomputedRules(QueryRules):
    """The sensitivity is declared, and every entry is rounded."""

    def least_radius(self, answer: RecordedAnswer) -> float:
        """Return the declared sensitivity."""
        if answer.bound["kind"] != "declared":
            raise answer.mismatch()
        return float(answer.bound["l2_sensitivity"])

    def least_l1(self, answer: RecordedAnswer) -> float:
        """Return the declared l1 sensitivity; without one, that of any such difference."""
        if "l1_sensitivity" in answer.bound:
            return float(answer.bound["l1_sensitivity"])
        return super().least_l1(answer)

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding every entry."""
        return product_rounding(step=answer.step, entries=answer.entries, most=answer.grid_bound)


register_query_rules(Precomputed.name, PrecomputedRules())

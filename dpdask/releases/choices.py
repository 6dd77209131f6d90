"""The same release at several epsilons: its noise, and what would be left of the budget."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from dpdask.errors import BudgetExceeded, InvalidSpec
from dpdask.ledger import Ledger, open_ledger
from dpdask.planning import ReleasePlan, make_plan
from dpdask.privacy import PrivacyBudget
from dpdask.releases.api import SpecLike, parsed_spec
from dpdask.spec.release import ReleaseSpec
from dpdask.types import Json

__all__ = ["EpsilonChoice", "plan_epsilons"]

_MOST_CHOICES = 100


@dataclass(frozen=True, kw_only=True)
class EpsilonChoice:
    """A release at one epsilon.

    Args:
        plan: The plan, without a forecast.
        total: The budget of the dataset.
        spent_after: The epsilon that the dataset has spent afterwards, at the delta of its total;
            None where the release would exceed the total.
    """

    plan: ReleasePlan
    total: PrivacyBudget
    spent_after: float | None

    def to_dict(self) -> Json:
        """Return the choice for people and programs who may see the plan."""
        content = self.plan.to_dict()
        each = {name: _figures(own) for name, own in content.get("variables", {}).items()}
        return {
            "epsilon": self.plan.spec.privacy.epsilon,
            **({"variables": each} if each else _figures(content)),
            "warnings": content["warnings"],
            "total": {"epsilon": self.total.epsilon, "delta": self.total.delta},
            "spent_after": self.spent_after,
        }


def _figures(variable: Json) -> Json:
    """Return the noise of one variable."""
    return {
        "mechanism": variable["mechanism"]["name"],
        "expected_error": variable["expected_error"],
    }


def plan_epsilons(spec: SpecLike, epsilons: Sequence[float]) -> list[EpsilonChoice]:
    """Return what a release would do at each epsilon; everything else is as the spec says.

    Guarantee: reads no value, spends nothing.

    Args:
        spec: The spec, as a file, a dictionary or a :class:`ReleaseSpec`.
        epsilons: The epsilons to compare, instead of the spec's own.

    Raises:
        DpdaskError: An epsilon is not a valid one, or the release cannot be carried out.
    """
    if not 1 <= len(epsilons) <= _MOST_CHOICES:
        raise InvalidSpec(
            f"{len(epsilons)} epsilons cannot be compared; give 1 to {_MOST_CHOICES} of them"
        )
    parsed = parsed_spec(spec)
    for epsilon in epsilons:  # all of them, before anything is planned
        PrivacyBudget(epsilon=epsilon, delta=parsed.privacy.delta)
    with contextlib.closing(open_ledger(parsed.budget.ledger)) as ledger:
        return [_choice(parsed, epsilon, ledger) for epsilon in epsilons]


def _choice(spec: ReleaseSpec, epsilon: float, ledger: Ledger) -> EpsilonChoice:
    privacy = spec.privacy.model_copy(update={"epsilon": epsilon})
    plan = make_plan(spec.model_copy(update={"privacy": privacy}), ledger=ledger, forecast=False)
    dataset = spec.budget.dataset
    total = ledger.state(dataset).total
    try:
        forecast = ledger.forecast(dataset, plan.guarantee.verified, plan.privacy_unit)
    except BudgetExceeded:
        return EpsilonChoice(plan=plan, total=total, spent_after=None)
    return EpsilonChoice(plan=plan, total=total, spent_after=forecast.after)

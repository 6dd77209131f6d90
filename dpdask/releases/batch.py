"""Many releases against one budget: planned and checked together before any is charged."""

from __future__ import annotations

import contextlib
import fnmatch
from dataclasses import dataclass

from pydantic import BaseModel

from dpdask.errors import InvalidSpec
from dpdask.ledger import Ledger
from dpdask.planning import ReleasePlan, make_plan, source_storage
from dpdask.releases.api import finish_published, ledger_of
from dpdask.releases.recovery import Charge, charge_of
from dpdask.spec import ReleaseSpec
from dpdask.storage import array_names

__all__ = ["ArraysOfGroup", "CheckedBatch", "check_batch"]


class ArraysOfGroup(BaseModel):
    """Every array of the template's source group whose path matches ``arrays``.

    ``output`` holds ``{array}``.
    """

    template: ReleaseSpec
    arrays: str = "*"
    output: str

    def specs(self) -> list[ReleaseSpec]:
        """Return one spec for each array."""
        if "{array}" not in self.output:
            raise InvalidSpec(
                f"output {self.output!r} is the same for every array; put {{array}} into it"
            )
        if self.template.source.arrays is not None:
            raise InvalidSpec(
                "the template names source.arrays, which are one release of several arrays; drop"
                " them for one release of each, or run the template as a spec of its own"
            )
        group = source_storage(self.template)
        names = [name for name in array_names(group) if fnmatch.fnmatch(name, self.arrays)]
        if not names:
            raise InvalidSpec(f"no array of the group matches {self.arrays!r}; widen the pattern")
        return [self._spec_of(name) for name in names]

    def _spec_of(self, name: str) -> ReleaseSpec:
        url = self.output.replace("{array}", name.replace("/", "-"))
        source = self.template.source.model_copy(update={"array": name})
        output = self.template.output.model_copy(update={"url": url})
        return self.template.model_copy(update={"source": source, "output": output})


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """A batch that fits its dataset: what is published already, and what is to be released."""

    published: list[ReleaseSpec]
    missing: list[ReleaseSpec]


def check_batch(specs: list[ReleaseSpec]) -> CheckedBatch:
    """Plan every release, and check that what is not charged yet fits its dataset together.

    Raises:
        InvalidSpec: The batch as a whole breaks a rule.
        BudgetExceeded: The sum exceeds the dataset's total. Nothing is charged.
    """
    _check_one_budget(specs)
    published: list[ReleaseSpec] = []
    missing: list[ReleaseSpec] = []
    uncharged: list[ReleasePlan] = []
    with contextlib.closing(ledger_of(specs[0])) as ledger:
        for spec in specs:
            if finish_published(spec) is not None:
                published.append(spec)
                continue
            plan = make_plan(spec, ledger=ledger, resuming=True, forecast=False)
            charge = charge_of(ledger.entry(plan.fingerprint))
            if charge is Charge.COMMITTED:
                published.append(spec)
                continue
            if charge is Charge.BURNED:
                raise InvalidSpec(
                    f"the release to {spec.output.url!r} was burned, and its charge stays; raise"
                    " its publish.edition to request it anew, or leave it out"
                )
            if charge is Charge.NONE:
                # the checks of a new release, such as an output that exists
                make_plan(spec, ledger=ledger, forecast=False)
                uncharged.append(plan)
            missing.append(spec)
        _check_together(ledger, uncharged)
    return CheckedBatch(published, missing)


def _check_one_budget(specs: list[ReleaseSpec]) -> None:
    if not specs:
        raise InvalidSpec("the batch is empty; give specs, or a group with a pattern that matches")
    if len({spec.output.url for spec in specs}) != len(specs):
        raise InvalidSpec("two releases of the batch have the same output; give each its own")
    if len({(spec.budget.dataset, spec.budget.ledger) for spec in specs}) != 1:
        raise InvalidSpec("a batch is checked against one dataset of one ledger; split it")


def _check_together(ledger: Ledger, plans: list[ReleasePlan]) -> None:
    """Check that the privacy units are the same, and that the sum is within the total."""
    if not plans:
        return
    first = plans[0].privacy_unit
    axes: dict[str, int | None] = {}
    for plan in plans:
        unit = plan.privacy_unit
        own = (unit.adjacency, unit.contributions, unit.name)
        if own != (first.adjacency, first.contributions, first.name):
            raise InvalidSpec(
                "the releases of the batch differ in privacy_unit.adjacency, max_contributions or"
                " ids; give all the same"
            )
        if unit.per != first.per:
            raise InvalidSpec(
                "the releases of the batch differ in privacy_unit.per; give all the same"
            )
        if any(axes.setdefault(array, axis) != axis for array, axis in unit.arrays):
            raise InvalidSpec(
                "two releases of the batch protect units along different axes of one array;"
                " split the batch"
            )
    charges = [(plan.guarantee.verified, plan.privacy_unit) for plan in plans]
    ledger.forecast_all(plans[0].spec.budget.dataset, charges)

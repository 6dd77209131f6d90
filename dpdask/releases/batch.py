"""Many releases against one budget: planned and checked together before any is charged."""

from __future__ import annotations

import contextlib
import fnmatch
import threading
from dataclasses import dataclass

from pydantic import BaseModel

from dpdask.errors import InvalidSpec
from dpdask.execution import cluster, no_progress
from dpdask.ledger import Ledger
from dpdask.planning import (
    ReleasePlan,
    make_plan,
    output_storage,
    placed,
    source_storage,
    spec_digest,
)
from dpdask.planning.checks import check_space
from dpdask.releases.api import finish_complete, ledger_of
from dpdask.releases.closing import Receipt
from dpdask.releases.read import published_card
from dpdask.releases.recovery import Charge, Command, charge_of
from dpdask.releases.run import ReleaseRun, plan_or_finish
from dpdask.spec import ReleaseSpec
from dpdask.spec.release import INLINE, ComputeSection
from dpdask.storage import array_names

__all__ = ["ArraysOfGroup", "CheckedBatch", "SharedClusters", "check_batch", "release_of_batch"]


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
            if _is_published(ledger, spec) or finish_complete(spec, ledger) is not None:
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
                if plan.output.occupied():  # refused as a new release is
                    make_plan(spec, ledger=ledger, forecast=False)
                check_space(plan)
                uncharged.append(plan)
            missing.append(spec)
        _check_together(ledger, uncharged)
    return CheckedBatch(published, missing)


def _is_published(ledger: Ledger, spec: ReleaseSpec) -> bool:
    """Return whether a release is published and committed, by its card; nothing is planned."""
    card = published_card(output_storage(spec))
    entry = None if card is None else ledger.entry_named(card.release_id)
    if entry is None or entry.last != "commit":
        return False
    return entry.spec_digest == spec_digest(spec)


class SharedClusters:
    """One cluster for all releases of a batch that name the same one; closed at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = contextlib.ExitStack()
        self._connections: dict[str, cluster.Connection] = {}

    def __enter__(self) -> SharedClusters:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def client(self, compute: ComputeSection) -> cluster.DaskClient | None:
        """Return the client that a release uses, opened for the first; None without a cluster."""
        if compute.cluster == INLINE:
            return None
        key = compute.model_dump_json()
        with self._lock:
            if key not in self._connections:
                self._connections[key] = self._stack.enter_context(cluster.connect(compute))
            elif self._connections[key].client.status != "running":
                self._connections[key].renew()
            return self._connections[key].client


def release_of_batch(spec: ReleaseSpec, ledger: Ledger, clusters: SharedClusters) -> Receipt:
    """Publish one release of a batch, or finish it where an earlier run stopped.

    Args:
        spec: The release.
        ledger: The ledger of the batch, open.
        clusters: The clusters of the batch.

    Raises:
        DpdaskError: The release is refused, in one line that names the way out.
    """
    planned = plan_or_finish(spec, ledger, Command.FLOW)
    if isinstance(planned, Receipt):
        return planned
    run = ReleaseRun(planned, ledger, no_progress)
    with run.connected(clusters.client(placed(planned.plan))):
        return run.all_steps()


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

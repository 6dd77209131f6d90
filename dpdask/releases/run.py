"""One release under way in this process: the steps in order, each of which may be tried again."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dpdask import execution
from dpdask.errors import ClusterUnavailable, LedgerCorrupt, ReleaseError, SourceChanged
from dpdask.execution import OnProgress, Progress
from dpdask.execution.cluster import DaskClient
from dpdask.keystream import random_bytes
from dpdask.ledger import Allowance, Ledger, LedgerEntry
from dpdask.patience import Patience
from dpdask.planning import ReleasePlan, make_plan, output_storage, placed
from dpdask.planning.sessions import is_session
from dpdask.releases import settling, staging, steps
from dpdask.releases.closing import (
    Receipt,
    abandon,
    check_spec,
    clean_up,
    finalize,
    publish_staged,
)
from dpdask.releases.context import Context, adopt_if_published
from dpdask.releases.read import published_card
from dpdask.releases.recovery import (
    Action,
    Charge,
    Command,
    Observation,
    Refusal,
    Target,
    charge_of,
    decide,
    find_target,
    observe,
)
from dpdask.releases.steps import Prepared, Reserved, Staged
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import Publisher

__all__ = ["Planned", "ReleaseRun", "plan_or_finish"]

V = TypeVar("V")


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Planned:
    """A release that was planned: a new one, or one that continues under its public name."""

    plan: ReleasePlan
    release_id: str


def plan_or_finish(spec: ReleaseSpec, ledger: Ledger, command: Command) -> Planned | Receipt:
    """Plan a release, or finish at once one that an earlier run left complete.

    Args:
        spec: The spec of the release.
        ledger: Where it is or will be charged.
        command: run, resume or flow: which lines of the recovery table apply.

    Returns:
        The plan of what remains to be done; the receipt where nothing does.

    Raises:
        ReleaseError: The recovery table refuses the command.
    """
    target = find_target(output_storage(spec), ledger, command)
    observation = observe(target)
    outcome = decide(observation, command)
    if outcome is Action.FINALIZE:
        return finalize(spec, ledger, target)
    if outcome is Action.PUBLISH:
        receipt = publish_staged(spec, ledger, target)
        if receipt is not None:
            return receipt
        outcome = Action.CONTINUE  # what is missing is written again, with the same noise
    _check_known(spec, ledger, target)
    if outcome is Refusal.LEFT_NOTHING and target.release_id is not None:
        Publisher.of(target.output, target.release_id).discard()
    if isinstance(outcome, Refusal):
        raise outcome.error(target.last_step)
    if outcome is Action.CONTINUE and target.release_id is not None:
        return Planned(_plan_again(spec, ledger, target), target.release_id)
    return _plan_new(spec, ledger, observation, command)


def _check_known(spec: ReleaseSpec, ledger: Ledger, target: Target) -> None:
    """Refuse a ledger that does not know, or not as published, what is visible at the output."""
    card = published_card(target.output)
    if card is None or card.composition.dataset != spec.budget.dataset:
        return
    if charge_of(ledger.entry_named(card.release_id)) in (Charge.NONE, Charge.RESERVED):
        raise LedgerCorrupt(
            f"output {spec.output.url!r} holds release {card.release_id[:12]} of this dataset,"
            " which the ledger does not know as published: it was restored from a backup, or is"
            " another one; `dpdask ledger reconcile` records the release, or choose another"
            " output.url"
        )


def _plan_new(
    spec: ReleaseSpec, ledger: Ledger, observation: Observation, command: Command
) -> Planned:
    """Plan a release without a lock; the ledger may know it by the fingerprint of its plan."""
    plan = make_plan(spec, ledger=ledger)
    entry = ledger.entry(plan.fingerprint)
    outcome = decide(dataclasses.replace(observation, charge=charge_of(entry)), command)
    if isinstance(outcome, Refusal):
        raise outcome.error(None if entry is None else entry.last)
    return Planned(plan, random_bytes(16).hex() if entry is None else entry.release_id)


def _plan_again(spec: ReleaseSpec, ledger: Ledger, target: Target) -> ReleasePlan:
    """Plan a release that continues, and check that it is the same one."""
    entry = target.entry
    if entry is None:
        return make_plan(spec, ledger=ledger, resuming=True, forecast=False)
    check_spec(spec, entry)
    plan = make_plan(spec, ledger=ledger, resuming=True, forecast=False)
    if entry.array not in (None, plan.privacy_unit.array):
        raise ReleaseError(
            "source.url leads to another array than when the release began; restore it, or"
            " `dpdask abort`"
        )
    if plan.identity != entry.source_identity:
        abandon(ledger, target, "the source changed")
        raise SourceChanged(
            "the source changed since the release began, and the same noise on other data would"
            " show the difference: the release was aborted and its charge stays; start a new one"
        )
    _check_machine(plan, entry)
    return plan


def _check_machine(plan: ReleasePlan, entry: LedgerEntry) -> None:
    if plan.fingerprint != entry.fingerprint:
        raise ReleaseError(f"the release cannot be resumed here: {settling.OTHER_MACHINE}")


class _Pulse:
    """Passes progress on, and notes when there were more tiles than ever before."""

    def __init__(self, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._most: dict[str, int] = {}
        self.at = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.done > self._most.get(progress.stage, 0):
            self._most[progress.stage] = progress.done
            self.at = time.monotonic()
        self._on_progress(progress)


class ReleaseRun:
    """A planned release, and the value of its latest step."""

    def __init__(self, planned: Planned, ledger: Ledger, on_progress: OnProgress) -> None:
        if is_session(planned.plan.spec):
            raise ReleaseError(
                "source.steps says that steps are handed over one by one; begin or resume them with"
                " dpdask.steps(spec), or the flow privatize_steps"
            )
        self.plan = planned.plan
        self.release_id = planned.release_id
        self._ledger = ledger
        self._pulse = _Pulse(on_progress)
        self._context: Context | None = None
        self._latest: Prepared | Reserved | Staged | Receipt | None = None
        self._own_lock = False
        self.allowance: Allowance | None = None

    def __repr__(self) -> str:
        return "<ReleaseRun>"

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, once the release is published, by this run or another one."""
        return self._latest if isinstance(self._latest, Receipt) else None

    @contextlib.contextmanager
    def connected(self, client: DaskClient | None = None) -> Iterator[None]:
        """Open the executor that the steps need; on failure remove what is left for nobody.

        Guarantee: leaving before the charge leaves nothing behind; after it, a release to resume.
        """
        try:
            with execution.connect(placed(self.plan), client) as executor:
                publisher = Publisher.of(self.plan.output, self.release_id)
                self._context = Context(
                    self.plan,
                    self.release_id,
                    self._ledger,
                    publisher,
                    executor,
                    self._pulse,
                    self.allowance,
                )
                yield
        except BaseException:
            clean_up(
                self._ledger,
                self.plan.output,
                self.release_id,
                self.plan.fingerprint,
                own_lock=self._own_lock,
            )
            raise

    def all_steps(self) -> Receipt:
        """Take every step in order."""
        self.prepare()
        self.reserve()
        self.write()
        self.verify()
        return self.publish()

    def prepare(self) -> None:
        """Check the source and the executor, compute norms and sums; nothing is charged."""
        self._until_the_cluster_answers(self._prepare)

    def reserve(self) -> None:
        """Lock the output, charge the dataset, create the key."""
        context = self._connected()
        if self.receipt is None:
            self._adopt(context)
        if self.receipt is None:
            self._own_lock = steps.lock_output(context) or self._own_lock
            self._reserve()

    def write(self) -> None:
        """Stage every tile that is not staged yet."""
        self._until_the_cluster_answers(self._write, self._prepare, self._reserve)

    def verify(self) -> None:
        """Read every staged tile again."""
        self._until_the_cluster_answers(self._verify, self._prepare, self._reserve, self._write)

    def _prepare(self) -> None:
        self._latest = steps.prepare(self._connected())

    def _reserve(self) -> None:
        self._latest = steps.reserve(self._connected(), self._after(Prepared))

    def _write(self) -> None:
        self._latest = staging.write(self._connected(), self._after(Reserved))

    def _verify(self) -> None:
        self._latest = staging.verify(self._connected(), self._after(Staged))

    def _until_the_cluster_answers(
        self, step: Callable[[], None], *before: Callable[[], None]
    ) -> None:
        """Take a step; if the cluster was lost, wait for it and repeat what it held.

        Results that workers held are computed anew, never looked for: the steps before this one are
        taken again. Reserving again looks for the charge, and finds it.
        """
        if self.receipt is not None:
            return

        def again() -> None:
            self._connected().executor.renew()
            for repeated in (*before, step):
                if self.receipt is None:
                    repeated()

        Patience(self.plan.spec.compute.patience).keep_asking(
            step, again, on=ClusterUnavailable, last_answer=lambda: self._pulse.at
        )

    def publish(self) -> Receipt:
        """Make the release visible at once, and commit it."""
        receipt = self.receipt
        if receipt is None:
            receipt = steps.publish(self._connected(), self._after(Staged))
            self._latest = receipt
        return receipt

    def _adopt(self, context: Context) -> None:
        receipt = adopt_if_published(context)
        if receipt is not None:
            self._latest = receipt

    def _connected(self) -> Context:
        if self._context is None:
            raise ReleaseError("the release is not connected to an executor; use `connected`")
        return self._context

    def _after(self, step: type[V]) -> V:
        """Return the value of the latest step, which must be the one before this."""
        if not isinstance(self._latest, step):
            raise ReleaseError("the steps of a release are taken in order; begin with prepare")
        return self._latest

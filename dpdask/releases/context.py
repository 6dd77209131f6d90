"""What every step of one run works with, and the checks that several steps make."""

from __future__ import annotations

from dataclasses import dataclass

from dpdask.errors import ReleaseError, SourceChanged
from dpdask.execution import Executor, OnProgress, Progress
from dpdask.keystream import ReleaseKey
from dpdask.ledger import Allowance, Ledger, LedgerEntry
from dpdask.planning import ReleasePlan
from dpdask.releases.closing import Receipt, abandon, adopt
from dpdask.releases.read import published_card
from dpdask.releases.recovery import Target
from dpdask.storage import Publisher

__all__ = ["Context", "adopt_if_published", "check_open", "check_unchanged"]


@dataclass(frozen=True, slots=True, repr=False)
class Context:
    """What every step of one run works with.

    Args:
        plan: What was planned.
        release_id: The public random name of the release.
        ledger: Where it is charged.
        publisher: Where it is staged and published.
        executor: Where tasks run.
        on_progress: Called as the release advances.
        allowance: What the dataset may spend within some days, if that is limited.
    """

    plan: ReleasePlan
    release_id: str
    ledger: Ledger
    publisher: Publisher
    executor: Executor
    on_progress: OnProgress
    allowance: Allowance | None = None

    @property
    def fingerprint(self) -> str:
        """The secret name under which the release is charged."""
        return self.plan.fingerprint

    def entry(self) -> LedgerEntry | None:
        """Return what the ledger says of the release now."""
        return self.ledger.entry(self.fingerprint)

    def key(self) -> ReleaseKey:
        """Return the release key: created at the first call, the same until it is closed."""
        return self.ledger.release_key(self.fingerprint)

    def report(self, stage: str) -> None:
        """Report that a stage of one step is done."""
        self.on_progress(Progress(stage, 1, 1))


def adopt_if_published(context: Context) -> Receipt | None:
    """Return the receipt of another run of this very release, with the same noise, if it is out."""
    card = published_card(context.plan.output, context.release_id)
    if card is None:
        return None
    spec = context.plan.spec
    return adopt(spec, context.ledger, context.publisher, context.fingerprint, card)


def check_open(context: Context) -> LedgerEntry:
    """Return the ledger entry of the release, if nobody closed it meanwhile."""
    entry = context.entry()
    if entry is None or not entry.open:
        raise ReleaseError("the release was closed while it was being written; start a new one")
    return entry


def check_unchanged(context: Context) -> None:
    """Check that the source is still the planned one; else burn a charged release.

    The same noise on two sources would show their difference.
    """
    if context.plan.unchanged:
        return
    entry = context.entry()
    if entry is None:
        raise SourceChanged(
            "the source changed while the release was planned; nothing was charged: start again"
        )
    target = Target(context.plan.output, context.release_id, entry)
    abandon(context.ledger, target, "the source changed")
    raise SourceChanged(
        "the source changed during the release: it was aborted and its charge stays; start a new"
        " one"
    )

"""A session as this process has it: locked, charged, and what is staged of it."""

from __future__ import annotations

from dpdask.execution import InlineExecutor, OnProgress
from dpdask.ledger import Ledger
from dpdask.releases import steps as release_steps
from dpdask.releases.assembly import Assembly
from dpdask.releases.closing import Receipt, clean_up
from dpdask.releases.context import Context, adopt_if_published
from dpdask.releases.run import Planned
from dpdask.releases.staged_steps import StagedSteps
from dpdask.releases.steps import Prepared
from dpdask.storage import Publisher

__all__ = ["BegunSession", "begin"]


class BegunSession:
    """A charged session in this process: its context, what its documents are built from, its
    steps in staging.
    """

    __slots__ = ("assembly", "context", "staged")

    def __init__(self, context: Context, assembly: Assembly) -> None:
        self.context = context
        self.assembly = assembly
        self.staged = StagedSteps(context)


def begin(planned: Planned, ledger: Ledger, on_progress: OnProgress) -> BegunSession | Receipt:
    """Lock the output and charge the dataset, unless an earlier run did; return what is staged.

    Args:
        planned: The session as it was planned.
        ledger: Where it is charged.
        on_progress: Called as steps advance.

    Returns:
        The session; its receipt where another run published it.
    """
    plan, release_id = planned.plan, planned.release_id
    publisher = Publisher.of(plan.output, release_id)
    context = Context(plan, release_id, ledger, publisher, InlineExecutor(), on_progress)
    receipt = adopt_if_published(context)
    if receipt is not None:
        return receipt
    assembly = release_steps.assemble(context)
    own_lock = False
    try:
        own_lock = release_steps.lock_output(context)
        release_steps.reserve(context, Prepared((), (), assembly))
    except BaseException:
        clean_up(ledger, plan.output, release_id, plan.fingerprint, own_lock=own_lock)
        raise
    return BegunSession(context, assembly)

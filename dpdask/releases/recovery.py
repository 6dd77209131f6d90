"""What a stopped release left behind, looked up: the lock, the ledger, the output, the staging.

:func:`observe` changes nothing; :func:`~dpdask.releases.recovery_table.decide` says what to do.
``python -m dpdask.releases.recovery`` prints the table of decisions.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpdask.errors import OutputLockDamaged
from dpdask.ledger import Ledger, LedgerEntry
from dpdask.releases.read import published_card
from dpdask.releases.recovery_table import (
    Action,
    Advice,
    Charge,
    Command,
    Lock,
    Observation,
    Output,
    Refusal,
    Staging,
    decide,
    table_markdown,
)
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import LocalStorage, Publisher, Storage, read_output_lock

__all__ = [
    "Action",
    "Advice",
    "Charge",
    "Command",
    "Lock",
    "Observation",
    "Output",
    "Refusal",
    "Staging",
    "Target",
    "advice_after_interrupt",
    "advice_on",
    "charge_of",
    "cost_of",
    "decide",
    "find_target",
    "observe",
    "table_markdown",
]

_FINISH = (Command.RESUME, Command.FLOW)


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """The release that a command is about: the output, its public id and its ledger entry.

    ``release_id`` and ``entry`` are None where nothing names a release.
    """

    output: Storage
    release_id: str | None
    entry: LedgerEntry | None

    @property
    def last_step(self) -> str | None:
        """The last step in the ledger, None when the release was never charged."""
        return None if self.entry is None else self.entry.last


def find_target(output: Storage, ledger: Ledger, command: Command) -> Target:
    """Return the release that a command with a spec is about.

    The lock names it. Two commands look at the output too: resuming commits what is visible but
    not committed before anything else, and an interrupted command reports on what is visible where
    no lock is left. An entry for another output counts as none: files can be copied and planted.
    """
    card = None if command is Command.ABORT else published_card(output)
    shown = None if card is None else ledger.entry_named(card.release_id)
    uncommitted = shown is not None and shown.last == "publish" and _belongs(shown, output)
    if card is not None and command in _FINISH and uncommitted:
        return Target(output, card.release_id, shown)
    try:
        locked_by = read_output_lock(output)
    except OutputLockDamaged:
        locked_by = None
    if locked_by is not None:
        return Target(output, locked_by, ledger.entry_named(locked_by))
    if card is not None and command is Command.INTERRUPTED:
        return Target(output, card.release_id, shown)
    return Target(output, None, None)


def _belongs(entry: LedgerEntry, output: Storage) -> bool:
    return entry.output_address in (None, output.address())


def observe(target: Target) -> Observation:
    """Look at the lock, the ledger's entry, the output and the staging; change nothing."""
    output = target.output
    staging = None if target.release_id is None else Publisher.of(output, target.release_id)
    return Observation(
        lock=_lock_of(target),
        charge=charge_of(target.entry),
        output=_output_of(target),
        staging=_staging_of(staging, output),
    )


def charge_of(entry: LedgerEntry | None) -> Charge:
    """Return how far the ledger says a release is."""
    if entry is None:
        return Charge.NONE
    known = {
        "publish": Charge.COMPLETE,
        "commit": Charge.COMMITTED,
        "burn": Charge.BURNED,
    }
    return known.get(entry.last, Charge.RESERVED)


def _lock_of(target: Target) -> Lock:
    try:
        locked_by = read_output_lock(target.output)
    except OutputLockDamaged:
        return Lock.DAMAGED
    if locked_by is None:
        return Lock.ABSENT
    if locked_by != target.release_id:
        return Lock.OTHER
    if target.entry is not None and not _belongs(target.entry, target.output):
        return Lock.FOREIGN
    return Lock.HELD


def _output_of(target: Target) -> Output:
    card = published_card(target.output)
    if card is not None and card.release_id == target.release_id:
        return Output.THIS
    occupied = card is not None or target.output.occupied()
    return Output.OTHER if occupied else Output.EMPTY


def _staging_of(staging: Publisher | None, output: Storage) -> Staging:
    ready = staging is not None and staging.ready_root() is not None
    if isinstance(output, LocalStorage):
        return Staging.LOCAL_READY if ready else Staging.LOCAL_PARTIAL
    return Staging.REMOTE_READY if ready else Staging.REMOTE_PARTIAL


def advice_after_interrupt(spec: ReleaseSpec, output: Storage, ledger: Ledger, typed: str) -> str:
    """Return one line: what was charged, the command that finishes the release or aborts it.

    Args:
        spec: The spec of the interrupted release.
        output: Where it was to be published.
        ledger: Where it may have been charged.
        typed: The path of the spec as it is typed in a shell.
    """
    advice = advice_on(output, ledger)
    return advice.value.format(cost=cost_of(spec), spec=typed)


def advice_on(output: Storage, ledger: Ledger) -> Advice:
    """Return what to do about what is left at an output."""
    target = find_target(output, ledger, Command.INTERRUPTED)
    outcome = decide(observe(target), Command.INTERRUPTED)
    if not isinstance(outcome, Advice):
        refusal = outcome if isinstance(outcome, Refusal) else Refusal.NOT_UNDER_WAY
        raise refusal.error(target.last_step)
    return outcome


def cost_of(spec: ReleaseSpec) -> str:
    """Return what a release is charged: its budget, or the verified cost if it is uncertified."""
    budget = spec.privacy
    amount = f"epsilon {budget.epsilon:g}, delta {budget.delta:g}"
    if spec.accept_uncertified:
        amount = "the verified epsilon and delta"
    return f"{amount} stay charged to dataset {spec.budget.dataset!r}"


if __name__ == "__main__":
    print(table_markdown(), end="")

"""What each command does about what a stopped release left behind: one table.

Four things outlive a process: the output lock, the ledger's entry, the output and the staging. The
first line of :data:`TABLE` that fits says what happens. docs/recovery.md holds the table as
``python -m dpdask.releases.recovery`` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from dpdask.errors import DpdaskError, LedgerError, OutputLockDamaged, ReleaseError

__all__ = [
    "TABLE",
    "Action",
    "Advice",
    "Charge",
    "Command",
    "Lock",
    "Observation",
    "Outcome",
    "Output",
    "Refusal",
    "Row",
    "Staging",
    "decide",
    "table_markdown",
]


class Lock(StrEnum):
    """What the output lock says."""

    ABSENT = "absent"
    HELD = "held by this release"
    OTHER = "held by another release"
    FOREIGN = "of another output"
    DAMAGED = "damaged"


class Charge(StrEnum):
    """The ledger's last step of the release."""

    NONE = "not charged"
    RESERVED = "charged"
    COMPLETE = "charged, card noted"
    COMMITTED = "committed"
    BURNED = "burned"


class Output(StrEnum):
    """What readers see at the output."""

    EMPTY = "empty"
    THIS = "this release"
    OTHER = "something else"


class Staging(StrEnum):
    """What is staged, and whether removing it prevents publication.

    On a filesystem a release is published by renaming its staging: without it nobody can. On an
    object store chunks lie at their final keys, and any process that knows the root document can
    still put it.
    """

    LOCAL_PARTIAL = "filesystem, incomplete"
    LOCAL_READY = "filesystem, ready"
    REMOTE_PARTIAL = "object store, incomplete"
    REMOTE_READY = "object store, ready"


class Command(StrEnum):
    """Who asks what to do."""

    PLAN = "plan"
    RUN = "run"
    RESUME = "resume"
    FLOW = "flow"
    ABORT = "abort"
    ABANDON = "abort --release"
    ABANDON_INVISIBLE = "abort --release --never-published"
    CLEAN_UP = "failed"
    CLEAN_UP_OWN_LOCK = "failed, lock taken by this run"
    INTERRUPTED = "interrupted"


class Action(StrEnum):
    """What is done."""

    BEGIN = "plan and begin a new release"
    CONTINUE = "continue with the same key: same noise, no further charge"
    PUBLISH = "publish what is staged if every object is intact, then commit; else continue"
    FINALIZE = "check what is visible, commit it, remove the staging"
    BURN = "burn: destroy the key, keep the charge, remove the staging"
    WITHDRAW = "remove the staging first; burn unless the release became visible meanwhile"
    DISCARD = "remove the staging and the lock"
    REMOVE_LOCK = "remove the lock"
    KEEP = "keep everything for `dpdask resume`"


class Advice(StrEnum):
    """What an interrupted command tells: ``{cost}`` stays charged, ``{spec}`` is how to name it."""

    START_AGAIN = "nothing was charged and nothing is left behind; `dpdask run {spec}` starts again"
    NOT_CHARGED = (
        "nothing was charged; `dpdask resume {spec}` continues, `dpdask abort {spec}` aborts"
        " the release"
    )
    ABORTED = (
        "{cost}, and the release was aborted; raise publish.edition for a new one, which is a"
        " new charge"
    )
    DONE = "{cost}, and the release is published and complete: nothing is left to do"
    COMMIT = (
        "{cost}, and the release is published: `dpdask resume {spec}` commits it; it can no"
        " longer be aborted"
    )
    RESUME = (
        "{cost}, nothing is published; `dpdask resume {spec}` finishes the release with the same"
        " noise and no further charge, `dpdask abort {spec}` aborts it"
    )


class Refusal(StrEnum):
    """Why a command does nothing, as its error says it."""

    UNFINISHED = (
        "a release to this output is unfinished; let a run that is at it finish. If none is,"
        " `dpdask resume` finishes it, `dpdask abort` aborts it"
    )
    NOT_UNDER_WAY = "no release to this output is under way; start one with `dpdask run`"
    NOTHING_TO_ABORT = (
        "no release to this output is under way; there is nothing to abort here. If the ledger"
        " shows one as open, abort it by its name: `dpdask abort --release NAME`"
    )
    CLOSED = (
        "this very release was closed by {last_step}; a new one is a new charge: raise"
        " publish.edition to request it"
    )
    LEFT_NOTHING = (
        "the release was closed by {last_step} and left nothing to finish; start a new one"
    )
    PUBLISHED = "the release is published already; `dpdask resume` commits it"
    MAY_BE_VISIBLE = (
        "the release is complete and may be visible at any moment; `dpdask resume` finishes it."
        " If it is lost for good, `dpdask abort --release NAME --never-published`"
    )
    LOCK_DAMAGED = (
        "the output lock, which names the release under way, is damaged; `dpdask abort` removes"
        " it, and `dpdask run` then continues with what was charged"
    )
    LOCK_FOREIGN = (
        "the output lock names a release to another output: it was copied or planted;"
        " `dpdask abort` removes it, which harms no release"
    )

    def error(self, last_step: str | None = None) -> DpdaskError:
        """Return the error that states this refusal."""
        kinds: dict[Refusal, type[DpdaskError]] = {
            Refusal.MAY_BE_VISIBLE: LedgerError,
            Refusal.LOCK_DAMAGED: OutputLockDamaged,
            Refusal.LOCK_FOREIGN: OutputLockDamaged,
        }
        return kinds.get(self, ReleaseError)(self.value.format(last_step=last_step))


Outcome = Action | Advice | Refusal


@dataclass(frozen=True, slots=True)
class Observation:
    """What a release left behind.

    Args:
        lock: What the output lock says.
        charge: The ledger's last step.
        output: What readers see.
        staging: What is staged.
    """

    lock: Lock
    charge: Charge
    output: Output
    staging: Staging


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: ``outcome`` for the commands, where all four observations fit."""

    commands: tuple[Command, ...]
    outcome: Outcome
    lock: tuple[Lock, ...] = field(default=tuple(Lock), kw_only=True)
    charge: tuple[Charge, ...] = field(default=tuple(Charge), kw_only=True)
    output: tuple[Output, ...] = field(default=tuple(Output), kw_only=True)
    staging: tuple[Staging, ...] = field(default=tuple(Staging), kw_only=True)

    def fits(self, observation: Observation, command: Command) -> bool:
        """Return whether this line is about the command and the observation."""
        return (
            command in self.commands
            and observation.lock in self.lock
            and observation.charge in self.charge
            and observation.output in self.output
            and observation.staging in self.staging
        )


_START = (Command.PLAN, Command.RUN)
_FINISH = (Command.RESUME, Command.FLOW)
_BY_NAME = (Command.ABANDON, Command.ABANDON_INVISIBLE)
_ABORTS = (Command.ABORT, *_BY_NAME)
_FAILED = (Command.CLEAN_UP, Command.CLEAN_UP_OWN_LOCK)
_MESSAGE = (Command.INTERRUPTED,)

_OPEN = (Charge.RESERVED, Charge.COMPLETE)
_CLOSED = (Charge.COMMITTED, Charge.BURNED)
_LOCAL = (Staging.LOCAL_PARTIAL, Staging.LOCAL_READY)
_READY = (Staging.LOCAL_READY, Staging.REMOTE_READY)
_LOCKED = (Lock.HELD, Lock.OTHER)


def _rows() -> Iterator[Row]:
    """Yield every decision; of the lines that fit, the first one counts."""
    complete = (Charge.COMPLETE,)
    this = (Output.THIS,)
    # What is visible is committed first, whatever else is left.
    yield Row(_FINISH, Action.FINALIZE, charge=complete, output=this)
    # A lock that cannot be trusted stops every command but those that abort by name or clean up.
    guarded = (*_START, *_FINISH, *_MESSAGE)
    yield Row(guarded, Refusal.LOCK_DAMAGED, lock=(Lock.DAMAGED,))
    yield Row(guarded, Refusal.LOCK_FOREIGN, lock=(Lock.FOREIGN,))
    # plan, run: nothing may be under way.
    yield Row(_START, Refusal.UNFINISHED, lock=_LOCKED)
    yield Row((Command.PLAN,), Action.BEGIN)
    # resume, and a flow that finds a release under way.
    held = (Lock.HELD,)
    yield Row(_FINISH, Refusal.UNFINISHED, lock=(Lock.OTHER,))
    yield Row(_FINISH, Action.FINALIZE, lock=held, charge=(Charge.COMMITTED,), output=this)
    yield Row(_FINISH, Refusal.LEFT_NOTHING, lock=held, charge=_CLOSED)
    yield Row(_FINISH, Action.PUBLISH, lock=held, charge=complete, staging=_READY)
    yield Row(_FINISH, Action.CONTINUE, lock=held)
    yield Row((Command.RESUME,), Refusal.NOT_UNDER_WAY)
    # run, and a flow that finds no lock: the ledger may still know the release.
    fresh = (Command.RUN, Command.FLOW)
    yield Row(fresh, Refusal.CLOSED, charge=_CLOSED)
    yield Row(fresh, Action.CONTINUE, charge=_OPEN)
    yield Row(fresh, Action.BEGIN)
    # abort, by the spec or by the name of the release.
    by_spec = (Command.ABORT,)
    yield Row(by_spec, Action.REMOVE_LOCK, lock=(Lock.DAMAGED, Lock.FOREIGN))
    yield Row(by_spec, Refusal.NOTHING_TO_ABORT, lock=(Lock.ABSENT, Lock.OTHER))
    yield Row(_ABORTS, Refusal.PUBLISHED, output=this)
    yield Row(_ABORTS, Action.BURN, charge=(Charge.RESERVED,))
    yield Row(_ABORTS, Action.WITHDRAW, lock=held, charge=complete, staging=_LOCAL)
    yield Row((Command.ABANDON_INVISIBLE,), Action.BURN, charge=complete)
    yield Row(_ABORTS, Refusal.MAY_BE_VISIBLE, charge=complete)
    yield Row(_ABORTS, Action.DISCARD)
    # After a failure: what is closed needs no staging, what was not charged needs no lock.
    yield Row(_FAILED, Action.DISCARD, charge=_CLOSED)
    yield Row((Command.CLEAN_UP_OWN_LOCK,), Action.DISCARD, charge=(Charge.NONE,))
    yield Row(_FAILED, Action.KEEP)
    # What an interrupted command tells.
    not_charged = (Charge.NONE,)
    yield Row(_MESSAGE, Advice.START_AGAIN, lock=(Lock.ABSENT,), charge=not_charged)
    yield Row(_MESSAGE, Advice.NOT_CHARGED, charge=not_charged)
    yield Row(_MESSAGE, Advice.ABORTED, charge=(Charge.BURNED,))
    yield Row(_MESSAGE, Advice.DONE, lock=(Lock.ABSENT,), charge=(Charge.COMMITTED,))
    yield Row(_MESSAGE, Advice.COMMIT, output=this)
    yield Row(_MESSAGE, Advice.RESUME)


TABLE: tuple[Row, ...] = tuple(_rows())


def decide(observation: Observation, command: Command) -> Outcome:
    """Return what ``command`` does about what was observed: the first line of the table that fits.

    Guarantee: total. Every combination has a line; a test enumerates them.
    """
    for row in TABLE:
        if row.fits(observation, command):
            return row.outcome
    raise AssertionError(f"the recovery table has no line for {command} at {observation}")


def table_markdown() -> str:
    """Return the table as docs/recovery.md holds it."""
    lines = [
        "| command | output lock | ledger | output | staging | what happens |",
        "|---|---|---|---|---|---|",
    ]
    for row in TABLE:
        cells = [
            "; ".join(row.commands),
            _cell(row.lock, len(Lock)),
            _cell(row.charge, len(Charge)),
            _cell(row.output, len(Output)),
            _cell(row.staging, len(Staging)),
            _outcome_cell(row.outcome),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: tuple[StrEnum, ...], total: int) -> str:
    return "any" if len(values) == total else "; ".join(values)


def _outcome_cell(outcome: Outcome) -> str:
    kind = type(outcome).__name__.lower()
    return f"{kind} **{outcome.name}**: {outcome.value}"

"""Plan, release, resume, abort: what users call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dpdask.errors import ReleaseError
from dpdask.execution import OnProgress, no_progress
from dpdask.execution.cluster import DaskClient
from dpdask.ledger import Ledger, LedgerEntry, open_ledger
from dpdask.ledger.models import BY_THE_CURATOR
from dpdask.patience import Patience
from dpdask.planning import ReleasePlan, make_plan, output_storage
from dpdask.releases.closing import Receipt, abandon, finalize, publish_staged
from dpdask.releases.recovery import (
    Action,
    Advice,
    Command,
    Refusal,
    Target,
    advice_after_interrupt,
    advice_on,
    cost_of,
    decide,
    find_target,
    observe,
)
from dpdask.releases.run import ReleaseRun, plan_or_finish
from dpdask.spec import load_release_spec, parse_release_spec
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import open_storage, remove_output_lock
from dpdask.types import Json

__all__ = [
    "Receipt",
    "SpecLike",
    "abort",
    "abort_named",
    "advice",
    "finish_complete",
    "finish_published",
    "ledger_of",
    "parsed_spec",
    "plan",
    "release",
    "release_or_resume",
    "release_run",
    "resume",
    "standing",
]

_SHORTEST_NAME = 8

SpecLike = ReleaseSpec | Json | str | Path


def parsed_spec(spec: SpecLike) -> ReleaseSpec:
    """Return the spec that a path, a dictionary or a spec stands for."""
    if isinstance(spec, ReleaseSpec):
        return spec
    return parse_release_spec(spec) if isinstance(spec, dict) else load_release_spec(spec)


@contextlib.contextmanager
def _opened(spec: SpecLike) -> Iterator[tuple[ReleaseSpec, Ledger]]:
    """Open the ledger of a spec."""
    parsed = parsed_spec(spec)
    with contextlib.closing(ledger_of(parsed)) as ledger:
        yield parsed, ledger


def ledger_of(spec: ReleaseSpec) -> Ledger:
    """Open the ledger of a spec; it is asked again as ``compute.patience`` says."""
    return open_ledger(spec.budget.ledger, Patience(spec.compute.patience))


def _impatient(spec: SpecLike) -> ReleaseSpec:
    """Return a spec for somebody who waits for the answer: nobody is asked again."""
    parsed = parsed_spec(spec)
    compute = parsed.compute.model_copy(update={"patience": 0.0})
    return parsed.model_copy(update={"compute": compute})


def plan(spec: SpecLike) -> ReleasePlan:
    """Return everything about a release but the release: checks, noise, guarantee, privacy cost.

    Guarantee: reads no value, spends nothing.
    """
    with _opened(_impatient(spec)) as (parsed, ledger):
        target = find_target(output_storage(parsed), ledger, Command.PLAN)
        outcome = decide(observe(target), Command.PLAN)
        if isinstance(outcome, Refusal):
            raise outcome.error(target.last_step)
        return make_plan(parsed, ledger=ledger)


def release(
    spec: SpecLike, client: DaskClient | None = None, on_progress: OnProgress | None = None
) -> Receipt:
    """Publish one release.

    Guarantee: the dataset is charged at most once, before any noisy byte exists; readers see all of
    the output or nothing.

    Args:
        spec: The spec, as a file, a dictionary or a :class:`ReleaseSpec`.
        client: A ``distributed.Client`` of your own; by default the spec's ``compute`` section
            decides where tasks run.
        on_progress: Called as the release advances.

    Raises:
        DpdaskError: The release is refused, in one line that names the way out.
    """
    return _finished(spec, client, on_progress, Command.RUN)


def resume(
    spec: SpecLike, client: DaskClient | None = None, on_progress: OnProgress | None = None
) -> Receipt:
    """Finish a release that was interrupted, with the same noise and no further charge.

    Guarantee: if the source is not the one planned for, nothing is published, the key is destroyed
    and the charge stays.

    Args:
        spec: The spec that the release began with.
        client: As for :func:`release`.
        on_progress: As for :func:`release`.

    Raises:
        DpdaskError: No release is under way, or it cannot be finished here.
    """
    return _finished(spec, client, on_progress, Command.RESUME)


def release_or_resume(
    spec: SpecLike, client: DaskClient | None = None, on_progress: OnProgress | None = None
) -> Receipt:
    """Publish one release, or finish it where an earlier run stopped: what schedules call.

    Args:
        spec: The spec of the release.
        client: As for :func:`release`.
        on_progress: As for :func:`release`.

    Raises:
        DpdaskError: The release is refused, in one line that names the way out.
    """
    return _finished(spec, client, on_progress, Command.FLOW)


def _finished(
    spec: SpecLike, client: DaskClient | None, on_progress: OnProgress | None, command: Command
) -> Receipt:
    with _opened(spec) as (parsed, ledger):
        planned = plan_or_finish(parsed, ledger, command)
        if isinstance(planned, Receipt):
            return planned
        run = ReleaseRun(planned, ledger, on_progress or no_progress)
        with run.connected(client):
            return run.all_steps()


@contextlib.contextmanager
def release_run(
    spec: SpecLike, client: DaskClient | None = None, on_progress: OnProgress | None = None
) -> Iterator[ReleaseRun]:
    """Carry out a release step by step; what an earlier run left unfinished is continued.

    Leaving the context before the charge leaves nothing behind; after it, a release to resume.

    Args:
        spec: The spec of the release.
        client: As for :func:`release`.
        on_progress: As for :func:`release`.

    Raises:
        ReleaseError: An earlier run left the release complete; :func:`finish_published` commits it.
    """
    with _opened(spec) as (parsed, ledger):
        planned = plan_or_finish(parsed, ledger, Command.FLOW)
        if isinstance(planned, Receipt):
            raise ReleaseError("the release was complete and is committed now: nothing is left")
        run = ReleaseRun(planned, ledger, on_progress or no_progress)
        with run.connected(client):
            yield run


def finish_published(spec: SpecLike) -> Receipt | None:
    """Commit a release that was interrupted when it was complete; None where there is none.

    Needs no source and no cluster.
    """
    with _opened(spec) as (parsed, ledger):
        return finish_complete(parsed, ledger)


def finish_complete(spec: ReleaseSpec, ledger: Ledger) -> Receipt | None:
    """Do what :func:`finish_published` does, on a ledger that is open."""
    target = find_target(output_storage(spec), ledger, Command.FLOW)
    outcome = decide(observe(target), Command.FLOW)
    if outcome is Action.FINALIZE:
        return finalize(spec, ledger, target)
    if outcome is Action.PUBLISH:
        return publish_staged(spec, ledger, target)
    if outcome is Refusal.LOCK_DAMAGED or outcome is Refusal.LOCK_FOREIGN:
        raise outcome.error()
    return None


def abort(spec: SpecLike) -> str | None:
    """Abort a release under way: destroy its key, remove its staging; a charge stays.

    Returns:
        The public name of the release; None where the lock does not tell which release it was, and
        only the lock is removed.
    """
    with _opened(spec) as (parsed, ledger):
        output = output_storage(parsed)
        target = find_target(output, ledger, Command.ABORT)
        if decide(observe(target), Command.ABORT) is Action.REMOVE_LOCK:
            remove_output_lock(output)
            return None
        abandon(ledger, target, BY_THE_CURATOR, Command.ABORT)
        return target.release_id


def abort_named(
    name: str,
    ledger_url: str | None = None,
    options: Json | None = None,
    *,
    never_published: bool = False,
) -> str:
    """Abort a release that the ledger knows as open, wherever its output is; return its name.

    Args:
        name: The public name of the release, or its beginning.
        ledger_url: The ledger; by default from DPDASK_LEDGER.
        options: The storage options of its output.
        never_published: The caller declares that nobody can see the release, now or later. Needed
            for one that was about to be published and whose staging is not found from here.
    """
    if len(name) < _SHORTEST_NAME:
        raise ReleaseError(
            f"{name!r} is too short to name a release; write at least {_SHORTEST_NAME} letters of"
            " its name"
        )
    command = Command.ABANDON_INVISIBLE if never_published else Command.ABANDON
    with contextlib.closing(open_ledger(ledger_url)) as ledger:
        entry = _only_open_release(ledger, name)
        if entry.output_address is None:
            raise ReleaseError(
                "the ledger does not know where the release was to be published; abort it with"
                " its spec"
            )
        target = Target(open_storage(entry.output_address, options), entry.release_id, entry)
        abandon(ledger, target, BY_THE_CURATOR, command)
        return entry.release_id


def _only_open_release(ledger: Ledger, beginning: str) -> LedgerEntry:
    entries = ledger.open_releases(beginning)
    if len(entries) != 1:
        raise ReleaseError(
            f"{len(entries)} open releases have a name that begins with {beginning!r}; `dpdask"
            " ledger show` lists them"
        )
    return entries[0]


def advice(spec: SpecLike, typed: str) -> str:
    """Return one line for a command that was interrupted: what is charged, and what to do.

    Args:
        spec: The spec of the interrupted release.
        typed: The path of the spec as it is typed in a shell.
    """
    with _opened(_impatient(spec)) as (parsed, ledger):
        return advice_after_interrupt(parsed, output_storage(parsed), ledger, typed)


def standing(spec: SpecLike) -> tuple[Advice, str]:
    """Return what to do about a release that stopped, and what it cost; nobody is waited for."""
    with _opened(_impatient(spec)) as (parsed, ledger):
        return advice_on(output_storage(parsed), ledger), cost_of(parsed)

"""The tasks of a release, and what they leave in Prefect: facts, artifacts, tags; never a value, a
key or a result.

Prefect walks and records the arguments of tasks, so they take the id of a release under way in this
process and look it up there. One task holds the Dask client while tiles are written. State messages
are the one-line errors of dpdask. Nothing is cached or persisted; a retry replays the same noise.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import TypeVar, cast
from uuid import UUID

from prefect import runtime, task
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Failed

from dpdask.errors import DpdaskError, RateLimited, ReleaseError, redact_exceptions
from dpdask.execution import OnProgress, Progress
from dpdask.flows.messages import FlowRun, put_message, spec_in, with_next_step
from dpdask.ledger import DatasetState, Ledger
from dpdask.planning import ReleasePlan
from dpdask.releases.closing import Receipt
from dpdask.releases.recovery import Command
from dpdask.releases.run import ReleaseRun, plan_or_finish
from dpdask.releases.series import RateLimit, check_rate_limit
from dpdask.spec import ReleaseSpec
from dpdask.views.ledger_rows import ledger_rows
from dpdask.views.markdown import card_markdown, records_to_objects, rows_to_objects
from dpdask.views.plan_rows import public_plan_rows, unit_rows

__all__ = [
    "Refused",
    "leave_artifacts",
    "one_line",
    "raise_if_failed",
    "release_as_tasks",
    "say_how_to_resume",
    "say_next_run_resumes",
    "tag_run",
    "watchers",
]

R = TypeVar("R")

_UPDATE_SECONDS = 1.0
_RATE_LIMITED = "RateLimited"
watchers: list[OnProgress] = []  # others in this process who want to see progress

_redacted = redact_exceptions(
    ReleaseError, "an unforeseen {kind}; `dpdask resume` tries again"
)  # Prefect keeps exceptions


class Refused(DpdaskError):
    """A task refused, and said why in one line."""


def one_line(error: DpdaskError) -> str:
    """Return an error as a state message."""
    return str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"


class _Release:
    """A release under way in this process."""

    def __init__(self, spec: ReleaseSpec, ledger: Ledger) -> None:
        self.spec = spec
        self.ledger = ledger
        self.receipt: Receipt | None = None
        self._run: ReleaseRun | None = None

    def plan(self) -> ReleasePlan | None:
        """Plan it, once; None if an earlier run left it complete, which is committed instead."""
        planned = plan_or_finish(self.spec, self.ledger, Command.FLOW)
        if isinstance(planned, Receipt):
            self.receipt = planned
            return None
        self._run = ReleaseRun(planned, self.ledger, _Watch())
        return planned.plan

    @property
    def run(self) -> ReleaseRun:
        """The run, once it is planned."""
        if self._run is None:
            raise ReleaseError("the release is not planned; run the flow again")
        return self._run


_under_way: dict[str, _Release] = {}


@contextlib.contextmanager
def _registered(release: _Release) -> Iterator[str]:
    """Let tasks of this process find a release by an id, which says nothing of it."""
    token = f"{runtime.flow_run.get_id()}-{id(release)}"
    _under_way[token] = release
    try:
        yield token
    finally:
        del _under_way[token]


@task(name="plan", cache_policy=NO_CACHE, persist_result=False)
def plan_release(token: str) -> State[None] | None:
    """Check everything; spends nothing."""
    try:
        plan = _under_way[token].plan()
    except DpdaskError as error:
        return Failed(message=one_line(error))
    if plan is not None:
        public = plan.to_dict()
        rows = rows_to_objects([*unit_rows(public), *public_plan_rows(public)])
        create_table_artifact(table=rows, key="dpdask-plan", description="What the release will do")
    return None


@task(name="reserve", cache_policy=NO_CACHE, persist_result=False)
def reserve(token: str) -> State[None] | None:
    """Check source and cluster, then charge the dataset."""
    run = _under_way[token].run
    try:
        run.prepare()
        run.reserve()
    except RateLimited as error:
        return Failed(message=str(error), name=_RATE_LIMITED)
    except DpdaskError as error:
        return Failed(message=one_line(error))
    return None


@task(name="write", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=2)
@_redacted
def write(token: str) -> None:
    """Noise and stage every tile; a retry continues with what is missing."""
    _under_way[token].run.write()


@task(name="verify", cache_policy=NO_CACHE, persist_result=False, retries=1, retry_delay_seconds=2)
@_redacted
def verify(token: str) -> None:
    """Read every staged tile again."""
    _under_way[token].run.verify()


@task(name="publish", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=2)
@_redacted
def publish(token: str) -> None:
    """Make the release visible, commit it."""
    _under_way[token].run.publish()


def release_as_tasks(
    spec: ReleaseSpec, ledger: Ledger, rate_limit: RateLimit | None = None
) -> dict[str, str]:
    """Carry out one release as tasks of the running flow; return its public facts.

    What an earlier run left unfinished is continued, with the same noise and no further charge.

    Args:
        spec: The spec of the release.
        ledger: Its ledger, open.
        rate_limit: What the dataset may spend within some days, if that is limited.

    Raises:
        DpdaskError: The release is refused.
    """
    tag_run(f"dataset:{spec.budget.dataset}")
    release = _Release(spec, ledger)
    with _registered(release) as token:
        raise_if_failed(plan_release(token, return_state=True))
        receipt = release.receipt or _tasks_after_plan(release, token, rate_limit)
    leave_artifacts(receipt, ledger.state(spec.budget.dataset))
    return {"release_id": receipt.release_id, "output": receipt.output, "array": receipt.array}


def _tasks_after_plan(release: _Release, token: str, rate_limit: RateLimit | None) -> Receipt:
    run = release.run
    if rate_limit is not None:
        check_rate_limit(release.ledger, run.plan, rate_limit)  # again inside the charge
        run.allowance = rate_limit.allowance
    tag_run(f"release:{run.release_id}")
    with run.connected():
        raise_if_failed(reserve(token, return_state=True))
        write(token)
        verify(token)
        publish(token)
    if run.receipt is None:
        raise ReleaseError("the release left no receipt; `dpdask resume` tries again")
    return run.receipt


def raise_if_failed(state: State[R]) -> None:
    """Raise what a task that refused says, without the traceback of that task."""
    if state.name == _RATE_LIMITED:
        raise RateLimited(state.message or "rate limited") from None
    if state.is_failed():
        raise Refused(state.message or "refused") from None


class _Watch:
    """Feeds a progress artifact from the tile counter, at most once a second."""

    def __init__(self) -> None:
        self._artifact: UUID | None = None
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        """Pass on the progress of a tile."""
        for watch in watchers:
            watch(progress)
        if progress.stage != "tiles" or not progress.total:
            return
        share = 100.0 * progress.done / progress.total
        if self._artifact is None:
            created = create_progress_artifact(
                progress=share, key="dpdask-tiles", description="Tiles written"
            )
            self._artifact = cast("UUID", created)
        elif time.monotonic() >= self._next or progress.done == progress.total:
            update_progress_artifact(artifact_id=self._artifact, progress=share)
        self._next = time.monotonic() + _UPDATE_SECONDS


def tag_run(*names: str) -> None:
    """Add tags to the running flow run."""
    run_id = runtime.flow_run.get_id()
    if run_id is None:
        return
    with get_client(sync_client=True) as client:
        known = client.read_flow_run(UUID(run_id)).tags
        client.update_flow_run(UUID(run_id), tags=sorted({*known, *names}))


def leave_artifacts(receipt: Receipt, state: DatasetState) -> None:
    """Leave the card, the dataset's budget and a link to the output in Prefect."""
    create_markdown_artifact(
        markdown=card_markdown(receipt.card), key="dpdask-card", description="Release card"
    )
    rows = records_to_objects(ledger_rows([state]))
    create_table_artifact(table=rows, key="dpdask-ledger", description="The dataset's budget")
    link = receipt.output if "://" in receipt.output else f"file://{receipt.output}"
    create_link_artifact(link=link, link_text=receipt.array, key="dpdask-output")


def say_next_run_resumes(flow: object, flow_run: FlowRun, state: object) -> None:
    """Tell, for a flow that builds its own specs and stopped, how its release is finished."""
    _tell(
        flow_run,
        state,
        "a charge that was made stays, and the next run of the same deployment finishes that"
        " release first, with the same noise; `dpdask ledger show` lists open releases, `dpdask"
        " abort --release NAME` aborts one",
    )


def say_how_to_resume(flow: object, flow_run: FlowRun, state: object) -> None:
    """Tell, for a flow of one spec that stopped, how its release is finished."""
    text = (
        "a charge that was made stays; if its release is unfinished, the same deployment run again,"
        " or `dpdask resume SPEC.yaml`, finishes it with the same noise, and `dpdask abort"
        " SPEC.yaml` aborts it"
    )
    _tell(flow_run, state, with_next_step(text, spec_in(flow_run)))


def _tell(flow_run: FlowRun, state: object, text: str) -> None:
    from prefect.logging import get_logger

    get_logger("dpdask").warning("flow run %s stopped: %s", flow_run.name, text)
    put_message(flow_run, state, f"stopped: {text}")

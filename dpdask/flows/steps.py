"""The tasks of a release, and what they leave in Prefect: facts, artifacts, tags; never a value, a
key or a result.

One task holds the Dask client while tiles are written. State messages are the one-line errors of
dpdask. Nothing is cached or persisted; a retry replays the same noise.
"""

import time
from collections.abc import Callable
from typing import Any
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

from dpdask.errors import DpdaskError, ReleaseError
from dpdask.execution import Progress
from dpdask.ledger import open_ledger
from dpdask.releases.api import finish_published, plan, release_run
from dpdask.releases.steps import Receipt, ReleaseRun
from dpdask.spec import ReleaseSpec
from dpdask.views.ledger_rows import ledger_rows
from dpdask.views.markdown import card_markdown, records_to_objects, rows_to_objects
from dpdask.views.plan_rows import public_plan_rows

__all__ = [
    "Refused",
    "carry_out",
    "say_how_to_resume",
    "say_it_goes_on",
    "tag_run",
    "watchers",
]

_UPDATE_SECONDS = 1.0
watchers: list[Callable[[Progress], None]] = []  # others in this process who want to see progress


class Refused(Exception):
    """A step said no, in one line."""


def one_line(error: DpdaskError) -> str:
    """An error as a state message."""
    return f"{type(error).__name__}: {error}"


@task(name="plan", cache_policy=NO_CACHE, persist_result=False)
def plan_release(spec: ReleaseSpec) -> Any:
    """Check everything; spends nothing."""
    try:
        facts = plan(spec, resuming=True).to_dict()
    except DpdaskError as error:
        return Failed(message=one_line(error))
    rows = rows_to_objects(public_plan_rows(facts))
    create_table_artifact(table=rows, key="dpdask-plan", description="What the release will do")
    return None


@task(name="reserve", cache_policy=NO_CACHE, persist_result=False)
def reserve(run: ReleaseRun) -> Any:
    """Check source and cluster, then charge the dataset."""
    try:
        run.prepare()
        run.reserve()
    except DpdaskError as error:
        return Failed(message=one_line(error))
    return None


@task(name="write", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=2)
def write(run: ReleaseRun) -> None:
    """Noise and stage every tile; a retry goes on with what is missing."""
    _step(run.write)


@task(name="verify", cache_policy=NO_CACHE, persist_result=False, retries=1, retry_delay_seconds=2)
def verify(run: ReleaseRun) -> None:
    """Read every staged tile again."""
    _step(run.verify)


@task(name="publish", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=2)
def publish(run: ReleaseRun) -> None:
    """Make the release visible, commit it."""
    if run.receipt is None:
        _step(run.publish)


def _step(step: Any) -> None:
    """Let out only errors whose text and context are ours: Prefect keeps exceptions."""
    try:
        step()
        return
    except DpdaskError as error:
        kind, text = type(error), str(error)
    except Exception as error:
        kind, text = (
            ReleaseError,
            f"an unforeseen {type(error).__name__}; `dpdask resume` tries again",
        )
    raise kind(text)


def carry_out(spec: ReleaseSpec) -> dict[str, str] | State[Any]:
    """One release as tasks of the running flow: its facts, or a failed state that says why.

    What an earlier run left unfinished is gone on with, with the same noise and no further charge.
    """
    refusal = None
    try:
        tag_run(f"dataset:{spec.budget.dataset}")
        receipt = finish_published(spec)
        if receipt is None:
            _unless_failed(plan_release(spec, return_state=True))
            with release_run(spec, on_progress=_Watch(), unfinished="resume") as run:
                tag_run(f"release:{run.name}")
                _unless_failed(reserve(run, return_state=True))
                write(run)
                verify(run)
                publish(run)
                receipt = run.receipt
        if receipt is not None:
            _leave_artifacts(spec, receipt)
            return {"release": receipt.release, "output": receipt.output, "array": receipt.array}
    except Refused as error:
        refusal = str(error)
    except DpdaskError as error:
        refusal = one_line(error)
    return Failed(message=refusal or "the release left no receipt")


def _unless_failed(state: State[Any]) -> None:
    if state.is_failed():
        raise Refused(state.message or "refused") from None


class _Watch:
    """Feeds a progress artifact from the tile counter, at most once a second."""

    def __init__(self) -> None:
        self._artifact: Any = None
        self._next = 0.0

    def __call__(self, progress: Progress) -> None:
        """Called for every finished tile."""
        for watch in watchers:
            watch(progress)
        if progress.stage != "tiles" or not progress.total:
            return
        share = 100.0 * progress.done / progress.total
        if self._artifact is None:
            self._artifact = create_progress_artifact(
                progress=share, key="dpdask-tiles", description="Tiles written"
            )
        elif time.monotonic() >= self._next or progress.done == progress.total:
            update_progress_artifact(artifact_id=self._artifact, progress=share)
        self._next = time.monotonic() + _UPDATE_SECONDS


def tag_run(*names: str) -> None:
    """Tags on the running flow run."""
    run_id = runtime.flow_run.get_id()
    if run_id is None:
        return
    with get_client(sync_client=True) as client:
        known = client.read_flow_run(UUID(run_id)).tags
        client.update_flow_run(UUID(run_id), tags=sorted({*known, *names}))


def _leave_artifacts(spec: ReleaseSpec, receipt: Receipt) -> None:
    create_markdown_artifact(
        markdown=card_markdown(receipt.card), key="dpdask-card", description="Release card"
    )
    ledger = open_ledger(spec.budget.ledger)
    try:
        state = ledger.state(spec.budget.dataset)
    finally:
        ledger.close()
    rows = records_to_objects(ledger_rows([state]))
    create_table_artifact(table=rows, key="dpdask-ledger", description="The dataset's budget")
    link = receipt.output if "://" in receipt.output else f"file://{receipt.output}"
    create_link_artifact(link=link, link_text=receipt.array, key="dpdask-output")


def say_it_goes_on(flow: Any, flow_run: Any, state: Any) -> None:
    """A hook for flows that make their own specs and stopped: the next run goes on, or the release
    is aborted by its name.
    """
    from prefect.logging import get_logger

    get_logger("dpdask").warning(
        "flow run %s stopped: a charge that was made stays, and the next run of the same"
        " deployment finishes that release"
        " first, with the same noise; `dpdask ledger show` lists open releases, `dpdask abort"
        " --release NAME` gives one up",
        flow_run.name,
    )


def say_how_to_resume(flow: Any, flow_run: Any, state: Any) -> None:
    """A hook for flows that stopped: what was charged stays, and the same deployment goes on with
    it.
    """
    from prefect.logging import get_logger

    get_logger("dpdask").warning(
        "flow run %s stopped: a charge that was made stays; if its release is unfinished, the"
        " same deployment run again, or"
        " `dpdask resume SPEC.yaml`, finishes it with the same noise, and `dpdask abort"
        " SPEC.yaml` gives it up",
        flow_run.name,
    )

"""One release: what users schedule most."""

import contextlib
from pathlib import Path

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.states import Failed

from dpdask.errors import DpdaskError, ReleaseError
from dpdask.execution import OnProgress
from dpdask.flows.messages import with_next_step
from dpdask.flows.steps import one_line, release_as_tasks, say_how_to_resume, watchers
from dpdask.releases.api import ledger_of
from dpdask.signals import children_without_ctrl_c
from dpdask.spec import ReleaseSpec, load_release_spec

__all__ = ["privatize", "run_watched"]


@flow(
    name="privatize",
    persist_result=False,
    on_crashed=[say_how_to_resume],
    on_failure=[say_how_to_resume],
    on_cancellation=[say_how_to_resume],
)
def privatize(spec: ReleaseSpec) -> dict[str, str] | State[None]:
    """Publish the release that ``spec`` describes, or resume it where an earlier run stopped."""
    try:
        with contextlib.closing(ledger_of(spec)) as ledger:
            return release_as_tasks(spec, ledger)
    except DpdaskError as error:
        refusal = with_next_step(one_line(error), spec)
    return Failed(message=refusal)


def run_watched(spec_path: str | Path, watch: OnProgress | None) -> None:
    """Run the flow here and now, showing its progress at a terminal too."""
    spec = load_release_spec(spec_path)
    parameters = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if watch is not None:
        watchers.append(watch)
    try:
        with children_without_ctrl_c(), get_client(sync_client=True):
            pass  # starts the embedded server, where none is configured
        state = privatize(parameters, return_state=True)  # Prefect parses it
    finally:
        watchers.clear()
    if not state.is_completed():
        raise ReleaseError(
            state.message or "the flow did not complete; `dpdask resume` finishes it"
        )

"""One release: what users schedule most."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client

from dpdask.errors import ReleaseError
from dpdask.execution import Progress
from dpdask.flows.steps import carry_out, say_how_to_resume, watchers
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
def privatize(spec: ReleaseSpec) -> Any:
    """Publish the release that ``spec`` describes, or resume it where an earlier run stopped."""
    return carry_out(spec)


def run_watched(spec_path: str | Path, watch: Callable[[Progress], None] | None) -> None:
    """Run the flow here and now, showing its progress to somebody at a terminal too."""
    spec = load_release_spec(spec_path).model_dump(
        mode="json", by_alias=True, exclude_defaults=True
    )
    if watch is not None:
        watchers.append(watch)
    try:
        with children_without_ctrl_c(), get_client(sync_client=True):
            pass  # starts the embedded server, where none is configured
        state: Any = privatize(spec, return_state=True)  # Prefect makes it a ReleaseSpec
    finally:
        watchers.clear()
    if not state.is_completed():
        raise ReleaseError(state.message or "the flow did not complete")

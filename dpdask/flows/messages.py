"""What the state of a flow run tells: what is charged, and what happens next."""

import contextlib
from typing import Protocol, cast
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType

from dpdask.errors import DpdaskError
from dpdask.releases.api import standing
from dpdask.releases.recovery import Advice
from dpdask.spec import ReleaseSpec, parse_release_spec
from dpdask.types import Json

__all__ = ["FlowRun", "put_message", "spec_in", "with_next_step"]

_NEXT = {
    Advice.START_AGAIN: "nothing was charged, and nothing is left behind",
    Advice.NOT_CHARGED: "nothing was charged; the next run of this deployment continues",
    Advice.ABORTED: "{cost}, and the release was aborted: a new one is a new charge",
    Advice.DONE: "{cost}, and the release is published and complete: nothing is left to do",
    Advice.COMMIT: "{cost}, and the release is published: the next run commits it",
    Advice.RESUME: (
        "{cost}, nothing is published; the next run of this deployment, or `dpdask resume"
        " SPEC.yaml`, finishes the release with the same noise and no further charge, `dpdask abort"
        " SPEC.yaml` aborts it"
    ),
}
_STOPPED = (StateType.CANCELLED, StateType.CRASHED)


class FlowRun(Protocol):
    """What is used of Prefect's flow run in a hook."""

    @property
    def id(self) -> UUID:
        """Its id."""

    @property
    def name(self) -> str:
        """The name that Prefect gave it."""

    @property
    def parameters(self) -> Json:
        """What it was called with."""


def with_next_step(message: str, spec: ReleaseSpec | None) -> str:
    """Return a message with what is charged for a spec, and what happens next.

    Nobody is waited for: where the ledger or the output cannot be reached, the message stays alone.
    """
    if spec is None:
        return message
    with contextlib.suppress(DpdaskError):
        advice, cost = standing(spec)
        return f"{message}. Now {_NEXT[advice].format(cost=cost)}"
    return message


def spec_in(flow_run: FlowRun) -> ReleaseSpec | None:
    """Return the spec that a flow run was called with, None if that cannot be told."""
    with contextlib.suppress(DpdaskError, AttributeError):
        return parse_release_spec(flow_run.parameters.get("spec"))
    return None


def put_message(flow_run: FlowRun, state: object, message: str) -> None:
    """Let the state of a run that was cancelled or crashed say what happens next.

    Prefect's own message says only that it was cancelled, which hides what was charged. A failed
    run says it already.
    """
    stopped = cast("State[None]", state)
    if stopped.type not in _STOPPED:
        return
    told: State[None] = State(type=stopped.type, name=stopped.name, message=message)
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.id, told, force=True)

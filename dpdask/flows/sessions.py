"""Steps of a training run as they come: noised, handed back, published when all are there."""

import contextlib
import time
from collections.abc import Iterator
from typing import Annotated, NamedTuple

from prefect import flow, runtime, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.states import Failed
from pydantic import Field

from dpdask.errors import DpdaskError, InvalidSpec, ReleaseError, redact_exceptions
from dpdask.flows.steps import (
    leave_artifacts,
    one_line,
    raise_if_failed,
    say_next_run_resumes,
    tag_run,
)
from dpdask.planning import output_storage
from dpdask.releases.api import ledger_of
from dpdask.releases.closing import Receipt
from dpdask.releases.sessions import StepSession, steps
from dpdask.releases.step_files import STEPS_SUFFIX, StepFiles, StepInput
from dpdask.spec import ReleaseSpec
from dpdask.spec.release import SourceSection
from dpdask.storage import open_source, open_storage

__all__ = ["privatize_steps"]

_UPDATE_SECONDS = 1.0
_redacted = redact_exceptions(
    ReleaseError, "an unforeseen {kind}; another run resumes the session"
)  # Prefect keeps exceptions


class _Waiting(NamedTuple):
    """How long to wait: between two looks, and for one step, in seconds."""

    poll: float
    patience: float


class _Exchange:
    """A session of this process, and where steps come from and go to."""

    def __init__(
        self,
        session: StepSession,
        written: StepInput,
        released: StepFiles,
        samples: tuple[StepFiles, int] | None,
    ) -> None:
        self.session = session
        self._input = written
        self._released = released
        self._samples = samples

    def hand_back(self, step: int) -> None:
        """Put what is released of a step where the trainer waits for it."""
        self._released.put(step, self.session.released(step))

    def draw_sample(self) -> None:
        """Draw the sample of the next step, and hand it to the trainer."""
        if self._samples is not None:
            files, population = self._samples
            files.put(self.session.next_step, self.session.sample(population))

    def wait(self, waiting: _Waiting) -> None:
        """Wait for the next step.

        Raises:
            ReleaseError: It did not come in time.
        """
        step, until = self.session.next_step, time.monotonic() + waiting.patience
        while not self._input.written(step):
            if time.monotonic() >= until:
                raise ReleaseError(
                    f"step {step} did not come within {waiting.patience:g} seconds: the session"
                    " stays open, and the next run of this flow resumes it"
                )
            time.sleep(waiting.poll)

    def release(self) -> int:
        """Release the next step, and return which one it was."""
        step, written = self.session.next_step, self._input
        self.session.step(
            written.url(step),
            array=written.array,
            entry=written.entry(step),
            options=written.options,
        )
        return step


_under_way: dict[str, _Exchange] = {}


@contextlib.contextmanager
def _registered(exchange: _Exchange) -> Iterator[str]:
    """Let tasks of this process find a session by an id, which says nothing of it."""
    token = f"{runtime.flow_run.get_id()}-{id(exchange)}"
    _under_way[token] = exchange
    try:
        yield token
    finally:
        del _under_way[token]


@task(name="steps", cache_policy=NO_CACHE, persist_result=False)
@_redacted
def release_steps(token: str, waiting: _Waiting) -> State[None] | None:
    """Release every step as it comes; the trainer finds each as a file, others as an event."""
    try:
        _release_steps(_under_way[token], waiting)
    except DpdaskError as error:
        return Failed(message=one_line(error))
    return None


def _release_steps(exchange: _Exchange, waiting: _Waiting) -> None:
    session, updated = exchange.session, 0.0
    for step in range(session.next_step):  # of an earlier run, which may have stopped before this
        exchange.hand_back(step)
    artifact = create_progress_artifact(
        progress=100.0 * session.next_step / session.steps,
        key="dpdask-steps",
        description="Steps released",
    )
    for _ in session:
        exchange.draw_sample()
        exchange.wait(waiting)
        step = exchange.release()
        exchange.hand_back(step)
        emit_event(
            event="dpdask.step.released",
            resource={"prefect.resource.id": f"dpdask.release.{session.release_id}"},
            payload={"step": step},
        )
        if time.monotonic() - updated > _UPDATE_SECONDS or session.next_step == session.steps:
            share = 100.0 * session.next_step / session.steps
            update_progress_artifact(artifact_id=artifact, progress=share)  # type: ignore[arg-type]
            updated = time.monotonic()


@task(name="publish", cache_policy=NO_CACHE, persist_result=False, retries=2, retry_delay_seconds=2)
@_redacted
def publish(token: str) -> None:
    """Publish all steps, and commit."""
    _under_way[token].session.close()


@flow(
    name="privatize-steps",
    persist_result=False,
    on_crashed=[say_next_run_resumes],
    on_failure=[say_next_run_resumes],
    on_cancellation=[say_next_run_resumes],
)
def privatize_steps(
    spec: ReleaseSpec,
    steps_source: SourceSection,
    samples: str | None = None,
    sampled_from: SourceSection | None = None,
    poll_seconds: Annotated[float, Field(gt=0)] = 0.5,
    patience_seconds: Annotated[float, Field(gt=0)] = 3600.0,
) -> dict[str, str] | State[None]:
    """Release the steps of a session as a trainer writes them, and hand each back to it.

    The trainer writes a step to Zarr, sets the array's attribute ``steps_written``, and waits for
    the noisy step with :func:`dpdask.wait_for_step` at ``<output.url>.steps``. With
    ``composition.sampling`` it waits for the sample of the step first, at ``samples``. A run that
    stopped is resumed by the next one.

    Args:
        spec: The spec of the session, with ``source.steps``.
        steps_source: Where the trainer writes: an array that grows along its first axis, or a URL
            with ``{step}``, six digits, for one array per step.
        samples: The folder for the samples, inside the trust boundary; needed with sampling.
        sampled_from: The array whose entries along the first axis are sampled; needed with
            sampling. How many there are may be private, so it is read there.
        poll_seconds: How many seconds to wait between two looks.
        patience_seconds: How many seconds to wait for one step at most.
    """
    waiting = _Waiting(poll_seconds, patience_seconds)
    try:
        with contextlib.closing(ledger_of(spec)) as ledger:
            receipt = _carry_out(spec, steps_source, _samples(spec, samples, sampled_from), waiting)
            leave_artifacts(receipt, ledger.state(spec.budget.dataset))
            return {
                "release_id": receipt.release_id,
                "output": receipt.output,
                "array": receipt.array,
            }
    except DpdaskError as error:
        refusal = one_line(error)
    return Failed(message=refusal)


def _samples(
    spec: ReleaseSpec, folder: str | None, source: SourceSection | None
) -> tuple[StepFiles, int] | None:
    """Return where samples go, and how many they are drawn from; None without sampling."""
    sampled = spec.composition.sampling is not None
    if sampled != (folder is not None) or sampled != (source is not None):
        raise InvalidSpec(
            "samples and sampled_from go with composition.sampling, both of them; give both, or"
            " neither"
        )
    if folder is None or source is None:
        return None
    array = open_source(open_storage(source.url, source.options), source.array, source.decode)
    return StepFiles(open_storage(folder)), array.shape[0]


def _carry_out(
    spec: ReleaseSpec,
    source: SourceSection,
    samples: tuple[StepFiles, int] | None,
    waiting: _Waiting,
) -> Receipt:
    """Begin or resume the session, release every step, publish."""
    output = output_storage(spec)
    released, written = StepFiles(output.beside(STEPS_SUFFIX)), StepInput(source)
    session = steps(spec)
    try:
        tag_run(f"dataset:{spec.budget.dataset}", f"release:{session.release_id}")
        if session.receipt is None:
            with _registered(_Exchange(session, written, released, samples)) as token:
                raise_if_failed(release_steps(token, waiting, return_state=True))
                publish(token)
        if session.receipt is None:
            raise ReleaseError("the session left no receipt; the next run resumes it")
        return session.receipt
    finally:
        session.leave()

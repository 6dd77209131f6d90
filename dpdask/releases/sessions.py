"""Steps that depend on each other: one reservation, and noise before the next step is computed.

A training run hands over the gradients of one step after the other. Each is clipped, summed and
given its noise; the next one is computed from that. So a record reaches later steps only through
what is differentially private already, and T steps compose exactly.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dpdask import execution
from dpdask.accounting import GaussianProfile
from dpdask.errors import InvalidInput, InvalidSpec, ReleaseError
from dpdask.execution import Executor, OnProgress, no_progress
from dpdask.execution.cluster import DaskClient
from dpdask.planning import ReleasePlan, output_storage, placed, recipe_digest
from dpdask.planning.sessions import is_session, step_variable
from dpdask.planning.verified import recorded_answer, verified_step
from dpdask.releases import steps as release_steps
from dpdask.releases.api import SpecLike, ledger_of, parsed_spec
from dpdask.releases.begin_session import BegunSession, begin
from dpdask.releases.closing import Receipt
from dpdask.releases.recovery import Command
from dpdask.releases.run import Planned, plan_or_finish
from dpdask.releases.staged_steps import burn, read_step
from dpdask.releases.verify import layout_of
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import (
    GivenArray,
    SourceArray,
    one_of_stack,
    open_source,
    open_storage,
)
from dpdask.types import Floats, Integers, Json

__all__ = ["StepSession", "steps"]

_AT_ONCE = 2**20  # records whose part in a sample is decided at once
_WORDS = 2**64


def steps(
    spec: SpecLike, client: DaskClient | None = None, on_progress: OnProgress | None = None
) -> StepSession:
    """Begin, or resume, a release of steps that are handed over one by one.

    Guarantee: the dataset is charged once, for all steps, before the first; a step that was
    released is never drawn again for another input.

    Args:
        spec: The spec, with ``source.steps`` and ``composition.steps``.
        client: A ``distributed.Client`` of your own, for steps that are read from Zarr; by default
            the spec's ``compute`` section decides where tasks run.
        on_progress: Called as steps advance.

    Returns:
        The session, open at the first step that is not released.

    Raises:
        DpdaskError: The session is refused, in one line that names the way out.

    Example:
        >>> with dpdask.steps("training.yaml") as session:   # doctest: +SKIP
        ...     for step in session:
        ...         sample = session.sample(len(images))
        ...         noisy_sum = session.step(gradients(weights, images[sample]))
        ...         weights -= rate * noisy_sum / expected_batch
    """
    parsed = parsed_spec(spec)
    if not is_session(parsed):
        raise InvalidSpec(
            "source.url names an array that is released at once; use dpdask.release, or write"
            " source: {steps: {shape: [..]}}"
        )
    with contextlib.ExitStack() as resources:
        ledger = resources.enter_context(contextlib.closing(ledger_of(parsed)))
        planned = plan_or_finish(parsed, ledger, Command.FLOW)
        begun: BegunSession | Receipt
        if isinstance(planned, Planned):
            begun = begin(planned, ledger, on_progress or no_progress)
        else:
            begun = planned
        return StepSession(parsed, begun, client, resources.pop_all())


class StepSession:
    """T steps under one reservation; use :func:`steps` to begin or resume it.

    Leaving it as a context manager publishes it if all steps are released. Otherwise it stays as it
    is, and :func:`steps` resumes it at :attr:`next_step`.
    """

    def __init__(
        self,
        spec: ReleaseSpec,
        begun: BegunSession | Receipt,
        client: DaskClient | None,
        resources: contextlib.ExitStack,
    ) -> None:
        self._spec = spec
        self._begun = begun if isinstance(begun, BegunSession) else None
        self._receipt = begun if isinstance(begun, Receipt) else None
        self._client = client
        self._resources = resources
        self._executor: Executor | None = None
        self._samples: dict[int, int] = {}

    def __repr__(self) -> str:
        state = "open" if self._begun is not None else "closed"
        return f"<StepSession {state}, {self.steps} steps of shape {self.shape}>"

    def __enter__(self) -> StepSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None and self._begun is not None and self.next_step == self.steps:
                self.close()
        finally:
            self.leave()

    def __iter__(self) -> Iterator[int]:
        """Yield every step that is not released yet; its turn ends with :meth:`step`."""
        while self._begun is not None and self.next_step < self.steps:
            step = self.next_step
            yield step
            if self._begun is not None and self.next_step == step:
                raise ReleaseError(
                    f"step {step} was not released before the next one; call session.step"
                )

    @property
    def steps(self) -> int:
        """How many steps are charged."""
        return self._spec.composition.steps

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a step's result."""
        assert self._spec.source.steps is not None
        return tuple(self._spec.source.steps.shape)

    @property
    def next_step(self) -> int:
        """The first step that is not released; :attr:`steps` where all are."""
        if self._begun is not None:
            return self._begun.staged.next_step
        return self.steps if self._receipt is None else self._receipt.card.released.shape[0]

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, once the session is published."""
        return self._receipt

    @property
    def release_id(self) -> str:
        """The public random name of the release."""
        if self._receipt is not None:
            return self._receipt.release_id
        return self._open().context.release_id

    @property
    def plan(self) -> ReleasePlan:
        """What was planned."""
        return self._open().context.plan

    @property
    def noise_multiplier(self) -> float:
        """The noise of a step over what one privacy unit can change of it, as accountants take it.

        Rounding is part of it.
        """
        profile = verified_step(recorded_answer(self.plan.data))
        if not isinstance(profile, GaussianProfile):
            raise ReleaseError("only Gaussian noise has a noise multiplier; use analytic-gaussian")
        return 1 / profile.mu

    def sample(self, population: int, *, index: int | None = None) -> Integers:
        """Draw the Poisson sample of a step: every index below ``population``, at the spec's rate.

        Guarantee: each index is drawn independently, by the release key, the step and the index
        alone. The same step has the same sample, after a crash too. The rate is rounded down.

        Args:
            population: How many records, or privacy units, there are.
            index: Which step; the next one where left out.

        Returns:
            The indices in the sample, sorted. They are not public.
        """
        begun, step = self._open(), self._checked(index)
        sampling = self._spec.composition.sampling
        if sampling is None:
            raise InvalidInput("composition.sampling is not in the spec; every record takes part")
        if population < 0:
            raise InvalidInput("a population has 0 members or more; give their number")
        plan = begun.context.plan
        recipe = bytes.fromhex(recipe_digest(plan.fingerprint, plan.data))
        stream = begun.staged.key.sample(fingerprint=recipe, step=step)
        threshold = int(Fraction(sampling.rate) * _WORDS)
        parts = [np.empty(0, np.int64)]
        for first in range(0, population, _AT_ONCE):
            words = stream.words(first, min(first + _AT_ONCE, population))
            drawn = words < threshold if threshold < _WORDS else np.ones(words.size, bool)
            parts.append(first + np.flatnonzero(drawn))
        indices: Integers = np.concatenate(parts)
        self._samples[step] = len(indices)
        return indices

    def step(
        self,
        values: Any,
        *,
        index: int | None = None,
        array: str = "",
        entry: int | None = None,
        options: Json | None = None,
    ) -> Floats:
        """Release one step and return it, its noise included.

        Records are clipped, or their entries clamped, and added up exactly before noise is added. A
        step without a single record is a step.

        Guarantee: the same step again, with the same input, returns the same numbers. Another input
        burns the session.

        Args:
            values: The records of the step, along the first axis, or its finished result where the
                query is precomputed: an array, or the URL of one in Zarr, which is read on the
                cluster.
            index: Which step; the next one where left out.
            array: The path of the array, where ``values`` is the URL of a group.
            entry: Which entry along the first axis of that array, where it holds many steps.
            options: Storage options of a URL.

        Raises:
            InvalidInput: The shape, or the step, is not the one that is next; nothing was drawn.
            SourceChanged: The step was noted for another input: the session is burned.
        """
        begun, step = self._open(), self._checked(index)
        source, executor = self._source(values, array, entry, options)
        self._check_shape(source)
        self._check_sample(step, source)
        try:
            return begun.staged.release(step, source, executor)
        except ReleaseError:
            charged = begun.context.entry()
            if charged is None or not charged.open:
                self.leave()
            raise

    def released(self, index: int) -> Floats:
        """Return a step that is released, its noise included."""
        if not 0 <= index < self.next_step:
            raise InvalidInput(f"step {index} is not released; choose one below {self.next_step}")
        if self._begun is not None:
            return self._begun.staged.read(index)
        if self._receipt is None:
            raise _closed()
        output = output_storage(self._spec)
        released = self._receipt.card.released
        return read_step(output, layout_of(released), index, released.scale_factor)

    def close(self) -> Receipt:
        """Publish the steps that are released, and commit; steps that were not taken stay charged.

        Raises:
            ReleaseError: No step is released, or what is staged is damaged.
        """
        if self._receipt is not None:
            return self._receipt
        begun = self._open()
        if begun.staged.next_step == 0:
            raise ReleaseError("no step is released; hand one over, or session.abort()")
        staged = begun.staged.complete(begun.assembly)
        self._receipt = release_steps.publish(begun.context, staged)
        self.leave()
        return self._receipt

    def abort(self) -> None:
        """End the session without publishing it: its key is destroyed, its charge stays."""
        burn(self._open().context, "aborted by the caller")
        self.leave()

    def leave(self) -> None:
        """Close all connections; a session that is not published can be resumed. Idempotent."""
        self._begun = None
        self._executor = None
        self._resources.close()

    def _open(self) -> BegunSession:
        if self._begun is None:
            raise _closed()
        return self._begun

    def _checked(self, index: int | None) -> int:
        """Return the step that is meant, which must be the next one or one that is released."""
        following = self.next_step
        step = following if index is None else index
        if step >= self.steps:
            raise InvalidInput(
                f"step {step} is beyond the {self.steps} that were charged; session.close()"
                " publishes them"
            )
        if not 0 <= step <= following:
            raise InvalidInput(f"step {step} is out of order; step {following} is the next one")
        return step

    def _source(
        self, values: Any, array: str, entry: int | None, options: Json | None
    ) -> tuple[SourceArray, Executor]:
        """Return what a step was given, and where its tasks run: here, unless it is read."""
        if not isinstance(values, str | Path):
            return GivenArray.of(np.asarray(values)), self._open().context.executor
        source = open_source(open_storage(str(values), options), array)
        source = source if entry is None else one_of_stack(source, entry)
        plan = self.plan
        reading = dataclasses.replace(plan, variables=(step_variable(plan.only, source),))
        if self._executor is None:
            connection = execution.connect(placed(reading), self._client)
            self._executor = self._resources.enter_context(connection)
        release_steps.check_reach([plan.output, source.storage], self._executor)
        release_steps.check_size(reading, self._executor)
        return source, self._executor

    def _check_shape(self, source: SourceArray) -> None:
        """Refuse another shape; the number of records may be private and is not told."""
        shape, summed = self.shape, self.plan.only.query.summed
        if source.shape[1:] == shape if summed else source.shape == shape:
            return
        wanted = ", ".join(map(str, ("n", *shape) if summed else shape))
        raise InvalidInput(
            f"what was handed over does not have the shape of a step; give ({wanted}), as"
            " source.steps.shape says"
        )

    def _check_sample(self, step: int, source: SourceArray) -> None:
        """Refuse a step without its sample, or with other records than those of its sample."""
        sampling = self._spec.composition.sampling
        if sampling is None:
            return
        if step not in self._samples:
            raise InvalidInput(
                f"the sample of step {step} was not drawn, and composition.sampling takes credit"
                " for it; call session.sample(population) first"
            )
        if not self.plan.only.query.summed:
            return
        each = self._spec.privacy_unit.max_contributions if sampling.of == "privacy-units" else 1
        records, drawn = source.shape[0], self._samples[step]
        if records > each * drawn or (each == 1 and records != drawn):
            raise InvalidInput(
                f"the records of step {step} are not those of its sample; give one record for each"
                " index that session.sample returned"
            )


def _closed() -> ReleaseError:
    return ReleaseError(
        "the session is closed; dpdask.steps(spec) resumes one that is not published"
    )

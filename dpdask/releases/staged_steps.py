"""The steps of a session in staging: which are there, written once, read back.

Staging lies outside the trust boundary. What is read back has the digest that a sealed manifest
records, and counts as missing otherwise. What noise may be added to in a step is noted in the
ledger, as a keyed digest, before its noise is drawn: the same input again finds the same bytes, and
another one burns the session.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

import numpy as np

from dpdask import execution
from dpdask.errors import LedgerCorrupt, SourceChanged, VerificationFailed
from dpdask.execution import Executor, Intermediates, StepJob, TileWork
from dpdask.keystream import ReleaseKey
from dpdask.ledger.witness import remember, sight_of
from dpdask.planning.plan import Variable
from dpdask.planning.sessions import step_chunks, step_variable, taken_steps
from dpdask.releases import staging
from dpdask.releases.assembly import Assembly
from dpdask.releases.closing import abandon
from dpdask.releases.context import Context
from dpdask.releases.recovery import Target
from dpdask.releases.steps import Staged
from dpdask.storage import Layout, ManifestEntry, SourceArray, Storage, digest_of
from dpdask.types import Floats

__all__ = ["StagedSteps", "burn", "read_step"]


def read_step(
    storage: Storage,
    layout: Layout,
    step: int,
    scale: float | None,
    entries: dict[str, ManifestEntry] | None = None,
) -> Floats:
    """Return a released step as readers of the release decode it.

    Args:
        storage: Where its chunks are.
        layout: The stack of all steps.
        step: Which one.
        scale: What a packed integer stands for, None for float output.
        entries: The manifest entries that chunks must have; None where the output is published.

    Raises:
        VerificationFailed: A chunk is missing or damaged.
    """
    values: Floats = np.empty(layout.shape[1:])
    for index in step_chunks(layout, step):
        key = layout.key(index)
        with storage.viewed(key) as stored:
            intact = stored is not None and layout.check(index, stored)
            if entries is not None and intact:
                intact = stored is not None and digest_of([stored]) == entries[key].digest
            if stored is None or not intact:
                raise VerificationFailed(
                    f"a chunk of step {step} is missing or damaged; open the session again and"
                    " repeat the step with the same input"
                )
            values[layout.region(index)[1:]] = layout.decode(index, stored)[0]
    return values if scale is None else values * scale


def burn(context: Context, reason: str) -> None:
    """Close a session without publishing it: its key is destroyed, its charge stays."""
    target = Target(context.plan.output, context.release_id, context.entry())
    abandon(context.ledger, target, reason)


class StagedSteps:
    """What a charged session has staged, and how one more step is added."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._key = context.key()
        self._seal = self._key.seal(staging.STAGING)
        listed = context.publisher.read_manifest(self._seal)
        self._entries = {entry.key: entry for entry in listed}
        self._next = self._first_missing()
        self._check_noted()

    def __repr__(self) -> str:
        return "<StagedSteps>"

    @property
    def variable(self) -> Variable:
        """What is released."""
        return self._context.plan.only

    @property
    def key(self) -> ReleaseKey:
        """The key of the session."""
        return self._key

    @property
    def next_step(self) -> int:
        """The first step that is not staged, or not intact."""
        return self._next

    def _first_missing(self) -> int:
        count = self.variable.layout.shape[0]
        return next((step for step in range(count) if self._damaged(step)), count)

    def _check_noted(self) -> None:
        """Refuse a ledger that does not know a step that is staged.

        Raises:
            LedgerCorrupt: It was restored from a backup: other inputs could be given to steps whose
                noise is drawn.
        """
        context, last = self._context, self._next - 1
        if last >= 0 and context.ledger.get_once(context.fingerprint, f"step {last}") is None:
            raise LedgerCorrupt(
                f"the ledger does not hold step {last}, which is staged: it was restored from a"
                " backup, or rewritten; `dpdask abort` the session"
            )

    def _damaged(self, step: int) -> list[str]:
        """Return the keys of a step's chunks that are not staged, or not as they were written."""
        return [
            layout.key(index)
            for layout in self.variable.layouts
            for index in step_chunks(layout, step)
            if not self._intact(layout, index)
        ]

    def _intact(self, layout: Layout, index: tuple[int, ...]) -> bool:
        entry = self._entries.get(layout.key(index))
        publisher = self._context.publisher
        return entry is not None and publisher.check(layout, index, entry, digest=True)

    def release(self, step: int, source: SourceArray, executor: Executor) -> Floats:
        """Add noise to one step, stage it, and return it.

        Guarantee: noise is drawn for one input alone. The same input again draws the same noise.

        Args:
            step: Which step: the next one, or one that is staged.
            source: Its records, or its result.
            executor: Where tasks run.

        Raises:
            SourceChanged: The step was noted for another input: the session is burned.
        """
        context = dataclasses.replace(self._context, executor=executor)
        plan, variable = context.plan, step_variable(self.variable, source)
        answers = execution.prepare(executor, plan, variable, context.on_progress)
        work = TileWork(plan, variable, answers, context.publisher, StepJob(step, {}))
        digests = execution.step_digests(executor, work, self._key)
        self._note(step, digests)
        context.report("step noted")
        work = dataclasses.replace(work, step=StepJob(step, digests))
        self._write(context, work)
        context.report("step listed")
        if step == self._next:
            self._next += 1
        return self.read(step)

    def _note(self, step: int, digests: dict[tuple[int, ...], str]) -> None:
        """Note in the ledger what the noise of a step is added to, or find it noted."""
        context = self._context
        digest = hashlib.sha256(json.dumps(list(digests.items())).encode()).hexdigest()
        noted = context.ledger.put_once(context.fingerprint, f"step {step}", digest)
        remember(sight_of(context.ledger, context.plan.spec.budget.dataset))
        if noted != digest:
            burn(context, f"step {step} was repeated with another input")
            raise SourceChanged(
                f"step {step} was noted for another input, and the same noise on both would show"
                " their difference: the session was burned and its charge stays; raise"
                " publish.edition for a new one"
            )

    def _write(self, context: Context, work: TileWork) -> None:
        """Stage the tiles of a step that are not there, and list them in the manifest."""
        layout = self.variable.layout
        assert work.step is not None
        chunks = {layout.key(index): index for index in step_chunks(layout, work.step.number)}
        damaged = [key for key, index in chunks.items() if not self._intact(layout, index)]
        for key in damaged:
            self._entries.pop(key, None)
        written = staging.stage_tiles(
            context, (work,), self._key, self._entries, {}, set(self._entries)
        )
        fresh = [entry for part in written for entry in part]
        context.report("step staged")
        if fresh:
            context.publisher.append_manifest(fresh, self._seal)

    def read(self, step: int) -> Floats:
        """Return a staged step, its noise included."""
        variable, data = self.variable, self._context.publisher.data
        return read_step(data, variable.layout, step, variable.scale_factor, self._entries)

    def complete(self, assembly: Assembly) -> Staged:
        """Return everything that was staged, checked once more, for publication.

        Raises:
            VerificationFailed: A chunk is missing or damaged.
        """
        context, variable = self._context, taken_steps(self.variable, self._next)
        work = TileWork(context.plan, variable, Intermediates(), context.publisher)
        keys = {variable.layout.key(index) for index in variable.layout.indices()}
        keys |= {layout.key(index) for layout in variable.layouts[1:] for index in layout.indices()}
        entries = {key: entry for key, entry in self._entries.items() if key in keys}
        staged = Staged(
            (work,),
            dataclasses.replace(assembly, variables=(variable,)),
            entries,
            {},  # all are compared by digest
            frozenset(entries),
        )
        on_progress, earlier = context.on_progress, set(entries)
        if execution.verify(context.executor, (work,), entries, {}, earlier, on_progress):
            raise VerificationFailed(
                "staged steps cannot be read back; open the session again and repeat what is"
                " missing with the same input"
            )
        return staged

"""A charged release on an executor: estimates, tiles, verification. Only facts reach the driver.

Un-noised blocks stay inside one task; partial norms and sums pass between tasks, opaque, on workers
that do not spill.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dpdask.execution import jobs, tasks
from dpdask.execution.executors import Executor, Handle
from dpdask.execution.passes import Intermediates
from dpdask.execution.progress import OnProgress, Progress
from dpdask.keystream import ReleaseKey
from dpdask.planning import Component, ReleasePlan, Variable, recipe_digest, tile_batches
from dpdask.planning.tiling import Index
from dpdask.queries import BesideArray
from dpdask.storage import Layout, ManifestEntry, Publisher
from dpdask.types import Floats

__all__ = ["TileWork", "noisy_estimate", "step_digests", "verify", "write"]

_TASKS_PER_THREAD = 4  # at least, so that threads end at about the same time

TileArguments = tuple[list[Index], int, Handle | None, Handle | None, Handle | None]
"""The arguments of a tile task after its job: tiles, first record, clip factors, exact answer, kept
records.
"""


@dataclass(frozen=True, slots=True, repr=False)
class TileWork:
    """The tiles of one variable, and where they go.

    Args:
        plan: What was planned.
        variable: The data with its noise as it is released, or what is drawn before them.
        intermediates: Clip factors and exact answers.
        publisher: Where chunks are staged.
        step: Which of the steps of a session it is; None for other releases.
    """

    plan: ReleasePlan
    variable: Variable
    intermediates: Intermediates
    publisher: Publisher
    step: jobs.StepJob | None = None

    @property
    def component(self) -> Component:
        """The noisy answer."""
        return self.variable.component

    def job(self, key: ReleaseKey) -> jobs.TileJob:
        """Return what all tile tasks share; its noise is bound to the recipe of the component."""
        return jobs.TileJob(
            source=self.variable.source,
            staging=self.publisher,
            layout=self.variable.layout,
            tiling=self.component.tiling,
            query=self.component.query,
            privatizer=self.component.privatizer,
            exact_sum=self.component.exact_sum,
            key=key.to_transferable(),
            binding=recipe_digest(self.plan.fingerprint, self.component),
            component=self._drawn_for(),
            step=self.step,
            parts=tuple(
                jobs.PartJob(
                    part.name,
                    part.privatizer,
                    part.exact_sum,
                    self.component.part_name(part),
                    part.tiling,
                    part.aligned,
                )
                for part in self.component.parts
            ),
            beside=tuple(
                jobs.BesideJob(array.suffix, layout, array.aligned)
                for array, layout in self._beside()
            ),
            layers=self.component.layers,
        )

    def _drawn_for(self) -> str:
        """Return what the noise is drawn for: the component, of one step alone if there are
        several.
        """
        name = self.component.name
        return name if self.step is None else f"{name}-step-{self.step.number}"

    def _beside(self) -> Iterator[tuple[BesideArray, Layout]]:
        """Yield the arrays that tasks write beside this component's, each with its layout."""
        for array, layout in self.variable.arrays_beside:
            if not array.constant:
                yield array, layout

    def owned_keys(self, index: Index) -> Iterator[str]:
        """Yield the keys of all write chunks that a tile writes."""
        chunks = list(self.component.tiling.owned(index))
        if self.step is not None:
            chunks = [(self.step.number, *chunk) for chunk in chunks]
        yield from (self.variable.layout.key(chunk) for chunk in chunks)
        for array, layout in self._beside():
            if array.aligned:
                yield from (layout.key(chunk) for chunk in chunks)
            elif not any(index):
                yield layout.key((0,) * len(layout.shape))

    def missing(self, done: set[str]) -> list[Index]:
        """Return the tiles of which a write chunk is not done."""
        indices = self.component.tiling.indices()
        if not done:
            return list(indices)
        return [
            index for index in indices if any(key not in done for key in self.owned_keys(index))
        ]


def noisy_estimate(
    executor: Executor, work: TileWork, key: ReleaseKey, on_progress: OnProgress
) -> Floats:
    """Return a small noisy answer that decides on how the data are released.

    Its noise is exact and charged, so it is public from here on.

    Args:
        executor: Where tasks run.
        work: The component that is drawn first.
        key: The key of the release.
        on_progress: Called when it is computed.
    """
    [answer] = work.intermediates.answers.values()
    [noisy] = executor.map_unordered(tasks.noisy_answer, [(work.job(key), answer)])
    on_progress(Progress(work.component.name.rpartition(":")[2], 1, 1))
    released: Floats = noisy
    return released


def step_digests(executor: Executor, work: TileWork, key: ReleaseKey) -> dict[Index, str]:
    """Return a keyed digest of what noise will be added to, for every tile of one step.

    Guarantee: a tile whose digest is another one when its noise is drawn is not written.

    Args:
        executor: Where tasks run.
        work: The step.
        key: The key of the release.
    """
    job, answers = work.job(key), work.intermediates.answers
    arguments = ((job, index, answers.get(index)) for index in work.component.tiling.indices())
    digests = dict(executor.map_unordered(tasks.digest_tile, arguments))
    return dict(sorted(digests.items()))


def write(
    executor: Executor,
    works: Sequence[TileWork],
    key: ReleaseKey,
    done: set[str],
    on_progress: OnProgress,
) -> Iterator[jobs.Written]:
    """Release every tile that is not done yet; yield what finished tasks wrote as they come.

    Args:
        executor: Where tasks run.
        works: The variables of the release.
        key: The key of the release.
        done: The keys of write chunks that are staged already.
        on_progress: Called as tasks finish.
    """
    layouts = [layout for work in works for layout in work.variable.layouts]
    total = sum(math.prod(layout.write_chunk_counts) for layout in layouts)
    missing = [(work, work.missing(done)) for work in works]
    finished = total - sum(
        1 for work, indices in missing for index in indices for _ in work.owned_keys(index)
    )
    on_progress(Progress("tiles", finished, total))
    arguments = itertools.chain.from_iterable(
        _arguments(executor, work, key, indices) for work, indices in missing
    )
    for written in executor.map_unordered(tasks.write_tiles, arguments):
        finished += len(written.entries)
        yield written
        on_progress(Progress("tiles", finished, total))


def _arguments(
    executor: Executor, work: TileWork, key: ReleaseKey, missing: list[Index]
) -> Iterator[tuple[jobs.TileJob, *TileArguments]]:
    """Yield the arguments of every tile task of one variable."""
    job = work.job(key)
    for batch in _batches(executor, work, missing):
        yield job, *batch


def _batches(executor: Executor, work: TileWork, missing: list[Index]) -> Iterator[TileArguments]:
    """Yield tiles in tasks: small tiles together, but enough tasks for every thread."""
    answers, clips = work.intermediates.answers, work.intermediates.clips
    if answers:
        for index in missing:
            yield [index], 0, None, answers[index], None
        return
    kept = work.intermediates.kept
    starts = [clip.start for clip in clips]
    threads = executor.concurrency
    for batch in tile_batches(
        work.plan, work.variable, missing, threads=threads, record_starts=starts
    ):
        if batch.record_range is None:
            yield batch.indices, 0, None, None, kept
        else:
            clip = clips[batch.record_range]
            yield batch.indices, clip.start, clip.factors, None, kept


def _per_task(executor: Executor, that_fit: int, count: int) -> int:
    """Return how many of ``count`` pieces of work one task does."""
    evenly = count // (_TASKS_PER_THREAD * executor.concurrency)
    return max(1, min(that_fit, evenly))


def verify(
    executor: Executor,
    works: Sequence[TileWork],
    entries: dict[str, ManifestEntry],
    stamps: dict[str, str],
    earlier: set[str],
    on_progress: OnProgress,
) -> list[str]:
    """Read staged write chunks again; return the keys of those that are missing or damaged.

    What the task that wrote a chunk has read back is not read again while its stamp is the same:
    nobody has written to it since.

    Args:
        executor: Where tasks run.
        works: The variables of the release.
        entries: The manifest entries by key.
        stamps: The stamps of the chunks that were read back, by key.
        earlier: The keys that an earlier run wrote: their digests are computed again too, as are
            those of chunks whose stamps have changed.
        on_progress: Called as tasks finish.
    """
    bad: list[str] = []
    changed = {key for work in works[:1] for key in work.publisher.changed(stamps)}
    intact = stamps.keys() - changed - earlier
    pieces = [
        piece
        for work in works
        for piece in _chunks_to_check(executor, work, entries, earlier | changed, intact)
    ]
    total = sum(len(chunks) for _, _, chunks in pieces)
    if not pieces:
        on_progress(Progress("verify", len(intact), len(intact)))
    for done, keys_of_bad in enumerate(executor.map_unordered(tasks.check_chunks, pieces), 1):
        bad += keys_of_bad
        on_progress(Progress("verify", total * done // len(pieces), total))
    return bad


def _chunks_to_check(
    executor: Executor,
    work: TileWork,
    entries: dict[str, ManifestEntry],
    earlier: set[str],
    intact: set[str],
) -> Iterator[tuple[Publisher, Layout, list[tuple[Index, ManifestEntry, bool]]]]:
    """Yield the staged write chunks of all arrays of a variable in tasks."""
    for layout in work.variable.layouts:
        keys = ((index, layout.key(index)) for index in layout.indices())
        chunks = [(index, entries[key], key in earlier) for index, key in keys if key not in intact]
        that_fit = 4 * work.plan.spec.compute.task_size // max(1, layout.write_chunk_bytes)
        size = _per_task(executor, that_fit, len(chunks))
        for start in range(0, len(chunks), size):
            yield work.publisher, layout, chunks[start : start + size]

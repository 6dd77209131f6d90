"""A plan on a Dask cluster: tiles as bounded futures on one client. Only facts reach the driver.

Un-noised blocks stay inside one task; partial norms and sums pass between tasks, sealed, on workers
that do not spill.
"""

from __future__ import annotations

import contextlib
import queue
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpdask.errors import ClusterError, DpdaskError
from dpdask.execution import tasks
from dpdask.execution.cluster import version
from dpdask.keystream import ReleaseKey
from dpdask.planning import (
    FAN_IN,
    Component,
    ReleasePlan,
    answer_regions,
    needs_norm_pass,
    recipe_digest,
    record_batches,
    tile_batches,
)
from dpdask.planning.tiling import Index
from dpdask.privacy import Adjacency
from dpdask.queries import Clip, SummedQuery
from dpdask.storage import ManifestEntry, Publisher

__all__ = ["OnProgress", "Prepared", "Progress", "compute_directions", "prepare", "verify", "write"]

_PATIENCE = 120  # seconds without a single worker


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is, in write units or tasks."""

    stage: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]
Finished = queue.SimpleQueue[Any]


@dataclass(kw_only=True)
class Prepared:
    """What was computed before anything is charged: clip factors by range of records, and exact
    answers by tile.
    """

    clips: list[tuple[int, int, Any]] = field(default_factory=list)
    answers: dict[Index, Any] = field(default_factory=dict)


def prepare(
    client: Any, plan: ReleasePlan, component: Component, on_progress: OnProgress
) -> Prepared:
    """Check that the source can be read, and compute norms and sums, before the charge."""
    plan.source.check_sizes()
    query = component.query
    prepared = Prepared()
    if needs_norm_pass(component):
        prepared.clips = _clip_factors(client, plan, component, on_progress)
    if isinstance(query, SummedQuery):
        prepared.answers = _answers(client, plan, component, query, prepared, on_progress)
    elif not prepared.clips and not plan.source.plain:
        whole = tuple(slice(0, n) for n in plan.source.shape)
        boxes = list(plan.source.regions(whole, plan.spec.compute.task_size))
        calls = ((tasks.check_source, (plan.source, box)) for box in boxes)
        for done, _ in enumerate(_run(client, calls), 1):
            on_progress(Progress("check source", done, len(boxes)))
    return prepared


def _clip_factors(
    client: Any, plan: ReleasePlan, component: Component, on_progress: OnProgress
) -> list[tuple[int, int, Any]]:
    """Partial norms over regions, added up per range of records, as futures of clip factors."""
    bound = component.query.bound
    assert isinstance(bound, Clip)
    grid = component.privatizer.clip_grid
    if component.exact_sum is not None:
        grid = component.exact_sum.rule().grid
    axis, found, waiting = bound.record_axis, [], []
    for records in record_batches(plan, component, axis):
        region = tuple(
            records if i == axis else slice(0, n) for i, n in enumerate(plan.source.shape)
        )
        parts = [
            _submit(client, tasks.norms_part, plan.source, box, axis, grid)
            for box in plan.source.regions(region, plan.spec.compute.task_size)
        ]
        factors = _submit(client, tasks.clip_part, grid, records, *parts)
        found.append((records.start, records.stop, factors))
        waiting.append(factors)
        if len(waiting) >= 4 * _window(client):
            _settle(client, waiting)
            waiting.clear()
            if not _private_count(component):
                total = -(-plan.source.shape[axis] // (records.stop - records.start))
                on_progress(Progress("norms", len(found), total))
    _settle(client, waiting)
    on_progress(Progress("norms", 1, 1))
    return found


def _private_count(component: Component) -> bool:
    """Whether the number of records is private, so that not even progress may show it."""
    return component.query.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE


def _answers(
    client: Any,
    plan: ReleasePlan,
    component: Component,
    query: SummedQuery,
    prepared: Prepared,
    on_progress: OnProgress,
) -> dict[Index, Any]:
    """Exact sums by tile as futures: partial sums over ranges of records, added up in a tree on the
    workers.
    """
    axis = query.record_axis
    ranges: list[tuple[slice, Any]] = [
        (slice(a, b), future) for a, b, future in prepared.clips
    ] or [(records, None) for records in record_batches(plan, component, axis)]
    regions = answer_regions(component, query)
    answers: dict[Index, Any] = {}
    for done, (index, box) in enumerate(regions, 1):
        parts: list[Any] = []
        for records, factors in ranges:
            parts.append(
                _submit(
                    client,
                    tasks.sum_part,
                    query,
                    component.exact_sum,
                    plan.source,
                    box,
                    records,
                    factors,
                )
            )
            if len(parts) >= FAN_IN * _window(client):
                parts = [_total(client, parts)]
                _settle(client, parts)
        answers[index] = _total(client, parts)
        if done % _window(client) == 0:
            _settle(client, [answers[index]])
            on_progress(Progress("sums", done, len(regions)))
    _settle(client, list(answers.values()))
    on_progress(Progress("sums", len(regions), len(regions)))
    if query.one_pass:
        return dict.fromkeys(component.tiling.indices(), answers[regions[0][0]])
    return answers


def _total(client: Any, parts: list[Any]) -> Any:
    while len(parts) > 1:
        groups = [parts[first : first + FAN_IN] for first in range(0, len(parts), FAN_IN)]
        parts = [_submit(client, tasks.add_up, *group) for group in groups]
    return parts[0]


def compute_directions(
    client: Any,
    plan: ReleasePlan,
    prepared: Prepared,
    key: ReleaseKey,
    staging: Publisher,
    on_progress: OnProgress,
) -> list[list[float]]:
    """The eigenvectors of the DP covariance, one per row, strongest first: public from here on."""
    assert plan.directions is not None
    job = _job(plan, plan.directions, key, staging)
    [answer] = prepared.answers.values()
    [noisy] = _run(client, [(tasks.noisy_answer, (job, answer))])
    _, vectors = np.linalg.eigh(noisy)
    on_progress(Progress("directions", 1, 1))
    found: list[list[float]] = np.ascontiguousarray(vectors[:, ::-1].T).tolist()
    return found


def _job(
    plan: ReleasePlan, component: Component, key: ReleaseKey, staging: Publisher
) -> tasks.TileJob:
    return tasks.TileJob(
        source=plan.source,
        staging=staging,
        layout=plan.layout,
        tiling=component.tiling,
        query=component.query,
        privatizer=component.privatizer,
        exact_sum=component.exact_sum,
        key=key.to_transferable(),
        binding=recipe_digest(plan.fingerprint, component),
        component=component.name,
    )


def write(
    client: Any,
    plan: ReleasePlan,
    component: Component,
    prepared: Prepared,
    key: ReleaseKey,
    staging: Publisher,
    done: set[str],
    on_progress: OnProgress,
) -> Iterator[tasks.Written]:
    """Release every tile that is not done yet; yields what finished tasks wrote as they come."""
    tiling = component.tiling
    total = int(np.prod(plan.layout.write_chunk_counts))
    missing = [
        index
        for index in tiling.indices()
        if not done
        or any(plan.layout.key(chunk_index) not in done for chunk_index in tiling.owned(index))
    ]
    finished = total - sum(1 for index in missing for _ in tiling.owned(index))
    on_progress(Progress("tiles", finished, total))
    job = _job(plan, component, key, staging)
    calls = (
        (tasks.write_tiles, (job, *batch))
        for batch in _batches(client, plan, component, prepared, missing)
    )
    for written in _run(client, calls):
        finished += len(written.entries)
        yield written
        on_progress(Progress("tiles", finished, total))


def _batches(
    client: Any, plan: ReleasePlan, component: Component, prepared: Prepared, missing: list[Index]
) -> Iterator[tuple[Any, ...]]:
    """Yield the arguments of tasks that write tiles (see :func:`tile_batches`)."""
    if prepared.answers:
        for index in missing:
            yield [index], 0, None, prepared.answers[index]
        return
    starts = [start for start, _, _ in prepared.clips]
    threads = _window(client)
    for batch in tile_batches(plan, component, missing, threads=threads, record_starts=starts):
        if batch.record_range is None:
            yield batch.indices, 0, None, None
        else:
            start, _, factors = prepared.clips[batch.record_range]
            yield batch.indices, start, factors, None


def verify(
    client: Any,
    plan: ReleasePlan,
    staging: Publisher,
    entries: dict[str, ManifestEntry],
    earlier: set[str],
    on_progress: OnProgress,
) -> list[str]:
    """Read every staged unit again: the keys of those that are missing or damaged.

    Of those that an ``earlier`` run wrote, the digest is computed again too.
    """
    layout = plan.layout
    keys = ((index, layout.key(index)) for index in layout.indices())
    units = [(index, entries[key], key in earlier) for index, key in keys]
    most = max(
        1,
        min(
            4 * plan.spec.compute.task_size // max(1, layout.write_chunk_bytes),
            len(units) // (4 * _window(client)) or 1,
        ),
    )
    pieces = [units[first : first + most] for first in range(0, len(units), most)]
    bad: list[str] = []
    for done, found in enumerate(
        _run(client, ((tasks.check_chunks, (staging, layout, piece)) for piece in pieces)), 1
    ):
        bad += found
        on_progress(Progress("verify", min(done * most, len(units)), len(units)))
    return bad


def _window(client: Any) -> int:
    """How many tasks may run at once."""
    threads: dict[str, int] = client.nthreads()
    return max(1, sum(threads.values()))


def _submit(client: Any, function: Callable[..., Any], *args: Any) -> Any:
    name = f"{function.__name__}-{uuid.uuid4().hex}"
    return client.submit(
        tasks.run_on_trusted_worker, version(), function, *args, key=name, pure=False, retries=2
    )


def _run(client: Any, calls: Iterable[tuple[Callable[..., Any], tuple[Any, ...]]]) -> Iterator[Any]:
    """Results as they come, with a bounded number of tasks under way; finished ones are forgotten
    at once.
    """
    pending: set[Any] = set()
    finished: Finished = queue.SimpleQueue()
    window = 3 * _window(client)

    def next_result() -> Any:
        future = _next(client, finished)
        pending.discard(future)
        return _result(future)

    try:
        for function, args in calls:
            future = _submit(client, function, *args)
            pending.add(future)
            future.add_done_callback(finished.put)
            while len(pending) >= window:
                yield next_result()
        while pending:
            yield next_result()
    finally:
        if pending:
            client.cancel(list(pending), force=True)


def _settle(client: Any, futures: list[Any]) -> None:
    """Wait for futures whose results stay on the workers; raise the first error."""
    finished: Finished = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(finished.put)
    for _ in futures:
        future = _next(client, finished)
        if future.status != "finished":
            _result(future)


def _next(client: Any, finished: Finished) -> Any:
    """Wait until something is done; give up when no worker has been there for a while.

    ``distributed.wait`` would do, but for that the client must be the process' default, which other
    threads may change.
    """
    idle = 0
    while True:
        with contextlib.suppress(queue.Empty):
            return finished.get(timeout=10)
        idle = 0 if client.nthreads() else idle + 10
        if client.status not in ("running", "connecting") or idle >= _PATIENCE:
            raise ClusterError(
                "the cluster is gone or has no workers left; start it again and `dpdask resume`"
            )


def _result(future: Any) -> Any:
    """A result, or one of our errors; what else went wrong is named by its kind alone."""
    try:
        return future.result()
    except DpdaskError as error:
        kind, text = type(error), str(error)
    except Exception as error:
        kind, text = (
            ClusterError,
            f"a task was lost ({type(error).__name__}); `dpdask resume` tries again",
        )
    raise kind(text)

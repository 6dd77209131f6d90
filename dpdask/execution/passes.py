"""What is computed before the charge: norms of records and exact sums, as handles on the workers.

The driver submits and waits; it never holds an un-noised value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dpdask.errors import ReleaseError
from dpdask.execution import exact_tasks
from dpdask.execution.executors import Executor, Handle
from dpdask.execution.person_clips import clip_people
from dpdask.execution.progress import OnProgress, Progress, no_progress
from dpdask.keystream import ReleaseKey
from dpdask.planning import (
    FAN_IN,
    Component,
    ReleasePlan,
    Variable,
    answer_regions,
    needs_norm_pass,
    record_batches,
)
from dpdask.planning.tiling import Index
from dpdask.privacy import Adjacency
from dpdask.privatizers.grid import Grid
from dpdask.queries import Clip, SummedQuery
from dpdask.storage import SourceArray
from dpdask.types import Region

__all__ = ["ClipFactors", "Intermediates", "check", "check_labels", "prepare"]

_WAIT_EVERY = 4  # times the concurrency: so many ranges of records are in flight


@dataclass(frozen=True, slots=True)
class ClipFactors:
    """The clip factors of the records from ``start`` to ``stop``."""

    start: int
    stop: int
    factors: Handle


@dataclass(frozen=True, slots=True, repr=False)
class Intermediates:
    """What tile tasks need besides the source: clip factors by record, exact answers by tile, and
    which records are kept.
    """

    clips: tuple[ClipFactors, ...] = ()
    answers: dict[Index, Handle] = field(default_factory=dict)
    kept: Handle | None = None

    @property
    def empty(self) -> bool:
        """Whether no pass over the source was needed."""
        return not self.clips and not self.answers


def check(
    executor: Executor, plan: ReleasePlan, variable: Variable, on_progress: OnProgress
) -> None:
    """Read the source through once, where sums wait for the key that selects records.

    Args:
        executor: Where tasks run.
        plan: What was planned.
        variable: The data.
        on_progress: Called when all is read.

    Raises:
        StoreError: A part of the source cannot be read or decoded.
    """
    source = variable.source
    source.check_sizes()
    if not source.plain and source.entry_bytes:  # a table has nothing but labels
        _check_source(executor, plan, source, no_progress)
    check_labels(executor, plan, variable)
    on_progress(Progress("check source", 1, 1))  # the number of records may be private


def check_labels(executor: Executor, plan: ReleasePlan, variable: Variable) -> None:
    """Read the labels of all records once, where sums wait for the key.

    Raises:
        StoreError: They cannot be read.
    """
    source, axis = variable.source, variable.query.units_axis
    if not variable.query.labels or axis is None:
        return
    ranges = record_batches(plan, variable, axis)
    for _ in executor.map_unordered(
        exact_tasks.check_labels, ((source, records) for records in ranges)
    ):
        pass


def prepare(
    executor: Executor,
    plan: ReleasePlan,
    variable: Variable,
    on_progress: OnProgress,
    kept: Handle | None = None,
    key: ReleaseKey | None = None,
) -> Intermediates:
    """Check that the source can be read, and compute norms and sums.

    Args:
        executor: Where tasks run.
        plan: What was planned.
        variable: The data, or what is drawn before them.
        on_progress: Called as tasks finish.
        kept: The bitmap of the records that count; None for all.
        key: The release key, where records are clipped by person.

    Raises:
        StoreError: A part of the source cannot be read or decoded.
    """
    variable.source.check_sizes()
    query = variable.query
    if query.people is not None and query.people.limited and kept is None:
        raise ReleaseError("records of people are selected before they are summed; do that first")
    clips: tuple[ClipFactors, ...] = ()
    if query.people is not None and query.people.clipped:
        if key is None:
            raise ReleaseError("people are clipped by a key that exists after the charge")
        of_people = clip_people(executor, plan, variable, _clip_grid(variable), key, kept)
        clips = tuple(ClipFactors(own.start, own.stop, handle) for own, handle in of_people)
        on_progress(Progress("norms", 1, 1))
    elif needs_norm_pass(variable.component):
        clips = _clip_factors(executor, plan, variable, on_progress)
    if isinstance(query, SummedQuery):
        ranges = _record_ranges(plan, variable, query.record_axis, clips)
        answers = _answers(executor, variable, query, ranges, on_progress, kept)
        return Intermediates(clips, answers, kept)
    if not clips and not variable.source.plain and kept is None:  # else it was checked before
        _check_source(executor, plan, variable.source, on_progress)
    return Intermediates(clips, kept=kept)


def _check_source(
    executor: Executor, plan: ReleasePlan, source: SourceArray, on_progress: OnProgress
) -> None:
    """Decode the whole source once: where chunks are encoded, decoding is what can fail."""
    whole = tuple(slice(0, n) for n in source.shape)
    regions = list(source.regions(whole, plan.spec.compute.task_size))
    arguments = ((source, region) for region in regions)
    for done, _ in enumerate(executor.map_unordered(exact_tasks.check_source, arguments), 1):
        on_progress(Progress("check source", done, len(regions)))


def _clip_factors(
    executor: Executor, plan: ReleasePlan, variable: Variable, on_progress: OnProgress
) -> tuple[ClipFactors, ...]:
    """Compute partial norms over regions, add them up per range of records, keep clip factors."""
    source, component, bound = variable.source, variable.component, variable.query.bound
    assert isinstance(bound, Clip)
    axis = bound.record_axis
    grid = _clip_grid(variable)
    batches = record_batches(plan, variable, axis)
    clips: list[ClipFactors] = []
    waiting: list[Handle] = []
    for records in batches:
        region = _whole_but(source.shape, axis, records)
        parts = [
            executor.submit(exact_tasks.norms_part, source, part, bound, grid)
            for part in source.regions(region, plan.spec.compute.task_size)
        ]
        factors = executor.submit(exact_tasks.clip_part, grid, records, *parts)
        clips.append(ClipFactors(records.start, records.stop, factors))
        waiting.append(factors)
        if len(waiting) >= _WAIT_EVERY * executor.concurrency:
            executor.wait(waiting)
            waiting.clear()
            if not _count_is_private(component):
                on_progress(Progress("norms", len(clips), len(batches)))
    executor.wait(waiting)
    on_progress(Progress("norms", 1, 1))
    return tuple(clips)


def _clip_grid(variable: Variable) -> Grid:
    """Return the grid on which records are clipped."""
    component = variable.component
    grid = component.privatizer.clip_grid
    if component.exact_sum is not None:
        grid = component.exact_sum.rule().grid
    if grid is None:
        raise ReleaseError("records that are clipped have a grid; discretize the query first")
    return grid


def _whole_but(shape: tuple[int, ...], axis: int, records: slice) -> Region:
    """Return the region of some records: whole along every axis but the record axis."""
    return tuple(records if i == axis else slice(0, n) for i, n in enumerate(shape))


def _count_is_private(component: Component) -> bool:
    """Return whether the number of records is private, so that not even progress may show it."""
    return component.query.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE


def _record_ranges(
    plan: ReleasePlan, variable: Variable, axis: int, clips: tuple[ClipFactors, ...]
) -> list[tuple[slice, Handle | None]]:
    """Return the ranges that partial sums are over, each with its clip factors, if any."""
    if clips:
        return [(slice(clip.start, clip.stop), clip.factors) for clip in clips]
    return [(records, None) for records in record_batches(plan, variable, axis)]


def _answers(
    executor: Executor,
    variable: Variable,
    query: SummedQuery,
    ranges: list[tuple[slice, Handle | None]],
    on_progress: OnProgress,
    kept: Handle | None,
) -> dict[Index, Handle]:
    """Compute exact sums by tile, or all of the answer in one pass where the query counts so."""
    regions = answer_regions(variable.component, query)
    answers: dict[Index, Handle] = {}
    for done, (index, region) in enumerate(regions, 1):
        answers[index] = _sum_over(executor, variable, region, ranges, kept)
        if done % executor.concurrency == 0:
            executor.wait([answers[index]])
            on_progress(Progress("sums", done, len(regions)))
    executor.wait(list(answers.values()))
    on_progress(Progress("sums", len(regions), len(regions)))
    if not query.one_pass:
        return answers
    [counts] = answers.values()
    return dict.fromkeys(variable.component.tiling.indices(), counts)


def _sum_over(
    executor: Executor,
    variable: Variable,
    region: Region,
    ranges: list[tuple[slice, Handle | None]],
    kept: Handle | None,
) -> Handle:
    """Add partial sums over ranges of records in a tree on the workers, so many at once."""
    parts: list[Handle] = []
    shared = (variable.query, variable.component.exact_sum, variable.source, region)
    for records, factors in ranges:
        parts.append(executor.submit(exact_tasks.sum_part, *shared, records, factors, kept))
        if len(parts) >= FAN_IN * executor.concurrency:
            parts = [_total(executor, parts)]
            executor.wait(parts)
    return _total(executor, parts)


def _total(executor: Executor, parts: list[Handle]) -> Handle:
    while len(parts) > 1:
        groups = [parts[start : start + FAN_IN] for start in range(0, len(parts), FAN_IN)]
        parts = [executor.submit(exact_tasks.add_up, *group) for group in groups]
    return parts[0]

"""How records and tiles become tasks: the one place that the memory model and the driver read.

A partition never changes a released byte: the noise of a tile follows from its index, and exact
sums are integers, which are added in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpdask.planning.tiling import Index
from dpdask.queries import Clip, SummedQuery
from dpdask.types import Region

if TYPE_CHECKING:
    from dpdask.planning.plan import Component, ReleasePlan, Variable
    from dpdask.storage import LabelArray, SourceArray

__all__ = [
    "CANDIDATE_BYTES",
    "FACTOR_BYTES",
    "FAN_IN",
    "SELECTING_BYTES",
    "SelectionRounds",
    "TileBatch",
    "answer_regions",
    "needs_norm_pass",
    "person_batches",
    "record_batches",
    "records_at_once",
    "tile_batches",
    "tile_bytes",
]

FAN_IN = 8  # partial sums that one task adds
CANDIDATE_BYTES = 32  # of a record that may be kept: a digest, a priority, an index
FACTOR_BYTES = 16  # of a record's clip factor on its way: an index, and the factor
SELECTING_BYTES = 128  # of such a record while it is compared: sorted copies, and their order
_TASKS_WAITING = 16  # tasks' sizes of records that may be kept, in one round
_TASKS_PER_THREAD = 4  # at least, so that no thread waits for the last large task
_TILES_OF_TASK = 8  # sizes of a task: its tiles come one after the other


@dataclass(frozen=True, slots=True)
class TileBatch:
    """Tiles that one task writes, and the range of records (by position) that they lie in."""

    indices: list[Index]
    record_range: int | None


def needs_norm_pass(component: Component) -> bool:
    """Return whether records reach beyond one tile, so that norms need a pass of their own."""
    query = component.query
    if not isinstance(query.bound, Clip):
        return False
    if query.people is not None and query.people.clipped:  # records of a person lie anywhere
        return True
    if query.summed:
        return component.tiling.count > 1
    extent, shape = component.tiling.extent, query.source_shape
    return any(
        extent[axis] != shape[axis] for axis in range(len(shape)) if axis != query.bound.record_axis
    )


def records_at_once(plan: ReleasePlan, variable: Variable, axis: int) -> int:
    """Return how many records one task bounds or sums: whole chunks or tiles, about a task's size.

    Args:
        plan: The release, for its size of a task.
        variable: The source whose records are read, and their answer.
        axis: The axis of the source along which records lie.
    """
    source, tiling = variable.source, variable.component.tiling
    step = source.chunks[axis] if variable.query.summed else tiling.extent[axis]
    steps = plan.spec.compute.task_size // max(1, _record_bytes(source, axis) * step)
    return max(1, steps) * step


def person_batches(plan: ReleasePlan, variable: Variable, axis: int) -> list[slice]:
    """Return ranges of records whose factors are computed at once, with those of others of the same
    people: whole chunks or tiles, as few as fit a task.

    Args:
        plan: The release, for its size of a task.
        variable: The source whose records are clipped by person.
        axis: The axis of the source along which records lie.
    """
    source, tiling = variable.source, variable.component.tiling
    step = source.chunks[axis] if variable.query.summed else tiling.extent[axis]
    that_fit = max(1, plan.spec.compute.task_size // SELECTING_BYTES // step) * step
    many, count = min(that_fit, records_at_once(plan, variable, axis)), source.shape[axis]
    return [slice(first, min(first + many, count)) for first in range(0, max(1, count), many)]


def record_batches(plan: ReleasePlan, variable: Variable, axis: int) -> list[slice]:
    """Return ranges of records of about the size of a task; without records one empty range.

    Args:
        plan: The release, for its size of a task.
        variable: The source whose records are read, and their answer.
        axis: The axis of the source along which records lie.
    """
    many, count = records_at_once(plan, variable, axis), variable.source.shape[axis]
    return [slice(first, min(first + many, count)) for first in range(0, max(1, count), many)]


@dataclass(frozen=True, slots=True)
class SelectionRounds:
    """How records are selected by person: read in ranges, compared in buckets, some at a time.

    Args:
        ranges: The ranges of records that tasks read.
        buckets: How many buckets people are distributed to.
        rounds: Which of them are compared in one pass over all ranges.
    """

    ranges: list[slice]
    buckets: int
    rounds: list[range]

    @classmethod
    def of(cls, plan: ReleasePlan, ids: LabelArray) -> SelectionRounds:
        """Return the ranges and buckets of a release with ids."""
        size = plan.spec.compute.task_size
        many = max(1, size // SELECTING_BYTES)
        step = max(1, many // ids.chunk) * ids.chunk
        ranges = [
            slice(first, min(first + step, ids.length))
            for first in range(0, max(1, ids.length), step)
        ]
        buckets = max(1, -(-ids.length // many))
        at_once = max(1, _TASKS_WAITING * size // (CANDIDATE_BYTES * many))
        rounds = [
            range(first, min(first + at_once, buckets)) for first in range(0, buckets, at_once)
        ]
        return cls(ranges, buckets, rounds)


def answer_regions(component: Component, query: SummedQuery) -> list[tuple[Index, Region]]:
    """Return the regions of an answer that are summed in one pass, each with the index of its tile.

    A query that counts all of its answer in one pass has a single region: all of it.
    """
    if query.one_pass:
        whole = tuple(slice(0, size) for size in query.answer_shape)
        return [((0,) * len(whole), whole)]
    return [(index, component.tiling.box(index)) for index in component.tiling.indices()]


def tile_bytes(variable: Variable) -> int:
    """Return the bytes of the input and output of one tile, and of the copies its noise needs."""
    component = variable.component
    item = np.dtype(variable.layout.dtype).itemsize + variable.source.working_dtype.itemsize
    fused = component.privatizer.fused and not component.query.summed
    copies = 0 if fused else 24
    copies += 8 * (3 + len(component.layers)) if component.layers else 0
    level = component.noise_level
    copies += 0 if level is None or level.small else 40  # the noise of every entry of the tile
    return math.prod(component.tiling.extent) * (item + copies)


def tile_batches(
    plan: ReleasePlan,
    variable: Variable,
    missing: Sequence[Index],
    *,
    threads: int,
    record_starts: Sequence[int] = (),
) -> Iterator[TileBatch]:
    """Yield tiles in tasks: several, one after the other, but enough tasks for all threads.

    A task costs the scheduler a few milliseconds; what it has done counts when it ends.

    Args:
        plan: The release, for its size of a task.
        variable: The answer that is written.
        missing: The tiles to write.
        threads: How many tasks run at once.
        record_starts: Where ranges of records with common clip factors begin; the tiles of a task
            then lie in one range. Empty where tiles hold whole records.
    """
    most = max(1, _TILES_OF_TASK * plan.spec.compute.task_size // max(1, tile_bytes(variable)))
    most = max(1, min(most, len(missing) // (_TASKS_PER_THREAD * threads)))
    for record_range, indices in _by_record_range(
        variable.component, missing, record_starts
    ).items():
        for first in range(0, len(indices), most):
            yield TileBatch(indices[first : first + most], record_range)


def _by_record_range(
    component: Component, missing: Sequence[Index], starts: Sequence[int]
) -> dict[int | None, list[Index]]:
    """Group tiles by the range of records that they lie in."""
    bound = component.query.bound
    if not starts or not isinstance(bound, Clip):
        return {None: list(missing)}
    grouped: dict[int | None, list[Index]] = {}
    for index in missing:
        record = component.tiling.box(index)[bound.record_axis].start
        position = int(np.searchsorted(starts, record, side="right")) - 1
        grouped.setdefault(position, []).append(index)
    return grouped


def _record_bytes(source: SourceArray, axis: int) -> int:
    """Return the bytes of one record of the source, and of its labels."""
    entries = math.prod(size for other, size in enumerate(source.shape) if other != axis)
    return entries * source.entry_bytes + source.label_entry_bytes

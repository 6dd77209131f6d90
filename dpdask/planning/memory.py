"""What one worker holds at most: a task per thread, and what waits for later tasks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpdask.planning.partition import (
    CANDIDATE_BYTES,
    FACTOR_BYTES,
    FAN_IN,
    SELECTING_BYTES,
    SelectionRounds,
    person_batches,
    records_at_once,
    tile_bytes,
)
from dpdask.queries import SummedQuery

if TYPE_CHECKING:
    from dpdask.planning.plan import Component, ReleasePlan, Variable
    from dpdask.storage import LabelArray, Layout

__all__ = ["worker_bytes"]

# the interpreter, libraries, compiled kernels, and a driver in the same process
_BASE = 380 * 10**6


def worker_bytes(plan: ReleasePlan) -> int:
    """Return the peak memory of one worker, in bytes.

    What waits for later tasks waits for all variables at once.
    """
    together = [plan.variables]
    if plan.estimated:
        together.append(plan.estimated)
    selecting = 0 if plan.ids is None else _selecting(plan, plan.ids)
    return (
        _BASE
        + selecting
        + max(
            sum(_waiting(plan, variable) for variable in variables)
            + plan.threads * max(_task_bytes(plan, variable) for variable in variables)
            for variables in together
        )
    )


def _selecting(plan: ReleasePlan, ids: LabelArray) -> int:
    """Return what selecting records by person takes: those of one round, tasks, and bitmaps."""
    rounds = SelectionRounds.of(plan, ids)
    records: int = max(part.stop - part.start for part in rounds.ranges)
    at_once: int = min(ids.length, len(rounds.rounds[0]) * -(-ids.length // rounds.buckets))
    task = records * SELECTING_BYTES + ids.reading_bytes(records)
    first = plan.variables[0]
    if first.query.people is not None and first.query.people.distinct:
        assert isinstance(first.query, SummedQuery)
        region = first.query.region(records)
        task += first.source.decoding_bytes(region) + 8 * math.prod(region)
        task += first.source.label_bytes(records) + first.query.summing_bytes(records)
    waiting = CANDIDATE_BYTES * at_once + (FAN_IN + 1) * -(-ids.length // 8)
    if first.query.people is not None and first.query.people.clipped:
        waiting += 8 * ids.length + FACTOR_BYTES * at_once  # what records add, and their factors
        task = max(task, SELECTING_BYTES * max(_clipped_at_once(plan, v) for v in plan.variables))
    return waiting + plan.threads * task


def _clipped_at_once(plan: ReleasePlan, variable: Variable) -> int:
    """Return how many records one task clips by person."""
    axis = variable.query.units_axis or 0
    many: int = max(part.stop - part.start for part in person_batches(plan, variable, axis))
    return many


def _task_bytes(plan: ReleasePlan, variable: Variable) -> int:
    """Return the bytes of the largest task: a tile, a part of the source, or a partial sum."""
    source, query = variable.source, variable.query
    tile = tile_bytes(variable) + _padding_bytes(variable.layout)
    if not isinstance(query, SummedQuery):
        extent = variable.component.tiling.extent
        return max(source.piece_bytes, tile + source.decoding_bytes(extent))
    records = min(records_at_once(plan, variable, query.record_axis), max(1, query.records))
    region = query.region(records)
    summing = query.summing_bytes(records) + source.label_bytes(records)
    partial = 8 * _summed_at_once(variable.component, query)
    beside = max(source.decoding_bytes(region), summing) + partial
    return max(source.piece_bytes, tile, math.prod(region) * source.working_dtype.itemsize + beside)


def _summed_at_once(component: Component, query: SummedQuery) -> int:
    """Return how many numbers one partial sum holds: those of a tile, or all."""
    return math.prod(query.answer_shape if query.one_pass else component.tiling.extent)


def _padding_bytes(layout: Layout) -> int:
    """Return the bytes of a write chunk that reaches beyond the result, plain and encoded."""
    beyond = any(u > n for u, n in zip(layout.write_chunk, layout.shape, strict=True))
    return 2 * layout.write_chunk_bytes if beyond else 0


def _waiting(plan: ReleasePlan, variable: Variable) -> int:
    """Return the bytes of clip factors, exact answers, and partial sums of one region."""
    query, exact_sum = variable.query, variable.component.exact_sum
    waiting = 0
    axis = None if query.bound is None else query.bound.record_axis
    if axis is not None:
        waiting += 8 * variable.source.shape[axis]
    if exact_sum is not None and isinstance(query, SummedQuery):
        partial = FAN_IN * plan.threads * _summed_at_once(variable.component, query)
        waiting += 8 * exact_sum.words * (math.prod(query.answer_shape) + partial)
    return waiting

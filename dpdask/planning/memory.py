"""What one worker holds at most: a task per thread, and what waits for later tasks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpdask.planning.partition import FAN_IN, records_at_once, tile_bytes
from dpdask.queries import SummedQuery

if TYPE_CHECKING:
    from dpdask.planning.plan import Component, ReleasePlan

__all__ = ["worker_bytes"]

# the interpreter, libraries, compiled kernels, and a driver in the same process
_BASE = 380 * 10**6


def worker_bytes(plan: ReleasePlan) -> int:
    """Return the peak memory of one worker, in bytes."""
    components = [plan.data] if plan.directions is None else [plan.directions, plan.data]
    return _BASE + max(
        _waiting(plan, part) + plan.threads * _task_bytes(plan, part) for part in components
    )


def _task_bytes(plan: ReleasePlan, component: Component) -> int:
    """Return the bytes of the largest task: a tile, a part of the source, or a partial sum."""
    source, query = plan.source, component.query
    tile = tile_bytes(plan, component) + _padding_bytes(plan)
    if not isinstance(query, SummedQuery):
        return max(source.piece_bytes, tile + source.decoding_bytes(component.tiling.extent))
    records = min(records_at_once(plan, component, query.record_axis), max(1, query.records))
    region = query.region(records)
    beside = max(source.decoding_bytes(region), query.summing_bytes(records))
    return max(source.piece_bytes, tile, math.prod(region) * source.working_dtype.itemsize + beside)


def _padding_bytes(plan: ReleasePlan) -> int:
    """Return the bytes of a write chunk that reaches beyond the result, plain and encoded."""
    layout = plan.layout
    beyond = any(u > n for u, n in zip(layout.write_chunk, layout.shape, strict=True))
    return 2 * layout.write_chunk_bytes if beyond else 0


def _waiting(plan: ReleasePlan, component: Component) -> int:
    """Return the bytes of clip factors, exact answers, and partial sums of one tile."""
    query = component.query
    waiting = 0
    axis = None if query.bound is None else query.bound.record_axis
    if axis is not None:
        waiting += 8 * plan.source.shape[axis]
    if component.exact_sum is not None:
        partial = FAN_IN * plan.threads * math.prod(component.tiling.extent)
        waiting += 8 * component.exact_sum.words * (math.prod(query.answer_shape) + partial)
    return waiting

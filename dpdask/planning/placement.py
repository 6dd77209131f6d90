"""Where the tasks of a release run, if its spec leaves that open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdask.spec.release import AUTO, INLINE, LOCAL, ComputeSection

if TYPE_CHECKING:
    from dpdask.planning.plan import ReleasePlan

__all__ = ["placed"]

_TINY = 8 * 2**20  # bytes that are released sooner than a cluster starts


def placed(plan: ReleasePlan) -> ComputeSection:
    """Return where tasks run: ``auto`` is ``inline`` for tiny releases, else ``local``.

    A spec that asks for threads, workers or memory gets a cluster. Where tasks run changes no byte
    and is published nowhere.
    """
    compute = plan.spec.compute
    if compute.cluster != AUTO:
        return compute
    open_choice = compute.threads is None and compute.memory is None and compute.workers == 1
    released = sum(layout.total_bytes for layout in plan.layouts)
    tiny = open_choice and max(plan.source_bytes, released) <= _TINY
    return compute.model_copy(update={"cluster": INLINE if tiny else LOCAL})

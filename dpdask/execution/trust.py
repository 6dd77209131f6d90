"""Whether a Dask worker may see raw values and keys; checked on the worker, for every task."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Protocol, TypeVar, cast

from dpdask.errors import ClusterError

__all__ = ["run_on_trusted_worker", "trust_violation"]

R = TypeVar("R")


class _MemoryManager(Protocol):
    """What is used of the memory manager of a Dask worker; attributes differ between versions."""

    memory_limit: int | None


class DaskWorker(Protocol):
    """What is used of ``distributed.Worker``."""

    @property
    def memory_manager(self) -> _MemoryManager:
        """What decides when the worker spills."""


def trust_violation(version: str, dask_worker: DaskWorker) -> str | None:
    """Return why a worker must not see data, None if it may. Dask passes the worker.

    It must run the same dpdask, and must not move its memory to disk.
    """
    installed = importlib.metadata.version("dpdask")
    if installed != version:
        return (
            f"a worker runs dpdask {installed}, this is {version}; install the same version"
            " everywhere"
        )
    memory = dask_worker.memory_manager
    fractions = [getattr(memory, f"memory_{name}_fraction", True) for name in ("target", "spill")]
    limited = getattr(memory, "memory_limit", True)  # without a limit nothing is spilled
    if limited and any(fractions):
        return (
            "a worker may spill to disk, where raw values would stay; set"
            " distributed.worker.memory.target and .spill to false in its Dask configuration"
        )
    return None


def run_on_trusted_worker(version: str, function: Callable[..., R], *args: object) -> R:
    """Run a task, unless the worker, which may have joined late, must not see data."""
    from distributed import get_worker

    worker = get_worker()
    if getattr(worker, "dpdask_trusted", None) != version:
        violation = trust_violation(version, cast("DaskWorker", worker))
        if violation is not None:
            raise ClusterError(violation)
        worker.dpdask_trusted = version  # type: ignore[attr-defined]
    return function(*args)

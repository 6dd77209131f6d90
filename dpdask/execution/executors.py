"""Where tasks run: on a Dask cluster, or inline in this process.

The driver submits tasks and waits for them. Results stay where they were computed (a
:class:`Handle`), unless :meth:`Executor.map_unordered` returns them: use that for tasks whose
results are public or tiny.
"""

from __future__ import annotations

import abc
import contextlib
import queue
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import TypeVar, cast

from dpdask.errors import ClusterError, ClusterUnavailable, redact_exceptions
from dpdask.execution import cluster
from dpdask.execution.cluster import Connection, DaskClient, DaskFuture, version
from dpdask.execution.trust import run_on_trusted_worker
from dpdask.spec.release import INLINE, ComputeSection

__all__ = ["DaskExecutor", "Executor", "Handle", "InlineExecutor", "connect"]

R = TypeVar("R")

_POLL_SECONDS = 10
_LEAST_PATIENCE = 30.0  # seconds without a single worker
_TASKS_PER_THREAD = 3  # in flight, so that no thread waits for the driver
_RETRIES = 2  # of a task whose worker was lost

Handle = object
"""A result that stays where it was computed; only its executor looks inside."""


class Executor(abc.ABC):
    """Runs the tasks of :mod:`dpdask.execution.tasks`."""

    most_source_bytes: int | None = None
    """The largest source that may be released here, None for any."""

    @property
    @abc.abstractmethod
    def concurrency(self) -> int:
        """How many tasks may run at once."""

    @property
    @abc.abstractmethod
    def shares_memory(self) -> bool:
        """Whether tasks run in this process, and so reach its ``memory://`` stores."""

    @abc.abstractmethod
    def renew(self) -> None:
        """Make it usable again after it was lost; every handle is worthless from then on.

        Raises:
            ClusterUnavailable: It does not answer yet.
        """

    @abc.abstractmethod
    def submit(self, function: Callable[..., object], *args: object) -> Handle:
        """Start a task; arguments may be handles of earlier ones."""

    @abc.abstractmethod
    def wait(self, handles: Sequence[Handle]) -> None:
        """Wait until all are computed, without fetching them; raise the first error."""

    @abc.abstractmethod
    def map_unordered(
        self, function: Callable[..., R], arguments: Iterable[tuple[object, ...]]
    ) -> Iterator[R]:
        """Yield the results of one task for each tuple of arguments, as they come."""


class DaskExecutor(Executor):
    """Tasks on the workers of a Dask cluster.

    Guarantee: every task checks, on its worker, that the worker runs this version of dpdask and
    never spills to disk, before it sees data.
    """

    def __init__(self, connection: Connection, compute: ComputeSection) -> None:
        self._connection = connection
        self._patience = max(_LEAST_PATIENCE, compute.patience)
        self._task_deadline = compute.task_deadline

    @property
    def _client(self) -> DaskClient:
        return self._connection.client

    def renew(self) -> None:
        """Connect again; results that workers held are gone."""
        self._connection.renew()

    @property
    def concurrency(self) -> int:
        """The number of threads of all workers."""
        return max(1, sum(self._client.nthreads().values()))

    @property
    def shares_memory(self) -> bool:
        """Whether the scheduler, and so its only worker, is in this process."""
        return self._client.scheduler.address.startswith("inproc://")

    def submit(self, function: Callable[..., object], *args: object) -> Handle:
        """Start a task under a key that is used once: nothing is ever taken from a cache."""
        return self._submit(function, *args)

    def wait(self, handles: Sequence[Handle]) -> None:
        """Wait for futures whose results stay on the workers."""
        finished: queue.SimpleQueue[DaskFuture] = queue.SimpleQueue()
        for handle in handles:
            cast("DaskFuture", handle).add_done_callback(finished.put)
        for _ in handles:
            future = self._next(finished)
            if future.status != "finished":
                _result(future)

    def map_unordered(
        self, function: Callable[..., R], arguments: Iterable[tuple[object, ...]]
    ) -> Iterator[R]:
        """Keep a bounded number of tasks in flight; forget each as soon as it is done."""
        pending: set[DaskFuture] = set()
        finished: queue.SimpleQueue[DaskFuture] = queue.SimpleQueue()
        most = _TASKS_PER_THREAD * self.concurrency

        def next_result() -> R:
            future = self._next(finished)
            pending.discard(future)
            return cast("R", _result(future))

        try:
            for args in arguments:
                future = self._submit(function, *args)
                pending.add(future)
                future.add_done_callback(finished.put)
                while len(pending) >= most:
                    yield next_result()
            while pending:
                yield next_result()
        finally:
            if pending:
                self._client.cancel(list(pending), force=True)

    def _submit(self, function: Callable[..., object], *args: object) -> DaskFuture:
        return _submitted(self._client, run_on_trusted_worker, version(), function, *args)

    def _next(self, finished: queue.SimpleQueue[DaskFuture]) -> DaskFuture:
        """Wait until a task is done; raise when none is for too long, or there is no worker.

        ``distributed.wait`` needs the client to be the default one of the process, which other
        threads may change.
        """
        waited = idle = 0
        while True:
            with contextlib.suppress(queue.Empty):
                return finished.get(timeout=_POLL_SECONDS)
            waited += _POLL_SECONDS
            idle = 0 if _workers(self._client) else idle + _POLL_SECONDS
            if self._client.status not in ("running", "connecting"):
                raise ClusterUnavailable("the cluster is gone; start it again and `dpdask resume`")
            if idle >= self._patience:
                raise ClusterUnavailable(
                    f"the cluster has had no workers left for {idle} s; start some and `dpdask"
                    " resume`"
                )
            if waited >= self._task_deadline:
                raise ClusterUnavailable(
                    f"no task of the cluster finished for {waited} s; look at its workers and"
                    " `dpdask resume`, or raise compute.task_deadline"
                )


_lost = redact_exceptions(
    ClusterUnavailable,
    "the cluster lost a task ({kind}): its scheduler or a worker went away; `dpdask resume` tries"
    " again",
    (CancelledError, OSError, TimeoutError),
)
_failed = redact_exceptions(ClusterError, "a task was lost ({kind}); `dpdask resume` tries again")


@_failed
@_lost
def _result(future: DaskFuture) -> object:
    """Return a result, or raise one of our errors."""
    return future.result()


@_failed
@_lost
def _submitted(client: DaskClient, function: Callable[..., object], *args: object) -> DaskFuture:
    """Start a task under a key that is used once."""
    return client.submit(
        function,
        *args,
        key=f"{getattr(args[1], '__name__', 'task')}-{uuid.uuid4().hex}",
        pure=False,
        retries=_RETRIES,
    )


def _workers(client: DaskClient) -> int:
    """Return how many workers there are; a scheduler that does not answer has none."""
    try:
        return len(client.nthreads())
    except Exception:
        return 0


class _InlineHandle:
    """A result of an inline task; its printed form says nothing of it."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<InlineHandle>"


class InlineExecutor(Executor):
    """The same tasks one after the other in this process, without Dask.

    For tests and tiny releases: everything a task computes is held by this process, so sources
    above :attr:`most_source_bytes` are refused.
    """

    most_source_bytes = 64 * 2**20

    @property
    def concurrency(self) -> int:
        """One task at a time."""
        return 1

    @property
    def shares_memory(self) -> bool:
        """Tasks run in this process."""
        return True

    def renew(self) -> None:
        """Return at once: this process is here."""

    def submit(self, function: Callable[..., object], *args: object) -> Handle:
        """Run a task now."""
        return _InlineHandle(_call(function, args))

    def wait(self, handles: Sequence[Handle]) -> None:
        """Return at once: an inline task is done when it was submitted."""

    def map_unordered(
        self, function: Callable[..., R], arguments: Iterable[tuple[object, ...]]
    ) -> Iterator[R]:
        """Run one task at a time, when its result is wanted."""
        for args in arguments:
            yield _call(function, args)


def _call(function: Callable[..., R], args: tuple[object, ...]) -> R:
    """Call a task with the values of the handles among its arguments."""
    values = (arg.value if isinstance(arg, _InlineHandle) else arg for arg in args)
    return function(*values)


@contextlib.contextmanager
def connect(compute: ComputeSection, client: DaskClient | None = None) -> Iterator[Executor]:
    """Open the executor that ``compute.cluster`` names, or one on the caller's own client.

    Guarantee: a cluster is checked for trust before it is used.
    """
    if client is None and compute.cluster == INLINE:
        yield InlineExecutor()
        return
    with cluster.connect(compute, client) as connection:
        yield DaskExecutor(connection, compute)

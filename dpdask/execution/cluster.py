"""Which cluster: the one that a spec names, or the caller's own, and whether it may see raw values
and keys.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import ipaddress
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import resource_tracker
from typing import Protocol, cast
from urllib.parse import urlsplit

from dpdask.errors import ClusterError, ClusterUnavailable, redact_exceptions
from dpdask.execution.trust import trust_violation
from dpdask.patience import Patience
from dpdask.signals import children_without_ctrl_c, signals_deferred
from dpdask.spec.release import AUTO, LOCAL, ComputeSection, TlsSection

__all__ = ["Connection", "DaskClient", "DaskFuture", "connect", "version"]

_NEVER_SPILL = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
_UNREACHABLE = (ValueError, TypeError, RuntimeError)
_CONNECT_SECONDS = 10
_WORKERS_SECONDS = 60
_WORKER_TTL = {"distributed.scheduler.worker-ttl": "60s"}
_LOOPBACK_SCHEMES = ("tcp", "ws")
_PRIVATE_SCHEMES = ("inproc", "tls", "wss")
_configuring = threading.Lock()


class DaskFuture(Protocol):
    """What is used of ``distributed.Future``."""

    @property
    def status(self) -> str:
        """How far the task is: ``finished`` when its result can be used."""

    def result(self) -> object:
        """Fetch the result, or raise the task's error."""

    def add_done_callback(self, callback: Callable[[DaskFuture], None], /) -> None:
        """Call back when the task is done."""


class DaskScheduler(Protocol):
    """What is used of ``distributed.Client.scheduler``."""

    @property
    def address(self) -> str:
        """The scheduler's address, with its scheme."""


class DaskCluster(Protocol):
    """What a cluster factory must return."""

    @property
    def scheduler_address(self) -> str:
        """The scheduler's address, with its scheme."""

    def close(self) -> None:
        """Stop the cluster."""


class DaskClient(Protocol):
    """What is used of ``distributed.Client``."""

    @property
    def scheduler(self) -> DaskScheduler:
        """The connected scheduler."""

    @property
    def status(self) -> str:
        """Whether the client is connected."""

    def submit(
        self, function: Callable[..., object], /, *args: object, key: str, pure: bool, retries: int
    ) -> DaskFuture:
        """Start a task."""

    def nthreads(self) -> Mapping[str, int]:
        """Return the threads of each worker."""

    def cancel(self, futures: Sequence[DaskFuture], *, force: bool) -> object:
        """Forget tasks."""

    def run(self, function: Callable[..., object], /, *args: object) -> Mapping[str, object]:
        """Call a function on every worker."""

    def wait_for_workers(self, n_workers: int, *, timeout: float) -> object:
        """Wait until there are so many workers."""


class Connection:
    """A client of the cluster that ``compute`` names, or the caller's own.

    Guarantee: it encrypts or stays on this machine, its workers run this version of dpdask, and
    none of them spills to disk.
    """

    def __init__(self, compute: ComputeSection, own: DaskClient | None) -> None:
        self._compute = compute
        self._own = own
        self._stack = contextlib.ExitStack()
        self.client = self._open()

    def _open(self) -> DaskClient:
        if self._own is not None:
            _check_trust(self._own.scheduler.address, self._compute)
            _check_workers(self._own)
            return self._own
        with contextlib.ExitStack() as stack:
            client = _open_client(self._compute, stack)
            _check_workers(client)
            self._stack = stack.pop_all()
        return client

    def renew(self) -> None:
        """Connect again after the cluster was lost; nothing is left of what it held.

        Raises:
            ClusterUnavailable: It does not answer yet.
        """
        self.close()
        if self._own is not None and self._own.status != "running":
            raise ClusterUnavailable(
                "the client that was passed is not connected to its scheduler; start that again"
            )
        self.client = self._open()

    def close(self) -> None:
        """Close what was opened here."""
        self._stack.close()


@contextlib.contextmanager
def connect(compute: ComputeSection, client: DaskClient | None = None) -> Iterator[Connection]:
    """Connect to the cluster that ``compute`` names, or use the caller's own client.

    A cluster that does not answer is asked again, as ``compute.patience`` says.
    """
    patience = Patience(compute.patience)
    connection = patience.keep_asking(lambda: Connection(compute, client), on=ClusterUnavailable)
    with contextlib.closing(connection):
        yield connection


def _open_client(compute: ComputeSection, stack: contextlib.ExitStack) -> DaskClient:
    """Open a client that closes, with its cluster, when ``stack`` does."""
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.ERROR)
    # A filter that is there already is not added twice.
    logging.getLogger("distributed.worker").addFilter(_is_not_a_farewell)
    if "://" in compute.cluster:
        return cast("DaskClient", stack.enter_context(_connected(compute)))
    if compute.cluster in (AUTO, LOCAL):
        cluster = _local_cluster(compute)
        stack.enter_context(contextlib.closing(cluster))
    else:
        cluster = _cluster_of_factory(compute)
        stack.enter_context(contextlib.closing(cluster))
        _check_trust(cluster.scheduler_address, compute)
    return cast("DaskClient", stack.enter_context(Client(cluster, set_as_default=False)))


def _local_cluster(compute: ComputeSection) -> DaskCluster:
    """Start workers on this machine; several of them are processes, which encrypt loopback too."""
    import dask.config
    from distributed import LocalCluster

    processes = compute.workers > 1
    memory_limit = compute.memory if processes and compute.memory else 0
    # Workers inherit the configuration, of which a process has one.
    # A worker of this very process is not lost while the process lives.
    settings = {**_NEVER_SPILL, **(_WORKER_TTL if processes else {})}
    with _configuring, dask.config.set(settings), _starting(processes=processes):
        cluster = LocalCluster(
            n_workers=compute.workers,
            threads_per_worker=compute.threads,
            processes=processes,
            memory_limit=memory_limit,
            dashboard_address="127.0.0.1:0",  # the scheduler serves pages in any case
            security=processes or None,
            silence_logs=logging.CRITICAL,
        )
    return cast("DaskCluster", cluster)


def _connected(compute: ComputeSection) -> contextlib.AbstractContextManager[object]:
    """Connect to the scheduler at an address."""
    from distributed import Client

    _check_trust(compute.cluster, compute)
    unreachable = (
        f"the scheduler at {compute.cluster} cannot be reached ({{kind}}); start it, or check"
        " compute.cluster and compute.tls"
    )
    silent = (
        f"the scheduler at {compute.cluster} cannot be reached: it did not answer for"
        f" {_CONNECT_SECONDS} s; start it, or check compute.cluster and compute.tls"
    )
    with (
        redact_exceptions(ClusterError, unreachable, _UNREACHABLE),
        redact_exceptions(ClusterUnavailable, silent, (OSError, TimeoutError)),
    ):
        client = Client(
            compute.cluster,
            security=_security(compute.tls),
            timeout=_CONNECT_SECONDS,
            set_as_default=False,
        )
    return cast("contextlib.AbstractContextManager[object]", client)


def _security(tls: TlsSection | None) -> object:
    if tls is None:
        return None
    from distributed.security import Security

    return Security(
        tls_ca_file=tls.ca_file,
        tls_client_cert=tls.cert_file,
        tls_client_key=tls.key_file,
        require_encryption=True,
    )


def _cluster_of_factory(compute: ComputeSection) -> DaskCluster:
    """Call the ``package.module:factory`` that a spec names."""
    module, _, name = compute.cluster.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ClusterError(
            f"compute.cluster={compute.cluster!r} is not a valid cluster; write local, inline, an"
            " address such as tls://host:8786, or an importable package.module:factory"
        ) from None
    failed = "the cluster factory failed ({kind}); check compute.cluster_options"
    with redact_exceptions(ClusterError, failed):
        cluster = factory(**compute.cluster_options)
    if not hasattr(cluster, "scheduler_address") or not hasattr(cluster, "close"):
        raise ClusterError(
            f"the factory {compute.cluster!r} returned no Dask cluster; name one that does"
        )
    return cast("DaskCluster", cluster)


@contextlib.contextmanager
def _starting(*, processes: bool) -> Iterator[None]:
    """Defer signals while a cluster starts, so that none is half started; keep Ctrl-C from it."""
    with signals_deferred():
        if processes:
            resource_tracker.ensure_running()  # its first start unblocks signals
        with children_without_ctrl_c():
            yield


def _is_not_a_farewell(record: logging.LogRecord) -> bool:
    """Return False for the log record of an in-process worker whose scheduler closed before it.

    Its scheduler is ours and closes with us, perhaps between two heartbeats.
    """
    last = record.exc_info[2] if record.exc_info else None
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is None or last.tb_frame.f_globals.get("__name__") != "distributed.comm.inproc"


def _check_trust(address: str, compute: ComputeSection) -> None:
    """Check that data and keys stay on loopback or travel over TLS, unless the spec waives it."""
    parts = urlsplit(address)
    if parts.scheme in _PRIVATE_SCHEMES or compute.allow_unencrypted_cluster:
        return
    if parts.scheme in _LOOPBACK_SCHEMES and _is_loopback(parts.hostname or ""):
        return
    raise ClusterError(
        f"the cluster at {address} does not encrypt: raw values and keys would cross the network;"
        " use tls:// with compute.tls, or set compute.allow_unencrypted_cluster: true"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def _check_workers(client: DaskClient) -> None:
    """Check that there are workers, and that each may see data."""
    failed = (
        "the workers cannot run dpdask ({kind}); install the same version of dpdask on every worker"
    )
    violations: Mapping[str, object] = {}
    with redact_exceptions(ClusterError, failed), contextlib.suppress(TimeoutError):
        client.wait_for_workers(1, timeout=_WORKERS_SECONDS)
        violations = client.run(trust_violation, version())
    if not violations:
        raise ClusterUnavailable(
            f"the cluster has no workers after {_WORKERS_SECONDS} seconds; start some"
        )
    for violation in violations.values():
        if violation is not None:
            raise ClusterError(str(violation))


@functools.cache
def version() -> str:
    """Return the version of dpdask, which workers must run too."""
    return importlib.metadata.version("dpdask")

"""Which cluster: the one a spec names, or the caller's own, and whether it may see raw values and
keys.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import ipaddress
import logging
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any
from urllib.parse import urlsplit

from dpdask.errors import ClusterError
from dpdask.execution import tasks
from dpdask.signals import children_without_ctrl_c, signals_deferred
from dpdask.spec.release import ComputeSection

__all__ = ["connect", "version"]

_NEVER_SPILL = {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
_configuring = threading.Lock()


@contextlib.contextmanager
def connect(compute: ComputeSection, client: Any = None) -> Iterator[Any]:
    """A client of the cluster that ``compute`` names, or the caller's own, checked for trust."""
    if client is not None:
        _check_trust(client.scheduler.address, compute)
        _check_workers(client)
        yield client
        return
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(_client(compute, stack))
        _check_workers(found)
        yield found


def _client(compute: ComputeSection, stack: contextlib.ExitStack) -> Any:
    import dask.config
    from distributed import Client, LocalCluster
    from distributed.security import Security

    logging.getLogger("distributed").setLevel(logging.ERROR)
    logging.getLogger("distributed.worker").addFilter(
        _not_a_farewell
    )  # the same one again is not added twice
    security = None
    if compute.tls is not None:
        security = Security(
            tls_ca_file=compute.tls.ca_file,
            tls_client_cert=compute.tls.cert_file,
            tls_client_key=compute.tls.key_file,
            require_encryption=True,
        )
    if compute.cluster == "local":
        with (
            _configuring,
            dask.config.set(_NEVER_SPILL),
            _starting(processes=compute.workers > 1),
        ):  # workers inherit both, the process has one
            cluster = LocalCluster(
                n_workers=compute.workers,
                threads_per_worker=compute.threads,
                processes=compute.workers > 1,
                memory_limit=compute.memory if compute.workers > 1 and compute.memory else 0,
                # the scheduler serves pages whether one wants them or not
                dashboard_address="127.0.0.1:0",
                security=compute.workers > 1 or None,  # loopback too is encrypted between processes
                silence_logs=logging.CRITICAL,
            )
        stack.enter_context(contextlib.closing(cluster))
        return Client(cluster, set_as_default=False)
    if "://" in compute.cluster:
        _check_trust(compute.cluster, compute)
        try:
            return Client(compute.cluster, security=security, timeout=10, set_as_default=False)
        except (OSError, TimeoutError, ValueError, TypeError, RuntimeError) as error:
            kind = type(error).__name__
        raise ClusterError(
            f"the scheduler at {compute.cluster} cannot be reached ({kind}); start it, or check"
            " compute.cluster and compute.tls"
        )
    module, _, name = compute.cluster.partition(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ClusterError(
            f"compute.cluster={compute.cluster!r} is neither local, nor an address, nor an"
            " importable package.module:factory"
        ) from None
    try:
        cluster = factory(**compute.cluster_options)
    except Exception as error:
        raise ClusterError(
            f"the cluster factory failed ({type(error).__name__}); check compute.cluster_options"
        ) from None
    if not hasattr(cluster, "scheduler_address") or not hasattr(cluster, "close"):
        raise ClusterError(
            f"the factory {compute.cluster!r} returned no Dask cluster; name one that does"
        )
    stack.enter_context(contextlib.closing(cluster))
    _check_trust(cluster.scheduler_address, compute)
    return Client(cluster, set_as_default=False)


@contextlib.contextmanager
def _starting(*, processes: bool) -> Iterator[None]:
    """Let signals wait while a cluster starts, so that none is left half made, and keep Ctrl-C from
    its processes.
    """
    with signals_deferred():
        if processes:
            resource_tracker.ensure_running()  # whoever starts it unblocks signals afterwards
        with children_without_ctrl_c():
            yield


def _not_a_farewell(record: logging.LogRecord) -> bool:
    """Whether a log record is anything but an in-process worker whose scheduler closed, with ours,
    between two heartbeats.
    """
    at = record.exc_info[2] if record.exc_info else None
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is None or at.tb_frame.f_globals.get("__name__") != "distributed.comm.inproc"


def _check_trust(address: str, compute: ComputeSection) -> None:
    """Data and keys go to loopback or over TLS, unless the spec says otherwise in so many words."""
    parts = urlsplit(address)
    if parts.scheme in ("inproc", "tls", "wss") or compute.allow_unencrypted_cluster:
        return
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        if parts.scheme in ("tcp", "ws") and (
            host == "localhost" or ipaddress.ip_address(host).is_loopback
        ):
            return
    raise ClusterError(
        f"the cluster at {address} does not encrypt: raw values and keys would cross the"
        " network; use tls:// with compute.tls,"
        " or set compute.allow_unencrypted_cluster: true"
    )


def _check_workers(client: Any) -> None:
    """Workers are there, run this version of dpdask, and never write what they hold to disk."""
    try:
        client.wait_for_workers(1, timeout=60)
        found = client.run(tasks.trust_violation, version())
    except TimeoutError:
        found = None
    except Exception as error:
        raise ClusterError(
            f"the workers cannot run dpdask ({type(error).__name__}); install the same version"
            " of dpdask on every worker"
        ) from None
    if not found:
        raise ClusterError("the cluster has no workers after 60 seconds; start some")
    for fault in found.values():
        if fault is not None:
            raise ClusterError(fault)


@functools.cache
def version() -> str:
    """The version of dpdask that workers must run, too."""
    return importlib.metadata.version("dpdask")

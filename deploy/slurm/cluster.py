"""Dask workers as SLURM jobs, over TLS and without spilling: ``compute.cluster:
cluster:slurm_cluster``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dask_jobqueue import SLURMCluster
from distributed.security import Security

__all__ = ["slurm_cluster"]

# SLURM keeps the environment of a job on the controller's disk: workers get what they need to read
# stores, and neither the ledger's password nor the master key.
_PASSED = (
    "HOME",
    "PATH",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
)
_PROLOGUE = (
    "ulimit -c 0",  # a core dump would hold raw values
    "export DASK_DISTRIBUTED__WORKER__MEMORY__TARGET=False",
    "export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=False",
)
_NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")


def slurm_cluster(
    *,
    jobs: int = 1,
    patience: float = 3600,
    tls_folder: str = "~/.cache/dpdask/tls",
    **options: Any,
) -> SLURMCluster:
    """Start a scheduler in this process and its workers as SLURM jobs.

    Args:
        jobs: The number of SLURM jobs.
        patience: For how many seconds the first of them may queue.
        tls_folder: A folder that all nodes share; it holds the certificate and the key of this
            cluster while it lives.
        options: Those of SLURMCluster: cores, memory, queue, account, walltime, interface, ...

    Returns:
        A cluster with at least one worker, over TLS and without spilling.
    """
    folder = Path(tls_folder).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    prologue = [*_PROLOGUE, *options.pop("job_script_prologue", ())]
    directives = [f"--export={','.join(_PASSED)}", *options.pop("job_extra_directives", ())]
    worker_args = [*options.pop("worker_extra_args", ()), *_NO_DASHBOARD]
    scheduler = {
        **options.pop("scheduler_options", {}),
        "dashboard": False,
        "dashboard_address": "127.0.0.1:0",
    }
    options.setdefault("local_directory", '"${TMPDIR:-/tmp}"')
    cluster = SLURMCluster(
        security=Security.temporary(),
        protocol="tls://",
        shared_temp_directory=str(folder),
        job_script_prologue=prologue,
        job_extra_directives=directives,
        worker_extra_args=worker_args,
        scheduler_options=scheduler,
        **options,
    )
    if jobs:
        try:
            cluster.scale(jobs=jobs)
            cluster.wait_for_workers(1, timeout=patience)
        except BaseException:
            cluster.close()
            raise
    return cluster

"""A plan on a Dask cluster: the driver's side, and what runs inside a task."""

from dpdask.execution.cluster import connect
from dpdask.execution.driver import (
    OnProgress,
    Prepared,
    Progress,
    compute_directions,
    prepare,
    verify,
    write,
)
from dpdask.execution.tasks import Written

__all__ = [
    "OnProgress",
    "Prepared",
    "Progress",
    "Written",
    "compute_directions",
    "connect",
    "prepare",
    "verify",
    "write",
]

"""A plan on an executor: the driver's side, and what runs inside a task."""

from dpdask.execution.driver import TileWork, noisy_estimate, step_digests, verify, write
from dpdask.execution.executors import DaskExecutor, Executor, Handle, InlineExecutor, connect
from dpdask.execution.jobs import StepJob, Written
from dpdask.execution.passes import Intermediates, check, check_labels, prepare
from dpdask.execution.progress import OnProgress, Progress, no_progress
from dpdask.execution.selection import check_ids, select_records

__all__ = [
    "DaskExecutor",
    "Executor",
    "Handle",
    "InlineExecutor",
    "Intermediates",
    "OnProgress",
    "Progress",
    "StepJob",
    "TileWork",
    "Written",
    "check",
    "check_ids",
    "check_labels",
    "connect",
    "no_progress",
    "noisy_estimate",
    "prepare",
    "select_records",
    "step_digests",
    "verify",
    "write",
]

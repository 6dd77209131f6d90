"""A plan on an executor: the driver's side, and what runs inside a task."""

from dpdask.execution.driver import TileWork, noisy_moments, step_digests, verify, write
from dpdask.execution.executors import DaskExecutor, Executor, InlineExecutor, connect
from dpdask.execution.jobs import StepJob, Written
from dpdask.execution.passes import Intermediates, check, prepare
from dpdask.execution.progress import OnProgress, Progress, no_progress
from dpdask.execution.selection import check_ids, select_records

__all__ = [
    "DaskExecutor",
    "Executor",
    "InlineExecutor",
    "Intermediates",
    "OnProgress",
    "Progress",
    "StepJob",
    "TileWork",
    "Written",
    "check",
    "check_ids",
    "connect",
    "no_progress",
    "noisy_moments",
    "prepare",
    "select_records",
    "step_digests",
    "verify",
    "write",
]

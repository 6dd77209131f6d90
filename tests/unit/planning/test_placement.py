"""Where tasks run: tiny releases in this process, unless the spec asks for anything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.execution import InlineExecutor, connect
from dpdask.planning import make_plan, placed
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace


def cluster(space: Workspace, rows: int = 10, **compute: Any) -> str:
    zarr.create_array(
        space.folder / "source.zarr",
        name="x",
        shape=(rows, 8),
        chunks=(rows, 8),
        dtype=np.float64,
        overwrite=True,
    )
    return placed(make_plan(parse_release_spec(space.spec(compute=compute)))).cluster


def test_a_tiny_release_runs_in_this_process(space: Workspace) -> None:
    assert cluster(space) == "inline"
    assert cluster(space, task_size="1 MiB") == "inline"
    assert cluster(space, rows=2**16) == "inline"
    assert cluster(space, rows=2**18) == "local"  # above 8 MiB


@pytest.mark.parametrize(
    "compute",
    [{"threads": 1}, {"workers": 2}, {"memory": "4 GB"}, {"cluster": "local"}],
)
def test_a_spec_that_asks_for_a_cluster_gets_one(space: Workspace, compute: dict[str, Any]) -> None:
    assert cluster(space, **compute) == "local"


def test_inline_and_addresses_stay_what_they_are(space: Workspace) -> None:
    assert cluster(space, rows=2**18, cluster="inline") == "inline"
    assert cluster(space, cluster="tls://host:8786") == "tls://host:8786"


def test_auto_is_never_inline_by_itself(space: Workspace) -> None:
    """Whether a release is tiny is decided by its plan, not where executors are opened."""
    with connect(parse_release_spec(space.spec(compute={"threads": 1})).compute) as executor:
        assert not isinstance(executor, InlineExecutor)

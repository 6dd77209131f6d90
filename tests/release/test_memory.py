"""The plan's figure for memory is one that a release keeps to, also where zarr decodes chunks
larger than a tile.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import InvalidSpec
from dpdask.planning import make_plan, memory
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace, people

RELEASE = """
import json, sys
from dpdask.releases.api import release
release(json.loads(sys.argv[1]))
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak[0].split()[1]) * 1024)
"""


def planned(spec: dict[str, Any]) -> int:
    return int(make_plan(parse_release_spec(spec)).to_dict()["peak_bytes_per_worker"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "chunks"),
    [
        ("identity", (4096, 4096)),  # a chunk of 64 MiB for each tile of 4 MiB
        ("identity", (8192, 64)),  # chunks across tiles
        ("mean", (1024, 4096)),
    ],
)
def test_a_release_stays_below_the_planned_memory(
    space: Workspace, query: str, chunks: tuple[int, int]
) -> None:
    array = zarr.create_array(
        space.folder / "source.zarr", name="x", shape=(8192, 4096), chunks=chunks, dtype="f4"
    )
    array[...] = np.random.default_rng(0).standard_normal((8192, 4096), dtype="f4")
    publish = {"chunks": [256, 4096]} if query == "identity" else {}
    spec = space.spec(query=query, publish=publish, compute={"threads": 2})
    most = planned(spec)
    done = subprocess.run(
        [sys.executable, "-c", RELEASE, json.dumps(spec)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak = int(done.stdout)
    assert peak < most
    if query == "mean":  # its tasks read 64 MiB each, a chunk of 16 MiB at a time
        assert peak < memory._BASE + 2 * 4 * 1024 * 4096
    elif chunks[1] == 4096:
        assert peak > memory._BASE + 2 * 8 * 256 * 4096, (
            "the twin: tiles alone are not what a worker holds"
        )


def test_a_small_source_needs_little(space: Workspace) -> None:
    space.source(people(60))
    small = planned(space.spec(query="mean"))
    space.source(people(600_000), chunks=(100_000, 8))
    assert small < memory._BASE + 10**8 < planned(space.spec(query="mean"))


def test_a_refusal_for_memory_does_not_tell_a_private_count(space: Workspace) -> None:
    space.source(people(60))
    unit = {"adjacency": "add-remove-one", "record_dim": 0, "l2_clip_norm": 1.0}
    with pytest.raises(InvalidSpec) as refused:
        make_plan(
            parse_release_spec(
                space.spec(query="sum", privacy_unit=unit, compute={"memory": 10**8})
            )
        )
    assert "more than the 0.1 GB allowed" in str(refused.value)
    assert "60" not in str(refused.value)


def test_missing_chunks_are_the_fill_value_whatever_was_read_before(space: Workspace) -> None:
    """Tiles are read into memory that is kept; a chunk that is not there must not show the tile
    before it.
    """
    array = zarr.create_array(
        space.folder / "source.zarr",
        name="x",
        shape=(80, 4),
        chunks=(10, 4),
        dtype="f8",
        fill_value=0.25,
    )
    array[:40] = 0.5
    unit = {"record_dim": 0, "ranges": [0, 1]}
    space.release(
        privacy_unit=unit, privacy={"epsilon": 9e4, "delta": 1e-2}, compute={"threads": 1}
    )
    expected = np.where(np.arange(80)[:, None] < 40, 0.5, 0.25)
    assert math.isclose(float(np.max(np.abs(space.values() - expected))), 0, abs_tol=0.05)

"""Worker counts, task sizes and source chunkings never change a byte; another key, tile or release
changes all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdask.errors import ReleaseError
from dpdask.execution import InlineExecutor
from dpdask.planning import make_plan
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace, people, staged_bytes

QUERIES: dict[str, dict[str, Any]] = {
    "identity": {"publish": {"chunks": [16, 3]}},
    "ranges": {
        "privacy_unit": {"record_dim": 0, "ranges": [[-0.1, 0.1 * (i + 1)] for i in range(8)]},
        "publish": {"chunks": [16, 3]},
    },
    "low-rank": {
        "mechanism": {
            "name": "imgm",
            "factors": [
                "identity",
                {"low_rank": {"base": 1.0, "directions": [np.eye(8)[2].tolist()], "scales": [2.0]}},
            ],
        },
        "publish": {"chunks": [16, 3]},
    },
    "rank-one": {
        "mechanism": "rank-one",
        "accept_uncertified": True,
        "publish": {"chunks": [16, 3]},
    },
    "sum": {"query": "sum", "publish": {"chunks": [3]}},
    "mean": {"query": "mean", "privacy_unit": {"record_dim": 0, "ranges": [-1, 1]}},
    "second-moment": {"query": "second-moment", "publish": {"chunks": [3, 3]}},
    "histogram": {
        "query": {"name": "histogram", "edges": [[-1, 0, 1], [-1, 0.2, 1]]},
        "privacy_unit": {"record_dim": 0},
        "publish": {"chunks": [1, 2]},
    },
    "shards": {"publish": {"chunks": [4, 4], "shards": [16, 8], "codec": "zstd"}},
}


@pytest.mark.parametrize("name", QUERIES)
def test_task_sizes_threads_and_source_chunkings_never_change_a_byte(
    space: Workspace, name: str
) -> None:
    x = people(70, 8) * 3
    made = []
    for chunks, compute in [
        ((70, 8), {"threads": 1}),
        ((7, 8), {"threads": 2, "task_size": 100}),
        ((13, 5), {"threads": 3, "task_size": 5000}),
        ((1, 3), {"threads": 2}),
    ]:
        space.source(x, chunks=chunks)
        made.append(space.staged(compute=compute, **QUERIES[name]))
    assert made[0]
    assert all(again == made[0] for again in made[1:])


@pytest.mark.parametrize("name", QUERIES)
def test_running_inline_without_dask_never_changes_a_byte(space: Workspace, name: str) -> None:
    space.source(people(70, 8) * 3, chunks=(7, 3))
    on_dask = space.staged(compute={"threads": 2, "task_size": 500}, **QUERIES[name])
    assert on_dask
    assert space.staged(compute={"cluster": "inline", "task_size": 500}, **QUERIES[name]) == on_dask


def test_a_release_runs_inline_and_a_large_source_is_refused_there_before_the_charge(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(70, 8), chunks=(7, 3))
    receipt = space.release(compute={"cluster": "inline"})
    card = verify_release(receipt.output, ledger=space.ledger)
    assert card.release_id == receipt.release_id
    charged = space.spent()
    monkeypatch.setattr(InlineExecutor, "most_source_bytes", 70 * 8 * 8 - 1)
    with pytest.raises(
        ReleaseError, match=r"inline holds everything .* use compute.cluster: local"
    ):
        space.release(compute={"cluster": "inline"}, output={"url": str(space.folder / "b.zarr")})
    assert space.spent() == charged
    assert space.left_behind() == ["out.zarr"]


@pytest.mark.slow
def test_worker_processes_never_change_a_byte(space: Workspace) -> None:
    space.source(people(70, 8), chunks=(7, 3))
    alone = space.staged(**QUERIES["identity"])
    assert space.staged(compute={"workers": 2, "threads": 2}, **QUERIES["identity"]) == alone


def test_sharded_sources_are_read_by_the_shard(space: Workspace) -> None:
    x = people(64, 8)
    space.source(x, chunks=(16, 8))
    plain = space.staged(publish={"chunks": [16, 8]})
    space.source(x, chunks=(4, 4), shards=(16, 8))
    assert space.staged(publish={"chunks": [16, 8]}) == plain


def test_another_fingerprint_is_other_noise(space: Workspace) -> None:
    space.source(np.zeros((64, 8)), chunks=(16, 8))
    plan = make_plan(parse_release_spec(space.spec()))
    first, second = staged_bytes(plan, "ab" * 32), staged_bytes(plan, "ac" * 32)
    assert all(first[key] != second[key] for key in first)
    assert len(set(first.values())) == len(first)  # every tile its own


def test_the_fingerprint_knows_source_spec_and_dataset_but_not_the_cluster(
    space: Workspace,
) -> None:
    def fingerprint(**changes: Any) -> str:
        return make_plan(parse_release_spec(space.spec(**changes))).fingerprint

    space.source(people())
    before = fingerprint()
    assert fingerprint() == before
    assert fingerprint(compute={"threads": 1, "task_size": 1000}) == before
    for changes in (
        {"privacy": {"epsilon": 1.1, "delta": 1e-5}},
        {"output": {"url": f"{space.folder}/other.zarr"}},
        {"budget": {"ledger": space.ledger_url, "dataset": "others"}},
        {"publish": {"edition": 2}},
        {"privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0001}},
        {"noise": {"steps_per_sigma": 2**16}},
    ):
        assert fingerprint(**changes) != before
    space.source(people(seed=2))
    assert fingerprint() != before

"""The nine rules that make a release safe, each by its name."""

from __future__ import annotations

import os
from typing import Any

import dask.config
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dpdask.errors import BudgetExceeded, ClusterError, InvalidMechanism
from dpdask.keystream import ReleaseKey
from dpdask.ledger import Ledger
from dpdask.privacy import PrivacyBudget
from dpdask.releases.api import release, resume
from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace, people


def test_rule_1_claimed_is_not_verified(space: Workspace) -> None:
    """Only certified mechanisms are released by default; the verified profile is charged."""
    space.source(people())
    paper = {"name": "rank-one", "calibration": "paper"}
    with pytest.raises(InvalidMechanism, match="not certified"):
        space.release(mechanism=paper)
    space.release(mechanism="mgm")  # claims epsilon 1, is worth far less
    assert 0 <= space.spent() < 0.01
    space.ledger.open_dataset("study", PrivacyBudget(epsilon=1e6, delta=0.1))
    budget = {"dataset": "study", "ledger": space.ledger_url, "array_in_other_dataset": True}
    space.release(
        mechanism=paper,
        accept_uncertified=True,
        output={"url": f"{space.folder}/b.zarr"},
        budget=budget,
    )
    assert space.ledger.state("study").spent_epsilon > 1.0  # claims epsilon 1, costs far more


def test_rule_2_charge_before_the_first_noisy_byte_leaves_a_task(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    seen: dict[str, Any] = {}

    def watch(progress: Any) -> None:
        state = space.ledger.state("people")
        staged = sum(
            "release.json" not in files
            for _, _, files in os.walk(space.folder / "out.zarr.dpdask-staging")
            if files
        )
        seen.setdefault(progress.stage, (list(state.releases.values()), staged))

    space.release(on_progress=watch)
    assert seen["reserved"] == (["reserve"], 0)
    assert seen["key"] == (["key"], 0)
    assert space.ledger.state("people").releases.popitem()[1] == "commit"


def test_rule_3_a_retry_replays(space: Workspace) -> None:
    """A task that fails once and is tried again writes the same bytes; see also test_crashes.py."""
    space.source(people(64, 8), chunks=(16, 8))
    whole = space.staged()
    assert space.staged() == whole
    assert space.staged(compute={"threads": 1, "task_size": 1}) == whole


def test_rule_4_one_task_owns_one_write_unit(space: Workspace) -> None:
    """Misaligned chunks and shards: each is written once, by one task, and reads back right."""
    x = people(70, 9)
    space.source(x, chunks=(11, 4))
    loud = {"epsilon": 9e4, "delta": 1e-2}
    receipt = space.release(
        privacy_unit={"record_dim": 0, "ranges": [-1, 1]},
        privacy=loud,
        publish={"chunks": [8, 2], "shards": [24, 6]},
        compute={"threads": 3, "task_size": 1},
    )
    assert receipt.card.manifest is not None
    assert (
        receipt.card.manifest.objects == 3 * 2 + 3 + 2
    )  # and the metadata of the array and of two groups, and the noise of an entry
    assert np.max(np.abs(space.values() - x)) < 0.1


def test_rule_5_all_or_nothing(space: Workspace) -> None:
    """Readers see a complete release or none."""
    space.source(people(64, 8), chunks=(4, 8))
    output = space.folder / "out.zarr"
    seen = []

    def watch(progress: Any) -> None:
        seen.append((progress.stage, output.exists()))
        if progress.stage == "published":
            verify_release(str(output))

    space.release(on_progress=watch)
    assert all(not there for stage, there in seen if stage != "published")
    assert ("published", True) in seen


def test_rule_6_the_value_path_is_total(space: Workspace) -> None:
    """No value raises, in any query; the published shape says nothing of them."""
    hard = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 5e-324, -0.0, 1e-40])
    x = np.stack([np.roll(hard, i) for i in range(8)])
    for number, changes in enumerate(
        [
            {},
            {"privacy_unit": {"record_dim": 0, "ranges": [-1, 1]}},
            {"privacy_unit": {"record_dim": 0, "ranges": [[-1, 1]] * 8}},
            {"query": "sum"},
            {"query": "second-moment"},
            {
                "query": {"name": "histogram", "edges": [[-1, 0, 1]]},
                "privacy_unit": {"record_dim": 0},
            },
            {"query": {"name": "precomputed", "l2_sensitivity": 1.0}, "privacy_unit": {}},
            {"mechanism": "mgm"},
            {"mechanism": "rank-one", "accept_uncertified": True},
            {"publish": {"chunks": [3, 3]}},
        ]
    ):
        space.source(x, chunks=(4, 4))
        space.release(output={"url": f"{space.folder}/{number}.zarr"}, **changes)
        assert np.all(np.isfinite(space.values(f"{number}.zarr")))


def test_rule_7_nothing_data_dependent_in_metadata(space: Workspace) -> None:
    """Two sources with the same schema make the same card, up to names, digests and times."""
    cards = []
    for seed, scale in ((1, 1.0), (2, 1e6)):
        x = people(64, 8, seed=seed) * scale
        x[seed] = np.nan
        space.source(x, chunks=(16, 8))
        receipt = space.release(output={"url": f"{space.folder}/{seed}.zarr"})
        card = receipt.card.model_dump(mode="json")
        for varying in ("release_id", "reserved_at", "ledger", "manifest"):
            card.pop(varying)
        card["composition"].pop("cumulative_epsilon")
        cards.append(card)
    assert cards[0] == cards[1]


def test_rule_8_secrets_are_arguments_never_fields(space: Workspace) -> None:
    """Printed forms are redacted and pickling by accident is refused; see also test_canary.py."""
    key = ReleaseKey(bytes(range(32)))
    assert "redacted" in f"{key} {key!r} {key.to_transferable()!r}"
    assert not any(
        "key" in name for name in type(space.release(**_small(space))).__dataclass_fields__
    )
    import pickle

    with pytest.raises(TypeError, match="to_transferable"):
        pickle.dumps(key)


def _small(space: Workspace) -> dict[str, Any]:
    space.source(people())
    return {}


@pytest.mark.slow
def test_rule_9_trust_boundary(space: Workspace) -> None:
    """A cluster that does not encrypt, or may spill, is refused unless the spec says otherwise
    explicitly.
    """
    space.source(people())
    with pytest.raises(ClusterError, match="does not encrypt"):
        space.release(compute={"cluster": "tcp://192.0.2.1:8786"})
    with (
        dask.config.set(
            {"distributed.worker.memory.spill": 0.7, "distributed.worker.memory.target": 0.6}
        ),
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
        pytest.raises(ClusterError, match="spill"),
    ):
        release(space.spec(), client=client)
    assert space.spent() == 0
    assert space.left_behind() == []


@pytest.mark.slow
def test_rule_9_holds_for_workers_that_join_later(space: Workspace) -> None:
    """A spilling worker that joins a sound cluster after the checks gets no data: its tasks refuse
    to run.
    """
    space.source(people(64, 8), chunks=(4, 8))
    spills = {"distributed.worker.memory.spill": 0.7, "distributed.worker.memory.target": 0.6}
    local = {
        "threads_per_worker": 1,
        "processes": True,
        "dashboard_address": None,
        "security": True,
    }
    with (
        dask.config.set(dict.fromkeys(spills, False)),
        LocalCluster(n_workers=1, **local) as cluster,
        Client(cluster) as client,
    ):
        [sound] = client.nthreads()

        def join(progress: Any) -> None:
            if progress.stage == "key":
                with dask.config.set(spills):
                    cluster.scale(2)
                    client.wait_for_workers(2)
                client.retire_workers([sound])

        with pytest.raises(ClusterError, match="spill"):
            release(space.spec(), client=client, on_progress=join)
    staged = [
        path.name
        for path in (space.folder / "out.zarr.dpdask-staging").rglob("*")
        if path.is_file()
    ]
    assert staged == ["release.json"]
    resume(space.spec())
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


@pytest.mark.slow
def test_a_client_of_the_callers_own_is_used(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    quiet = {"distributed.worker.memory.spill": False, "distributed.worker.memory.target": False}
    with (
        dask.config.set(quiet),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, security=True
        ) as cluster,
        Client(cluster) as client,
    ):
        release(space.spec(), client=client)
        assert client.status == "running"
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_dataset_with_total_epsilon_2_refuses_what_would_pass_it(space: Workspace) -> None:
    space.source(people())
    Ledger(space.ledger_url).open_dataset("two", PrivacyBudget(epsilon=2.0, delta=1e-5))
    stages: list[str] = []
    budget = {"dataset": "two", "ledger": space.ledger_url}
    with pytest.raises(BudgetExceeded, match="of 2 at delta"):
        release(
            space.spec(budget=budget, privacy={"epsilon": 2.5, "delta": 1e-5}),
            on_progress=lambda p: stages.append(p.stage),
        )
    assert stages == []
    release(space.spec(budget=budget, privacy={"epsilon": 1.9, "delta": 1e-5}))
    with pytest.raises(BudgetExceeded):
        release(space.spec(budget=budget, output={"url": f"{space.folder}/b.zarr"}))
    with pytest.raises(Exception, match="no release to this output is under way"):
        resume(space.spec(budget=budget))


def test_one_dataset_speaks_of_one_kind_of_neighbours(space: Workspace) -> None:
    space.source(people())
    space.release(query="sum")
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"}
    with pytest.raises(Exception, match="accounted under replace-one"):
        space.release(query="sum", privacy_unit=unit, output={"url": f"{space.folder}/b.zarr"})

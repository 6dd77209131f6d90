"""A database, a store or a scheduler that is away for a while in the middle of a release: it waits
and finishes, with the bytes of a run without a fault (rows 5, 7 and 8 of the operations review).
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
import zarr

from dpdask import PrivacyBudget
from dpdask.errors import ClusterUnavailable, LedgerUnavailable, StoreUnavailable
from dpdask.keystream import ReleaseKey
from dpdask.ledger import Ledger, open_ledger
from dpdask.patience import Patience
from dpdask.releases.api import release, resume
from dpdask.releases.verify import verify_release
from tests.support.clusters import Cluster
from tests.support.object_stores import SECRET, s3
from tests.support.outages import Gate
from tests.support.workspace import KEY, Workspace, people

__all__ = ["s3"]

TOTAL = PrivacyBudget(epsilon=1e6, delta=0.1)
INLINE = {"cluster": "inline", "patience": 20}


@pytest.fixture
def fixed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of the same release draw the same noise."""
    monkeypatch.setattr(ReleaseKey, "generate", classmethod(lambda cls: cls(KEY)))


def at_stage(stage: str, hit: Callable[[], object], done: int = 0) -> Callable[[Any], None]:
    """Hit once, when a stage has come so far."""
    hits: list[bool] = []

    def watch(progress: Any) -> None:
        if progress.stage == stage and progress.done >= done and not hits:
            hits.append(True)
            hit()

    return watch


def chunks(output: Path) -> dict[str, bytes]:
    """All published bytes but those of documents, which tell the time."""
    files = [path for path in output.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(output)): path.read_bytes()
        for path in files
        if path.suffix != ".json" and "dp_release" not in path.parts
    }


def without_fault(space: Workspace, **changes: Any) -> dict[str, bytes]:
    """The bytes of a run on another ledger, where nothing happens; its output is removed."""
    ledger = f"sqlite:///{space.folder}/ledger.db-quiet"
    Ledger(ledger).open_dataset("people", TOTAL)
    changes = {**changes, "budget": {"ledger": ledger, "dataset": "people"}}
    release(space.spec(**{**changes, "compute": {"cluster": "inline"}}))
    expected = chunks(space.folder / "out.zarr")
    shutil.rmtree(space.folder / "out.zarr")
    assert expected
    return expected


@pytest.fixture
def database(postgres: str, request: pytest.FixtureRequest) -> Iterator[tuple[Gate, str]]:
    """A ledger on PostgreSQL behind a gate."""
    folder = postgres.rpartition("host=")[2]
    gate = Gate(f"{folder}/.s.PGSQL.5432")
    Ledger(postgres).open_dataset("people", TOTAL)
    yield gate, f"postgresql://postgres@127.0.0.1:{gate.port}/postgres"
    gate.close()


@pytest.mark.parametrize("stage", ["reserved", "tiles", "ready", "published"])
def test_row_07_a_database_that_is_away_for_a_while_is_waited_for(
    space: Workspace, database: tuple[Gate, str], stage: str, fixed_key: None
) -> None:
    gate, url = database
    space.source(people(), chunks=(20, 8))
    expected = without_fault(space)
    budget = {"ledger": url, "dataset": "people"}
    before = Ledger(url).spent_epsilon("people")
    release(
        space.spec(budget=budget, compute=INLINE),
        on_progress=at_stage(stage, lambda: gate.away(2)),
    )
    assert gate.outages == 1
    assert chunks(space.folder / "out.zarr") == expected
    ledger = Ledger(url)
    verify_release(str(space.folder / "out.zarr"), ledger=ledger)
    assert ledger.verify() > 0
    assert ledger.spent_epsilon("people") > before
    assert set(ledger.state("people").releases.values()) == {"commit"}


@pytest.mark.slow
def test_row_07_thirty_seconds_without_a_database_pass(
    space: Workspace, database: tuple[Gate, str], fixed_key: None
) -> None:
    gate, url = database
    space.source(people(), chunks=(20, 8))
    expected = without_fault(space)
    began = time.monotonic()
    release(
        space.spec(
            budget={"ledger": url, "dataset": "people"},
            compute={"cluster": "inline", "patience": 120},
        ),
        on_progress=at_stage("verify", lambda: gate.away(30)),
    )
    assert time.monotonic() - began > 30
    assert chunks(space.folder / "out.zarr") == expected


def test_row_07_patience_ends_and_says_who_did_not_answer(
    space: Workspace, database: tuple[Gate, str]
) -> None:
    gate, url = database
    space.source(people(), chunks=(20, 8))
    spec = space.spec(
        budget={"ledger": url, "dataset": "people"}, compute={"cluster": "inline", "patience": 1}
    )
    words = r"the ledger's database refused .* \(asked again for .* s, see compute.patience\)"
    with pytest.raises(LedgerUnavailable, match=words):
        release(spec, on_progress=at_stage("verify", gate.close))
    gate.open()
    resume(spec)
    verify_release(str(space.folder / "out.zarr"), ledger=Ledger(url))


def test_row_07_an_answer_that_was_lost_is_looked_for_before_a_charge_is_repeated(
    database: tuple[Gate, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server commits the charge, and its answer never arrives."""
    from dpdask import GaussianProfile
    from dpdask.ledger import ledger as module

    gate, url = database
    ledger = open_ledger(url, Patience(10))
    one = GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-6))
    before = ledger.head("people").sequence
    charged: list[bool] = []
    reserve = module.steps.reserve

    def reserve_and_lose_the_answer(connection: Any, *args: Any) -> Any:
        result = reserve(connection, *args)
        charged.append(result.new)
        if len(charged) == 1:
            connection.connection.driver_connection.commit()
            gate.away(1)
            connection.exec_driver_sql("SELECT 1")
        return result

    monkeypatch.setattr(module.steps, "reserve", reserve_and_lose_the_answer)
    assert ledger.reserve("people", "ab" * 32, one).new is False
    assert charged == [True, False]
    assert ledger.head("people").sequence == before + 1


@pytest.fixture
def store(s3: dict[str, Any]) -> Iterator[tuple[Gate, dict[str, Any]]]:
    """The S3 server behind a gate."""
    endpoint = urlsplit(s3["endpoint"])
    gate = Gate((str(endpoint.hostname), int(endpoint.port or 0)))
    yield gate, {**s3, "endpoint": f"http://127.0.0.1:{gate.port}"}
    gate.close()


def objects(s3: dict[str, Any], prefix: str) -> dict[str, bytes]:
    client = boto3.client(
        "s3",
        endpoint_url=s3["endpoint"],
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key=SECRET,
    )
    listed = client.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])
    contents = {}
    for entry in listed:
        if not entry["Key"].endswith(".json") and "dp_release" not in entry["Key"]:
            body = client.get_object(Bucket="bucket", Key=entry["Key"])["Body"].read()
            contents[entry["Key"].removeprefix(f"{prefix}/")] = body
        client.delete_object(Bucket="bucket", Key=entry["Key"])
    return contents


@pytest.mark.parametrize("stage", ["reserved", "tiles", "ready"])
def test_row_07_a_store_that_is_away_for_a_while_is_waited_for(
    space: Workspace,
    store: tuple[Gate, dict[str, Any]],
    s3: dict[str, Any],
    stage: str,
    fixed_key: None,
) -> None:
    gate, options = store
    from obstore.store import from_url
    from zarr.storage import ObjectStore

    plain = {"endpoint": s3["endpoint"], "region": "us-east-1", "access_key_id": "test"}
    target = from_url(
        f"s3://bucket/source-{stage}",
        config={**plain, "secret_access_key": SECRET},
        client_options={"allow_http": True},
    )
    zarr.create_array(ObjectStore(target), name="x", data=people(), chunks=(20, 8))
    quiet, ledger = f"sqlite:///{space.folder}/ledger.db-quiet", space.ledger_url
    Ledger(quiet).open_dataset("people", TOTAL)
    seen = []
    for url, watch in ((quiet, None), (ledger, at_stage(stage, lambda: gate.away(2)))):
        release(
            space.spec(
                source={"url": f"s3://bucket/source-{stage}", "array": "x", "options": options},
                output={"url": f"s3://bucket/out-{stage}", "options": options},
                budget={"ledger": url, "dataset": "people"},
                compute=INLINE,
            ),
            on_progress=watch,
        )
        seen.append(objects(s3, f"out-{stage}"))
    assert gate.outages == 1
    assert seen[0]
    assert seen[0] == seen[1]


def test_row_07_a_store_that_stays_away_leaves_a_release_to_resume(
    space: Workspace, store: tuple[Gate, dict[str, Any]]
) -> None:
    gate, options = store
    space.source(people(), chunks=(20, 8))
    spec = space.spec(
        output={"url": "s3://bucket/stays-away", "options": options},
        compute={"cluster": "inline", "patience": 1},
    )
    with pytest.raises(StoreUnavailable, match=r"the object store .* for \d.* s"):
        release(spec, on_progress=at_stage("tiles", gate.close, done=1))
    gate.open()
    assert space.spent() > 0
    resume(spec)
    assert set(space.ledger.state("people").releases.values()) == {"commit"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    started = Cluster()
    yield started
    started.kill()


QUERIES: dict[str, dict[str, Any]] = {
    "norms": {"query": "identity", "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0}},
    "sums": {"query": "mean", "privacy_unit": {"record_dim": 0, "ranges": [-1, 1]}},
}


@pytest.mark.parametrize("stage", ["key", "tiles"])
@pytest.mark.parametrize("query", QUERIES)
def test_row_08_prepared_results_are_computed_anew_after_a_scheduler_restart(
    space: Workspace, cluster: Cluster, query: str, stage: str, fixed_key: None
) -> None:
    space.source(people(), chunks=(10, 4))
    changes = {**QUERIES[query], "publish": {"chunks": [10, 4] if query == "norms" else [4]}}
    expected = without_fault(space, **changes)
    restarts: list[bool] = []

    def restart() -> None:
        restarts.append(True)
        cluster.kill()
        threading.Thread(target=cluster.start, daemon=True).start()

    compute = {"cluster": f"tcp://127.0.0.1:{cluster.port}", "patience": 60}
    release(space.spec(compute=compute, **changes), on_progress=at_stage(stage, restart, done=1))
    assert restarts
    assert chunks(space.folder / "out.zarr") == expected
    assert len(space.ledger.state("people").releases) == 1


def test_row_07_a_scheduler_that_stays_away_leaves_a_release_to_resume(
    space: Workspace, cluster: Cluster
) -> None:
    space.source(people(), chunks=(10, 4))
    spec = space.spec(
        compute={"cluster": f"tcp://127.0.0.1:{cluster.port}", "patience": 1},
        publish={"chunks": [10, 4]},
    )
    with pytest.raises(ClusterUnavailable, match=r"did not answer|lost a task|is gone"):
        release(spec, on_progress=at_stage("tiles", cluster.kill, done=1))
    resume({**spec, "compute": {"cluster": "inline"}})
    assert set(space.ledger.state("people").releases.values()) == {"commit"}


def test_row_05_a_cluster_that_finishes_no_task_is_named(
    space: Workspace, cluster: Cluster
) -> None:
    space.source(people(), chunks=(10, 4))
    address = f"tcp://127.0.0.1:{cluster.port}"
    compute = {"cluster": address, "patience": 0, "task_deadline": 5}
    with pytest.raises(ClusterUnavailable, match=r"no task of the cluster finished for 10 s"):
        release(space.spec(compute=compute), on_progress=at_stage("key", cluster.freeze_worker))
    assert space.spent() > 0

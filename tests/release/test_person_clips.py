"""``clip: person``: whole releases in which the clip norm is that of all records of a person."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.planning import make_plan
from dpdask.releases.api import resume
from dpdask.releases.read import read_card
from dpdask.releases.registry import registry_entry
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.views.card_rows import card_rows
from dpdask.views.plan_rows import plan_rows
from tests.recovery.test_crashes import killed_at
from tests.support.exact_answers import exact_answer, kept_records
from tests.support.forging import rewrite_card
from tests.support.snapshots import contents, restore, state
from tests.support.workspace import Workspace

Anything = np.ndarray[Any, Any]
RECORDS = 300
NORM = 2.0
UNIT: dict[str, Any] = {
    "record_dim": 0,
    "l2_clip_norm": NORM,
    "ids": "who",
    "name": "plane",
    "clip": "person",
    "adjacency": "add-remove-one",
}
LITTLE_NOISE = {"epsilon": 1e4, "delta": 1e-5}


def store(space: Workspace, values: Anything, ids: Anything, chunk: int = 7) -> None:
    space.source(values, chunks=(chunk, *values.shape[1:]))
    group = zarr.open_group(space.folder / "source.zarr", mode="a")
    group.create_array("who", data=ids, chunks=(5,), overwrite=True)


def data() -> tuple[Anything, Anything]:
    """Records of people who have many, some or one of them, some with norms above the bound."""
    rng = np.random.default_rng(3)
    people = np.repeat(np.arange(60), rng.integers(1, 20, 60))[:RECORDS]
    ids = rng.permutation(np.resize(people, RECORDS))
    values = rng.standard_normal((RECORDS, 3)) * rng.choice([0.01, 0.3, 2.0], (RECORDS, 1))
    return values, ids


def clipped(values: Anything, ids: Anything, power: int, present: Anything) -> Anything:
    """Records shrunk by the factor of their person, in floating point."""
    norms = np.linalg.norm(values, axis=1)
    out = np.zeros_like(values)
    for who in np.unique(ids[present]):
        mine = (ids == who) & present
        total = np.sum(norms[mine] ** power) ** (1 / power)
        out[mine] = values[mine] * min(1.0, NORM / max(total, 1e-300))
    return out


@pytest.mark.parametrize("adjacency", ["add-remove-one", "replace-one"])
def test_a_sum_is_that_of_people_clipped_together(space: Workspace, adjacency: str) -> None:
    values, ids = data()
    store(space, values, ids)
    unit = {**UNIT, "adjacency": adjacency}
    out = space.staged_values(query="sum", privacy_unit=unit, privacy=LITTLE_NOISE)
    expected = clipped(values, ids, 1, np.ones(RECORDS, bool)).sum(axis=0)
    assert out == pytest.approx(expected, abs=0.2)
    assert np.abs(values.sum(axis=0) - expected).max() > 5
    space.release(query="sum", privacy_unit=unit)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_tensor_holds_every_person_within_the_norm(space: Workspace) -> None:
    values, ids = data()
    store(space, values, ids)
    unit = {**UNIT, "adjacency": "replace-one"}
    out = space.staged_values(privacy_unit=unit, privacy={"epsilon": 1e6, "delta": 1e-5})
    assert out == pytest.approx(clipped(values, ids, 2, np.ones(RECORDS, bool)), abs=0.02)
    space.release(privacy_unit=unit)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_a_mean_counts_the_records_that_are_kept(space: Workspace) -> None:
    values, ids = data()
    store(space, values, ids)
    changes: dict[str, Any] = {
        "query": "mean",
        "privacy_unit": {**UNIT, "max_contributions": 4},
        "privacy": LITTLE_NOISE,
    }
    plan = make_plan(parse_release_spec(space.spec(**changes)))
    arrays = space.staged_arrays(**changes)
    kept = _kept(space, changes)
    expected = clipped(values, ids, 1, kept).sum(axis=0) / kept.sum()
    assert arrays["data_count"] == pytest.approx(kept.sum(), abs=2)
    assert arrays["data"] == pytest.approx(expected, abs=0.01)
    # a person moves the sum by C and the count by 4, not both by 4 times those of a record
    apart = make_plan(
        parse_release_spec(
            space.spec(**{**changes, "privacy_unit": {**changes["privacy_unit"], "clip": "record"}})
        )
    )
    assert plan.data.query.sensitivity.radius < 0.6 * apart.data.query.sensitivity.radius
    space.release(**changes)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def _kept(space: Workspace, changes: dict[str, Any]) -> Anything:
    """The records that ``staged`` keeps: its key and fingerprint are fixed."""
    plan = make_plan(parse_release_spec(space.spec(**changes)))
    return kept_records(dataclasses.replace(plan, fingerprint="ab" * 32))


@pytest.mark.parametrize("center", ["private", 0.5])
@pytest.mark.parametrize("limited", [True, False])
def test_a_covariance_under_replace_one(
    space: Workspace, center: str | float, limited: bool
) -> None:
    values, ids = data()
    store(space, values, ids)
    unit = {**UNIT, "adjacency": "replace-one"}
    unit |= {"max_contributions": 4} if limited else {"missing_ids": "own"}
    changes: dict[str, Any] = {
        "query": {"name": "covariance", "center": center},
        "privacy_unit": unit,
        "privacy": LITTLE_NOISE,
    }
    kept = _kept(space, changes) if limited else np.ones(RECORDS, bool)
    around = 0.0 if center == "private" else float(center)
    power = 1 if center == "private" else 2
    shrunk = clipped(values - around, ids, power, kept)
    mean = shrunk.sum(axis=0) / kept.sum() if center == "private" else np.zeros(3)
    expected = shrunk.T @ shrunk / kept.sum() - np.outer(mean, mean)
    assert space.staged_arrays(**changes)["data"] == pytest.approx(expected, abs=0.05)
    space.release(**changes)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


@pytest.mark.parametrize("clip", ["record", "person"])
def test_second_moments_under_replace_one_are_not_divided(space: Workspace, clip: str) -> None:
    values, ids = data()
    store(space, values, ids)
    unit = {**UNIT, "adjacency": "replace-one", "clip": clip, "max_contributions": 4}
    changes: dict[str, Any] = {
        "query": "second-moment", "privacy_unit": unit, "privacy": LITTLE_NOISE,
    }  # fmt: skip
    kept = _kept(space, changes)
    own = np.arange(RECORDS) if clip == "record" else ids
    shrunk = clipped(values, own, 2, kept)
    assert space.staged_values(**changes) == pytest.approx(shrunk.T @ shrunk, abs=1)
    space.release(**changes)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


@pytest.mark.parametrize("missing", ["own", "drop"])
def test_records_without_an_id(space: Workspace, missing: str) -> None:
    values, ids = data()
    absent = np.arange(RECORDS) % 5 == 0
    store(space, values, np.where(absent, np.nan, ids))
    out = space.staged_values(
        query="sum", privacy_unit={**UNIT, "missing_ids": missing}, privacy=LITTLE_NOISE
    )
    present = ~absent if missing == "drop" else np.ones(RECORDS, bool)
    people = np.where(absent, 1000 + np.arange(RECORDS), ids)
    assert out == pytest.approx(clipped(values, people, 1, present).sum(axis=0), abs=0.2)


CHANGES: dict[str, dict[str, Any]] = {
    "sum": {"query": "sum", "privacy_unit": UNIT},
    "mean": {"query": "mean", "privacy_unit": {**UNIT, "max_contributions": 4}},
    "identity": {"query": "identity", "privacy_unit": {**UNIT, "adjacency": "replace-one"}},
    "covariance": {
        "query": {"name": "covariance", "center": "private"},
        "privacy_unit": {**UNIT, "max_contributions": 4},
    },
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(
    ("chunk", "compute"),
    [
        (1, {"cluster": "inline", "task_size": 2000}),
        (300, {"cluster": "inline"}),
        (11, {"cluster": "local", "workers": 2, "threads": 1, "task_size": 5000}),
    ],
)
def test_chunks_tasks_and_workers_give_the_same_bytes(
    space: Workspace, name: str, chunk: int, compute: dict[str, Any]
) -> None:
    values, ids = data()
    publish = {"chunks": [50, 3]} if name == "identity" else {}
    store(space, values, ids)
    expected = space.staged(**CHANGES[name], publish=publish)
    store(space, values, ids, chunk)
    assert space.staged(**CHANGES[name], publish=publish, compute=compute) == expected


def test_many_rounds_give_what_one_round_gives(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, ids = data()
    store(space, values, ids)
    expected = space.staged(**CHANGES["mean"])
    monkeypatch.setattr("dpdask.planning.partition._TASKS_WAITING", 0)
    small = {"cluster": "inline", "task_size": 2000}
    assert space.staged(**CHANGES["mean"], compute=small) == expected


def test_variables_are_clipped_each_by_its_own_norm(space: Workspace) -> None:
    values, ids = data()
    store(space, values, ids)
    zarr.open_group(space.folder / "source.zarr", mode="a").create_array(
        "y", data=5 * values, chunks=(50, 1)
    )
    arrays = space.staged_arrays(
        source={
            "url": str(space.folder / "source.zarr"),
            "arrays": {"x": {}, "y": {"l2_clip_norm": 5 * NORM}},
        },
        query="sum",
        privacy_unit=UNIT,
        privacy=LITTLE_NOISE,
    )
    everyone = np.ones(RECORDS, bool)
    assert arrays["x"] == pytest.approx(clipped(values, ids, 1, everyone).sum(axis=0), abs=0.3)
    of_y = 5 * clipped(values, ids, 1, everyone).sum(axis=0)
    assert arrays["y"] == pytest.approx(of_y, abs=1.5)


@pytest.mark.slow
def test_a_killed_release_gives_the_same_bytes(space: Workspace) -> None:
    values, ids = data()
    store(space, values, ids)
    spec = space.write_spec(**CHANGES["mean"], compute={"threads": 1, "task_size": 2000})
    killed_at("key", 0, spec)
    begun = state(space.folder)
    resume(spec)
    whole = contents(space.folder / "out.zarr")
    for stage in ("people", "norms", "sums", "tiles"):
        restore(space.folder, begun)
        killed_at(stage, 0, spec, "resume")
        resume(spec)
        assert contents(space.folder / "out.zarr") == whole


def test_plan_card_and_registry_say_that_people_are_clipped(space: Workspace) -> None:
    values, ids = data()
    store(space, values, ids)
    for k, said, shown, text in (
        (
            None,
            "its records clipped together",
            "all records of each clipped together",
            "which were",
        ),
        (4, "others left out at random; clipped together", "at most 4 records each, clipped", "4"),
    ):
        unit = UNIT if k is None else {**UNIT, "max_contributions": k}
        plan = make_plan(parse_release_spec(space.spec(query="sum", privacy_unit=unit)))
        [protects] = [row.value for row in plan_rows(plan.to_dict()) if row.label == "protects"]
        assert protects.startswith("one plane (")
        assert said in protects
        out = f"{space.folder}/out{k}.zarr"
        space.release(query="sum", privacy_unit=unit, output={"url": out})
        card = read_card(out)
        [shows] = [row.value for row in card_rows(card) if row.label == "protects"]
        assert shown in shows
        assert text in json.dumps(registry_entry(card))
        assert card.sensitivity.l2 == pytest.approx(NORM)
        verify_release(out, ledger=space.ledger)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("by", "random subset"),
        ("by", "clip norm"),
        ("by", "distinct cells"),
    ],
)
def test_tampered_cards_are_refused(space: Workspace, place: str, value: str) -> None:
    values, ids = data()
    store(space, values, ids)
    space.release(query="mean", privacy_unit={**UNIT, "max_contributions": 4})
    verify_release(str(space.folder / "out.zarr"))

    def change(card: dict[str, Any]) -> None:
        card["privacy_unit"]["people"][place] = value

    rewrite_card(space.folder / "out.zarr", change)
    with pytest.raises(VerificationFailed):
        verify_release(str(space.folder / "out.zarr"))


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("mean", {}, "not how many records it adds to a count"),
    ("mean", {"adjacency": "replace-one"}, "give max_contributions, too"),
    ("sum", {"missing": "count"}, "give max_contributions, too"),
    ("sum", {"center": 5.0}, "give max_contributions, too"),
    ({"name": "covariance", "center": 0.0}, {}, "give max_contributions, too"),
    ("sum", {"l2_clip_norm": None, "ranges": [[0, 1]]}, "give privacy_unit.l2_clip_norm"),
    ("sum", {"ids": None, "name": None}, "privacy_unit.clip is about people"),
    (
        {"name": "histogram", "edges": [[0, 1]] * 3},
        {"l2_clip_norm": None},
        "has no clip norm that could bound all records of a person",
    ),
    ("sum", {"clip": "everybody"}, "clip"),
]


@pytest.mark.parametrize(("query", "changes", "text"), REFUSED)
def test_what_does_not_go_with_it_is_refused_before_the_charge(
    space: Workspace, query: Any, changes: dict[str, Any], text: str
) -> None:
    values, ids = data()
    store(space, values, ids)
    unit = {key: value for key, value in {**UNIT, **changes}.items() if value is not None}
    with pytest.raises(DpdaskError, match=text):
        space.release(query=query, privacy_unit=unit)
    assert space.spent() == 0
    assert space.left_behind() == []


def test_noise_along_axes_is_added_to_people_clipped_together(space: Workspace) -> None:
    """Whitened grids round what one person can change: any number of records of a tensor."""
    values, ids = data()
    store(space, values, ids)
    changes: dict[str, Any] = {
        "privacy_unit": {**UNIT, "adjacency": "replace-one"},
        "mechanism": {"name": "imgm", "factors": ["identity", {"diagonal": [1.0, 2.0, 3.0]}]},
    }
    space.release(**changes)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)


def test_packed_coarsened_and_windowed_sources(space: Workspace) -> None:
    """Ids go with whatever is read: the same people, clipped and selected, give the same sums."""
    rng = np.random.default_rng(8)
    codes = rng.integers(-900, 900, (RECORDS, 4)).astype(np.int16)
    values = codes * np.float32(0.01) + np.float32(1.0)
    _, ids = data()
    for name, changes in CHANGES.items():
        if name == "identity":
            continue
        unit = {**changes["privacy_unit"], "adjacency": "replace-one"}
        own = {**changes, "privacy_unit": unit}
        store(space, values[40:220, :2] + values[40:220, 2:], ids[40:220])
        expected = exact_answer(make_plan(parse_release_spec(space.spec(**own))))
        space.source(codes, chunks=(11, 3))
        group = zarr.open_group(space.folder / "source.zarr", mode="a")
        group["x"].attrs.update({"scale_factor": 0.01, "add_offset": 1.0})
        group.create_array("who", data=ids, chunks=(9,), overwrite=True)
        group.create_array("half", data=np.array([0, 1, 0, 1]), overwrite=True)
        source = {
            "url": str(space.folder / "source.zarr"),
            "array": "x",
            "window": {"axis": 0, "start": 40, "stop": 220},
            "coarsen": {"dim": 1, "array": "half"},
        }
        found = exact_answer(make_plan(parse_release_spec(space.spec(**own, source=source))))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-3)

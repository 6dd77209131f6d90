"""Brute force: no two data sets that differ in one person move an exact answer by more than the
stated sensitivity, whoever owns which records, and wherever they lie.

Under add-remove-one the records of one person vanish, and all others keep their random priorities:
that is the coupling by which docs/people.md proves the guarantee. Under replace-one the contents of
one person's records change, in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.planning import make_plan
from dpdask.spec import parse_release_spec
from tests.support.exact_answers import (
    clip_in_every_range,
    exact_answer,
    keep_in_every_range,
    priorities_of,
)
from tests.support.workspace import Workspace

RECORDS, FEATURES, GROUPS = 60, 3, [1, 2, 3]
Anything = np.ndarray[Any, Any]

OWNERS: dict[str, Anything] = {
    "one owns all": np.zeros(RECORDS, np.int64),
    "one owns most": np.where(np.arange(RECORDS) % 7 == 3, np.arange(RECORDS), 0),
    "split across chunks": np.arange(RECORDS) % 6,
    "in runs": np.arange(RECORDS) // 9,
    "alone": np.arange(RECORDS),
}
BY = {"array": "group", "groups": GROUPS}
QUERIES: dict[str, dict[str, Any]] = {
    "sum": {"query": "sum", "privacy_unit": {"l2_clip_norm": 1.0}},
    "sum in ranges": {"query": "sum", "privacy_unit": {"ranges": [-1.0, 3.0]}},
    "mean": {"query": "mean", "privacy_unit": {"ranges": [-1.0, 3.0]}},
    "mean of clipped": {"query": "mean", "privacy_unit": {"l2_clip_norm": 1.0}},
    "mean of present": {
        "query": "mean",
        "privacy_unit": {"ranges": [-1.0, 1.0], "missing": "count"},
    },
    "grouped mean": {
        "query": {"name": "mean", "by": BY},
        "privacy_unit": {"ranges": [-1.0, 1.0]},
    },
    "histogram": {
        "query": {"name": "histogram", "edges": [[-9, 0, 9], [-9, 0, 9], [-9, 9]]},
        "privacy_unit": {},
    },
    "histogram of distinct cells": {
        "query": {"name": "histogram", "edges": [[-9, 0, 9], [-9, 0, 9], [-9, 9]], "by": BY},
        "privacy_unit": {"max_cells": 3},
    },
    "second moment": {"query": "second-moment", "privacy_unit": {"l2_clip_norm": 1.0}},
    "covariance": {
        "query": {"name": "covariance", "center": "private"},
        "privacy_unit": {"l2_clip_norm": 1.0},
    },
    "covariance around a point": {
        "query": {"name": "covariance", "center": 0.5},
        "privacy_unit": {"l2_clip_norm": 1.0},
    },
}
TOGETHER = {"l2_clip_norm": 1.0, "clip": "person"}
OF_PEOPLE: dict[str, dict[str, Any]] = {
    f"{name}, clipped by person": {
        "query": query,
        "privacy_unit": {**TOGETHER, **({"max_contributions": 3} if limited else {})},
    }
    for name, query, limited in (
        ("sum", "sum", False),
        ("sum of some", "sum", True),
        ("grouped sum", {"name": "sum", "by": BY}, False),
        ("mean", "mean", True),
        ("grouped mean", {"name": "mean", "by": BY}, True),
        ("second moment", "second-moment", False),
        ("covariance", {"name": "covariance", "center": "private"}, True),
        ("covariance around a point", {"name": "covariance", "center": 0.5}, True),
    )
}
OF_PEOPLE["mean of present, clipped by person"] = {
    "query": "mean",
    "privacy_unit": {**TOGETHER, "missing": "count", "max_contributions": 3},
}
OF_ALL: dict[str, dict[str, Any]] = {  # of all records, whose number is public
    f"{name} of all, clipped by person": {
        "query": query,
        "privacy_unit": {**TOGETHER, "missing_ids": "own"},
    }
    for name, query in (
        ("mean", "mean"),
        ("second moment", "second-moment"),
        ("covariance", {"name": "covariance", "center": "private"}),
        ("covariance around a point", {"name": "covariance", "center": 0.5}),
    )
}
QUERIES |= OF_PEOPLE | OF_ALL
CASES = [
    (name, adjacency)
    for name in QUERIES
    for adjacency in ("add-remove-one", "replace-one")
    if adjacency == "replace-one" or name not in OF_ALL
]


def answer(
    space: Workspace, name: str, adjacency: str, values: Anything, ids: Anything, groups: Anything
) -> tuple[Anything, float]:
    space.source(values, chunks=(7, FEATURES))
    group = zarr.open_group(space.folder / "source.zarr", mode="a")
    for label, content in {"who": ids, "group": groups}.items():
        group.create_array(label, data=content, chunks=(5,), overwrite=True)
    case = QUERIES[name]
    unit = {"record_dim": 0, "ids": "who", "adjacency": adjacency}
    if not {"max_cells", "clip"} & set(case["privacy_unit"]):
        unit["max_contributions"] = 3
    spec = space.spec(
        query=case["query"],
        privacy_unit={**unit, **case["privacy_unit"]},
        compute={"cluster": "inline", "task_size": 2000},
    )
    plan = make_plan(parse_release_spec(spec))
    return exact_answer(plan), plan.data.query.sensitivity.radius


def largest_move(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str, adjacency: str
) -> float:
    """How far one person moves the answer at most, over its sensitivity."""
    rng = np.random.default_rng(5)
    largest = 0.0
    for ids in OWNERS.values():
        values = np.full((RECORDS, FEATURES), 9.0) * rng.choice([-1, 1], (RECORDS, 1))
        groups = rng.choice(GROUPS, RECORDS)
        person = ids == ids[0]
        values[person], groups[person] = 9.0, 1  # all of one person's at one end
        if name == "histogram of distinct cells":  # in as many as it may
            groups[person] = np.resize(GROUPS, person.sum())
        before, radius = answer(space, name, adjacency, values, ids, groups)
        if adjacency == "add-remove-one":
            there = np.flatnonzero(~person)
            with priorities_of(monkeypatch, there):
                after, _ = answer(space, name, adjacency, values[there], ids[there], groups[there])
        else:
            other, groups_after = values.copy(), groups.copy()
            other[person] = -9.0
            if "moment" in name or "covariance" in name:  # products are even
                other[person] = [9.0, -9.0, -1.0]
            groups_after[person] = 2 if name != "histogram of distinct cells" else groups[person]
            ids_after = np.where(person, 10**6, ids)
            apart, _ = answer(space, name, adjacency, other, ids_after, groups_after)
            largest = max(largest, float(np.linalg.norm(before - apart)) / radius)
            after, _ = answer(space, name, adjacency, other, ids_after, groups)
        largest = max(largest, float(np.linalg.norm(before - after)) / radius)
    return largest


@pytest.mark.parametrize(("name", "adjacency"), CASES)
def test_one_person_moves_no_answer_by_more_than_its_sensitivity(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str, adjacency: str
) -> None:
    moved = largest_move(space, monkeypatch, name, adjacency)
    assert moved < 1.01  # the answer is rounded to the grid of its noise
    assert moved > 0.5  # the attack is one


@pytest.mark.parametrize("name", ["sum", "histogram"])
def test_a_subset_of_every_range_instead_of_every_person_is_noticed(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keep_in_every_range(monkeypatch)
    assert largest_move(space, monkeypatch, name, "add-remove-one") > 1.5


@pytest.mark.parametrize("name", ["sum", "second moment"])
def test_factors_of_every_range_instead_of_every_person_are_noticed(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    clip_in_every_range(monkeypatch)
    case = f"{name}, clipped by person"
    assert largest_move(space, monkeypatch, case, "add-remove-one") > 1.5


def test_priorities_that_follow_places_alone_are_noticed(space: Workspace) -> None:
    """With the same priorities by place on both, other people's records change, too."""
    ids = np.concatenate([[99], np.arange(RECORDS - 1) % 6])
    groups = np.ones(RECORDS, np.int64)
    moved = []
    for seed in range(6):
        signs = np.random.default_rng(seed).choice([-9.0, 9.0], (RECORDS, 1))
        values = signs * np.ones((1, FEATURES))
        before, radius = answer(space, "sum", "add-remove-one", values, ids, groups)
        after, _ = answer(space, "sum", "add-remove-one", values[1:], ids[1:], groups[1:])
        moved.append(np.linalg.norm(before - after) / radius)
    assert max(moved) > 1.3


@pytest.mark.parametrize("missing", ["own", "drop"])
@pytest.mark.parametrize("owners", OWNERS)
def test_one_person_clipped_together_moves_a_tensor_by_its_sensitivity(
    space: Workspace, owners: str, missing: str
) -> None:
    """All records of the person move, and all of them together by 2 C, whoever owns them."""
    ids, outputs = OWNERS[owners], []
    unit = {"record_dim": 0, "ids": "who", **TOGETHER, "center": 4.0, "missing_ids": missing}
    person = ids == ids[0]
    for end in (99.0, -99.0):
        values = np.where(person[:, None], end, 1.0) * np.ones((1, FEATURES))
        space.source(values, chunks=(7, FEATURES))
        group = zarr.open_group(space.folder / "source.zarr", mode="a")
        group.create_array("who", data=ids, chunks=(5,), overwrite=True)
        plan = make_plan(parse_release_spec(space.spec(privacy_unit=unit)))
        outputs.append(space.staged_values(privacy_unit=unit))
    moved = np.linalg.norm(outputs[0] - outputs[1], axis=1)
    assert np.array_equal(moved > 1e-6, person)
    radius = plan.data.query.sensitivity.radius
    assert np.linalg.norm(moved) == pytest.approx(radius, rel=0.01)
    assert radius == pytest.approx(2.0)


@pytest.mark.parametrize("bound", [{"l2_clip_norm": 1.0, "center": 4.0}, {"ranges": [-1.0, 3.0]}])
@pytest.mark.parametrize("owners", OWNERS)
def test_one_person_moves_a_tensor_by_no_more_than_its_sensitivity(
    space: Workspace, owners: str, bound: dict[str, Any]
) -> None:
    """With one key, the noise of both is the same."""
    ids, outputs = OWNERS[owners], []
    unit = {"record_dim": 0, "ids": "who", "max_contributions": 3, **bound}
    person = ids == ids[0]
    for end in (99.0, -99.0):
        values = np.where(person[:, None], end, 1.0) * np.ones((1, FEATURES))
        space.source(values, chunks=(7, FEATURES))
        group = zarr.open_group(space.folder / "source.zarr", mode="a")
        group.create_array("who", data=ids, chunks=(5,), overwrite=True)
        plan = make_plan(parse_release_spec(space.spec(privacy_unit=unit)))
        outputs.append(space.staged_values(privacy_unit=unit))
    moved = np.linalg.norm(outputs[0] - outputs[1], axis=1)
    assert np.count_nonzero(moved > 1e-6) == min(3, person.sum())
    radius = plan.data.query.sensitivity.radius
    share = np.sqrt(min(3, int(person.sum())) / 3)
    assert np.linalg.norm(moved) == pytest.approx(radius * share, rel=0.01)

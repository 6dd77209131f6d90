"""Attacks on sums with counts and groups that once worked, each with a twin that must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdask import PrivacyBudget
from dpdask.errors import DpdaskError, InvalidSpec, StoreError
from dpdask.planning import ReleasePlan, make_plan
from dpdask.planning.verified import recorded_answer
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace


def _plan(space: Workspace, **changes: Any) -> ReleasePlan:
    return make_plan(parse_release_spec(space.spec(mechanism="auto", **changes)))


def _unit(**changes: Any) -> dict[str, Any]:
    return {"record_dim": 0, "missing": "center", "adjacency": "add-remove-one", **changes}


@pytest.mark.parametrize("bound", [{"ranges": [250, 320]}, {"l2_clip_norm": 1.0, "center": 5.0}])
@pytest.mark.parametrize("query", ["sum", "mean"])
def test_no_records_are_planned_as_one(space: Workspace, query: str, bound: Any) -> None:
    plans = []
    for records in (0, 1, 2):
        space.source(np.zeros((records, 5)), chunks=(2, 5))
        plan = _plan(space, query=query, privacy_unit=_unit(**bound))
        plans.append(
            [plan.data.query.to_dict(), plan.data.noise.to_dict(), plan.data.grid_to_dict()]
        )
    assert plans[0] == plans[1] == plans[2]
    space.source(np.zeros((2, 1)))
    other = _plan(space, query=query, privacy_unit=_unit(**bound))
    assert other.data.query.to_dict() != plans[0][0]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("features", [1, 40, 3000])
@pytest.mark.parametrize("missing", ["center", "count"])
def test_counts_have_the_noise_that_the_joint_radius_is_for(
    space: Workspace, features: int, epsilon: float, missing: str
) -> None:
    """Rounding may add to the noise of the sum; counts must not fall behind."""
    space.source(np.zeros((2, features)))
    plan = _plan(
        space,
        query="mean",
        privacy_unit=_unit(l2_clip_norm=1.0, missing=missing),
        privacy={"epsilon": epsilon, "delta": 1e-6},
    )
    answer = recorded_answer(plan.data)
    assert answer.sensitivity.radius >= answer.rules.least_radius(answer)
    space.release(
        query="mean",
        privacy_unit=_unit(l2_clip_norm=1.0, missing=missing),
        privacy={"epsilon": epsilon, "delta": 1e-6},
        mechanism="auto",
    )


def _grouped(space: Workspace, *, array: str = "origin", **publish: Any) -> dict[str, Any]:
    output = publish.pop("output", "data")
    return {
        "query": {"name": "mean", "by": {"array": array, "groups": [7, 8, 9]}},
        "privacy_unit": {"record_dim": 0, "ranges": [0, 1], "missing": "center"},
        "mechanism": "auto",
        "publish": publish,
        "output": {"url": str(space.folder / "out.zarr"), "array": output},
    }


def test_labels_of_records_are_never_coordinates(space: Workspace) -> None:
    """Three records and three groups: as an axis of the result, their labels would fit."""
    space.source(np.zeros((3, 2)))
    for name in ("origin", "public"):
        space.source(np.array([7, 9, 7]), name=name, dimension_names=["group"])
    names = {"dimension_names": ["group", "k"]}
    with pytest.raises(StoreError, match="private label or id of every record"):
        space.release(**_grouped(space, array="origin", coordinates=["origin"], **names))
    for path in ("/origin", "./origin", "../source.zarr/origin"):
        with pytest.raises(InvalidSpec, match="without a path"):
            space.release(**_grouped(space, array=path, coordinates=["origin"], **names))
    space.release(**_grouped(space, array="origin", coordinates=["public"], **names))
    assert space.values(array="public").tolist() == [7, 9, 7]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lat", {"dimension_names": ["lat", "k"], "coordinates": ["lat"]}),
        ("data_count", {"coordinates": ["data_count"]}),
        ("data_noise_std", {"coordinates": ["data_noise_std"]}),
        ("mean_count", {"dimension_names": ["mean_count", "k"], "output": "mean"}),
        ("dp_release", {"dimension_names": ["dp_release", "k"]}),
    ],
)
def test_two_arrays_of_one_name_are_refused_in_a_sentence(
    space: Workspace, name: str, changes: dict[str, Any]
) -> None:
    space.source(np.zeros((6, 2)), dimension_names=["flight", "k"])
    space.source(np.array([7, 9, 7, 8, 8, 9]), name="origin", dimension_names=["flight"])
    length, dimension = (3, "lat") if name == "lat" else (2, "k")
    if name in changes.get("coordinates", ()):
        space.source(np.arange(float(length)), name=name, dimension_names=[dimension])
    with pytest.raises(DpdaskError, match=f"'{name}'.*; rename") as refused:
        space.release(**_grouped(space, **changes))
    assert isinstance(refused.value, InvalidSpec)
    assert space.spent() == 0
    changes = {**changes, "coordinates": [], "dimension_names": ["group", "k"]}
    space.release(**_grouped(space, **changes))


@pytest.mark.parametrize("query", ["sum", "mean", {"name": "covariance", "center": "private"}])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize(
    "bound",
    [
        {"ranges": [-1e308, 1e308]},
        {"ranges": [-1e154, 1e154]},
        {"ranges": [0.0, 5e-324]},
        {"ranges": [5e-324, 1e-320]},
        {"ranges": [0.0, 1.0], "expected_distance": 1e200},
        {"ranges": [0.0, 1.0], "expected_distance": 1e-320},
        {"l2_clip_norm": 1.0, "center": 1e200},
        {"l2_clip_norm": 1.0, "center": 1e-200},
        {"l2_clip_norm": 1e99},
        {"l2_clip_norm": 1e-99},
        {"ranges": [0.0, 1.0], "max_contributions": 10**400},
    ],
)
def test_numbers_out_of_reach_are_refused_or_planned(
    space: Workspace, bound: Any, adjacency: str, query: Any
) -> None:
    space.source(np.zeros((4, 3)))
    unit = _unit(**{**bound, "adjacency": adjacency})
    try:
        noise = _plan(space, query=query, privacy_unit=unit).data.noise.entry_std
    except DpdaskError:
        noise = 1.0
    assert 0 < noise < np.inf


@pytest.mark.parametrize(
    ("array", "text"),
    [("origin", "lies along 'flight', not along 'day'"), ("both", "holds private labels")],
)
def test_labels_of_records_never_coarsen_a_public_dimension(
    space: Workspace, array: str, text: str
) -> None:
    """As many records as days: the labels of the records would fit, and be published."""
    space.source(np.zeros((4, 4)), dimension_names=["flight", "day"])
    space.source(np.array([7, 9, 7, 9]), name="origin", dimension_names=["flight"])
    space.source(np.array([7, 9, 7, 9]), name="both")
    space.source(np.array([1, 1, 2, 2]), name="month", dimension_names=["day"])
    spec = _grouped(space, array="both" if array == "both" else "origin")
    spec["source"] = space.spec()["source"] | {"coarsen": {"dim": "day", "array": array}}
    with pytest.raises(DpdaskError, match=text):
        space.release(**spec)
    assert space.spent() == 0
    spec["source"]["coarsen"]["array"] = "month"
    space.release(**spec)
    assert space.values(array="month").tolist() == [1, 2]


def test_a_mask_along_the_records_is_refused_whatever_the_result_is_called(
    space: Workspace,
) -> None:
    """As many records as features, and the result's dimension called as that of the records."""
    space.source(np.zeros((3, 3)), dimension_names=["flight", "k"])
    space.source(np.array([0, 1, 0]), name="late", dimension_names=["flight"])
    space.source(np.array([0, 1, 0]), name="land", dimension_names=["k"])
    unit = {"record_dim": "flight", "ranges": [0, 1], "missing": "center"}
    named = {"dimension_names": ["flight"], "layers": [{"name": "masked", "mask": "late"}]}
    with pytest.raises(StoreError, match="lies along the record dimension 'flight'"):
        space.release(query="sum", privacy_unit=unit, publish=named)
    assert space.spent() == 0
    public = {"layers": [{"name": "masked", "mask": "land"}]}
    space.release(query="sum", privacy_unit=unit, publish=public)
    assert np.isnan(space.values(array="data_masked")).tolist() == [True, False, True]


@pytest.mark.parametrize("part", ["mask", "coarsen"])
def test_no_refusal_tells_a_private_number_of_records(space: Workspace, part: str) -> None:
    """An array along the records is named where one along a public dimension belongs."""
    texts = []
    for records in (57, 61):
        space.source(np.zeros((records, 4)))
        space.source(np.zeros(records, int), name="late")
        spec: dict[str, Any] = {"query": "mean", "privacy_unit": _unit(ranges=[0, 1])}
        if part == "mask":
            spec["publish"] = {"layers": [{"name": "masked", "mask": "late"}]}
        else:
            spec["source"] = space.spec()["source"] | {"coarsen": {"dim": 1, "array": "late"}}
        with pytest.raises(StoreError, match="late") as refused:
            _plan(space, **spec)
        texts.append(str(refused.value))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("first", ["grouped", "counted"])
def test_labels_are_charged_to_one_dataset(space: Workspace, first: str) -> None:
    """The people whose labels they are would lose two budgets, and nobody would notice."""
    space.ledger.open_dataset("others", PrivacyBudget(epsilon=1e6, delta=0.1))
    space.source(np.zeros((6, 2)))
    for name in ("origin", "other"):
        space.source(np.array([7, 9, 7, 8, 8, 9]), name=name)
    counted: dict[str, Any] = {
        "query": {"name": "histogram", "edges": {"origin": {"values": [7, 8]}}},
        "source": {"url": str(space.folder / "source.zarr")},
        "privacy_unit": {"record_dim": 0},
        "mechanism": "auto",
    }
    specs = {"grouped": _grouped(space), "counted": counted}
    second = specs["counted" if first == "grouped" else "grouped"]
    second["budget"] = {"ledger": space.ledger_url, "dataset": "others"}
    second["output"] = {"url": str(space.folder / "second.zarr")}
    space.release(**specs[first])
    with pytest.raises(DpdaskError, match="charged to dataset 'people' already"):
        space.release(**second)
    assert space.ledger.spent_epsilon("others") == 0
    if first == "grouped":
        second["query"]["edges"] = {"other": {"values": [7, 8]}}
    else:
        second["query"]["by"]["array"] = "other"
    space.release(**second)

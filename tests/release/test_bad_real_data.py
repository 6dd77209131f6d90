"""Mistakes with tables and tensors of people: one line with the way out, and nothing is charged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dpdask
from dpdask.errors import DpdaskError
from tests.support.workspace import Workspace

PEOPLE = 600
UNIT = {"record_dim": "person", "ranges": [0, 10], "missing": "count"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr on text of fixed length
        yield


def table(space: Workspace) -> xr.Dataset:
    """A table of people, with arrays that one may take for groups or coordinates."""
    names = np.array([f"name {i}" for i in range(PEOPLE)])
    dataset = xr.Dataset(
        {
            "x": (("person", "item"), np.full((PEOPLE, 2), 4.0)),
            "region": ("person", np.resize(np.array(["north", "south"]), PEOPLE)),
            "age": ("person", np.arange(PEOPLE) % 90),
            "born": ("person", np.datetime64("1990-01-01", "ns") + np.arange(PEOPLE)),
            "weight": (("person", "item"), np.zeros((PEOPLE, 2))),
        },
        coords={"person": ("person", names), "id": ("person", np.arange(PEOPLE))},
    )
    dataset.to_zarr(space.folder / "source.zarr")
    return dataset


def mean_by(array: str, groups: Any) -> dict[str, Any]:
    query = {"name": "mean", "by": {"array": array, "groups": groups}}
    return {"query": query, "privacy_unit": UNIT}


def beside(name: str, **change: Any) -> dict[str, Any]:
    return {"publish": {"coordinates": [name]}, **change}


IDENTITY = {"query": "identity", "privacy_unit": {"record_dim": "person", "ranges": [0, 10]}}
MEAN = {"query": "mean", "privacy_unit": UNIT}
COVARIANCE = {"query": "covariance", "privacy_unit": {**UNIT, "missing": "center"}}


def around(center: list[float]) -> dict[str, Any]:
    return {**COVARIANCE, "query": {"name": "covariance", "center": center}}


MISTAKES: list[tuple[dict[str, Any], str]] = [
    (mean_by("region", [1, 2]), "1 is not a valid group of text; quote it"),
    (mean_by("age", ["old"]), "'old' is not a valid group of numbers; write those"),
    (mean_by("age", [0.5]), "query.by.groups.0: neither text nor a whole number of 64 bits"),
    (mean_by("region", []), "query.by.groups: list should have at least 1 item"),
    (mean_by("region", ["north", "north"]), "is there twice"),
    (mean_by("born", [1990]), "holds times; store them as plain numbers"),
    (mean_by("weight", [1]), "which has one axis and as many entries as the source has records"),
    (mean_by("country", ["FR"]), "there is no array 'country'"),
    (beside("person", **IDENTITY), "set publish.records_are_public: true"),
    (beside("id", **IDENTITY), "set publish.records_are_public: true"),
    (beside("person", **MEAN), "which query mean sums over; drop it"),
    (beside("id", **MEAN), "which query mean sums over; drop it"),
    ({**MEAN, "privacy_unit": {**UNIT, "missing": None}}, "write missing: center"),
    ({**MEAN, "privacy_unit": {**UNIT, "missing": "drop"}}, "should be 'center' or 'count'"),
    ({**IDENTITY, "privacy_unit": UNIT}, "query identity takes missing: center"),
    ({**MEAN, "privacy_unit": {**UNIT, "record_dim": "people"}}, "choose one of person, item"),
    ({**COVARIANCE, "privacy_unit": UNIT}, "query covariance takes missing: center"),
    (around([1, 2, 3]), "query.center: 3 numbers do not fit 2 features; give one number, or one"),
    (around([1, 12]), "query.center=12 lies outside its range [0, 10]; choose a point within it"),
    ({**COVARIANCE, "mechanism": "laplace"}, "query covariance is computed from noisy parts here"),
    ({**MEAN, "mechanism": "laplace"}, "query mean is computed from noisy parts here"),
    ({**MEAN, "mechanism": "directional"}, "use mechanism: analytic-gaussian"),
    (
        {**MEAN, "query": {"name": "mean", "by": "age"}},
        "write {key: value}, of the keys array, gro",
    ),
    ({**MEAN, "publish": {"layers": ["pca"]}}, "not from query mean; drop it"),
    ({"output": {"url": "out.zarr", "array": "2 m é"}}, "'2 m é' is not a valid name; use letters"),
]


@pytest.mark.parametrize(("change", "text"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_a_mistake_is_one_line_before_anything_is_charged(
    space: Workspace, change: dict[str, Any], text: str
) -> None:
    table(space)
    with pytest.raises(DpdaskError) as refusal:
        space.release(**change)
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "Section" not in str(refusal.value)
    assert space.spent() == 0
    assert space.left_behind() == []


BINS = {"name": "histogram", "edges": [[0, 5, 10]]}


@pytest.mark.parametrize("shape", [(6, 0), (0, 0), (6, 0, 2), (6, 2, 0)])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("query", ["identity", "sum", "mean", "covariance", BINS])
def test_records_without_entries_are_refused(
    space: Workspace, query: Any, adjacency: str, shape: tuple[int, ...]
) -> None:
    space.source(np.zeros(shape), chunks=tuple(max(1, n) for n in shape))
    unit = {"record_dim": 0, "ranges": [0, 10], "adjacency": adjacency}
    with pytest.raises(DpdaskError, match="no record has a value; choose another array"):
        dpdask.plan(space.spec(query=query, privacy_unit=unit))


def test_a_single_number_is_not_a_source(space: Workspace) -> None:
    space.source(np.zeros(()))
    with pytest.raises(DpdaskError, match="a release needs at least one axis"):
        dpdask.plan(space.spec(query="mean"))


def test_a_group_that_nobody_is_in_is_released_like_any_other(space: Workspace) -> None:
    """Whether a label occurs is private: to refuse it would tell."""
    table(space)
    space.release(privacy={"epsilon": 50.0, "delta": 1e-6}, **mean_by("region", ["south", "none"]))
    opened = xr.open_zarr(space.folder / "out.zarr")
    assert opened["region"].values.tolist() == ["south", "none"]
    counts = opened["data_count"].values
    assert np.all(np.abs(counts - [[PEOPLE / 2] * 2, [0, 0]]) < 20)
    np.testing.assert_allclose(opened["data"].values[0], 4.0, atol=1.0)


def test_a_mean_of_one_number_per_person_is_a_single_number(space: Workspace) -> None:
    table(space)
    address = {"url": str(space.folder / "source.zarr"), "array": "age"}
    unit = {"record_dim": "person", "ranges": [0, 90], "missing": "center"}
    privacy = {"epsilon": 50.0, "delta": 1e-6}
    space.release(source=address, query="mean", privacy_unit=unit, privacy=privacy)
    [released] = xr.open_zarr(space.folder / "out.zarr")["data"].values.ravel()
    assert abs(released - (np.arange(PEOPLE) % 90).mean()) < 2

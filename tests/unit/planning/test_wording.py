"""A plan says in words whom it protects, what it decodes, what missing values do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

import dpdask
from dpdask.types import Json
from tests.support.workspace import Workspace


def plan(space: Workspace, **changes: Any) -> Json:
    return dpdask.plan(space.spec(**changes)).to_dict()


@pytest.fixture
def households(space: Workspace) -> Workspace:
    values = np.zeros((5000, 365), "f4")
    load = xr.DataArray(values, dims=("household", "day"))
    labels = xr.DataArray(np.tile(["n", "s"], 2500), dims="household")
    dataset = xr.Dataset({"x": load, "region": labels, "year": ("household", np.arange(5000))})
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768}
    dataset.to_zarr(space.folder / "source.zarr", encoding={"x": packing})
    return space


UNIT = {"record_dim": "household", "ranges": [250, 310], "missing": "center"}


def test_a_plan_names_whom_it_protects(households: Workspace) -> None:
    content = plan(households, privacy_unit=UNIT, query="mean")
    text = "one household of 5,000 (365 values each); replace-one, one record per unit"
    assert content["protects"] == text
    wrong_axis = UNIT | {"record_dim": "day", "max_contributions": 2}
    text = "one day of 365 (5,000 values each); replace-one, at most 2 records per unit"
    assert plan(households, privacy_unit=wrong_axis, query="mean")["protects"] == text


def test_records_without_names_are_told_by_their_axis(space: Workspace) -> None:
    space.source(np.zeros(60))
    unit = {"record_dim": 0, "ranges": [0, 1]}
    text = "one record of 60 along axis 0 (1 value each); replace-one, one record per unit"
    assert plan(space, privacy_unit=unit, query="mean")["protects"] == text
    declared = plan(space, privacy_unit={}, query={"name": "precomputed", "l2_sensitivity": 1.0})
    assert declared["protects"] == "what the caller declares; replace-one"
    tensor = plan(space, privacy_unit={"ranges": [0, 1]}, query="identity")
    assert tensor["protects"] == "the whole tensor; replace-one"


def test_a_plan_tells_what_it_decodes(households: Workspace) -> None:
    content = plan(households, privacy_unit=UNIT, query="mean")
    assert content["decodes"] == "int16 x 0.01 + 273.15; -32768 is missing"
    stored = {"url": str(households.folder / "source.zarr"), "array": "x", "decode": False}
    content = plan(households, source=stored, privacy_unit=UNIT, query="mean")
    assert content["decodes"] == "int16 as stored"
    assert content["missing"] is None


def test_a_plan_tells_its_window(households: Workspace) -> None:
    source = {"url": str(households.folder / "source.zarr"), "array": "x"}
    cut = source | {"window": {"axis": "day", "start": 10, "stop": 20}}
    content = plan(households, source=cut, privacy_unit=UNIT, query="mean")
    assert content["window"] == "day from 10 to 19"
    assert content["protects"].startswith("one household of 5,000 (10 values each)")
    assert plan(households, privacy_unit=UNIT, query="mean")["window"] is None


def test_a_plan_tells_what_missing_values_do(households: Workspace) -> None:
    assert plan(households, privacy_unit=UNIT, query="mean")["missing"] == "count as the centre"
    counted = plan(households, privacy_unit=UNIT | {"missing": "count"}, query="mean")
    assert counted["missing"] == "count as absent; how many are present is released, too"
    histogram = {"name": "histogram", "edges": [[250, 280, 310]]}
    content = plan(households, privacy_unit={"record_dim": "household"}, query=histogram)
    assert content["missing"] == "a record with one is not counted"


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        ({"ranges": [250, 310]}, "280"),
        ({"ranges": [250, 310], "center": 270}, "270"),
        ({"l2_clip_norm": 9.0}, "0"),
        ({"l2_clip_norm": 9.0, "center": [float(day) for day in range(365)]},
         "365 numbers from 0 to 364"),
    ],
)  # fmt: skip
def test_a_plan_tells_the_centre(households: Workspace, unit: dict[str, Any], text: str) -> None:
    content = plan(households, privacy_unit={"record_dim": "household", **unit}, query="mean")
    assert content["center"] == text


def test_a_plan_lists_the_groups(households: Workspace) -> None:
    region = {"array": "region", "groups": ["n", "s"]}
    query: Json = {"name": "mean", "by": region}
    text = "region: n, s; a record with another label counts nowhere"
    assert plan(households, privacy_unit=UNIT, query=query)["groups"] == text
    query = {"name": "mean", "by": [region, {"array": "year", "groups": list(range(30))}]}
    text = (
        "region: n, s; year: 0, 1, 2, 3, 4, 5, ... 29 (60 groups);"
        " a record with another label counts nowhere"
    )
    assert plan(households, privacy_unit=UNIT, query=query)["groups"] == text
    assert plan(households, privacy_unit=UNIT, query="mean")["groups"] is None

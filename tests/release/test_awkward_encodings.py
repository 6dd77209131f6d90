"""Sources as ``xarray.Dataset.to_zarr`` writes them, with awkward encodings: the released mean is
the one that xarray computes, the released file opens with the source's coordinates, and it
survives NetCDF.

Noise is drawn anew in every run, so entries may lie up to 8 stated standard deviations from the
truth, which one in 10^15 exceeds; the budget is large, so that this is below any decoding mistake.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
from zarr.codecs import BloscCodec, ZstdCodec

import dpdask
from tests.support.workspace import Workspace

DAYS, ROWS, COLUMNS = 48, 3, 4
LOUD = {"epsilon": 9e4, "delta": 1e-2}
SIGMAS = 8


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr on text and times, xarray on missing values
        yield


@dataclass(frozen=True, kw_only=True)
class Source:
    """A dataset and how xarray stores it.

    Args:
        dataset: what is stored.
        encoding: how, by variable.
        options: further arguments of ``to_zarr``.
        array: the variable that is released.
        records: the dimension of its records.
        ranges: the bound of its values.
        name: the name of the released array.
        decoded: whether releasing stored numbers would give another mean.
    """

    dataset: xr.Dataset
    encoding: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    array: str = "t2m"
    records: str = "day"
    ranges: tuple[float, float] = (250, 310)
    name: str = "t2m"
    decoded: bool = False


SOURCES: dict[str, Callable[[], Source]] = {}


def _awkward(build: Callable[[], Source]) -> Callable[[], Source]:
    SOURCES[build.__name__.strip("_")] = build
    return build


def temperatures(*, missing: bool = False) -> Any:
    values = 280 + 12 * np.random.default_rng(11).standard_normal((DAYS, ROWS, COLUMNS))
    if missing:
        values[::5, 1, :] = np.nan
    return values


def grid(*, missing: bool = False, **coords: Any) -> xr.Dataset:
    """Temperatures on a grid of latitudes and longitudes."""
    variable = (("day", "lat", "lon"), temperatures(missing=missing), {"units": "K"})
    plain = {"lat": ("lat", np.linspace(45, 50, ROWS)), "lon": ("lon", np.arange(COLUMNS) * 0.5)}
    return xr.Dataset({"t2m": variable}, coords={**plain, **coords})


def packed(code: str = "i2", **more: Any) -> dict[str, Any]:
    return {"t2m": {"dtype": code, "scale_factor": 0.01, "add_offset": 273.15, **more}}


@_awkward
def _packed_int16_with_a_fill_value() -> Source:
    encoding = packed(_FillValue=-32768, chunks=(7, 3, 2))
    return Source(dataset=grid(missing=True), encoding=encoding, decoded=True)


@_awkward
def _packed_int16_in_zarr_v2_with_blosc() -> Source:
    encoding = packed(_FillValue=-32768, compressors=numcodecs.Blosc("lz4", shuffle=2))
    options = {"zarr_format": 2, "consolidated": False}
    return Source(dataset=grid(missing=True), encoding=encoding, options=options, decoded=True)


@_awkward
def _packed_uint8_without_a_fill_value() -> Source:
    encoding = {"t2m": {"dtype": "u1", "scale_factor": 0.5, "add_offset": 210.0}}
    options = {"zarr_format": 2}
    return Source(dataset=grid(), encoding=encoding, options=options, decoded=True)


@_awkward
def _packed_int32_uncompressed() -> Source:
    encoding = packed("i4", _FillValue=-(2**31), compressors=None, chunks=(16, 3, 4))
    options = {"consolidated": False}
    return Source(dataset=grid(missing=True), encoding=encoding, options=options, decoded=True)


@_awkward
def _packed_int16_in_big_endian() -> Source:
    encoding = packed(">i2", _FillValue=-999, chunks=(7, 3, 2))
    return Source(
        dataset=grid(missing=True), encoding=encoding, options={"zarr_format": 2}, decoded=True
    )


@_awkward
def _packed_by_the_scale_alone() -> Source:
    encoding = {"t2m": {"dtype": "i4", "scale_factor": 1e-3, "_FillValue": 0}}
    return Source(dataset=grid(missing=True), encoding=encoding, decoded=True)


@_awkward
def _packed_by_the_offset_alone() -> Source:
    encoding = {"t2m": {"dtype": "i1", "add_offset": 280.0, "_FillValue": 127}}
    dataset = grid(missing=True).round()
    return Source(dataset=dataset, encoding=encoding, options={"zarr_format": 2}, decoded=True)


@_awkward
def _packed_with_a_negative_scale() -> Source:
    encoding = {"t2m": {"dtype": "i2", "scale_factor": -0.01, "_FillValue": 32767}}
    encoding["t2m"]["add_offset"] = 280.0
    return Source(dataset=grid(missing=True), encoding=encoding, decoded=True)


@_awkward
def _scaled_float32() -> Source:
    encoding = {"t2m": {"dtype": "f4", "scale_factor": 0.1, "add_offset": 100.0}}
    return Source(dataset=grid(missing=True), encoding=encoding, decoded=True)


@_awkward
def _scaled_float32_with_a_fill_value() -> Source:
    encoding = {"t2m": {"dtype": "f4", "scale_factor": 0.1, "_FillValue": np.float32(1e20)}}
    return Source(
        dataset=grid(missing=True), encoding=encoding, options={"zarr_format": 2}, decoded=True
    )


def _unsigned(version: int) -> Source:
    attributes = {"_Unsigned": "true", "scale_factor": 0.5, "add_offset": 210.0, "_FillValue": -1}
    encoding = {"t2m": {"dtype": "i1", **attributes}}
    dataset = grid(missing=True)
    return Source(
        dataset=dataset, encoding=encoding, options={"zarr_format": version}, decoded=True
    )


@_awkward
def _unsigned_in_zarr_v2() -> Source:
    return _unsigned(2)


@_awkward
def _unsigned_in_zarr_v3() -> Source:
    return _unsigned(3)


@_awkward
def _masked_integers() -> Source:
    encoding = {"t2m": {"dtype": "i4", "_FillValue": -9}}
    return Source(dataset=grid(missing=True).round(), encoding=encoding, decoded=True)


@_awkward
def _masked_uint16_in_zarr_v2() -> Source:
    encoding = {"t2m": {"dtype": "u2", "_FillValue": 65535, "missing_value": 65535}}
    dataset = grid(missing=True).round()
    return Source(dataset=dataset, encoding=encoding, options={"zarr_format": 2}, decoded=True)


@_awkward
def _several_missing_values() -> Source:
    dataset = grid().round()
    values = dataset["t2m"].values.astype("i2")
    values[3:9, 0], values[5:20, 1] = -999, -998
    attributes = {"missing_value": [-999, -998]}
    return Source(dataset=dataset.assign(t2m=(("day", "lat", "lon"), values, attributes)))


@_awkward
def _a_valid_range_that_holds_everything() -> Source:
    dataset = grid(missing=True)
    dataset["t2m"].attrs |= {"valid_range": [-32767, 32767], "valid_min": -32767}
    return Source(dataset=dataset, encoding=packed(_FillValue=-32768), decoded=True)


@_awkward
def _booleans() -> Source:
    dataset = grid()
    return Source(dataset=dataset.assign(t2m=dataset["t2m"] > 283), ranges=(0, 1))


@_awkward
def _half_precision() -> Source:
    encoding = {"t2m": {"dtype": "f2", "chunks": (48, 1, 1)}}
    return Source(dataset=grid(missing=True), encoding=encoding)


@_awkward
def _big_endian_float32_with_zstd() -> Source:
    encoding = {"t2m": {"dtype": ">f4", "compressors": ZstdCodec(level=3)}}
    return Source(dataset=grid(missing=True), encoding=encoding)


@_awkward
def _sharded_packed_int16() -> Source:
    encoding = packed(_FillValue=-32768, chunks=(8, 3, 2), shards=(16, 3, 4))
    return Source(dataset=grid(missing=True), encoding=encoding, decoded=True)


@_awkward
def _chunks_that_were_never_written() -> Source:
    dataset = grid()
    dataset["t2m"][12:24] = np.nan
    encoding = packed(_FillValue=-32768, chunks=(12, 3, 4), compressors=BloscCodec(cname="zstd"))
    options = {"write_empty_chunks": False}
    return Source(dataset=dataset, encoding=encoding, options=options, decoded=True)


@_awkward
def _filters_of_zarr_v2() -> Source:
    filters = [numcodecs.FixedScaleOffset(273.15, 1000, "f8", "i4"), numcodecs.Delta("i4")]
    encoding = {"t2m": {"filters": filters, "chunks": (7, 3, 2)}}
    return Source(dataset=grid(), encoding=encoding, options={"zarr_format": 2})


@_awkward
def _records_along_the_last_dimension() -> Source:
    dataset = grid(missing=True).transpose("lat", "lon", "day")
    encoding = packed(_FillValue=-32768, chunks=(2, 3, 11))
    return Source(dataset=dataset, encoding=encoding, decoded=True)


@_awkward
def _times_with_bounds() -> Source:
    start = np.datetime64("2000-02-28T06", "ns") + np.arange(COLUMNS) * np.timedelta64(6, "h")
    stop = start + np.timedelta64(6, "h")
    dataset = grid().rename(lon="time").assign_coords(time=("time", start))
    dataset["time"].attrs = {"bounds": "time_bnds", "axis": "T"}
    dataset = dataset.assign_coords(time_bnds=(("time", "nv"), np.stack([start, stop], axis=1)))
    encoding = {"time": {"units": "minutes since 1970-01-01", "dtype": "f8", "chunks": (2,)}}
    return Source(dataset=dataset, encoding=encoding)


@_awkward
def _times_of_another_calendar() -> Source:
    times = xr.date_range("2000-02-28", periods=COLUMNS, calendar="360_day", use_cftime=True)
    return Source(
        dataset=grid().rename(lon="time").assign_coords(time=("time", times)),
        options={"zarr_format": 2, "consolidated": False},
    )


@_awkward
def _times_without_leap_years_along_records() -> Source:
    times = xr.date_range("2000-02-28", periods=DAYS, calendar="noleap", use_cftime=True)
    return Source(dataset=grid().assign_coords(day=("day", times)))


@_awkward
def _missing_times() -> Source:
    times = np.array(["2000-01-01", "NaT", "2000-01-03", "NaT"], "M8[ns]")
    return Source(dataset=grid(seen=("lon", times, {"long_name": "first seen"})))


@_awkward
def _spans_of_time() -> Source:
    spans = np.array([0, 6, 12, 36], "m8[h]").astype("m8[ns]")
    dataset = grid().rename(lon="lead").assign_coords(lead=("lead", spans))
    return Source(dataset=dataset.assign_coords(delay=("lead", spans[::-1])))


@_awkward
def _text_coordinates() -> Source:
    dataset = grid(
        name=("lon", np.array(["a", "", "größe", "东京"], dtype=object), {"long_name": "station"}),
        code=("lon", np.array(["EWR", "JFK", "LGA", "X"])),
        raw=("lon", np.array([b"ab", b"c", b"d", b"e"])),
        region=((), "Alps"),
    )
    return Source(dataset=dataset, options={"consolidated": False})


@_awkward
def _text_coordinates_of_zarr_v2() -> Source:
    dataset = grid().rename(lon="station")
    names = np.array(["a", "bb", "größe", "东京"], dtype=object)
    dataset = dataset.assign_coords(station=("station", names), kind=("lat", np.array(["x"] * 3)))
    return Source(dataset=dataset, options={"zarr_format": 2})


@_awkward
def _a_curved_grid_with_crs() -> Source:
    lat, lon = np.meshgrid(np.linspace(45, 50, ROWS), np.arange(COLUMNS) * 0.5, indexing="ij")
    dataset = grid().rename(lat="y", lon="x").drop_vars(["y", "x"])
    lat[0, 0] = np.nan
    crs = {"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 39.25}
    dataset = dataset.assign_coords(
        lat=(("y", "x"), lat, {"units": "degrees_north", "standard_name": "latitude"}),
        lon=(("y", "x"), lon, {"units": "degrees_east"}),
        crs=((), 0, crs),
    )
    dataset["t2m"].attrs["grid_mapping"] = "crs"
    encoding = {
        "lat": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1, "chunks": (2, 3)},
        "lon": {"dtype": "f4", "chunks": (1, 4)},
    }
    return Source(dataset=dataset, encoding=packed() | encoding, decoded=True)


@_awkward
def _packed_and_chunked_coordinates() -> Source:
    encoding = {
        "lat": {"dtype": "u1", "scale_factor": 0.5, "add_offset": 30.0, "chunks": (2,)},
        "lon": {"dtype": "i1", "_Unsigned": "true", "scale_factor": 0.5, "chunks": (3,)},
        "level": {"dtype": ">f4", "_FillValue": np.float32(-9.0)},
        "mask": {"chunks": (1,)},
    }
    encoding["lon"]["_FillValue"] = -1
    coords = {
        "level": ("lat", np.array([1.0, np.nan, 3.0]), {"positive": "down"}),
        "mask": ("lon", np.array([True, False, True, True])),
        "count": ("lat", np.array([2**63, 1, 2], np.uint64)),
    }
    return Source(dataset=grid(**coords), encoding=encoding, options={"zarr_format": 2})


@_awkward
def _scalar_coordinates() -> Source:
    coords = {
        "height": ((), 2.0, {"units": "m", "positive": "up"}),
        "reference_time": ((), np.datetime64("2001-02-03T04:05", "ns")),
        "member": ((), 3),
    }
    return Source(dataset=grid(**coords), options={"zarr_format": 2})


@_awkward
def _names_with_unusual_characters() -> Source:
    dataset = grid().rename(t2m="2 m temperature (é)", lat="lat-itude", lon="lon.gitude")
    dataset = dataset.assign_coords({"größe": ("lat-itude", np.arange(ROWS))})
    return Source(dataset=dataset, array="2 m temperature (é)")


@_awkward
def _dimensions_without_coordinates() -> Source:
    return Source(dataset=grid(missing=True).drop_vars(["lat", "lon"]))


@_awkward
def _a_group_within_the_store() -> Source:
    options = {"group": "model/run 1"}
    return Source(dataset=grid(), encoding=packed(), options=options, decoded=True)


def store(space: Workspace, source: Source) -> xr.Dataset:
    """Write a source; return it as xarray reads it."""
    path = space.folder / "source.zarr"
    source.dataset.to_zarr(path, encoding=source.encoding, **source.options)
    group = source.options.get("group")
    return xr.open_zarr(path, group=group, consolidated=source.options.get("consolidated"))


def released(space: Workspace, source: Source, shown: xr.Dataset, *, decode: bool = True) -> None:
    kept = [str(name) for name in shown.variables if source.records not in shown[name].dims]
    group = source.options.get("group")
    address = f"{group}/{source.array}" if group else source.array
    url = str(space.folder / "source.zarr")
    unit = {"record_dim": source.records, "ranges": list(source.ranges), "missing": "count"}
    space.release(
        source={"url": url, "array": address, "decode": decode},
        output={"url": str(space.folder / "out.zarr"), "array": source.name},
        query="mean",
        privacy_unit=unit,
        privacy=LOUD,
        publish={"coordinates": kept},
    )


def scores(space: Workspace, source: Source, truth: Any) -> Any:
    """By how many stated standard deviations the release differs from the truth."""
    out = xr.open_zarr(space.folder / "out.zarr")
    std = out[f"{source.name}_noise_std"].values
    return np.abs(out[source.name].values - truth.values) / std


@pytest.mark.parametrize("name", SOURCES)
def test_released_mean_coordinates_and_netcdf_are_those_of_xarray(
    space: Workspace, name: str
) -> None:
    source = SOURCES[name]()
    shown = store(space, source)
    released(space, source, shown)
    truth = shown[source.array].astype("f8").clip(*source.ranges).mean(source.records)
    out = xr.open_zarr(space.folder / "out.zarr").load()
    assert out[source.name].dims == truth.dims
    assert np.max(scores(space, source, truth)) < SIGMAS
    assert np.max(out[f"{source.name}_noise_std"]) < 0.05
    for coordinate in truth.coords:
        xr.testing.assert_identical(out[coordinate].variable, truth[coordinate].variable)
        kinds = [(one[coordinate].dtype.kind, one[coordinate].dtype) for one in (out, truth)]
        assert kinds[0] == kinds[1] or kinds[0][0] in "OUT", coordinate
    survives_netcdf(space)


def survives_netcdf(space: Workspace) -> None:
    dataset = dpdask.open_release_dataset(str(space.folder / "out.zarr")).load()
    for engine in ("netcdf4", "h5netcdf"):
        path = space.folder / f"out-{engine}.nc"
        dataset.to_netcdf(path, engine=engine)
        with xr.open_dataset(path, engine=engine) as again:
            xr.testing.assert_equal(again.load(), dataset)


@pytest.mark.parametrize("name", [name for name, build in SOURCES.items() if build().decoded])
def test_the_twin_of_stored_numbers_has_another_mean(space: Workspace, name: str) -> None:
    source = SOURCES[name]()
    shown = store(space, source)
    released(space, source, shown, decode=False)
    truth = shown[source.array].astype("f8").clip(*source.ranges).mean(source.records)
    assert np.max(scores(space, source, truth)) > 2 * SIGMAS


def test_at_least_twenty_sources_are_awkward() -> None:
    assert len(SOURCES) >= 20

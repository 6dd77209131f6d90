"""Releases of packed sources are of the values that xarray shows, and publish no packing number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from dpdask.errors import StoreError
from dpdask.planning import make_plan
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

pytestmark = pytest.mark.filterwarnings("ignore")

LOUD = {"epsilon": 9e4, "delta": 1e-2}
RANGES = {"record_dim": 0, "ranges": [250.0, 310.0]}
PACKING = {"dtype": "i2", "scale_factor": 0.0173, "add_offset": 281.377, "_FillValue": -31999}


def packed_source(space: Workspace, version: int, **encoding: Any) -> np.ndarray[Any, Any]:
    """Write a packed source and return the values that xarray shows."""
    values = 280 + 8 * np.random.default_rng(5).standard_normal((60, 8))
    xr.Dataset({"x": (("day", "place"), values)}).to_zarr(
        space.folder / "source.zarr",
        mode="w",
        zarr_format=version,  # type: ignore[arg-type]
        encoding={"x": {**PACKING, "chunks": (13, 8), **encoding}},
    )
    shown = xr.open_zarr(space.folder / "source.zarr")["x"].values
    assert np.max(np.abs(shown - values)) < 0.01
    return np.asarray(shown)


@pytest.mark.parametrize("version", [2, 3])
def test_identity_of_a_packed_source_is_what_xarray_shows(space: Workspace, version: int) -> None:
    shown = packed_source(space, version)
    receipt = space.release(privacy_unit=RANGES, privacy=LOUD)
    std = receipt.card.released.noise_std
    error = np.abs(space.values() - np.clip(shown, 250, 310))
    assert std < 1
    assert np.max(error) < 8 * std


@pytest.mark.parametrize("version", [2, 3])
def test_mean_of_a_packed_source_is_that_of_xarray(space: Workspace, version: int) -> None:
    shown = packed_source(space, version)
    receipt = space.release(query="mean", privacy_unit=RANGES, privacy=LOUD)
    std = receipt.card.released.noise_std
    assert std < 0.1
    assert np.max(np.abs(space.values() - shown.mean(axis=0))) < 8 * std


def test_the_twin_without_decoding_releases_codes(space: Workspace) -> None:
    shown = packed_source(space, 3)
    codes = np.asarray(zarr.open_array(space.folder / "source.zarr" / "x", mode="r")[...])
    spec = space.spec()
    receipt = space.release(
        source={**spec["source"], "decode": False},
        query="mean",
        privacy_unit={"record_dim": 0, "ranges": [-2000, 2000]},
        privacy=LOUD,
    )
    std = receipt.card.released.noise_std
    assert np.max(np.abs(space.values() - codes.mean(axis=0))) < 8 * std
    assert np.max(np.abs(space.values() - shown.mean(axis=0))) > 8 * std


def test_decoding_is_part_of_the_fingerprint(space: Workspace) -> None:
    packed_source(space, 3)
    plans = []
    for decode in (True, False):
        spec = space.spec()
        spec["source"]["decode"] = decode
        plans.append(make_plan(parse_release_spec(spec)))
    assert plans[0].fingerprint != plans[1].fingerprint
    assert plans[0].source.decoding is not None
    assert plans[1].source.decoding is None


def published_text(folder: Path) -> str:
    """Every text that a release publishes, and the card."""
    return "\n".join(
        path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    )


@pytest.mark.parametrize("query", ["identity", "mean"])
def test_no_packing_number_is_published(space: Workspace, query: str) -> None:
    packed_source(space, 3)
    receipt = space.release(query=query, privacy_unit=RANGES)
    everything = published_text(space.folder / "out.zarr") + json.dumps(
        receipt.card.model_dump(mode="json"), default=str
    )
    assert "310" in everything  # the twin: what is public is there
    for secret in ("0.0173", "281.377", "31999"):
        assert secret not in everything


@pytest.mark.parametrize(
    "name", ["scale_factor", "add_offset", "_FillValue", "valid_range", "missing_value"]
)
def test_attributes_of_the_packing_are_not_published(space: Workspace, name: str) -> None:
    packed_source(space, 3)
    spec = parse_release_spec(space.spec(publish={"attributes": [name]}))
    with pytest.raises(StoreError, match="says how the source's values are stored"):
        make_plan(spec)


@pytest.mark.parametrize("dtype", ["?", "<f2", ">i2", ">f4", "u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("version", [2, 3])
def test_every_number_type_is_released_as_its_values(
    space: Workspace, dtype: str, version: int
) -> None:
    values = (np.arange(60 * 8).reshape(60, 8) % 7 > 3) * np.ones((), "u1")
    space.source(values.astype(dtype), zarr_format=version, chunks=(13, 8))
    unit = {"record_dim": 0, "ranges": [0, 1]}
    receipt = space.release(query="mean", privacy_unit=unit, privacy=LOUD)
    std = receipt.card.released.noise_std
    assert np.max(np.abs(space.values() - values.mean(axis=0))) < 8 * std < 0.1


FOREIGN: list[tuple[str, bytes, str]] = [
    ("x.nc", b"CDF\x01", "xarray.open_dataset"),
    ("x.nc4", b"\x89HDF\r\n\x1a\n", "xarray.open_dataset"),
    ("x.h5", b"", "xarray.open_dataset"),
    ("x.hdf5", b"", "xarray.open_dataset"),
    ("x.TIF", b"", "rioxarray.open_rasterio"),
    ("x.tiff", b"", "rioxarray.open_rasterio"),
    ("x.csv", b"a,b\n", "pandas.read_csv"),
    ("x.tsv", b"a\tb\n", "pandas.read_csv"),
    ("x.parquet", b"PAR1", "pandas.read_parquet"),
    ("x.xlsx", b"PK\x03\x04", "pandas.read_excel"),
    ("unnamed1", b"\x89HDF\r\n\x1a\n", "xarray.open_dataset"),
    ("unnamed2", b"CDF\x02", "xarray.open_dataset"),
    ("unnamed3", b"II*\0", "rioxarray.open_rasterio"),
    ("unnamed4", b"PAR1", "pandas.read_parquet"),
    ("unnamed5", b"hello", "a file, and not a Zarr"),
]


@pytest.mark.parametrize(("name", "content", "way_out"), FOREIGN)
def test_files_that_are_not_zarr_are_refused_with_how_to_make_one(
    space: Workspace, name: str, content: bytes, way_out: str
) -> None:
    (space.folder / name).write_bytes(content)
    urls = [str(space.folder / name)]
    if "." in name:
        urls += [f"memory://bucket/{name}", f"{space.folder}/absent/{name}/variable"]
    for url in urls:
        spec = parse_release_spec(space.spec(source={"url": url, "array": "x"}))
        with pytest.raises(StoreError) as error:
            make_plan(spec)
        assert way_out in str(error.value)
        assert "\n" not in str(error.value)


def test_a_zarr_may_have_any_name(space: Workspace) -> None:
    space.source(np.zeros((6, 2)), file="source.nc")
    spec = space.spec(source={"url": str(space.folder / "source.nc"), "array": "x"})
    assert make_plan(parse_release_spec(spec)).source.shape == (6, 2)

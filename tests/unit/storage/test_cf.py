"""Sources are read as ``xarray.open_zarr`` reads them; exceptions are listed one by one."""

from __future__ import annotations

import base64
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from dpdask.errors import StoreError
from tests.support.sources import opened, read, write_codes

pytestmark = pytest.mark.filterwarnings("ignore")

SHAPE = (7, 5)
CHUNKS = (3, 5)

VALUES = np.linspace(-3.0, 4.0, 35).reshape(SHAPE)
HOLES = VALUES.copy()
HOLES[1, 2] = HOLES[4, 0] = np.nan

# What a user hands to xarray: values, and how they are to be stored.
ENCODINGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "int16 packed": (HOLES, {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -32768}),
    "int16 packed, shifted": (
        HOLES + 273.15,
        {"dtype": "i2", "scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768},
    ),
    "int16 packed, float32 attributes": (
        HOLES,
        {
            "dtype": "i2",
            "scale_factor": np.float32(0.01),
            "add_offset": np.float32(1.5),
            "_FillValue": -1,
        },
    ),
    "int16 shifted": (HOLES, {"dtype": "i2", "add_offset": 0.5, "_FillValue": 99}),
    "int16 packed, nothing missing": (VALUES, {"dtype": "i2", "scale_factor": 0.25}),
    "int16 packed, negative scale": (HOLES, {"dtype": "i2", "scale_factor": -0.1, "_FillValue": 9}),
    "int8 packed": (HOLES, {"dtype": "i1", "scale_factor": 0.1, "_FillValue": -128}),
    "uint8 packed": (HOLES + 5, {"dtype": "u1", "scale_factor": 0.1, "_FillValue": 255}),
    "uint16 packed": (HOLES + 5, {"dtype": "u2", "scale_factor": 0.001, "_FillValue": 65535}),
    "int32 packed": (HOLES, {"dtype": "i4", "scale_factor": 1e-6, "_FillValue": -(2**31)}),
    "uint32 packed": (HOLES + 5, {"dtype": "u4", "scale_factor": 1e-6, "_FillValue": 2**32 - 1}),
    "int64 packed": (HOLES, {"dtype": "i8", "scale_factor": 1e-9, "_FillValue": -(2**63)}),
    "float32 packed": (
        HOLES,
        {"dtype": "f4", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -999.0},
    ),
    "float64 packed": (HOLES, {"dtype": "f8", "scale_factor": 3.0}),
    "int8 with holes": (np.rint(HOLES), {"dtype": "i1", "_FillValue": -9}),
    "int16 with holes": (np.rint(HOLES), {"dtype": "i2", "_FillValue": -9}),
    "int32 with holes": (np.rint(HOLES), {"dtype": "i4", "_FillValue": -9}),
    "int64 with holes": (np.rint(HOLES), {"dtype": "i8", "_FillValue": -9}),
    "uint8 with holes": (np.rint(HOLES + 5), {"dtype": "u1", "_FillValue": 255}),
    "uint32 with holes": (np.rint(HOLES + 5), {"dtype": "u4", "_FillValue": 0}),
    "uint64 with holes": (np.rint(HOLES + 5), {"dtype": "u8", "_FillValue": 2**63}),
    "missing_value": (np.rint(HOLES), {"dtype": "i2", "missing_value": -9}),
    "both": (np.rint(HOLES), {"dtype": "i2", "missing_value": -9, "_FillValue": -9}),
    "float64": (HOLES, {}),
    "float32": (HOLES.astype("f4"), {}),
    "float16": (HOLES.astype("f2"), {}),
    "float64 with a fill value": (HOLES, {"_FillValue": -999.0}),
    "float32 with a fill value": (HOLES.astype("f4"), {"_FillValue": np.float32(1e20)}),
    "float16 with a fill value": (HOLES.astype("f2"), {"_FillValue": np.float16(-9)}),
    "float32 with a missing value": (HOLES.astype("f4"), {"missing_value": np.float32(0.1)}),
    "int8": (np.rint(VALUES).astype("i1"), {}),
    "int16": (np.rint(VALUES).astype("i2"), {}),
    "int32": (np.rint(VALUES).astype("i4"), {}),
    "int64": (np.rint(VALUES).astype("i8"), {}),
    "uint8": (np.rint(VALUES + 5).astype("u1"), {}),
    "uint16": (np.rint(VALUES + 5).astype("u2"), {}),
    "uint32": (np.rint(VALUES + 5).astype("u4"), {}),
    "uint64": (np.rint(VALUES + 5).astype("u8"), {}),
    "bool": (VALUES > 0, {}),
    "big-endian int16": (np.rint(HOLES), {"dtype": ">i2", "_FillValue": -9}),
    "big-endian float32": (HOLES.astype(">f4"), {}),
    "big-endian packed": (HOLES, {"dtype": ">i4", "scale_factor": 0.1, "_FillValue": -9}),
    "unsigned by a hint": (
        np.rint(HOLES + 250),
        {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1},
    ),
    "packed, unsigned by a hint": (
        HOLES + 5,
        {"dtype": "i2", "_Unsigned": "true", "scale_factor": 0.001, "_FillValue": -1},
    ),
}

# Attributes as others write them, on stored numbers: type, codes, attributes.
WRITTEN: dict[str, tuple[str, list[float], dict[str, Any]]] = {
    "several missing values": ("i2", [1, 2, -5, 0], {"missing_value": [1, 2]}),
    "both, different": ("i2", [1, 2, -5, 0], {"missing_value": 1, "_FillValue": 2}),
    "a whole scale": ("i2", [1, 2, -5, 0], {"scale_factor": 2}),
    "a whole offset": ("i4", [1, 2, -5, 0], {"add_offset": 100}),
    "a fill value that is not a code": ("i1", [1, 2, -5, 0], {"_FillValue": 300}),
    "a missing value with a fraction": ("i2", [1, 2, -5, 0], {"missing_value": 1.5}),
    "a missing value that is NaN": ("i2", [1, 2, -5, 0], {"missing_value": float("nan")}),
    "unsigned without holes": ("i1", [-1, 0, 5, -128], {"_Unsigned": "true"}),
    "signed by a hint": ("u1", [255, 0, 5, 128], {"_Unsigned": "false"}),
    "a hint without effect": ("u1", [255, 0, 5, 128], {"_Unsigned": "true"}),
    "booleans as integers": ("i4", [1, 0, 5, -3], {"dtype": "bool"}),
    "int64 beyond doubles": ("i8", [2**62 + 1, 0, 5, -3], {"missing_value": 5}),
    "hours": ("i4", [1, 0, 5, 3], {"units": "hours"}),
}


def same_as_xarray(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = xr.open_zarr(folder, consolidated=None)["x"]
    source = opened(folder)
    values = read(source)
    assert values.dtype == source.working_dtype
    assert values.dtype.isnative
    if shown.dtype.kind == "f" and shown.dtype != np.float16:
        assert values.dtype == shown.dtype
    np.testing.assert_array_equal(values, shown.values.astype(values.dtype))


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ENCODINGS)
def test_what_xarray_writes_is_read_as_xarray_reads_it(
    tmp_path: Path, name: str, version: int, consolidated: bool
) -> None:
    values, encoding = ENCODINGS[name]
    dataset = xr.Dataset({"x": (("a", "b"), values)})
    dataset.to_zarr(
        tmp_path / "s.zarr",
        zarr_format=version,  # type: ignore[arg-type]
        consolidated=consolidated,
        encoding={"x": {**encoding, "chunks": CHUNKS}},
    )
    same_as_xarray(tmp_path / "s.zarr")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", WRITTEN)
def test_attributes_of_others_are_read_as_xarray_reads_them(
    tmp_path: Path, name: str, version: int
) -> None:
    dtype, codes, attributes = WRITTEN[name]
    same_as_xarray(write_codes(tmp_path / "s.zarr", np.array(codes, dtype), attributes, version))


@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("dtype", ["<i2", ">i2", "<f4", ">f8"])
@pytest.mark.parametrize("version", [2, 3])
def test_plain_and_compressed_chunks_decode_alike(
    tmp_path: Path, dtype: str, version: int, compressors: Any
) -> None:
    codes = np.arange(35, dtype=dtype).reshape(SHAPE)
    folder = write_codes(
        tmp_path / "s.zarr",
        codes,
        {"scale_factor": 0.1, "add_offset": 2.0, "missing_value": [3, 30]},
        version,
        compressors=compressors,
        chunks=CHUNKS,
    )
    source = opened(folder)
    expected = codes.astype("f8") * 0.1 + 2.0
    expected[(codes == 3) | (codes == 30)] = np.nan
    np.testing.assert_array_equal(read(source), expected)
    scratch = np.empty(2**12, np.uint8)
    first = (slice(0, 3), slice(0, 5))
    block = source.read(
        first, lambda shape, kind: scratch[: 15 * kind.itemsize].view(kind).reshape(shape)
    )
    np.testing.assert_array_equal(block, expected[:3])
    assert np.shares_memory(block, scratch)


@pytest.mark.parametrize(("dtype", "digit"), [("f4", 1e-6), ("f2", 1e-2)])
def test_packed_floats_are_decoded_in_float64_where_xarray_keeps_their_type(
    tmp_path: Path, dtype: str, digit: float
) -> None:
    encoding = {"dtype": dtype, "scale_factor": 0.1, "add_offset": 1.0}  # the fill value is NaN
    xr.Dataset({"x": (("a", "b"), HOLES)}).to_zarr(tmp_path / "s.zarr", encoding={"x": encoding})
    shown = xr.open_zarr(tmp_path / "s.zarr")["x"].values
    values = read(opened(tmp_path / "s.zarr"))
    assert (shown.dtype, values.dtype) == (np.dtype(dtype), np.float64)
    np.testing.assert_allclose(values, shown, rtol=0, atol=digit)
    stored = zarr.open_array(tmp_path / "s.zarr" / "x", mode="r")[...]
    np.testing.assert_array_equal(values, np.asarray(stored).astype("f8") * 0.1 + 1.0)


def test_many_pieces_are_decoded_in_the_memory_they_were_read_into(tmp_path: Path) -> None:
    codes = np.random.default_rng(1).integers(-100, 100, 50_000).astype("i1")
    folder = write_codes(tmp_path / "s.zarr", codes, {"scale_factor": 0.1, "missing_value": 7})
    expected = np.where(codes == 7, np.nan, codes.astype("f8") * 0.1)
    np.testing.assert_array_equal(read(opened(folder)), expected)


# Declared missing by attributes, though xarray shows the numbers: type, codes, attributes, missing.
BEYOND_XARRAY = {
    "valid_range": ("i2", [1, 2, -5, 0], {"valid_range": [0, 1]}, [0, 1, 1, 0]),
    "valid_min": ("i2", [1, 2, -5, 0], {"valid_min": 1}, [0, 0, 1, 1]),
    "valid_max": ("f8", [1, 2, -5, 0.5], {"valid_max": 1}, [0, 1, 0, 0]),
    "packed limits": ("i2", [1, 2, -5, 0], {"scale_factor": 0.1, "valid_max": 1}, [0, 1, 0, 0]),
    "decoded limits": ("i2", [1, 2, -5, 0], {"scale_factor": 0.1, "valid_max": 0.15}, [0, 1, 0, 0]),
    "limits of float32": ("f4", [0.1, 0.2, 0.3, 0], {"valid_range": [0.1, 0.2]}, [0, 0, 1, 1]),
    "limits read as unsigned": (
        "i1",
        [-1, -2, 5, 0],
        {"_Unsigned": "true", "valid_range": [1, -2]},
        [1, 0, 0, 1],
    ),
    "rounded to float32": ("f4", [1e20, 0.1, 3, 4], {"missing_value": [1e20, 0.1]}, [1, 1, 0, 0]),
    "read as unsigned": (
        "i1",
        [-1, 2, 5, 0],
        {"_Unsigned": "true", "missing_value": -1},
        [1, 0, 0, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", BEYOND_XARRAY)
def test_what_attributes_declare_missing_is_missing(
    tmp_path: Path, name: str, version: int
) -> None:
    dtype, codes, attributes, missing = BEYOND_XARRAY[name]
    folder = write_codes(tmp_path / "s.zarr", np.array(codes, dtype), attributes, version)
    source = opened(folder)
    assert source.declares_missing
    np.testing.assert_array_equal(np.isnan(read(source)), np.array(missing, bool))
    assert not np.isnan(xr.open_zarr(folder, consolidated=False)["x"].values).any()


def test_a_fill_value_of_zarr_is_missing_only_where_xarray_stored_it(tmp_path: Path) -> None:
    codes = np.array([1, 0, 5], "i2")
    by_xarray = write_codes(tmp_path / "a.zarr", codes, {}, 2, fill_value=0)
    np.testing.assert_array_equal(read(opened(by_xarray)), [1, np.nan, 5])
    same_as_xarray(by_xarray)
    by_both = write_codes(tmp_path / "b.zarr", codes, {"_FillValue": 5}, 2, fill_value=0)
    np.testing.assert_array_equal(read(opened(by_both)), [1, np.nan, np.nan])
    booleans = write_codes(tmp_path / "c.zarr", codes > 0, {}, 2, fill_value=False)
    np.testing.assert_array_equal(read(opened(booleans)), [1, 0, 1])
    version_3 = write_codes(tmp_path / "d.zarr", codes, {}, 3, fill_value=0)
    np.testing.assert_array_equal(read(opened(version_3)), codes)
    same_as_xarray(version_3)
    plain = zarr.create_array(
        tmp_path / "e.zarr", name="x", data=codes, zarr_format=2, fill_value=0
    )
    assert plain.fill_value == 0
    source = opened(tmp_path / "e.zarr")
    assert source.decoding is None
    np.testing.assert_array_equal(read(source), codes)


@pytest.mark.parametrize(
    "fill", [5.0, "5", base64.b64encode(struct.pack("<d", 5.0)).decode(), "NaN", "Infinity"]
)
def test_fill_values_of_floats_are_numbers_names_or_base64(tmp_path: Path, fill: Any) -> None:
    codes = np.array([1, 5, np.inf])
    folder = write_codes(tmp_path / "s.zarr", codes, {"_FillValue": fill})
    if fill == "5":
        with pytest.raises(StoreError, match="_FillValue that is neither"):
            opened(folder)
        return
    missing = {"NaN": [0, 0, 0], "Infinity": [0, 0, 1]}.get(fill, [0, 1, 0])
    np.testing.assert_array_equal(np.isnan(read(opened(folder))), np.array(missing, bool))


def test_chunks_never_written_are_decoded_like_any_other(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "s.zarr", mode="w")
    attributes = {"scale_factor": 0.5, "_FillValue": 9}
    array = group.create_array(
        "x", shape=(6,), chunks=(3,), dtype="i2", fill_value=4, attributes=attributes,
        dimension_names=("a",), compressors=None,
    )  # fmt: skip
    array[:3] = [1, 9, 3]
    np.testing.assert_array_equal(read(opened(tmp_path / "s.zarr")), [0.5, np.nan, 1.5, 2, 2, 2])
    same_as_xarray(tmp_path / "s.zarr")

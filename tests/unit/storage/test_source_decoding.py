"""What a decoded source refuses, says in the plan, and takes of memory."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask.errors import StoreError
from tests.support.sources import opened, read, write_codes

pytestmark = pytest.mark.filterwarnings("ignore")

MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"scale_factor": "0.173"}, "scale_factor"),
    ({"scale_factor": [0.173]}, "scale_factor"),
    ({"scale_factor": 0}, "scale_factor"),
    ({"scale_factor": True}, "scale_factor"),
    ({"scale_factor": float("nan")}, "scale_factor"),
    ({"add_offset": float("inf")}, "add_offset"),
    ({"add_offset": {"x": 0.173}}, "add_offset"),
    ({"valid_range": [0.173]}, "valid_range"),
    ({"valid_range": 0.173}, "valid_range"),
    ({"valid_range": [2, 1]}, "valid_range"),
    ({"valid_range": [0, float("nan")]}, "valid_range"),
    ({"valid_min": "0.173"}, "valid_min"),
    ({"valid_max": [0.173, 1]}, "valid_max"),
    ({"missing_value": "0.173"}, "missing_value"),
    ({"missing_value": [[0.173]]}, "missing_value"),
    ({"_FillValue": {"x": 0.173}}, "_FillValue"),
    ({"_FillValue": "!"}, "_FillValue"),
]


@pytest.mark.parametrize(("attributes", "name"), MALFORMED)
@pytest.mark.parametrize("dtype", ["i2", "f4"])
def test_malformed_attributes_are_refused_in_one_line_without_their_values(
    tmp_path: Path, dtype: str, attributes: dict[str, Any], name: str
) -> None:
    folder = write_codes(tmp_path / "s.zarr", np.zeros(3, dtype), attributes)
    with pytest.raises(StoreError, match=name) as error:
        opened(folder)
    assert "173" not in str(error.value)
    assert "\n" not in str(error.value)
    assert "source.decode: false" in str(error.value)
    assert opened(folder, decode=False).decoding is None


def test_packed_booleans_are_refused(tmp_path: Path) -> None:
    folder = write_codes(tmp_path / "s.zarr", np.zeros(3, bool), {"scale_factor": 0.5})
    with pytest.raises(StoreError, match="beside booleans"):
        opened(folder)


def test_without_decoding_the_stored_numbers_are_read(tmp_path: Path) -> None:
    attributes = {"scale_factor": 0.5, "missing_value": 1, "_Unsigned": "true"}
    folder = write_codes(tmp_path / "s.zarr", np.array([-1, 1, 2], "i1"), attributes)
    source = opened(folder, decode=False)
    np.testing.assert_array_equal(read(source), [-1, 1, 2])
    assert not source.may_miss_values
    assert source.describe_decoding() == "int8 as stored"


TIMES: list[tuple[Any, dict[str, Any]]] = [
    (np.zeros(3, "i8"), {"units": "days since 2000-01-01"}),
    (np.zeros(3, "f8"), {"units": "hours since 2000-01-01 00:00", "calendar": "noleap"}),
    (np.zeros(3, "i8"), {"units": "days", "dtype": "timedelta64[ns]"}),
    (np.zeros(3, "M8[ns]"), {}),
    (np.zeros(3, "m8[s]"), {}),
]


@pytest.mark.parametrize(("values", "attributes"), TIMES)
def test_times_are_refused_with_what_to_do(tmp_path: Path, values: Any, attributes: Any) -> None:
    folder = write_codes(tmp_path / "s.zarr", values, attributes, 2)
    with pytest.raises(StoreError, match=r"holds times.*store them as plain numbers"):
        opened(folder)


DESCRIBED: list[tuple[str, dict[str, Any], str]] = [
    (
        "i2",
        {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768},
        "int16 x 0.01 + 273.15; -32768 is missing",
    ),
    ("u1", {"add_offset": -1.5}, "uint8 - 1.5"),
    ("i1", {"_Unsigned": "true", "missing_value": [1, 2]}, "uint8; 1 and 2 are missing"),
    ("i4", {"valid_range": [0, 9]}, "int32; codes outside 0 to 9 are missing"),
    ("i4", {}, "int32 as stored"),
    ("f8", {}, "float64 as stored; NaN is missing"),
    ("f4", {"missing_value": -9}, "float32; -9 is missing; NaN is missing"),
    ("i1", {"dtype": "bool"}, "int8 as 0 and 1"),
]


@pytest.mark.parametrize(("dtype", "attributes", "text"), DESCRIBED)
def test_the_plan_says_what_is_decoded(
    tmp_path: Path, dtype: str, attributes: dict[str, Any], text: str
) -> None:
    source = opened(write_codes(tmp_path / "s.zarr", np.zeros(3, dtype), attributes))
    assert source.describe_decoding() == text
    assert source.may_miss_values == ("missing" in text or "1.5" in text)
    assert "1.5" not in repr(source) + repr(source.decoding)


def test_a_window_keeps_its_decoding_and_changes_with_it(tmp_path: Path) -> None:
    codes = np.arange(6, dtype="i2")
    windows = []
    for scale in (0.5, 0.25):
        folder = write_codes(tmp_path / "s.zarr", codes, {"scale_factor": scale}, chunks=(2,))
        window = opened(folder).windowed(0, 1, 4)
        np.testing.assert_array_equal(read(window), codes[1:4] * scale)
        windows.append(window.metadata_digest)
    assert windows[0] != windows[1]


@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("i1", {"scale_factor": 0.5}),
        ("i2", {"scale_factor": 0.5, "missing_value": 3}),
        ("i2", {"missing_value": 3}),
        ("f2", {"missing_value": 3}),
        ("i4", {"scale_factor": 0.5}),
        ("i1", {"_Unsigned": "true"}),
        ("i8", {"dtype": "bool"}),
    ],
)
def test_reading_takes_no_more_memory_than_it_says(
    tmp_path: Path, dtype: str, attributes: dict[str, Any], compressors: Any
) -> None:
    codes = np.random.default_rng(2).integers(0, 100, (400, 5000)).astype(dtype)
    folder = write_codes(
        tmp_path / "s.zarr", codes, attributes, chunks=(100, 5000), compressors=compressors
    )
    source = opened(folder)
    read(source.windowed(0, 0, 1))  # compiles, and opens what stays open
    for extent in ((100, 5000), (400, 5000)):
        region = tuple(slice(0, n) for n in extent)
        tracemalloc.start()
        try:
            source.read(region)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        region_bytes = math.prod(extent) * source.working_dtype.itemsize
        assert peak <= region_bytes + source.decoding_bytes(extent) + 2**19
    assert source.piece_bytes >= 500_000 * source.working_dtype.itemsize

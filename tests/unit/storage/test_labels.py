"""Labels of records: read as xarray reads them, compared with public groups, total on values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from dpdask.errors import StoreError
from dpdask.storage import LabelArray, LocalStorage, open_labels

pytestmark = pytest.mark.filterwarnings("ignore")

ALL = slice(0, 6)
TEXT = np.array(["north", "s", "", "w\u00fcst", "north", "other"])
GROUPS = ("w\u00fcst", "north", "nowhere", "s")
TEXT_CODES = [1, 3, -1, 0, 1, -1]


def write(folder: Path, values: Any, version: int = 3, **options: Any) -> LabelArray:
    values = np.asarray(values)
    if version == 2:
        options.setdefault("fill_value", None)
    array = zarr.create_array(
        folder / "s.zarr", name="by", shape=values.shape, dtype=values.dtype, chunks=(4,),
        zarr_format=version, overwrite=True, **options,
    )  # fmt: skip
    array[...] = values
    return opened(folder, len(values))


def opened(folder: Path, length: int) -> LabelArray:
    return open_labels(LocalStorage(folder / "s.zarr"), "by", length=length, key="query.by")


def positions(values: list[Any], groups: tuple[Any, ...]) -> list[int]:
    """The definition, one label at a time."""
    return [groups.index(value) if value in groups else -1 for value in values]


NUMBERS: list[Any] = [
    np.array([3, 1, -7, 100, 3, 0], dtype) for dtype in ("i1", "i2", "i4", "i8", ">i4", ">i8")
]
NUMBERS += [np.array([3, 1, 200, 100, 3, 0], dtype) for dtype in ("u1", "u2", "u4", "u8", ">u2")]
NUMBERS += [np.array([3, 1, 0.5, 100, 3, -0.0], dtype) for dtype in ("f2", "f4", "f8", ">f8")]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("values", NUMBERS, ids=lambda v: v.dtype.str)
@pytest.mark.parametrize(
    "groups", [(3, -7, 0), (100, 3), (10**30, 3, -(10**30)), (2**62, 1, 3), (0, 200), (300,)]
)
def test_numbers_are_compared_as_numbers(
    tmp_path: Path, values: Any, version: int, groups: tuple[int, ...]
) -> None:
    labels = write(tmp_path, values, version)
    codes = labels.codes(ALL, groups)
    assert codes.dtype == np.int64
    assert codes.tolist() == positions(values.tolist(), groups)
    np.testing.assert_array_equal(labels.values(ALL), values.astype("f8"))


def test_numbers_that_share_a_double_are_told_apart(tmp_path: Path) -> None:
    values = [2**63 - 1, 2**63 - 2, 2**53 + 1, 2**53, -(2**63), 5]
    groups = (2**63 - 2, 2**53, 2**53 + 1, -(2**63))
    labels = write(tmp_path, np.array(values, "i8"))
    assert labels.codes(ALL, groups).tolist() == positions(values, groups)
    unsigned = [2**64 - 1, 2**64 - 2, 0, 1, 2**63, 7]
    labels = write(tmp_path, np.array(unsigned, "u8"))
    assert labels.codes(ALL, (2**64 - 2, 0, -1)).tolist() == [-1, 0, 1, -1, -1, -1]
    labels = write(tmp_path, np.array(values, "i8"), attributes={"missing_value": 5})
    assert labels.codes(ALL, (*groups, 5)).tolist() == [*positions(values[:5], groups), -1]


@pytest.mark.parametrize("version", [2, 3])
def test_missing_numbers_belong_to_no_group(tmp_path: Path, version: int) -> None:
    column = np.array([1, 2, np.nan, 3, 2, 1])
    for encoding in (
        {},
        {"dtype": "i2", "_FillValue": -1},
        {"dtype": "i8", "_FillValue": -1},
        {"dtype": "u1", "scale_factor": 0.5, "_FillValue": 255},
    ):
        dataset = xr.Dataset({"by": ("row", column)})
        store = tmp_path / "s.zarr"
        dataset.to_zarr(store, mode="w", zarr_format=version, encoding={"by": encoding})  # type: ignore[call-overload]
        labels = opened(tmp_path, 6)
        assert labels.codes(ALL, (2, -1, 1)).tolist() == [2, 0, -1, -1, 0, 2]
        np.testing.assert_array_equal(labels.values(ALL), column)


def test_nothing_in_a_floating_point_column_raises(tmp_path: Path) -> None:
    values = np.array([np.nan, np.inf, -np.inf, 1e308, 5e-324, 2.0])
    labels = write(tmp_path, values)
    for groups in ((2,), (2, 10**400), tuple(range(100_000)), (10**308,)):
        assert labels.codes(ALL, groups).tolist() == [-1] * 5 + [
            groups.index(2) if 2 in groups else -1
        ]


@pytest.mark.parametrize("version", [2, 3])
def test_booleans_are_zero_and_one(tmp_path: Path, version: int) -> None:
    values = np.array([True, False, True, True, False, False])
    labels = write(tmp_path, values, version)
    labels.check_groups([True, False], key="k")
    assert labels.codes(ALL, (True, False)).tolist() == [0, 1, 0, 0, 1, 1]
    assert labels.codes(ALL, (0,)).tolist() == [-1, 0, -1, -1, 0, 0]
    xr.Dataset({"by": ("row", values)}).to_zarr(tmp_path / "s.zarr", mode="w")
    labels = opened(tmp_path, 6)
    assert labels.is_boolean
    assert labels.codes(ALL, (1, 0)).tolist() == [0, 1, 0, 0, 1, 1]


TEXTS = [
    TEXT,
    TEXT.astype(">U9"),
    TEXT.astype(np.dtypes.StringDType()),
    np.char.encode(TEXT, "utf-8"),
]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("values", TEXTS, ids=["U", ">U", "T", "S"])
def test_text_is_compared_as_text(tmp_path: Path, values: Any, version: int) -> None:
    labels = write(tmp_path, values, version)
    assert labels.is_text
    assert labels.codes(ALL, GROUPS).tolist() == TEXT_CODES
    assert labels.codes(slice(3, 5), GROUPS).tolist() == TEXT_CODES[3:5]
    with pytest.raises(StoreError, match="choose an array of numbers"):
        labels.values(ALL)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", [object, "U9", "S9"])
def test_text_that_xarray_writes_is_read(tmp_path: Path, version: int, kind: Any) -> None:
    values = np.char.encode(TEXT, "utf-8") if kind == "S9" else TEXT.astype(kind)
    xr.Dataset({"by": ("row", values)}).to_zarr(tmp_path / "s.zarr", zarr_format=version)  # type: ignore[call-overload]
    assert opened(tmp_path, 6).codes(ALL, GROUPS).tolist() == TEXT_CODES


def test_bytes_that_are_not_text_belong_to_no_group(tmp_path: Path) -> None:
    values = np.array([b"a", b"\xff\xfe", b"\x00b", b"", b"\xc3", b"a"])
    assert write(tmp_path, values).codes(ALL, ("a", "b")).tolist() == [0, -1, -1, -1, -1, 0]


def test_variable_length_bytes_are_text(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "s.zarr", name="by", shape=(3,), dtype="variable_length_bytes"
    )
    array[...] = np.array([b"a", b"\xff", b"bb"], object)
    assert opened(tmp_path, 3).codes(slice(0, 3), ("bb", "a")).tolist() == [1, -1, 0]


def test_declared_missing_text_belongs_to_no_group(tmp_path: Path) -> None:
    labels = write(tmp_path, TEXT, attributes={"missing_value": "s"})
    assert labels.codes(ALL, GROUPS).tolist() == [1, -1, -1, 0, 1, -1]


WRONG_GROUPS: list[tuple[Any, Any, str]] = [
    (np.zeros(3, "i4"), [], "empty"),
    (np.zeros(3, "i4"), ["a"], "'a' is not a valid group of numbers"),
    (np.zeros(3, "i4"), [1, 2, 1], "1 is listed twice"),
    (np.zeros(3, "i4"), [True], "True is not a valid group"),
    (np.zeros(3, "i4"), [1.5], "1.5 is not a valid whole number"),
    (np.zeros(3, bool), [True, 1], "1 is listed twice"),
    (TEXT[:3], [1], "1 is not a valid group of text"),
    (TEXT[:3], ["a", "b", "a"], "'a' is listed twice"),
    (TEXT[:3], ["\ud800"], "not a valid Unicode"),
]


@pytest.mark.parametrize(("values", "groups", "text"), WRONG_GROUPS)
def test_groups_of_the_wrong_kind_are_refused(
    tmp_path: Path, values: Any, groups: Any, text: str
) -> None:
    labels = write(tmp_path, values)
    with pytest.raises(StoreError, match=text) as error:
        labels.check_groups(groups, key="query.by.groups")
    assert str(error.value).startswith("query.by.groups: ")
    assert "\n" not in str(error.value)


WRONG_ARRAYS: list[tuple[Any, dict[str, Any], str]] = [
    (np.zeros(5), {}, "one axis and as many"),
    (np.zeros((6, 1)), {}, "one axis and as many"),
    (np.zeros(6, "c16"), {}, "neither numbers nor text"),
    (np.zeros(6, "M8[ns]"), {}, "holds times"),
    (np.zeros(6, "i8"), {"units": "days since 2000-01-01"}, "holds times"),
    (np.zeros(6, [("a", "i4")]), {}, "neither numbers nor text"),
    (np.zeros(6, "i8"), {"scale_factor": "x"}, "scale_factor"),
]


@pytest.mark.parametrize(("values", "attributes", "text"), WRONG_ARRAYS)
def test_arrays_that_are_not_labels_are_refused(
    tmp_path: Path, values: Any, attributes: dict[str, Any], text: str
) -> None:
    array = zarr.create_array(
        tmp_path / "s.zarr", name="by", shape=values.shape, dtype=values.dtype, zarr_format=2
    )
    array.attrs.update(attributes)
    with pytest.raises(StoreError, match=text) as error:
        opened(tmp_path, 6)
    assert str(error.value).startswith("query.by: ")
    assert "\n" not in str(error.value)


def test_a_missing_array_is_refused(tmp_path: Path) -> None:
    write(tmp_path, TEXT)
    with pytest.raises(StoreError, match=r"query\.by: there is no array 'nothing'"):
        open_labels(LocalStorage(tmp_path / "s.zarr"), "nothing", length=6, key="query.by")


def test_windows_read_their_part_and_notice_writes_to_it_alone(tmp_path: Path) -> None:
    labels = write(tmp_path, np.arange(12))
    window = labels.windowed(2, 8).windowed(1, 5)
    assert window.length == 4
    assert window.codes(slice(0, 4), (6, 4)).tolist() == [-1, 1, -1, 0]
    assert window.address_digest == labels.address_digest
    before, whole = window.identity(), labels.identity()
    zarr.open_array(tmp_path / "s.zarr" / "by", mode="r+")[9:] = 0
    assert window.identity() == before
    assert labels.identity() != whole
    zarr.open_array(tmp_path / "s.zarr" / "by", mode="r+")[4:6] = 0
    assert window.identity() != before
    for start, stop in ((0, 13), (3, 3), (-1, 2)):
        with pytest.raises(StoreError, match="not a valid part"):
            labels.windowed(start, stop)


def test_labels_that_cannot_be_read_are_one_line_without_a_label(tmp_path: Path) -> None:
    labels = write(tmp_path, np.arange(6))
    for chunk in (tmp_path / "s.zarr" / "by" / "c").iterdir():
        chunk.write_bytes(b"damaged")
    with pytest.raises(StoreError, match="cannot be read or decoded near index 0"):
        labels.codes(ALL, (1,))
    assert repr(labels) == "<LabelArray>"

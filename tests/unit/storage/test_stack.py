"""One entry of an array of many steps, read as an array of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import StoreError
from dpdask.storage import one_of_stack, open_source, open_storage, steps_written

VALUES = np.arange(3 * 7 * 4).reshape(3, 7, 4)


def stack(folder: Path, **options: Any) -> Any:
    return zarr.create_array(folder / "a.zarr", data=VALUES.astype("i2"), **options)


@pytest.mark.parametrize(
    ("options", "attributes", "values"),
    [
        ({"chunks": (1, 3, 4), "compressors": None}, {}, VALUES),
        ({"chunks": (2, 2, 3), "dimension_names": ("step", "who", "what")}, {}, VALUES),
        ({"chunks": (3, 7, 4)}, {"scale_factor": 0.5, "add_offset": 1.0}, VALUES * 0.5 + 1),
    ],
)
def test_an_entry_reads_as_an_array_of_its_own(
    tmp_path: Path, options: dict[str, Any], attributes: dict[str, Any], values: Any
) -> None:
    stack(tmp_path, **options).attrs.update(attributes)
    source = open_source(open_storage(str(tmp_path / "a.zarr")), "")
    for entry in range(3):
        one = one_of_stack(source, entry)
        assert one.shape == (7, 4)
        assert one.dimension_names == (("who", "what") if "dimension_names" in options else None)
        np.testing.assert_array_equal(one.read((slice(2, 7), slice(1, 3))), values[entry, 2:, 1:3])
        parts = [block.copy() for _, block in one.blocks((slice(0, 7), slice(0, 4)), 0)]
        np.testing.assert_array_equal(np.concatenate(parts), values[entry])


def test_an_entry_that_is_not_there_is_refused(tmp_path: Path) -> None:
    stack(tmp_path)
    source = open_source(open_storage(str(tmp_path / "a.zarr")), "")
    for entry in (3, -1):
        with pytest.raises(StoreError, match="has no entry"):
            one_of_stack(source, entry)


def test_steps_count_once_the_attribute_says_so(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "a.zarr"))
    assert steps_written(storage, "") == 0
    array = stack(tmp_path)
    assert steps_written(storage, "") == 0
    array.attrs["steps_written"] = 2
    assert steps_written(storage, "") == 2
    array.attrs["steps_written"] = "two"
    assert steps_written(storage, "") == 0

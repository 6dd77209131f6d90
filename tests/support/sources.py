"""Sources with stored numbers and attributes as a test wants them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpdask.storage import LocalStorage, SourceArray, open_source


def opened(folder: Path, **options: Any) -> SourceArray:
    return open_source(LocalStorage(folder), "x", **options)


def read(source: SourceArray) -> np.ndarray[Any, Any]:
    return source.read(tuple(slice(0, n) for n in source.shape))


def write_codes(
    folder: Path, codes: Any, attributes: dict[str, Any], version: int = 3, **options: Any
) -> Path:
    """Write stored numbers and attributes as they are."""
    codes = np.asarray(codes)
    dims: dict[str, Any] = {}
    if version == 3:
        dims["dimension_names"] = [f"d{i}" for i in range(codes.ndim)]
    else:
        attributes = {"_ARRAY_DIMENSIONS": [f"d{i}" for i in range(codes.ndim)], **attributes}
        options.setdefault("fill_value", None)
    group = zarr.open_group(folder, mode="w", zarr_format=version)  # type: ignore[arg-type]
    array = group.create_array(
        "x", shape=codes.shape, dtype=codes.dtype, attributes=attributes, **dims, **options
    )
    array[...] = codes
    return folder

"""Names for types that many modules share: arrays, regions, JSON objects."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["Array", "Floats", "Integers", "Json", "Mask", "Region", "Shape"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An array of any number type."""

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

Json: TypeAlias = dict[str, Any]
"""A JSON object; whoever reads one checks the values it uses."""

Region: TypeAlias = tuple[slice, ...]
"""A part of an array: one slice, with start and stop, for each axis."""

Shape: TypeAlias = tuple[int, ...]

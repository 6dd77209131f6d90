"""Coordinates that are published beside a release: values, dimensions, and how to read them.

They are copied as they are stored, packed ones packed, with every attribute, so that readers see
what they see in the source. Zarr v2 keeps the missing value of numbers as the array's fill value,
where v3 needs an attribute.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from dpdask.errors import StorageFault, StoreError
from dpdask.storage.base import Storage
from dpdask.storage.object_faults import raise_if_unavailable
from dpdask.storage.zarr_types import ZarrArray, open_zarr_array
from dpdask.types import Array, Json, Shape

__all__ = [
    "AxisPart",
    "CoordinateSchema",
    "dimension_names",
    "is_array",
    "plain_name",
    "read_coordinate",
    "read_coordinate_schema",
]

_PLAIN_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
_PUBLISHABLE_KINDS = "biufSUTMm"  # numbers, text and times
_NAMES_VERTICES = ("bounds", "climatology")  # CF 7.1 and 7.4
# Attributes that name other arrays of the group: without those they would lead nowhere.
_REFERENCES = {*_NAMES_VERTICES, "coordinates", "grid_mapping", "ancillary_variables"}
# Without these a reader cannot tell what the stored values mean.
_NEEDED_TO_DECODE = {"units", "calendar", "scale_factor", "add_offset", "dtype", "_Unsigned"}


@dataclass(frozen=True)
class AxisPart:
    """Part of a dimension, by which a window cuts coordinates.

    Args:
        names: what the dimension is called, in the source or in the result.
        length: the length of the whole dimension.
        start: the first index of the part.
        stop: the index after its last one.
    """

    names: Collection[str]
    length: int
    start: int
    stop: int

    def region(self, shape: Shape, dimensions: tuple[str, ...]) -> tuple[slice, ...]:
        """Return the part of an array along these dimensions that belongs to the window."""
        if len(dimensions) != len(shape):
            return (slice(None),) * len(shape)
        return tuple(
            slice(self.start, self.stop)
            if name in self.names and length == self.length
            else slice(None)
            for name, length in zip(dimensions, shape, strict=True)
        )


@dataclass(frozen=True)
class CoordinateSchema:
    """What is known of a coordinate without its values.

    Args:
        shape: the length of each axis, of the window if there is one.
        dimensions: the name of each axis.
        size: how many bytes it takes.
        vertices: the names of the arrays that its CF attributes name as its bounds.
    """

    shape: Shape
    dimensions: tuple[str, ...]
    size: int
    vertices: tuple[str, ...]


def plain_name(name: str) -> bool:
    """Return whether an array in a group can have this name."""
    return _PLAIN_NAME.fullmatch(name) is not None


def dimension_names(array: ZarrArray) -> tuple[str, ...] | None:
    """Return the names of an array's dimensions, None unless all have one.

    They are those of Zarr v3, or of xarray's convention for v2.
    """
    names = getattr(array.metadata, "dimension_names", None)
    names = cast("Sequence[str | None]", names or dict(array.attrs).get("_ARRAY_DIMENSIONS"))
    if not names or len(names) != array.ndim or any(name is None for name in names):
        return None
    return tuple(str(name) for name in names)


def read_coordinate_schema(
    storage: Storage, name: str, *, path: str, source_path: str, window: AxisPart | None = None
) -> CoordinateSchema:
    """Return what is known of an array beside the source without its values.

    Args:
        storage: where the source is.
        name: the coordinate's name.
        path: the coordinate's path in the storage.
        source_path: the path of the sensitive array, which is never a coordinate.
        window: the part of a dimension that is released, None for all.

    Raises:
        StoreError: there is no such array, or it cannot be published.
    """
    label = f"publish.coordinates: {name!r}"
    if path == source_path:
        raise StoreError(
            f"{label} is the source itself, which would be published as it is; drop it from the"
            " list"
        )
    array = _open_if_array(storage, path) if plain_name(name) else None
    if array is None:
        raise StoreError(
            f"publish.coordinates: no array {name!r} lies beside the source; drop it from the list"
        )
    dtype = np.dtype(array.dtype)
    if dtype.kind not in _PUBLISHABLE_KINDS:
        raise StoreError(f"{label} is not a plain array of numbers, text or times; drop it")
    attributes = dict(array.attrs)
    for attribute in sorted(_NEEDED_TO_DECODE & set(attributes)):
        if not _is_json(attributes[attribute]):
            raise StoreError(
                f"{label} has an attribute {attribute!r} that is not a valid JSON value; correct it"
                " or drop the coordinate"
            )
    dimensions = _coordinate_dimensions(array, name)
    shape = tuple(array.shape)
    if window is not None:
        parts = zip(window.region(shape, dimensions), shape, strict=True)
        shape = tuple(len(range(length)[part]) for part, length in parts)
    vertices = (attributes.get(attribute) for attribute in _NAMES_VERTICES)
    return CoordinateSchema(
        shape=shape,
        dimensions=dimensions,
        size=math.prod(shape) * dtype.itemsize,
        vertices=tuple(name for name in vertices if isinstance(name, str)),
    )


def read_coordinate(
    storage: Storage,
    name: str,
    *,
    path: str,
    published: Collection[str] = (),
    window: AxisPart | None = None,
) -> tuple[Array, tuple[str, ...], Json]:
    """Return values, dimension names and attributes of an array that was declared public.

    Args:
        storage: where the source is.
        name: the coordinate's name.
        path: the coordinate's path in the storage.
        published: the names of all coordinates that are published.
        window: the part of a dimension that is released, None for all.

    Raises:
        StoreError: it cannot be read.
    """
    values = None
    array = _open_if_array(storage, path)
    if array is not None:
        dimensions = _coordinate_dimensions(array, name)
        shape = tuple(array.shape)
        region = (slice(None),) * len(shape)
        if window is not None:
            region = window.region(shape, dimensions)
        try:
            values = np.asarray(array[region])
            attributes = _public_attributes(array, published)
        except Exception as error:
            raise_if_unavailable(error)
            values = None
    if array is None or values is None:
        raise StorageFault(
            f"publish.coordinates: {name!r} cannot be read; restore it or drop it from the list"
        )
    if values.dtype.byteorder == ">":
        values = values.astype(values.dtype.newbyteorder("="))
    return values, dimensions, attributes


def is_array(storage: Storage, path: str) -> bool:
    """Return whether zarr can open an array there."""
    return _open_if_array(storage, path) is not None


def _open_if_array(storage: Storage, path: str) -> ZarrArray | None:
    """Return an array, None where there is none that zarr can open."""
    try:
        return open_zarr_array(storage.zarr_store(), path)
    except Exception as error:
        raise_if_unavailable(error)
        return None


def _coordinate_dimensions(array: ZarrArray, name: str) -> tuple[str, ...]:
    """Return the dimensions of a coordinate.

    A scalar has none, and a single unnamed one is called as the coordinate.
    """
    return dimension_names(array) or ((name,) if array.ndim == 1 else ())


def _public_attributes(array: ZarrArray, published: Collection[str]) -> Json:
    """Return the attributes of a coordinate as Zarr v3 and xarray write them.

    Left out are those that are not valid JSON, such as NaN, those of other conventions for Zarr,
    and those that name arrays which are not published.
    """
    attributes: Json = {}
    for name, value in dict(array.attrs).items():
        of_zarr = name == "_ARRAY_DIMENSIONS" or name.lower().startswith("_nc")
        broken = name in _REFERENCES and not _leads_to(value, published)
        if name != "_FillValue" and not of_zarr and not broken and _is_json(value):
            attributes[name] = value
    missing = _missing_value(array)
    return attributes if missing is None else {**attributes, "_FillValue": missing}


def _leads_to(value: object, published: Collection[str]) -> bool:
    return isinstance(value, str) and all(name.rstrip(":") in published for name in value.split())


def _missing_value(array: ZarrArray) -> object:
    """Return ``_FillValue`` as xarray writes it in Zarr v3; None where there is none.

    In v2 it is the fill value of an array that xarray wrote.
    """
    attributes = dict(array.attrs)
    dtype = np.dtype(array.dtype)
    value: object = attributes.get("_FillValue")
    if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attributes:
        fill_value = getattr(array, "fill_value", None)
        if fill_value is not None and dtype.kind in "iuf":
            value = fill_value
    if isinstance(value, str):
        return value
    if isinstance(value, int | float | np.integer | np.floating):
        if dtype.kind == "f":
            return base64.standard_b64encode(struct.pack("<d", float(value))).decode()
        if dtype.kind in "iu" and math.isfinite(value):
            return int(value)
    return None


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True

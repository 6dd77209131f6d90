"""Coordinates that are published beside a release: values, dimensions, and how to read them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import cast

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.zarr_types import ZarrArray, open_zarr_array
from dpdask.types import Array, Json, Shape

__all__ = ["dimension_names", "read_coordinate", "read_coordinate_schema"]

_PLAIN_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
_PUBLISHABLE_KINDS = "biufSUTMm"  # numbers, text and times
_ATTRIBUTES = {  # how to read times (CF 4.4), and what a grid mapping is made of (CF appendix F)
    "units", "calendar", "azimuth_of_central_line", "crs_wkt", "earth_radius", "false_easting",
    "false_northing",
    "fixed_angle_axis", "geographic_crs_name", "geoid_name", "geopotential_datum_name",
    "GeoTransform", "grid_mapping_name",
    "grid_north_pole_latitude", "grid_north_pole_longitude", "horizontal_datum_name",
    "inverse_flattening",
    "latitude_of_projection_origin", "longitude_of_central_meridian", "longitude_of_prime_meridian",
    "longitude_of_projection_origin", "north_pole_grid_longitude", "perspective_point_height",
    "prime_meridian_name",
    "projected_crs_name", "reference_ellipsoid_name", "scale_factor_at_central_meridian",
    "scale_factor_at_projection_origin",
    "semi_major_axis", "semi_minor_axis", "spatial_ref", "standard_parallel",
    "straight_vertical_longitude_from_pole",
    "sweep_angle_axis", "towgs84",
}  # fmt: skip


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
    storage: Storage, name: str, *, path: str, source_path: str
) -> tuple[Shape, tuple[str, ...], int]:
    """Return shape, dimension names and size in bytes of an array beside the source.

    Args:
        storage: where the source is.
        name: the coordinate's name.
        path: the coordinate's path in the storage.
        source_path: the path of the sensitive array, which is never a coordinate.

    Raises:
        StoreError: there is no such array, or it cannot be published.
    """
    label = f"publish.coordinates: {name!r}"
    if path == source_path:
        raise StoreError(
            f"{label} is the source itself, which would be published as it is; drop it from the"
            " list"
        )
    array = _open_if_array(storage, path) if _PLAIN_NAME.fullmatch(name) else None
    if array is None:
        raise StoreError(
            f"publish.coordinates: no array {name!r} lies beside the source; drop it from the list"
        )
    dtype = np.dtype(array.dtype)
    if dtype.kind not in _PUBLISHABLE_KINDS:
        raise StoreError(f"{label} is not a plain array of numbers, text or times; drop it")
    try:
        json.dumps(_public_attributes(array), allow_nan=False)
    except (TypeError, ValueError):
        raise StoreError(
            f"{label} has units or another attribute that is not a valid JSON value; correct it"
            " or drop it"
        ) from None
    size = math.prod(array.shape) * dtype.itemsize
    return tuple(array.shape), _coordinate_dimensions(array, name), size


def read_coordinate(
    storage: Storage, name: str, *, path: str
) -> tuple[Array, tuple[str, ...], Json]:
    """Return values, dimension names and attributes of an array that was declared public.

    Args:
        storage: where the source is.
        name: the coordinate's name.
        path: the coordinate's path in the storage.

    Raises:
        StoreError: it cannot be read.
    """
    values = None
    array = _open_if_array(storage, path)
    if array is not None:
        try:
            values = np.asarray(array[...])
        except Exception:
            values = None
    if array is None or values is None:
        raise StoreError(
            f"publish.coordinates: {name!r} cannot be read; restore it or drop it from the list"
        )
    return values, _coordinate_dimensions(array, name), _public_attributes(array)


def _open_if_array(storage: Storage, path: str) -> ZarrArray | None:
    try:
        return open_zarr_array(storage.zarr_store(), path)
    except Exception:
        return None


def _coordinate_dimensions(array: ZarrArray, name: str) -> tuple[str, ...]:
    """Return the dimensions of a coordinate.

    A scalar has none, and a single unnamed one is called as the coordinate.
    """
    return dimension_names(array) or ((name,) if array.ndim == 1 else ())


def _public_attributes(array: ZarrArray) -> Json:
    """Return the attributes of a coordinate without which its values cannot be understood."""
    return {name: value for name, value in dict(array.attrs).items() if name in _ATTRIBUTES}

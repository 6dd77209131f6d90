"""What of a coordinate is published beside a release: its dimensions, and the attributes that say
how to read it.
"""

from __future__ import annotations

import re
from typing import Any

from dpdask.types import Json

__all__ = ["PLAIN_NAME", "coordinate_dimensions", "dimension_names", "public_attributes"]

PLAIN_NAME = re.compile(r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*")
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


def dimension_names(array: Any) -> tuple[str, ...] | None:
    """The names of a zarr array's dimensions, by Zarr v3 or by xarray's convention for v2; None
    unless all have one.
    """
    names = getattr(array.metadata, "dimension_names", None) or dict(array.attrs).get(
        "_ARRAY_DIMENSIONS"
    )
    if not names or len(names) != array.ndim or any(name is None for name in names):
        return None
    return tuple(str(name) for name in names)


def coordinate_dimensions(array: Any, name: str) -> tuple[str, ...]:
    """The dimensions of a coordinate: a scalar has none, and an unnamed single one is called as the
    coordinate.
    """
    return dimension_names(array) or ((name,) if array.ndim == 1 else ())


def public_attributes(array: Any) -> Json:
    """The attributes of a coordinate without which its values cannot be understood."""
    return {name: value for name, value in dict(array.attrs).items() if name in _ATTRIBUTES}

"""Attributes of the released array: copied from the source, or set by the spec."""

from __future__ import annotations

import re

from dpdask.errors import InvalidSpec
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import SourceArray
from dpdask.types import Json

__all__ = ["published_attributes"]

# They tell readers how values are stored, where they are masked, and which arrays belong to them:
# the release itself says so, or the source's are not true of it.
_RESERVED = {
    "DIMENSION_LIST", "CLASS", "NAME", "REFERENCE_LIST", "add_offset", "ancillary_variables",
    "bounds", "climatology", "coordinates", "dtype", "grid_mapping", "missing_value",
    "scale_factor", "valid_max", "valid_min", "valid_range",
}  # fmt: skip
_NETCDF_NAME = re.compile(r"[^\W_]([^/\x00-\x1f\x7f]*[^/\x00-\x20\x7f])?")
_TIME_UNITS = re.compile(r"\s*\w+\s+since\s", re.IGNORECASE)


def published_attributes(spec: ReleaseSpec, source: SourceArray) -> Json:
    """Return the attributes of the released array that the spec declares public.

    ``publish.description`` is its ``long_name`` unless that is among them.

    Raises:
        StoreError: The source has no such attribute, or it cannot be published.
        InvalidSpec: A name or a value is not allowed.
    """
    declared = spec.publish.attributes
    if isinstance(declared, dict):
        attributes: Json = dict(declared)
    else:
        attributes = source.attributes(declared)
    for name, value in attributes.items():
        _check(name, value)
    if spec.publish.description and "long_name" not in attributes:
        return {"long_name": spec.publish.description, **attributes}
    return attributes


def _check(name: str, value: object) -> None:
    """Refuse an attribute by which readers would read other values, or that NetCDF cannot hold."""
    if name.startswith("dp:") or name in _RESERVED:
        raise InvalidSpec(
            f"publish.attributes: {name!r} is reserved for how a release is stored and what it"
            " guarantees; drop it"
        )
    if _NETCDF_NAME.fullmatch(name) is None:
        raise InvalidSpec(
            f"publish.attributes: {name!r} is not a valid name; begin with a letter or a digit,"
            " without / and control characters"
        )
    if name == "units" and isinstance(value, str) and _TIME_UNITS.match(value):
        raise InvalidSpec(
            f"publish.attributes: units {value!r} makes readers take the result for times; name"
            " the unit alone, such as days"
        )

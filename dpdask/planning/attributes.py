"""Attributes of the released array: copied from the source, or set by the spec."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dpdask.errors import InvalidSpec, StoreError
from dpdask.planning.plan import Variable
from dpdask.types import Json

__all__ = ["check_attributes", "published_attributes"]

# They tell readers how values are stored, where they are masked, and which arrays belong to them:
# the release itself says so, or the source's are not true of it.
_RESERVED = {
    "DIMENSION_LIST", "CLASS", "NAME", "REFERENCE_LIST", "add_offset", "ancillary_variables",
    "bounds", "climatology", "coordinates", "dtype", "grid_mapping", "missing_value",
    "scale_factor", "valid_max", "valid_min", "valid_range",
}  # fmt: skip
_NETCDF_NAME = re.compile(r"[^\W_]([^/\x00-\x1f\x7f]*[^/\x00-\x20\x7f])?")
_TIME_UNITS = re.compile(r"\s*\w+\s+since\s", re.IGNORECASE)


def check_attributes(variables: Sequence[Variable]) -> None:
    """Check that the attributes that the spec declares public exist and can be published."""
    declared = variables[0].spec.publish.attributes
    copied = declared if isinstance(declared, list) else []
    for name in copied:
        if len(variables) > 1 and not any(each.source.has_attribute(name) for each in variables):
            raise StoreError(
                f"publish.attributes: none of source.arrays has an attribute {name!r}; drop it from"
                " the list"
            )
    for variable in variables:
        published_attributes(variable, several=len(variables) > 1)


def published_attributes(variable: Variable, *, several: bool = False) -> Json:
    """Return the attributes of a released array that the spec declares public.

    Of several variables, each has those that its source has. ``publish.description`` is the
    ``long_name`` of a single one unless that is among them.

    Raises:
        StoreError: The source has no such attribute, or it cannot be published.
        InvalidSpec: A name or a value is not allowed.
    """
    publish = variable.spec.publish
    declared = publish.attributes
    if isinstance(declared, dict):
        attributes: Json = dict(declared)
    else:
        names = [name for name in declared if not several or variable.source.has_attribute(name)]
        attributes = variable.source.attributes(names)
    for name, value in attributes.items():
        _check(name, value)
    if publish.description and "long_name" not in attributes:
        return {"long_name": publish.description, **attributes}
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

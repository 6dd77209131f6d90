"""The types of a spec's fields, and the base of its sections."""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, PlainValidator

__all__ = [
    "ArrayName",
    "Attributes",
    "ByteCount",
    "Deadline",
    "Dimension",
    "Label",
    "Matrix",
    "Number",
    "Positive",
    "Ranges",
    "Seconds",
    "Section",
    "Vector",
    "Whole",
]


class Section(BaseModel):
    """A part of a spec: frozen, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)


def _refuse_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a yes/no value where a number belongs")
    return value


Number = Annotated[float, BeforeValidator(_refuse_bool)]
Whole = Annotated[int, BeforeValidator(_refuse_bool)]
Positive = Annotated[Whole, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0, le=7 * 86400), BeforeValidator(_refuse_bool)]
Deadline = Annotated[float, Field(gt=0, le=7 * 86400), BeforeValidator(_refuse_bool)]
Vector = list[Number]


_ARRAY_NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"


def _check_array_name(value: object) -> object:
    if isinstance(value, str) and not re.match(_ARRAY_NAME, value):
        raise ValueError(
            f"{value!r} is not a valid name; use letters of the English alphabet, digits, _ and -,"
            " at most 100 and no _ or - at the beginning"
        )
    return value


ArrayName = Annotated[str, Field(pattern=_ARRAY_NAME), BeforeValidator(_check_array_name)]
"""The name of a released array, which every reader of Zarr and NetCDF takes."""


def _check_rectangular(value: object) -> object:
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        return value
    if len({len(row) for row in value}) > 1:
        raise ValueError("rows of different lengths where a matrix belongs")
    return value


Matrix = Annotated[list[Vector], BeforeValidator(_check_rectangular)]


def _as_list_of_ranges(value: object) -> object:
    """Return a single ``[low, high]`` as a list of one range."""
    if isinstance(value, list) and value and not any(isinstance(row, list) for row in value):
        return [value]
    return value


Ranges = Annotated[
    list[Vector], BeforeValidator(_as_list_of_ranges, json_schema_input_type=list[Vector] | Vector)
]


def _parse_dimension(value: object) -> int | str:
    """Return the index or the name of a dimension; digits in quotes are an index."""
    _refuse_bool(value)
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value:
        return int(value) if re.fullmatch(r"\s*[+-]?[0-9]+\s*", value) else value
    raise ValueError("not a valid dimension; give its name or its index")


Dimension = Annotated[
    int | str,
    PlainValidator(
        _parse_dimension, json_schema_input_type=int | Annotated[str, Field(min_length=1)]
    ),
]
"""An axis of the source, by the name of its dimension or by its index."""


def _parse_label(value: object) -> int | str:
    """Return text or a whole number of 64 bits, by which records are grouped."""
    _refuse_bool(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, str):
        return value
    raise ValueError(
        "neither text nor a whole number of 64 bits; write one of them, or give edges for numbers"
    )


Label = Annotated[int | str, PlainValidator(_parse_label, json_schema_input_type=int | str)]
"""A public label of records."""


def _check_attributes(value: object) -> object:
    """Refuse values of attributes that JSON or NetCDF cannot hold; names stay as they are."""
    if isinstance(value, dict):
        for name, each in value.items():
            items = each if isinstance(each, list) else [each]
            numbers = [_is_number(item) for item in items]
            text = [isinstance(item, str) for item in items]
            if not items or not (all(numbers) or all(text)):
                raise ValueError(
                    f"the value of {name!r} is not text, a finite number, or a list of either;"
                    " write it as one of them"
                )
    return value


def _is_number(value: object) -> bool:
    """Return whether a value is a number that 64 bits hold; true and false are 1 and 0."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, float) and math.isfinite(value)


Attributes = Annotated[list[str] | dict[str, JsonValue], BeforeValidator(_check_attributes)]
"""Names of attributes to copy, or attributes to set: text, numbers, or lists of either."""


_BYTES_PER_SUFFIX = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


def _parse_byte_count(value: object) -> object:
    """Return ``64 MiB`` as a number of bytes.

    pydantic's ByteSize reads the same spellings, but also reads ``1,000 MB`` as one byte, because
    it ignores what follows the first number.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _BYTES_PER_SUFFIX:
        raise ValueError(
            f"{value!r} is not a valid size; write a number of bytes, or a size such as 64 MiB"
        )
    return int(float(match[1]) * _BYTES_PER_SUFFIX[match[2].upper()])


ByteCount = Annotated[
    Whole, BeforeValidator(_parse_byte_count, json_schema_input_type=int | str), Field(ge=1)
]

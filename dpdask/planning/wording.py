"""A plan in words: whom it protects, what is decoded, centres, groups, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpdask.figures import number_text
from dpdask.queries import People, Query
from dpdask.storage import SourceArray
from dpdask.types import Json

__all__ = [
    "center_text",
    "groups_text",
    "in_words",
    "missing_text",
    "protected_text",
    "unit_text",
    "units_text",
    "window_text",
]

_LISTED = 8  # names of groups, numbers of a centre


def in_words(query: Query, source: SourceArray, per: int | None) -> Json:
    """Return what a plan says of a variable in words, for people who may see the source.

    Args:
        query: What is computed.
        source: What is read.
        per: The axis along which a unit has one index, if the spec declares one.
    """
    return {
        "window": window_text(source),
        "decodes": source.describe_decoding(),
        "protects": protected_text(query, source.dimension_names, per),
        "unit": unit_text(query, source.dimension_names, per),
        "missing": missing_text(query, source),
        "center": center_text(query),
        "groups": groups_text(query),
    }


def units_text(count: int, axis: int, names: tuple[str, ...] | None) -> str:
    """Return how many records there are, and along which dimension."""
    dimension = f"axis {axis}" if names is None else names[axis]
    return f"{count:,} record{'s' * (count != 1)} along {dimension}"


def unit_text(query: Query, names: tuple[str, ...] | None, per: int | None = None) -> str:
    """Return what one privacy unit is, for whoever may see a plan: nothing of their number.

    Args:
        query: What is computed.
        names: The names of the source's dimensions, None where it has none.
        per: The axis along which a unit has one index, if the spec declares one.
    """
    axis, most = query.units_axis, query.max_contributions
    if query.people is not None:
        return f"one {query.people.name}"
    if axis is None:
        return "what the caller declares" if query.bound is None else "the whole tensor"
    record = "record" if names is None else names[axis]
    whole = f"one {record}" if most == 1 else f"up to {most:,} records"
    if per is None or per == axis:
        return whole
    return f"one {f'index of axis {per}' if names is None else names[per]} of {whole}"


def protected_text(query: Query, names: tuple[str, ...] | None, per: int | None = None) -> str:
    """Return whom a release protects, in words that show a wrong dimension.

    For people who may see the source: the number of records may be private.

    Args:
        query: What is computed.
        names: The names of the source's dimensions, None where it has none.
        per: The axis along which a unit has one index, if the spec declares one.
    """
    if per is None:
        return _unit_text(query, names)
    index = f"index of axis {per}" if names is None else names[per]
    part = "" if per == query.units_axis else f"one {index} of "
    return f"{part}{_unit_text(query, names)}; each {index} is in one window"


def _unit_text(query: Query, names: tuple[str, ...] | None) -> str:
    axis, adjacency = query.units_axis, query.sensitivity.adjacency
    if axis is None:
        whom = "what the caller declares" if query.bound is None else "the whole tensor"
        return f"{whom}; {adjacency}"
    count = query.source_shape[axis]
    values = query.values_per_record
    whom = f"one record of {count:,} along axis {axis}"
    if names is not None:
        whom = f"one {names[axis]} of {count:,}"
    most = query.max_contributions
    if query.people is not None:
        return _people_text(query, query.people, names)
    records = "one record" if most == 1 else f"at most {most:,} records"
    each = f"{values:,} value{'s' * (values != 1)} each"
    return f"{whom} ({each}); {adjacency}, {records} per unit"


def _people_text(query: Query, people: People, names: tuple[str, ...] | None) -> str:
    """Return whom a release protects where ids tell people apart."""
    axis, most = query.units_axis or 0, query.max_contributions
    record = "record" if names is None else names[axis]
    record = "cell" if people.distinct else record
    values = query.values_per_record
    kept = f"at most {most:,} {record}{'s' * (most != 1)} each, others left out at random"
    if people.clipped:
        kept = f"{kept}; clipped together" if people.limited else "its records clipped together"
    missing = "each a unit of its own" if people.missing == "own" else "left out"
    return (
        f"one {people.name} ({kept}) of {query.source_shape[axis]:,} records with"
        f" {values:,} value{'s' * (values != 1)} each; {query.sensitivity.adjacency}; records"
        f" without {people.ids}: {missing}"
    )


def window_text(source: SourceArray) -> str | None:
    """Return which part of the source is released; None where it is all of it."""
    if source.window is None:
        return None
    axis, start, stop = source.window
    names = source.dimension_names
    dimension = f"axis {axis}" if names is None else names[axis]
    return f"{dimension} from {start} to {stop - 1}"


def missing_text(query: Query, source: SourceArray) -> str | None:
    """Return what missing values do; None where there can be none."""
    return query.missing_values if source.may_miss_values else None


def center_text(query: Query) -> str | None:
    """Return the point that records are measured from; None where they are not bounded."""
    if query.bound is None:
        return None
    values = query.bound.center.values
    if values.size <= _LISTED:
        return ", ".join(number_text(float(value)) for value in values.reshape(-1))
    ends = f"{number_text(float(values.min()))} to {number_text(float(values.max()))}"
    return f"{values.size:,} numbers from {ends}"


def groups_text(query: Query) -> str | None:
    """Return the public groups; None where records are not grouped."""
    labels = {array: groups for array, groups in query.labels.items() if groups is not None}
    if not labels:
        return None
    keys = "; ".join(f"{array}: {_listed(groups)}" for array, groups in labels.items())
    if len(labels) > 1:
        keys += f" ({math.prod(map(len, labels.values())):,} groups)"
    return f"{keys}; a record with another label counts nowhere"


def _listed(names: Sequence[int | str]) -> str:
    if len(names) <= _LISTED:
        return ", ".join(map(str, names))
    first = ", ".join(map(str, names[: _LISTED - 2]))
    return f"{first}, ... {names[-1]}"

"""Where labels are in a public list: total on labels, whatever they are."""

from __future__ import annotations

import numpy as np

from dpdask.types import Array, Integers

__all__ = ["number_positions", "text_positions"]

_LARGEST_TABLE = 2**16


def number_positions(values: Array, groups: list[int]) -> Integers:
    """Return where each value is in a list of whole numbers, -1 where it is not."""
    if values.dtype.kind == "b":
        values = values.astype(np.int64)
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
        usable = [place for place, group in enumerate(groups) if _is_double(group)]
    else:
        if values.dtype.itemsize < 8:
            values = values.astype(np.int64)
        limits = np.iinfo(values.dtype.str)
        usable = [p for p, group in enumerate(groups) if limits.min <= group <= limits.max]
    if not usable:
        return np.full(values.shape, -1, np.int64)
    listed = [groups[place] for place in usable]
    low, high = min(listed), max(listed)
    if values.dtype == np.int64 and high - low < _LARGEST_TABLE:
        table = np.full(high - low + 1, -1, np.int64)
        table[np.array(listed) - low] = usable
        inside = (values >= low) & (values <= high)
        offsets = np.where(inside, values, low) - low
        return np.where(inside, table[offsets], -1)
    return _searched(values, np.array(listed, values.dtype), usable)


def text_positions(values: Array, groups: list[str]) -> Integers:
    """Return where each text is in a list, -1 where it is not."""
    if values.dtype.kind == "O":  # anything may be in it
        known: dict[object, int] = {group: place for place, group in enumerate(groups)}
        known.update({group.encode(): place for place, group in enumerate(groups)})
        positions = (known.get(v, -1) if isinstance(v, str | bytes) else -1 for v in values)
        return np.fromiter(positions, np.int64, len(values))
    places = list(range(len(groups)))
    if values.dtype.kind == "S":
        encoded = [group.encode() for group in groups]
        return _searched(values, np.array(encoded), places)
    listed = np.array(groups, dtype=np.dtypes.StringDType() if values.dtype.kind == "T" else None)
    return _searched(values, listed, places)


def _searched(values: Array, listed: Array, places: list[int]) -> Integers:
    order = np.argsort(listed, kind="stable")
    ordered = listed[order]
    nearest = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    positions = np.array(places, np.int64)[order][nearest]
    return np.where(ordered[nearest] == values, positions, -1)


def _is_double(number: int) -> bool:
    """Return whether a whole number is a floating point number as well."""
    try:
        return int(float(number)) == number
    except OverflowError:
        return False

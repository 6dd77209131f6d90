"""Where labels are in a public list: total on labels, whatever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dpdask.loading import when_used
from dpdask.types import Array, Integers

if TYPE_CHECKING:
    from dpdask.storage import label_kernel
else:
    label_kernel = when_used("dpdask.storage.label_kernel")

__all__ = ["number_positions", "text_positions"]

_LARGEST_TABLE = 2**16
_LONG_TEXT = 32
_FEW = 6


def number_positions(values: Array, groups: list[int]) -> Integers:
    """Return where each value is in a list of whole numbers, -1 where it is not."""
    if values.dtype.kind == "b":
        values = values.astype(np.int8)
    if values.dtype.kind == "f":
        values = values.astype(np.float64, copy=False)
        usable = [place for place, group in enumerate(groups) if _is_double(group)]
    else:
        limits = np.iinfo(values.dtype.str)
        usable = [p for p, group in enumerate(groups) if limits.min <= group <= limits.max]
    if not usable:
        return np.full(values.shape, -1, np.int64)
    listed = [groups[place] for place in usable]
    low, high = min(listed), max(listed)
    in_int64 = low >= -(2**63) and high < 2**63 and values.dtype != np.uint64
    if not in_int64 or high - low >= _LARGEST_TABLE:
        return _searched(values, np.array(listed, values.dtype), usable)
    table = np.full(high - low + 1, -1, np.int64)
    table[np.array(listed) - low] = usable
    out = np.empty(values.shape, np.int64)
    label_kernel.find_in_table(values, low, high, table, out)
    return out


def text_positions(values: Array, groups: list[str]) -> Integers:
    """Return where each text is in a list, -1 where it is not."""
    if values.dtype.kind == "O":  # anything may be in it
        known: dict[object, int] = {group: place for place, group in enumerate(groups)}
        known.update({group.encode(): place for place, group in enumerate(groups)})
        positions = (known.get(v, -1) if isinstance(v, str | bytes) else -1 for v in values)
        return np.fromiter(positions, np.int64, len(values))
    if values.dtype.kind == "S":
        return _found_rows(values, [group.encode() for group in groups], np.dtype(np.uint8))
    if values.dtype.kind == "U":
        native = values.astype(values.dtype.newbyteorder("="), copy=False)
        return _found_rows(native, groups, np.dtype(np.uint32))
    longest = max(len(group) for group in groups)
    if len(groups) <= _FEW or longest >= _LONG_TEXT:
        codes = np.full(values.shape, -1, np.int64)
        for place, group in enumerate(groups):
            codes[values == group] = place
        return codes
    # one letter more than any group has: longer texts stay longer when they are cut
    cut = values.astype(f"U{longest + 1}")
    codes = _found_rows(cut, groups, np.dtype(np.uint32))
    unchanged = cut.astype(values.dtype) == values  # NULs at the end are lost
    return np.where(unchanged, codes, -1)


def _found_rows(
    values: Array, groups: Sequence[str | bytes], character: np.dtype[np.generic]
) -> Integers:
    """Return where each text of fixed length is in a list, compared character by character."""
    width = values.dtype.itemsize // character.itemsize
    usable = [place for place, group in enumerate(groups) if len(group) <= width]
    out = np.full(values.shape, -1, np.int64)
    if not usable or width == 0:
        return out
    listed = np.array([groups[place] for place in usable], dtype=values.dtype)
    rows = listed.view(character).reshape(len(usable), width)
    order = np.lexsort(rows.T[::-1])
    places = np.array(usable, np.int64)[order]
    contiguous = np.ascontiguousarray(values)
    label_kernel.find_rows(
        contiguous.view(character).reshape(len(values), width), rows[order], places, out
    )
    return out


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

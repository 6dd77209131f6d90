"""Compiled search of labels in a public list."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import numpy as np

from dpdask.machine.compiling import compiled

__all__ = ["find_in_table", "find_rows"]

_compiled = compiled()


@_compiled
def find_in_table(values, low, high, table, out):
    """Write the entry of ``table`` at every whole number from ``low`` to ``high``, else -1."""
    for r in range(values.size):
        out[r] = -1
        if low <= values[r] <= high:
            whole = np.int64(values[r])
            if whole == values[r]:
                out[r] = table[whole - low]


@_compiled
def find_rows(rows, listed, places, out):
    """Write the place of every row in ``listed``, sorted rows of characters; -1 where not there."""
    for r in range(rows.shape[0]):
        low, high = 0, listed.shape[0]
        out[r] = -1
        while low < high:
            middle = (low + high) // 2
            order = 0
            for c in range(rows.shape[1]):
                if rows[r, c] != listed[middle, c]:
                    order = -1 if rows[r, c] < listed[middle, c] else 1
                    break
            if order == 0:
                out[r] = places[middle]
                break
            if order < 0:
                high = middle
            else:
                low = middle + 1

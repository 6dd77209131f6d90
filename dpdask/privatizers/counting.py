"""Compiled counts of records: the bin of every number, the cell of every record, their counts."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import math

import numpy as np

from dpdask.machine.compiling import compiled
from dpdask.types import Array, Floats, Integers

__all__ = ["count_cells", "place_by_code", "place_in_bins"]

_compiled = compiled()


@_compiled
def _place_in_bins(values, edges, inverse, cells):
    """Extend cells by the bin of a number; -1 outside the edges, and for NaN."""
    last = edges.size - 2
    low, high = edges[0], edges[last + 1]
    for r in range(values.size):
        v = np.float64(values[r])
        if cells[r] < 0 or not (low <= v <= high):
            cells[r] = -1
            continue
        if inverse > 0:  # bins of about one width: a guess, and a step where it is off
            i = min(np.int64((v - low) * inverse), last)
            while v < edges[i]:
                i -= 1
            while i < last and v >= edges[i + 1]:
                i += 1
        else:
            i, beyond = 0, last + 1
            while beyond - i > 1:
                middle = (i + beyond) // 2
                if v >= edges[middle]:
                    i = middle
                else:
                    beyond = middle
        cells[r] = cells[r] * (last + 1) + i


@_compiled
def _place_by_code(codes, size, cells):
    """Extend cells by a category; -1 where there is none."""
    for r in range(codes.size):
        if cells[r] < 0 or codes[r] < 0:
            cells[r] = -1
        else:
            cells[r] = cells[r] * size + codes[r]


@_compiled
def _count_cells(cells, counts):
    for r in range(cells.size):
        if cells[r] >= 0:
            counts[cells[r]] += 1


def place_in_bins(values: Array, edges: Floats, cells: Integers) -> None:
    """Extend every record's cell by the bin of its number, in place; -1 where it is in none.

    Bins are [left, right), the last one closed, exactly as in NumPy. No value can make it raise.

    Args:
        values: One number per record.
        edges: Finite, increasing edges.
        cells: The cell of every record so far, -1 for none.
    """
    _place_in_bins(values, edges, _inverse_width(edges), cells)


def place_by_code(codes: Integers, size: int, cells: Integers) -> None:
    """Extend every record's cell by its category, in place; -1 where it has none.

    Args:
        codes: The position of every record's label among the categories, -1 for none.
        size: How many categories there are.
        cells: The cell of every record so far, -1 for none.
    """
    _place_by_code(codes, size, cells)


def count_cells(cells: Integers, counts: Integers) -> None:
    """Add how many records are in each cell to ``counts``; those in cell -1 count nowhere."""
    _count_cells(cells, counts)


def _inverse_width(edges: Floats) -> float:
    """Return bins per unit where all bins have about the same width, so that a number tells its
    bin but for one; else 0.
    """
    bins = edges.size - 1
    with np.errstate(over="ignore", invalid="ignore"):
        width = (edges[-1] - edges[0]) / bins
        inverse = 1 / width if width > 0 else math.inf
        if not (math.isfinite(width) and math.isfinite(inverse)):
            return 0.0
        guessed = (edges - edges[0]) * inverse
    near = np.abs(guessed - np.arange(bins + 1)) < 0.5
    return float(inverse) if bool(near.all()) else 0.0

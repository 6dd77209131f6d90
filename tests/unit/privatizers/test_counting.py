"""Bins and cells of records: exactly NumPy's, for every number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpdask.planning.histogram_builder import _equal_edges
from dpdask.privatizers.counting import (
    _inverse_width,
    count_cells,
    place_by_code,
    place_in_bins,
)
from dpdask.spec.query import Bins

HUGE = 1.7e308
EDGES: dict[str, list[float]] = {
    "one bin": [0.0, 1.0],
    "equal": np.linspace(-3, 7, 31).tolist(),
    "thirds": [i / 3 for i in range(10)],
    "tenths": (np.arange(25) * 0.1).tolist(),
    "unequal": [-5.0, -1.0, 0.0, 1e-3, 2.0, 2.5, 1000.0],
    "logarithmic": np.logspace(-12, 12, 97).tolist(),
    "all doubles": [-HUGE, 0.0, HUGE],
    "the least": [0.0, 5e-324, 1e-323, 1.5e-323],
    "neighbours": [1.0, math.nextafter(1, 2), math.nextafter(math.nextafter(1, 2), 2)],
    "far away": (1e16 + 2 * np.arange(9)).tolist(),
    "nearly equal": [0.0, 1.01, 1.99, 3.02, 4.0],
    "nearly equal but one": [0.0, 1.01, 2.55, 3.02, 4.0],
}


def hostile(edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Edges, their neighbours, everything between and beyond."""
    rng = np.random.default_rng(7)
    with np.errstate(over="ignore", invalid="ignore"):
        between = edges[:-1] / 2 + edges[1:] / 2
        spread = rng.uniform(edges[0] / 2, edges[-1] / 2, 4000) * 2
        near = [np.nextafter(edges, -np.inf), np.nextafter(edges, np.inf)]
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, HUGE, -HUGE, 5e-324, 1e-300]
    return np.concatenate([edges, *near, between, spread, special])


def counted(cells: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    counts = np.zeros(size, np.int64)
    count_cells(cells, counts)
    return counts


def numpy_bins(values: np.ndarray[Any, Any], edges: np.ndarray[Any, Any]) -> list[int]:
    """NumPy's bin of every number alone, -1 where it counts none."""
    found = []
    for value in values:
        counts = np.histogram([value] if np.isfinite(value) else [], edges)[0]
        found.append(int(np.argmax(counts)) if counts.any() else -1)
    return found


@pytest.mark.parametrize("name", list(EDGES))
def test_every_number_is_in_numpys_bin(name: str) -> None:
    edges = np.array(EDGES[name])
    values = hostile(edges)
    cells = np.zeros(values.size, np.int64)
    place_in_bins(values, edges, cells)
    assert cells.tolist() == numpy_bins(values, edges)


@pytest.mark.parametrize(
    ("name", "guessed"),
    [("equal", True), ("tenths", True), ("nearly equal", True), ("nearly equal but one", False),
     ("logarithmic", False), ("all doubles", False), ("the least", False)],
)  # fmt: skip
def test_equal_bins_are_guessed_and_others_searched(name: str, guessed: bool) -> None:
    assert (_inverse_width(np.array(EDGES[name])) > 0) == guessed


@pytest.mark.parametrize("dtype", ["f4", "i4", "i8", "u1"])
def test_numbers_of_any_type_are_compared_as_doubles(dtype: str) -> None:
    values = np.arange(40).astype(dtype)
    edges = np.array([0.0, 9.5, 10.0, 39.0])
    cells = np.zeros(40, np.int64)
    place_in_bins(values[::2], edges, cells[:20])
    np.testing.assert_array_equal(
        counted(cells[:20], 3), np.histogram(values[::2].astype(float), edges)[0]
    )


@pytest.mark.parametrize(("low", "high", "bins"), [(0, 1, 10), (-3.3, 7.7, 1000), (1e-9, 1e9, 37)])
def test_equal_bins_are_numpys(low: float, high: float, bins: int) -> None:
    edges = np.array(_equal_edges(Bins(low=low, high=high, bins=bins)))
    np.testing.assert_array_equal(edges, np.linspace(low, high, bins + 1))
    values = np.concatenate([edges, np.random.default_rng(1).uniform(low, high, 10_000)])
    cells = np.zeros(values.size, np.int64)
    place_in_bins(values, edges, cells)
    counts, _ = np.histogram(values, bins=bins, range=(low, high))
    np.testing.assert_array_equal(counted(cells, bins), counts)


def test_cells_of_several_axes_are_numpys() -> None:
    rng = np.random.default_rng(3)
    one, two = rng.normal(size=(2, 5000))
    codes = rng.integers(-1, 3, 5000)
    edges = np.linspace(-2, 2, 9), np.array([-1.0, 0.5, 0.7])
    cells = np.zeros(5000, np.int64)
    place_in_bins(one, edges[0], cells)
    place_by_code(codes, 3, cells)
    place_in_bins(two, edges[1], cells)
    counts = counted(cells, 8 * 3 * 2).reshape(8, 3, 2)
    for code in range(3):
        there = codes == code
        wanted = np.histogram2d(one[there], two[there], bins=edges)[0]
        np.testing.assert_array_equal(counts[:, code], wanted)


def test_no_records_are_no_counts() -> None:
    cells = np.zeros(0, np.int64)
    place_in_bins(np.zeros(0), np.array([0.0, 1.0]), cells)
    place_by_code(cells, 2, cells)
    assert counted(cells, 2).tolist() == [0, 0]

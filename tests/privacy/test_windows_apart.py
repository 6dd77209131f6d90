"""A release of a window reads nothing outside it, which charging the largest window alone needs.

The proof in docs/ledger.md takes two sources that differ in one unit. A release whose window does
not hold that unit must have the same distribution on both; with one key, the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.workspace import Workspace

SIZE, START, STOP = 30, 9, 19
CLIPPED = {"record_dim": "person", "l2_clip_norm": 1.0, "per": "person"}
RANGED = {"record_dim": "person", "ranges": [-1.0, 1.0], "per": "person"}
DAYS = {"record_dim": "person", "l2_clip_norm": 1.0, "per": "day"}
COUNTED = {**CLIPPED, "missing": "count"}
BY = {"array": "group", "groups": [0, 1]}

CASES: dict[str, dict[str, Any]] = {
    "identity": {"query": "identity", "privacy_unit": CLIPPED},
    "identity of ranges": {"query": "identity", "privacy_unit": RANGED},
    "sum": {"query": "sum", "privacy_unit": CLIPPED},
    "mean": {"query": "mean", "privacy_unit": RANGED},
    "mean with counts": {"query": "mean", "privacy_unit": COUNTED},
    "mean by group": {"query": {"name": "mean", "by": BY}, "privacy_unit": CLIPPED},
    "second moment": {"query": "second-moment", "privacy_unit": CLIPPED},
    "covariance": {"query": "covariance", "privacy_unit": CLIPPED},
    "days": {"query": "mean", "privacy_unit": DAYS},
}


def source(space: Workspace, changed: tuple[int, ...], axis: int) -> None:
    """Write a table, with labels; some of its indices along an axis hold other people."""
    random = np.random.default_rng(7)
    values, labels = random.normal(size=(SIZE, SIZE)) / 8, np.arange(SIZE) % 2
    other = random.normal(size=(SIZE, SIZE)) * 1e6
    for index in changed:
        box = (index,) if axis == 0 else (slice(None), index)
        values[box] = other[box]
        if axis == 0:
            labels[index] = 1 - labels[index]
    space.source(values, chunks=(7, 7), dimension_names=("person", "day"))
    zarr.create_array(
        space.folder / "source.zarr",
        name="group",
        data=labels,
        dimension_names=("person",),
        overwrite=True,
    )


def staged(space: Workspace, case: dict[str, Any], axis: int) -> dict[str, bytes]:
    window = {"axis": axis, "start": START, "stop": STOP}
    url = str(space.folder / "source.zarr")
    return space.staged(**case, source={"url": url, "array": "x", "window": window})


@pytest.mark.parametrize("name", CASES)
def test_units_outside_a_window_leave_every_byte_as_it_is(space: Workspace, name: str) -> None:
    case = CASES[name]
    axis = 1 if name == "days" else 0
    source(space, (), axis)
    before = staged(space, case, axis)
    source(space, (0, START - 1, STOP, SIZE - 1), axis)  # two of them share a chunk with the window
    assert staged(space, case, axis) == before
    source(space, (START,), axis)  # the twin: a unit of the window
    assert staged(space, case, axis) != before

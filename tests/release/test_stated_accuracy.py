"""The half-width that a plan states holds 95 % of the noise that is released, under a fixed key."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dpdask
from tests.support.workspace import Workspace

RECORDS, COLUMNS = 500, 40
RANGES = {"record_dim": 0, "ranges": [[-1, 1]] * 30 + [[-50, 50]] * 10}
CASES: dict[str, dict[str, Any]] = {
    "gaussian": {"privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0}},
    "laplace": {"privacy_unit": {"record_dim": 0, "ranges": [-1, 1]}, "mechanism": "laplace"},
    "directional": {"privacy_unit": RANGES, "mechanism": "directional"},
}


def shares(space: Workspace, changes: dict[str, Any]) -> tuple[float, float]:
    """Return the share of noise within the stated half-width, and within 0.9 of it."""
    space.source(np.zeros((RECORDS, COLUMNS)))
    stated = dpdask.plan(space.spec(**changes)).to_dict()["expected_error"]["within_95"]
    noise = np.abs(space.staged_values(**changes))
    return float(np.mean(noise <= stated)), float(np.mean(noise <= 0.9 * stated))


@pytest.mark.parametrize("name", CASES)
def test_the_stated_half_width_holds_95_percent_of_the_noise(space: Workspace, name: str) -> None:
    within, narrower = shares(space, CASES[name])
    error = math.sqrt(0.95 * 0.05 / (RECORDS * COLUMNS))
    assert abs(within - 0.95) < 4 * error
    assert narrower < 0.95 - 4 * error  # the twin


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
def test_the_stated_half_width_holds_for_sums_with_counts(space: Workspace, adjacency: str) -> None:
    """Every entry is 7, within [5, 10]: the truth is 7 times the number of records."""
    unit = {"record_dim": 0, "ranges": [5, 10], "missing": "count", "adjacency": adjacency}
    space.source(np.full((20, 20000), 7.0))
    changes: dict[str, Any] = {"privacy_unit": unit, "query": "sum"}
    stated = dpdask.plan(space.spec(**changes)).to_dict()["expected_error"]["within_95"]
    noise = np.abs(space.staged_values(**changes) - 140)
    error = math.sqrt(0.95 * 0.05 / 20000)
    assert abs(np.mean(noise <= stated) - 0.95) < 4 * error
    assert np.mean(noise <= 0.9 * stated) < 0.95 - 4 * error

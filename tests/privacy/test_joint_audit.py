"""The exact audit of sums with counts: neighbours through the real tasks with one fixed key.

The noise cancels, so the whitened distance of two runs, over all parts together, is exactly the mu
that this pair shows; it must not exceed the verified one.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.planning import ReleasePlan, make_plan
from dpdask.planning.verified import recorded_answer, verified_step
from dpdask.spec import parse_release_spec
from tests.privacy.parts import noisy_integers, squared_distance

Values = np.ndarray[Any, Any]
KEY = bytes(range(32))
RECORDS, FEATURES = 12, 3
HOSTILE = (
    np.array([320.0, 250.0, 320.0]),
    np.array([250.0, 320.0, 250.0]),
    np.array([np.nan, np.nan, np.nan]),
    np.array([np.nan, 320.0, np.nan]),
    np.array([250.0, np.nan, np.nan]),
    np.array([np.inf, -np.inf, np.inf]),
    np.array([-1e300, 1e300, 285.0]),
    np.array([285.0, 285.0, 285.0]),
)
BOUNDS: dict[str, dict[str, Any]] = {
    "ranges": {"ranges": [250, 320]},
    "ranges-off-centre": {"ranges": [250, 320], "center": 260},
    "ranges-per-feature": {"ranges": [[250, 320], [0, 320], [250, 2000]]},
    "clip": {"l2_clip_norm": 30.0, "center": 285.0},
}


def _plan(folder: Path, query: Any, unit: dict[str, Any]) -> ReleasePlan:
    spec = {
        "source": {"url": str(folder / "source.zarr"), "array": "x"},
        "output": {"url": str(folder / "out.zarr")},
        "privacy_unit": {"record_dim": 0, **unit},
        "query": query,
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {"ledger": f"sqlite:///{folder}/ledger.db", "dataset": "people"},
        "compute": {"cluster": "inline"},
    }
    return make_plan(parse_release_spec(spec))


def _write(folder: Path, values: Values, labels: Values) -> None:
    for name, content in (("x", values), ("group", labels)):
        zarr.create_array(
            folder / "source.zarr",
            name=name,
            data=content,
            chunks=(5, *content.shape[1:]),
            overwrite=True,
        )


def _distance(plan: ReleasePlan, one: dict[str, Values], two: dict[str, Values]) -> float:
    """The distance of two outputs in standard deviations of each part's noise."""
    return math.sqrt(squared_distance(plan.only, one, two))


COUNTED = [  # the other combination has no counts, and is in the audit of plain sums
    (adjacency, grouped, missing)
    for adjacency in ("replace-one", "add-remove-one")
    for grouped in (False, True)
    for missing in ("center", "count")
    if (adjacency, grouped, missing) != ("replace-one", False, "center")
]


@pytest.mark.parametrize(("adjacency", "grouped", "missing"), COUNTED)
@pytest.mark.parametrize("bound", list(BOUNDS))
def test_no_neighbours_differ_by_more_than_was_verified(
    tmp_path: Path, bound: str, adjacency: str, grouped: bool, missing: str
) -> None:
    by = {"by": {"array": "group", "groups": [3, 7]}} if grouped else {}
    rng = np.random.default_rng(5)
    values = rng.normal(285, 30, (RECORDS, FEATURES))
    labels = rng.choice([3, 7, 8], RECORDS)
    versions: list[tuple[Values, Values]] = []
    groups = (3, 7, 8) if grouped else (3,)
    for record, group in itertools.product(HOSTILE, groups):
        x, g = values.copy(), labels.copy()
        x[4], g[4] = record, group
        versions.append((x, g))
    if adjacency == "add-remove-one":
        versions = [(np.delete(values, 4, 0), np.delete(labels, 4)), *versions]
    _write(tmp_path, *versions[-1])
    query = {"name": "mean", **by}
    unit = {**BOUNDS[bound], "adjacency": adjacency, "missing": missing}
    runs = []
    for x, g in versions:
        _write(tmp_path, x, g)
        plan = _plan(tmp_path, query, unit)
        runs.append(noisy_integers(plan, plan.only))
    profile = verified_step(recorded_answer(plan.data))
    mu = profile.mu  # type: ignore[union-attr]
    pairs = (
        [(0, other) for other in range(1, len(runs))]
        if adjacency == "add-remove-one"
        else list(itertools.combinations(range(len(runs)), 2))
    )
    worst = max(_distance(plan, runs[one], runs[two]) for one, two in pairs)
    assert worst <= mu
    if bound == "ranges":
        assert worst > 0.98 * mu  # the bound is attained, so half the noise would be noticed

"""The exact audit of several variables: neighbours that differ in all of them at once.

Each variable runs through the real tasks with one fixed key, so the noise cancels: the whitened
distance over all variables and parts together is the mu that a pair of neighbours shows.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.accounting import GaussianProfile
from dpdask.errors import InvalidMechanism
from dpdask.planning import ReleasePlan, make_plan, planner, variables
from dpdask.planning.component import jointly
from dpdask.privacy import Guarantee
from dpdask.spec import parse_release_spec
from tests.privacy.parts import noisy_integers, squared_distance
from tests.support.workspace import Workspace

Values = np.ndarray[Any, Any]
RECORDS = 12
SHAPES = {"t2m": (RECORDS, 3), "pr": (2, RECORDS), "ws": (RECORDS, 2, 2)}
AXES = {"t2m": 0, "pr": 1, "ws": 0}
NAMES = {"t2m": ("time", "x"), "pr": ("level", "time"), "ws": ("time", "a", "b")}
OWN: dict[str, dict[str, Any]] = {
    "t2m": {"ranges": [250, 320]},
    "pr": {"ranges": [[0, 200], [0, 10]], "feature_dim": "level"},
    "ws": {"l2_clip_norm": 40.0},
}
HOSTILE: list[dict[str, Any]] = [
    {"t2m": 320.0, "pr": 200.0, "ws": 1e300},
    {"t2m": 250.0, "pr": 0.0, "ws": -1e300},
    {"t2m": np.nan, "pr": np.nan, "ws": np.nan},
    {"t2m": np.inf, "pr": -np.inf, "ws": np.inf},
    {"t2m": 285.0, "pr": 3.0, "ws": 20.0},
    {"t2m": -1e300, "pr": 1e300, "ws": 0.0},
]
CASES = [
    ("identity", "replace-one", "center"),
    ("mean", "replace-one", "center"),
    ("mean", "replace-one", "count"),
    ("sum", "add-remove-one", "center"),
    ("mean", "add-remove-one", "count"),
]


def _plan(folder: Path, query: str, adjacency: str, missing: str) -> ReleasePlan:
    spec = {
        "source": {"url": str(folder / "source.zarr"), "arrays": OWN},
        "output": {"url": str(folder / "out.zarr")},
        "privacy_unit": {"record_dim": "time", "adjacency": adjacency, "missing": missing},
        "query": query,
        "mechanism": "analytic-gaussian",
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {"ledger": f"sqlite:///{folder}/ledger.db", "dataset": "people"},
        "compute": {"cluster": "inline"},
    }
    return make_plan(parse_release_spec(spec))


def _write(folder: Path, content: dict[str, Values]) -> None:
    for name, values in content.items():
        zarr.create_array(
            folder / "source.zarr",
            name=name,
            data=values,
            chunks=tuple(min(5, size) for size in values.shape),
            dimension_names=NAMES[name],
            overwrite=True,
        )


def _neighbours(adjacency: str) -> list[dict[str, Values]]:
    """Versions of the source that differ in record 4 of every variable."""
    rng = np.random.default_rng(5)
    base = {name: rng.normal(100, 30, shape) for name, shape in SHAPES.items()}
    versions = []
    for hostile in HOSTILE:
        changed = {name: values.copy() for name, values in base.items()}
        for name, values in changed.items():
            np.moveaxis(values, AXES[name], 0)[4] = hostile[name]
        versions.append(changed)
    if adjacency == "add-remove-one":
        removed = {name: np.delete(values, 4, AXES[name]) for name, values in base.items()}
        versions.insert(0, removed)
    return versions


def _worst(folder: Path, query: str, adjacency: str, missing: str) -> tuple[float, ReleasePlan]:
    """The largest joint distance of two neighbours, and the plan of the release."""
    runs = []
    for content in _neighbours(adjacency):
        _write(folder, content)
        plan = _plan(folder, query, adjacency, missing)
        runs.append([noisy_integers(plan, variable) for variable in plan.variables])
    pairs = itertools.combinations(runs, 2)
    if adjacency == "add-remove-one":
        pairs = ((runs[0], other) for other in runs[1:])
    squares = (
        sum(
            squared_distance(variable, *parts)
            for variable, *parts in zip(plan.variables, one, two, strict=True)
        )
        for one, two in pairs
    )
    return math.sqrt(max(squares)), plan


def _check(folder: Path, query: str, adjacency: str, missing: str) -> float:
    """Return what share of the verified mu is attained; no pair may show more."""
    worst, plan = _worst(folder, query, adjacency, missing)
    verified = plan.guarantee.verified
    assert isinstance(verified, GaussianProfile)
    assert plan.guarantee.certified
    assert worst <= verified.mu
    return worst / verified.mu


@pytest.mark.parametrize(("query", "adjacency", "missing"), CASES)
def test_no_neighbours_differ_by_more_than_was_verified_jointly(
    tmp_path: Path, query: str, adjacency: str, missing: str
) -> None:
    share = _check(tmp_path, query, adjacency, missing)
    if adjacency == "replace-one" and missing == "center":
        assert share > 0.98  # the bound is attained, so noise for one variable would be noticed


def _largest_alone(budget: Any, components: Any) -> Guarantee:
    """The planted bug: the cost of the most expensive variable, as if they were about others."""
    guarantee = jointly(budget, components)
    largest = max(component.guarantee.verified.mu for component in components)
    return Guarantee(claimed=budget, theorem=guarantee.theorem, verified=GaussianProfile(largest))


@pytest.fixture
def uncharged_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "jointly", _largest_alone)
    monkeypatch.setattr(variables, "budget_of_share", lambda budget, share: budget)


@pytest.mark.usefixtures("uncharged_variables")
def test_the_audit_notices_variables_that_are_not_charged(tmp_path: Path) -> None:
    worst, plan = _worst(tmp_path, "mean", "replace-one", "center")
    assert isinstance(plan.guarantee.verified, GaussianProfile)
    assert plan.guarantee.certified  # by the planted bug
    assert worst > 1.7 * plan.guarantee.verified.mu  # three variables: the root of 3


@pytest.mark.usefixtures("uncharged_variables")
def test_a_plan_that_charges_one_variable_alone_would_not_verify(space: Workspace) -> None:
    _write(space.folder, _neighbours("replace-one")[0])
    with pytest.raises(InvalidMechanism, match="smaller than its guarantee needs"):
        space.release(
            source={"url": str(space.folder / "source.zarr"), "arrays": OWN},
            privacy_unit={"record_dim": "time"},
            query="mean",
        )
    assert space.spent() == 0
    assert space.left_behind() == []


def test_variables_draw_noise_of_their_own(tmp_path: Path) -> None:
    """Two variables with the same values, bound and shape: their noise has nothing in common."""
    values = np.full((RECORDS, 40), 100.0)
    for name in ("t2m", "t2m-count"):
        zarr.create_array(
            tmp_path / "source.zarr", name=name, data=values, dimension_names=("time", "x")
        )
    spec = parse_release_spec(
        {
            "source": {
                "url": str(tmp_path / "source.zarr"),
                "arrays": {"t2m": None, "t2m-count": None},
            },
            "output": {"url": str(tmp_path / "out.zarr")},
            "privacy_unit": {"record_dim": "time", "ranges": [0, 200], "missing": "count"},
            "query": "mean",
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "budget": {"ledger": "sqlite:///unused.db", "dataset": "people"},
            "compute": {"cluster": "inline"},
        }
    )
    plan = make_plan(spec)
    names = [
        name
        for variable in plan.variables
        for name in (
            variable.component.name,
            *(variable.component.part_name(part) for part in variable.component.parts),
        )
    ]
    assert len(set(names)) == 4
    one, two = (noisy_integers(plan, variable) for variable in plan.variables)
    for name in one:
        assert np.mean(one[name] == two[name]) < 0.1

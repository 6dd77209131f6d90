"""Brute force: no two neighbours are further from each other, in the histogram that chooses a bound
and in the data with that bound, than was verified; and planted bugs are noticed.

With one key the noise of both is the same, so the difference of what is released is free of noise.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.accounting import GaussianProfile
from dpdask.planning import ReleasePlan, make_plan
from dpdask.planning.component import verified_mu
from dpdask.queries import bound_histograms
from dpdask.spec import parse_release_spec
from tests.privacy.audit import SourceFile, Subject, audit_group
from tests.privacy.neighbours import record_groups
from tests.support.estimates import fixed, noisy_estimates, settled_plan
from tests.support.exact_answers import priorities_of
from tests.support.workspace import Workspace

Anything = np.ndarray[Any, Any]
RECORDS, FEATURES = 24, 3
NORM = {"l2_clip_norm": {"quantile": 0.9, "between": [0.1, 100.0], "share": 0.3}}
BEST = {"l2_clip_norm": {"best": True, "between": [0.1, 100.0], "share": 0.3}}
RANGE = {"ranges": {"quantiles": [0.05, 0.95], "between": [-10, 10], "share": 0.3}}
UNITS: dict[str, dict[str, Any]] = {
    "norm": NORM,
    "norm around a centre": {**NORM, "center": 4.0},
    "best norm": BEST,
    "one range": RANGE,
    "a range per feature": {**RANGE, "feature_dim": 1},
}
HOSTILE = [0.0, 1e-300, 0.05, 3.0, -3.0, 9.999, 1e9, -1e300, math.inf, -math.inf, math.nan]
OWNERS: dict[str, Anything] = {
    "one owns all": np.zeros(RECORDS, np.int64),
    "one owns most": np.where(np.arange(RECORDS) % 7 == 3, np.arange(RECORDS), 0),
    "split across chunks": np.arange(RECORDS) % 5,
    "in runs": np.arange(RECORDS) // 6,
}


def plan_of(
    space: Workspace, values: Anything, unit: dict[str, Any], ids: Anything | None = None
) -> ReleasePlan:
    space.source(values, chunks=(7, 2))
    if ids is not None:
        group = zarr.open_group(space.folder / "source.zarr", mode="a")
        group.create_array("who", data=ids, chunks=(5,), overwrite=True)
        unit = {**unit, "ids": "who"}
    spec = space.spec(
        query="sum",
        privacy_unit={"record_dim": 0, "missing": "center", **unit},
        compute={"cluster": "inline", "task_size": 300},
    )
    return fixed(make_plan(parse_release_spec(spec)))


def ratio(one: ReleasePlan, other: Anything, before: Anything) -> float:
    """How far two noisy histograms lie from each other, over what was verified."""
    component = one.estimated[0].component
    return float(np.linalg.norm(before - other)) / (
        component.noise.entry_std * verified_mu(component)
    )


def largest_ratio(space: Workspace, unit: dict[str, Any], adjacency: str, records: int) -> float:
    """Replace or remove ``records`` records by all hostile ones."""
    rng = np.random.default_rng(1)
    unit = {**unit, "adjacency": adjacency, "max_contributions": records}
    values = rng.standard_normal((RECORDS, FEATURES)) * 3
    runs = []
    for hostile in HOSTILE:
        values[:records] = hostile
        first = plan_of(space, values, unit)
        runs += noisy_estimates(first)
    if adjacency == "add-remove-one":
        [without] = noisy_estimates(plan_of(space, values[records:], unit))
        return max(ratio(first, without, released) for released in runs)
    return max(ratio(first, one, other) for one, other in itertools.combinations(runs, 2))


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("name", UNITS)
def test_no_records_move_the_histogram_by_more_than_its_sensitivity(
    space: Workspace, name: str, adjacency: str, records: int
) -> None:
    found = largest_ratio(space, UNITS[name], adjacency, records)
    assert 0.99 < found <= 1


@pytest.mark.parametrize(
    ("name", "adjacency"),
    [
        ("norm", "replace-one"),
        ("one range", "add-remove-one"),
        ("a range per feature", "replace-one"),
    ],
)
def test_a_histogram_with_too_small_a_sensitivity_is_noticed(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str, adjacency: str
) -> None:
    """As if one record were one count: without sqrt(2), entries, features or contributions."""
    monkeypatch.setattr(bound_histograms, "_radius", lambda moved, shape, adjacency: 1.0)
    assert largest_ratio(space, UNITS[name], adjacency, 2) > 1.4


@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("name", ["norm", "a range per feature"])
def test_no_person_moves_the_histogram_by_more_than_its_sensitivity(
    space: Workspace, monkeypatch: pytest.MonkeyPatch, name: str, adjacency: str, owners: str
) -> None:
    assert person_ratio(space, monkeypatch, name, adjacency, owners) <= 1


def person_ratio(
    space: Workspace, patch: pytest.MonkeyPatch, name: str, adjacency: str, owners: str
) -> float:
    ids = OWNERS[owners]
    person = ids == ids[0]
    unit = {**UNITS[name], "adjacency": adjacency, "max_contributions": 3}
    values = np.random.default_rng(3).choice([-9.0, 9.0], (RECORDS, FEATURES))
    values[person] = 9.0
    first = plan_of(space, values, unit, ids)
    [before] = noisy_estimates(first)
    if adjacency == "add-remove-one":
        there = np.flatnonzero(~person)
        with priorities_of(patch, there):
            [after] = noisy_estimates(plan_of(space, values[there], unit, ids[there]))
    else:
        other = values.copy()
        other[person] = -0.001
        ids_after = np.where(person, 10**6, ids)
        [after] = noisy_estimates(plan_of(space, other, unit, ids_after))
    return ratio(first, after, before)


def test_a_histogram_of_records_that_are_left_out_is_noticed(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bound_histograms,
        "first_codes",
        lambda source, records: np.zeros(records.stop - records.start, np.int64),
    )
    found = person_ratio(space, monkeypatch, "norm", "replace-one", "one owns most")
    assert found > 2


CHOSEN: dict[str, list[dict[str, Any]]] = {
    "norm": [{"norm": 0.1}, {"norm": 3.16228}, {"norm": 100.0}],
    "norm around a centre": [{"norm": 1.0}],
    "best norm": [{"norm": 10.0}],
    "one range": [{"ranges": [[-0.2, 0.2]]}, {"ranges": [[9.8, 10.0]]}],
    "a range per feature": [{"ranges": [[-10.0, 10.0], [9.8, 10.0], [-0.2, 0.0]]}],
}


@pytest.mark.parametrize(
    ("name", "query"),
    [(name, "identity") for name in UNITS if name != "best norm"]
    + [(name, "sum") for name in UNITS if name != "norm around a centre"],  # adds the centre
)
def test_data_with_a_chosen_bound_show_no_more_than_was_charged(
    tmp_path: Path, name: str, query: str
) -> None:
    rng = np.random.default_rng(3)
    file = SourceFile(tmp_path / "source", (9, 5), "float64", (4, 5))
    spec = {
        "source": {"url": str(tmp_path / "source"), "array": "x"},
        "output": {"url": "memory://audited"},
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {"dataset": "audit"},
        "query": query,
        "privacy_unit": {
            "record_dim": 0, "missing": "center", "max_contributions": 2, **UNITS[name]
        },
    }  # fmt: skip
    planned = Subject.of(spec, file)
    if "feature_dim" in UNITS[name]:
        ranges = [[-10.0, 10.0], [9.8, 10.0], [-0.2, 0.0], [0.0, 0.2], [-10.0, -9.8]]
        bounds: list[dict[str, Any]] = [{"ranges": ranges}]
    else:
        bounds = CHOSEN[name]
    for chosen in bounds:
        plan = settled_plan(planned.plan, chosen)
        subject = dataclasses.replace(planned, plan=plan, component=plan.data)
        groups = record_groups(
            subject.component,
            shape=file.shape,
            dtype=file.dtype,
            axis=0,
            contributions=2,
            window=None,
            rng=rng,
            groups=3,
            variants=20,
        )
        charged = dataclasses.replace(
            plan.data, guarantee=planned.component.guarantee
        )  # what was charged, not what was calibrated for this bound
        subject = dataclasses.replace(subject, component=charged)
        found = max(audit_group([subject], group).ratio for group in groups)
        assert 0.4 < found <= 1
        total = plan.guarantee.verified
        assert isinstance(total, GaussianProfile)
        parts = [verified_mu(plan.estimated[0].component), verified_mu(plan.data)]
        assert math.hypot(*parts) <= total.mu

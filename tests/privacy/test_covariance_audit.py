"""The exact audit of covariances: neighbours through the real tasks with one fixed key.

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

from dpdask.planning import ReleasePlan, make_plan, moment_builders
from dpdask.queries import covariance
from dpdask.queries.covariance import JointCovariance
from dpdask.queries.joint_moments import MomentShape, joint_square
from dpdask.spec import parse_release_spec
from tests.privacy.joint_parts import Parts, distance, noisy_parts, verified_mu

Values = np.ndarray[Any, Any]
RECORDS = 11
C, CENTER = 3.0, 20.0
CLIP = {"l2_clip_norm": C, "center": CENTER}


def _plan(folder: Path, query: Any, unit: dict[str, Any], **more: Any) -> ReleasePlan:
    spec = {
        "source": {"url": str(folder / "source.zarr"), "array": "x"},
        "output": {"url": str(folder / "out.zarr")},
        "privacy_unit": {"record_dim": 0, "missing": "center", **unit},
        "query": query,
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {"ledger": f"sqlite:///{folder}/ledger.db", "dataset": "people"},
        "compute": {"cluster": "inline"},
        **more,
    }
    return make_plan(parse_release_spec(spec))


def _write(folder: Path, values: Values) -> None:
    chunks = (4, max(1, values.shape[1] - 1))
    zarr.create_array(folder / "source.zarr", name="x", data=values, chunks=chunks, overwrite=True)


def _hostile(d: int, scale: float) -> list[Values]:
    """Records at the worst cosine for a sum of this scale, and others that may do harm."""
    axis = np.eye(d)[0]
    found = [axis * C, -axis * C, axis * C / 2, axis * 0, -axis * C * 0.2, -axis * C * 0.9]
    if d > 1:
        cosine = max(-1.0, -1 / (2 * scale**2 * C**2))
        turned = cosine * axis + math.sqrt(1 - cosine**2) * np.eye(d)[1]
        found += [C * turned, C * np.eye(d)[1], 1e6 * turned, np.full(d, -C)]
    else:
        shares = np.linspace(-1, 1, 21)
        found += [np.array([C * share]) for share in shares]
    found += [np.full(d, np.nan), np.full(d, np.inf), -1e300 * axis, np.where(axis, np.nan, C)]
    return [record + CENTER for record in found]


def _runs(
    folder: Path, query: Any, unit: dict[str, Any], records: list[Values], **more: Any
) -> tuple[ReleasePlan, list[Parts]]:
    """All versions of a source whose record 4 is replaced; the first lacks it if it may."""
    rng = np.random.default_rng(8)
    d = records[0].size
    values = rng.normal(CENTER, 1.5, (RECORDS, d))
    versions = []
    if unit.get("adjacency") == "add-remove-one":
        versions.append(np.delete(values, 4, 0))
    for record in records:
        x = values.copy()
        x[4] = record
        versions.append(x)
    runs = []
    for x in versions:
        _write(folder, x)
        plan = _plan(folder, query, unit, **more)
        runs.append(noisy_parts(plan))
    return plan, runs


def _worst(plan: ReleasePlan, runs: list[Parts], adjacency: str) -> float:
    pairs = itertools.combinations(range(len(runs)), 2)
    if adjacency == "add-remove-one":
        pairs = ((0, other) for other in range(1, len(runs)))  # type: ignore[assignment]
    return max(distance(plan, runs[one], runs[two]) for one, two in pairs)


def _sum_scale(folder: Path, d: int, unit: dict[str, Any]) -> float:
    _write(folder, np.full((RECORDS, d), CENTER))
    query = _plan(folder, "covariance", unit).data.query
    assert isinstance(query, JointCovariance)
    return query.sum_scale or 1.0


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("distance_hint", [None, 0.05, 30.0])
def test_no_neighbours_differ_by_more_than_was_verified(
    tmp_path: Path, d: int, adjacency: str, distance_hint: float | None
) -> None:
    unit = {**CLIP, "adjacency": adjacency, "expected_distance": distance_hint}
    records = _hostile(d, _sum_scale(tmp_path, d, unit))
    plan, runs = _runs(tmp_path, "covariance", unit, records)
    worst, mu = _worst(plan, runs, adjacency), verified_mu(plan)
    assert worst <= mu
    assert worst > 0.97 * mu  # the bound is attained, so half the noise would be noticed


@pytest.mark.parametrize(
    ("adjacency", "center"),
    [
        ("replace-one", "private"),
        ("add-remove-one", "private"),
        ("add-remove-one", [2.0, 17.0, -1.0]),
    ],
)
def test_ranges_of_covariances_hold(tmp_path: Path, adjacency: str, center: Any) -> None:
    ranges = [[0, 4], [16, 24], [-1, 5]]
    unit = {"ranges": ranges, "adjacency": adjacency}
    ends = [np.array(record) for record in itertools.product(*ranges)]
    extra = [np.full(3, np.nan), np.full(3, np.inf), np.array([2.0, np.nan, -1e300])]
    query = {"name": "covariance", "center": center}
    more = {} if center == "private" else {"publish": {"chunks": [2, 2]}}
    plan, runs = _runs(tmp_path, query, unit, ends + extra, **more)
    worst, mu = _worst(plan, runs, adjacency), verified_mu(plan)
    assert worst <= mu
    assert worst > 0.9 * mu  # of symmetric ranges nearly all


@pytest.mark.parametrize("d", [1, 3])
def test_two_records_of_one_person_move_twice_as_far(tmp_path: Path, d: int) -> None:
    unit = {**CLIP, "max_contributions": 2}
    records = _hostile(d, _sum_scale(tmp_path, d, unit))
    rng = np.random.default_rng(8)
    values = rng.normal(CENTER, 1.5, (RECORDS, d))
    runs = []
    for record in records:
        values[[4, 9]] = record
        _write(tmp_path, values)
        plan = _plan(tmp_path, "covariance", unit)
        runs.append(noisy_parts(plan))
    assert 0.97 < _worst(plan, runs, "replace-one") / verified_mu(plan) <= 1


def test_covariance_in_several_tiles_around_a_public_centre(tmp_path: Path) -> None:
    unit = {"l2_clip_norm": C, "adjacency": "add-remove-one", "max_contributions": 2}
    query = {"name": "covariance", "center": CENTER}
    records = _hostile(3, 1.0)
    plan, runs = _runs(tmp_path, query, unit, records, publish={"chunks": [2, 2]})
    assert plan.data.tiling.count == 3
    assert 0.97 / 2 < _worst(plan, runs, "add-remove-one") / verified_mu(plan) <= 0.5


def test_audit_notices_a_radius_without_the_worst_cosine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst of orthogonal and of opposite records is not the worst of all."""

    def too_little(
        shape: MomentShape, *, sum_scale: float | None, count_scale: float | None
    ) -> float:
        square, p = shape.reach**2, (sum_scale or 1.0) ** -2
        return max(2 * square**2 + 2 * p * square, 4 * p * square)

    unit = {**CLIP, "adjacency": "replace-one", "expected_distance": 1.0}
    records = _hostile(2, _sum_scale(tmp_path, 2, unit))
    for module in (moment_builders, covariance):
        monkeypatch.setattr(module, "joint_square", too_little)
    plan, runs = _runs(tmp_path, "covariance", unit, records)
    assert _worst(plan, runs, "replace-one") > verified_mu(plan)


def test_audit_notices_a_sum_of_records_that_were_not_clipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partials = JointCovariance.partials

    def unclipped(self: Any, source: Any, exact: Any, box: Any, some: slice, factors: Any) -> Any:
        sums = partials(self, source, exact, box, some, factors)
        raw = np.clip(np.nan_to_num(source.read((some, box[0])) - CENTER), -10 * C, 10 * C)
        steps = np.rint(raw / exact.rule().grid.step)
        return {**sums, covariance.SUM: steps.sum(axis=0).astype(np.int64)}

    monkeypatch.setattr(JointCovariance, "partials", unclipped)
    unit = {**CLIP, "adjacency": "replace-one"}
    plan, runs = _runs(tmp_path, "covariance", unit, _hostile(2, 1.0))
    assert _worst(plan, runs, "replace-one") > 2 * verified_mu(plan)


def test_sums_and_moments_are_charged_together(tmp_path: Path) -> None:
    """Neither part alone could have all of the budget."""
    unit = {**CLIP, "adjacency": "replace-one"}
    _write(tmp_path, np.full((RECORDS, 3), CENTER))
    plan = _plan(tmp_path, "covariance", unit)
    query = plan.data.query
    assert isinstance(query, JointCovariance)
    shape = MomentShape(
        reach=C,
        features=3,
        summed=True,
        counted=query.count_scale is not None,
        adjacency=query.sensitivity.adjacency,
    )
    alone = joint_square(shape, sum_scale=None, count_scale=None)
    assert query.sensitivity.radius**2 > 1.2 * alone
    assert plan.data.noise.entry_std >= query.sensitivity.radius / verified_mu(plan) * (1 - 1e-9)

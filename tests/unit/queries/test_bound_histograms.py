"""Histograms from which a bound is chosen, against counts by NumPy; and their noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpdask.execution import InlineExecutor, prepare
from dpdask.noise import IidNoise
from dpdask.planning import ReleasePlan, make_plan
from dpdask.queries.base import DATA
from dpdask.spec import parse_release_spec
from tests.support.estimates import fixed, noisy_estimates, quiet
from tests.support.workspace import Workspace

Anything = np.ndarray[Any, Any]
NORM = {"l2_clip_norm": {"quantile": 0.9, "between": [0.1, 1000.0]}}
RANGES = {"ranges": {"quantiles": [0.05, 0.95], "between": [-10, 10]}}


def plan_of(space: Workspace, values: Anything, chunks: Any, **unit: Any) -> ReleasePlan:
    space.source(values, chunks=chunks)
    spec = space.spec(
        query="identity",
        privacy_unit={"record_dim": 0, **unit},
        compute={"cluster": "inline", "task_size": 1000},
    )
    return fixed(make_plan(parse_release_spec(spec)))


def exact(plan: ReleasePlan) -> Anything:
    """The counts without noise, through the real tasks."""
    [variable] = plan.estimated
    prepared = prepare(InlineExecutor(), plan, variable, quiet)
    [answer] = prepared.answers.values()
    counts: Anything = answer.value.value[DATA]  # type: ignore[attr-defined]
    return counts


def edges_of(plan: ReleasePlan) -> Anything:
    edges: Anything = plan.estimated[0].query.edges  # type: ignore[attr-defined]
    return edges


def tensor(dtype: str) -> Anything:
    rng = np.random.default_rng(5)
    values = rng.lognormal(0, 2, (60, 4, 5)) * rng.choice([-1, 1], (60, 4, 5))
    if np.dtype(dtype).kind == "f":
        values[3], values[7, 0, 0], values[9, 1, 2] = np.nan, np.nan, np.inf
    return values.astype(dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
@pytest.mark.parametrize("chunks", [(60, 4, 5), (7, 3, 2), (60, 1, 1)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("center", [0.0, 2.5])
def test_records_are_counted_by_their_norms(
    space: Workspace, dtype: str, chunks: Any, axis: int, center: float
) -> None:
    values = tensor(dtype)
    unit: dict[str, Any] = {**NORM, "record_dim": axis, **({"center": center} if center else {})}
    plan = plan_of(space, values, chunks, **unit)
    distances = np.nan_to_num(values.astype(float) - center, nan=0.0, posinf=1e300)
    flat = np.moveaxis(distances, axis, 0).reshape(values.shape[axis], -1)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(np.minimum(np.abs(flat), 1e9), axis=1)
    edges = edges_of(plan)
    bins = np.minimum(np.searchsorted(edges, norms, side="left"), edges.size - 1)
    np.testing.assert_array_equal(exact(plan), np.bincount(bins, minlength=edges.size))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16"])
@pytest.mark.parametrize("chunks", [(60, 4, 5), (7, 3, 2), (60, 1, 1)])
@pytest.mark.parametrize(("axis", "feature"), [(0, None), (0, 1), (0, 2), (1, 2), (2, 0)])
def test_entries_are_counted_by_their_values(
    space: Workspace, dtype: str, chunks: Any, axis: int, feature: int | None
) -> None:
    values = tensor(dtype)
    unit = {**RANGES, "record_dim": axis, **({} if feature is None else {"feature_dim": feature})}
    plan = plan_of(space, values, chunks, **unit)
    rows = [values] if feature is None else list(np.moveaxis(values, feature, 0))
    edges = edges_of(plan)
    expected = []
    for row, ends in zip(rows, edges, strict=True):
        present = row[~np.isnan(row)].astype(float)
        expected.append(np.histogram(np.clip(present, -10, 10), ends)[0])
    np.testing.assert_array_equal(exact(plan), expected)


def test_a_record_at_an_edge_is_not_above_it(space: Workspace) -> None:
    plan = plan_of(space, np.zeros((101, 1)), (101, 1), **NORM)
    edges = edges_of(plan)
    at_edges = plan_of(space, edges[:, None].astype(np.float64), (101, 1), **NORM)
    counts = exact(at_edges)
    assert abs(np.cumsum(counts) - np.arange(1, 102)).max() <= 1  # but for the grid of norms
    assert counts.sum() == 101


def scores(space: Workspace, scale: float = 1.0) -> Anything:
    """The noise of counts over its standard deviation, by 200 keys."""
    plan = plan_of(space, np.zeros((50, 2)), (50, 2), **NORM)
    noise = plan.estimated[0].component.noise
    assert isinstance(noise, IidNoise)
    counts = exact(plan)
    drawn = [noisy_estimates(plan, key=bytes([i]) * 32)[0] - counts for i in range(200)]
    return np.concatenate(drawn) / (noise.sigma * scale)


def test_counts_have_the_noise_that_the_card_says(space: Workspace) -> None:
    assert stats.kstest(scores(space), "norm").pvalue > 1e-6


@pytest.mark.parametrize("scale", [2 / 3, 3 / 2])
def test_other_noise_would_be_noticed(space: Workspace, scale: float) -> None:
    assert stats.kstest(scores(space, scale), "norm").pvalue < 1e-12

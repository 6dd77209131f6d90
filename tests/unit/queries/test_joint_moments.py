"""The joint radius of second moments, a sum and a count against brute force over neighbours."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpdask.privacy import Adjacency
from dpdask.queries.joint_moments import MomentShape, best_scales, joint_square

Values = np.ndarray[Any, Any]
REACH = 1.7
SCALES = (0.05, 0.2, 0.4, 0.45, 0.588, 0.7, 1.0, 3.0, 40.0)
REPLACE, ADD_REMOVE = Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE_ONE


def _shape(d: int, adjacency: Adjacency, *, summed: bool = True) -> MomentShape:
    counted = adjacency is Adjacency.ADD_REMOVE_ONE
    return MomentShape(reach=REACH, features=d, summed=summed, counted=counted, adjacency=adjacency)


def _records(d: int) -> Values:
    """Records of many norms, the largest among them, in many directions."""
    norms = np.linspace(0, REACH, 41)
    if d == 1:
        return np.concatenate([-norms, norms])[:, None]
    if d == 2:
        angles = np.linspace(0, 2 * math.pi, 97)
        directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    else:
        rng = np.random.default_rng(d)
        directions = rng.standard_normal((60, d))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return np.concatenate([norm * directions for norm in norms[[0, 5, 12, 20, 28, 36, 40]]])


def _added(records: Values, sum_scale: float, count_scale: float | None) -> Values:
    """What every record adds to all parts, each in units of the moments."""
    products = records[:, :, None] * records[:, None, :]
    parts = [products.reshape(len(records), -1), records / sum_scale]
    if count_scale is not None:
        parts.append(np.full((len(records), 1), 1 / count_scale))
    return np.concatenate(parts, axis=1)


def _worst_pair(added: Values) -> float:
    return max(float(np.max(np.sum((added - one) ** 2, axis=1))) for one in added)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_no_replaced_record_moves_all_parts_by_more_than_the_joint_radius(
    d: int, scale: float
) -> None:
    stated = joint_square(_shape(d, REPLACE), sum_scale=scale, count_scale=None)
    worst = _worst_pair(_added(_records(d), scale, None))
    assert worst <= stated * (1 + 1e-12)
    assert worst >= stated * {1: 0.995, 2: 0.997, 3: 0.9}[d]  # attained, as far as points are dense


@pytest.mark.parametrize("scale", SCALES)
def test_the_joint_radius_is_attained_at_the_worst_cosine(scale: float) -> None:
    cosine = max(-1.0, -1 / (2 * scale**2 * REACH**2))
    x = REACH * np.array([1.0, 0.0])
    y = REACH * np.array([cosine, math.sqrt(1 - cosine**2)])
    old, new = _added(np.stack([x, y]), scale, None)
    stated = joint_square(_shape(2, REPLACE), sum_scale=scale, count_scale=None)
    assert np.sum((old - new) ** 2) == pytest.approx(stated, rel=1e-12)
    # the formula of the design: 2 C^4 (1 - c^2) + 2 C^2 (1 - c) / scale^2
    formula = 2 * REACH**4 * (1 - cosine**2) + 2 * REACH**2 * (1 - cosine) / scale**2
    assert formula == pytest.approx(stated, rel=1e-12)


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.1, 1.5, 4.0])
def test_one_feature_takes_the_worst_of_all_shorter_records(scale: float) -> None:
    stated = joint_square(_shape(1, REPLACE), sum_scale=scale, count_scale=None)
    u = np.linspace(-1, 1, 400_001)
    moved = REACH**4 * (1 - u**2) ** 2 + (REACH * (1 + u) / scale) ** 2
    assert np.max(moved) == pytest.approx(stated, rel=1e-9)
    several = joint_square(_shape(2, REPLACE), sum_scale=scale, count_scale=None)
    assert stated <= several * (1 + 1e-12)


def test_orthogonal_and_opposite_records_alone_are_not_the_worst() -> None:
    """What a formula without the worst cosine would say is too little."""
    scale = 0.7
    added = _added(_records(2), scale, None)
    orthogonal = 2 * REACH**4 + 2 * REACH**2 / scale**2
    opposite = 4 * REACH**2 / scale**2
    assert _worst_pair(added) > 1.03 * max(orthogonal, opposite)


@pytest.mark.parametrize("sum_scale", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("count_scale", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_an_added_record_moves_all_parts_by_the_joint_radius(
    d: int, sum_scale: float, count_scale: float
) -> None:
    shape = _shape(d, ADD_REMOVE)
    stated = joint_square(shape, sum_scale=sum_scale, count_scale=count_scale)
    added = _added(_records(d), sum_scale, count_scale)
    assert np.max(np.sum(added**2, axis=1)) == pytest.approx(stated, rel=1e-12)
    public = joint_square(_shape(d, ADD_REMOVE, summed=False), sum_scale=None, count_scale=2.0)
    assert public == pytest.approx(REACH**4 + 0.25, rel=1e-12)


def _error(shape: MomentShape, scales: tuple[float | None, float | None], distance: float) -> float:
    """The variance of an entry at a fixed privacy cost, up to a constant."""
    sum_scale, count_scale = scales
    d = shape.features
    square = joint_square(shape, sum_scale=sum_scale, count_scale=count_scale)
    v = shape.reach**2 / math.sqrt(2 * d * (d + 1))
    of_sum = (2 * distance * (sum_scale or 0.0)) ** 2
    return square * (1 + of_sum + (v * (count_scale or 0.0)) ** 2)


@pytest.mark.parametrize("adjacency", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize("d", [1, 2, 10, 500])
@pytest.mark.parametrize("distance", [0.01, 0.3, 2.0])
def test_no_other_split_has_less_error(d: int, distance: float, adjacency: Adjacency) -> None:
    shape = _shape(d, adjacency)
    best = best_scales(shape, distance=distance)
    least = _error(shape, best, distance)
    factors = np.exp(np.linspace(-3, 3, 241))
    for of_sum in factors:
        changed = (best[0] * of_sum, best[1])  # type: ignore[operator]
        assert _error(shape, changed, distance) >= least * (1 - 1e-9)
        if best[1] is not None:
            assert _error(shape, (best[0], best[1] * of_sum), distance) >= least * (1 - 1e-9)


@pytest.mark.parametrize("d", [1, 4])
def test_the_error_that_the_split_minimises_is_that_of_the_covariance(d: int) -> None:
    """Monte Carlo: M/n - m m' with noise of both parts, averaged over entries, to first order."""
    rng = np.random.default_rng(3)
    n, sigma, scale = 1e6, 1.0, 0.7
    mean = rng.standard_normal(d)
    rounds = 20_000
    noise = sigma * rng.standard_normal((rounds, d, d))
    of_sum = sigma * scale * rng.standard_normal((rounds, d))
    noisy_mean = mean + of_sum / n
    error = (noise + noise.transpose(0, 2, 1)) / 2 / n
    error -= noisy_mean[:, :, None] * noisy_mean[:, None, :] - np.outer(mean, mean)
    distance = math.sqrt(np.mean(mean**2))
    predicted = (d + 1) / (2 * d) * (sigma / n) ** 2 * (1 + (2 * distance * scale) ** 2)
    assert np.mean(error**2) == pytest.approx(predicted, rel=0.03)

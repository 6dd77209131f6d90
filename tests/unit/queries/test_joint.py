"""The joint radius of a centred sum and its counts against brute force over neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpdask.privacy import Adjacency
from dpdask.queries.joint import Counting, SumShape, best_scale, joint_square

Point = tuple[Any, ...]
SCALES = (0.2, 0.7, 1.0, 1.3, 4.0)


def _values(kind: str, d: int) -> Iterator[np.ndarray[Any, Any]]:
    """Bounded records as distances from the centre; NaN for missing entries."""
    if kind == "ranges":
        ends = [[-1.5, 2.0, math.nan], [-0.5, 0.25, math.nan], [-1.0, 1.0, math.nan]][:d]
        yield from (np.array(record) for record in itertools.product(*ends))
        return
    rng = np.random.default_rng(d)
    corners = [np.eye(d)[i] * sign * 3.0 for i in range(d) for sign in (1, -1)]
    for _ in range(40):
        direction = rng.standard_normal(d)
        corners.append(3.0 * direction / np.linalg.norm(direction))
    for corner, mask in itertools.product(corners, itertools.product([0, 1], repeat=d)):
        kept = np.where(mask, corner, 0.0)
        norm = np.linalg.norm(kept)
        scaled = kept * (3.0 / norm) if norm else kept  # what is left may use the whole norm
        yield np.where(mask, scaled, math.nan)


def _contribution(
    record: np.ndarray[Any, Any] | None, group: int, groups: int, counting: Counting, scale: float
) -> np.ndarray[Any, Any]:
    """What one record adds to the sums, and to the counts in units of the sums."""
    if record is None:
        return _contribution(np.full(1, math.nan), 0, 0, Counting.NONE, scale)
    sums = np.zeros((groups, record.size))
    sums[group] = np.nan_to_num(record)
    counts = np.zeros((groups, record.size))
    if counting is Counting.ENTRIES:
        counts[group] = ~np.isnan(record)
    elif counting is Counting.RECORDS:
        counts[group, 0] = 1
    return np.concatenate([sums.ravel(), counts.ravel() / scale])


def _worst(
    kind: str, d: int, counting: Counting, grouped: bool, adjacency: Adjacency, scale: float
) -> float:
    groups = 2 if grouped else 1
    added = [
        _contribution(record, group, groups, counting, scale)
        for record in _values(kind, d)
        for group in range(groups)
    ]
    if counting is Counting.RECORDS and not grouped:  # ids: a person may have fewer that are kept
        added.append(np.zeros_like(added[0]))
    stacked = np.array(added)
    if adjacency is Adjacency.ADD_REMOVE_ONE:
        return float(np.max(np.sum(stacked**2, axis=1)))
    return max(float(np.max(np.sum((stacked - one) ** 2, axis=1))) for one in added)


def _shape(kind: str, d: int, counting: Counting, grouped: bool, adjacency: Adjacency) -> SumShape:
    ranges = {
        "widths": (3.5, 0.75, 2.0)[:d],
        "reaches": (2.0, 0.5, 1.0)[:d],
    }
    clip: dict[str, Any] = {"clip_norm": 3.0}
    return SumShape(
        **(ranges if kind == "ranges" else clip),
        entries=d,
        counting=counting,
        grouped=grouped,
        adjacency=adjacency,
    )


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("counting", list(Counting))
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("kind", ["ranges", "clip"])
def test_joint_radius_is_the_supremum_over_neighbours(
    kind: str, d: int, counting: Counting, grouped: bool, adjacency: Adjacency
) -> None:
    shape = _shape(kind, d, counting, grouped, adjacency)
    for scale in SCALES:
        worst = _worst(kind, d, counting, grouped, adjacency, scale)
        stated = joint_square(shape, scale)
        assert worst <= stated * (1 + 1e-12)
        assert worst >= stated * (1 - 1e-9)  # attained: not a looser bound


def test_smaller_radius_would_be_noticed() -> None:
    shape = _shape("clip", 2, Counting.ENTRIES, True, Adjacency.REPLACE_ONE)
    worst = _worst("clip", 2, Counting.ENTRIES, True, Adjacency.REPLACE_ONE, 0.2)
    assert worst > 0.99 * joint_square(shape, 0.2)
    plain = _shape("clip", 2, Counting.ENTRIES, False, Adjacency.REPLACE_ONE)
    assert worst > 1.5 * joint_square(plain, 0.2)  # forgetting the groups


def test_best_scale_is_the_closed_form_where_costs_add_up() -> None:
    # A/sigma_T^2 + B/sigma_n^2: sigma_n^2 / sigma_T^2 = sqrt(B) / (kappa sqrt(A))
    shape = _shape("ranges", 3, Counting.RECORDS, False, Adjacency.ADD_REMOVE_ONE)
    a, kappa = joint_square(shape, math.inf), 7.0
    scale = best_scale(shape, weight=kappa)
    assert scale**2 == pytest.approx(1 / (kappa * math.sqrt(a)), rel=1e-4)
    error = joint_square(shape, scale) * (1 + kappa**2 * scale**2)
    assert error == pytest.approx((math.sqrt(a) + kappa) ** 2, rel=1e-8)


def test_counts_of_present_entries_are_free_under_replace_one() -> None:
    shape = SumShape(
        widths=(2.0,),
        reaches=(1.0,),
        entries=5,
        counting=Counting.ENTRIES,
        grouped=False,
        adjacency=Adjacency.REPLACE_ONE,
    )
    assert joint_square(shape, 2 / (math.sqrt(3) * 2.0)) == pytest.approx(5 * 4.0)


def test_centred_sums_of_temperatures_have_a_tenth_of_the_noise() -> None:
    shape = SumShape(
        widths=(60.0,),
        reaches=(30.0,),
        entries=10_000,
        counting=Counting.RECORDS,
        grouped=False,
        adjacency=Adjacency.ADD_REMOVE_ONE,
    )
    scale = best_scale(shape, weight=280.0)
    std = math.sqrt(joint_square(shape, scale) * (1 + (280.0 * scale) ** 2))
    assert std == pytest.approx(100 * 30 + 280, rel=1e-6)
    assert 100 * 310 / std > 9

"""What the baselines promise: their guarantees, or what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

from dpdask_studies.attack import (
    allowed_advantage,
    moved_record_advantage,
    nearest_point_advantage,
)
from dpdask_studies.baselines.hierarchy import consistent, depth


def test_hierarchies_are_as_deep_as_the_map_needs() -> None:
    assert [depth(89, b) for b in (2, 10, 89, 100)] == [7, 2, 1, 1]


def test_inference_returns_the_truth_where_there_is_no_noise() -> None:
    truth = np.arange(64.0).reshape(8, 8)
    grids = [truth.reshape(n, 8 // n, n, 8 // n).sum((1, 3)) for n in (2, 4, 8)]
    assert np.allclose(consistent(grids, 2), truth)


@pytest.mark.parametrize("levels", [2, 3])
def test_inference_is_least_squares_on_all_grids(levels: int) -> None:
    size = 2**levels
    generator = np.random.default_rng(3)
    grids = [generator.normal(size=(2**n, 2**n)) for n in range(1, levels + 1)]
    rows, targets = [], []
    for grid in grids:
        width = size // len(grid)
        for (i, j), value in np.ndenumerate(grid):
            cells = np.zeros((size, size))
            cells[i * width : (i + 1) * width, j * width : (j + 1) * width] = 1
            rows.append(cells.ravel())
            targets.append(value)
    solution, *_ = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)
    assert np.allclose(consistent(grids, 2), solution.reshape(size, size))


def test_a_replaced_record_costs_a_hierarchy_its_epsilon() -> None:
    # Two cells of each of h grids move by 1, against Laplace noise of scale 2 h / epsilon.
    epsilon, levels = 0.5, 2
    before, after = np.zeros((10, 10)), np.zeros((10, 10))
    before[0, 0], after[9, 9] = 1, 1
    scale = 2 * levels / epsilon
    grids = [
        (x.reshape(n, 10 // n, n, 10 // n).sum((1, 3))) for n in (2, 10) for x in (before, after)
    ]
    loss = sum(np.abs(a - b).sum() for a, b in zip(grids[::2], grids[1::2], strict=True)) / scale
    assert loss == pytest.approx(epsilon)


def test_the_attack_succeeds_on_rank_one_noise_as_published() -> None:
    scale = np.sqrt(402_110.0976)
    advantage = nearest_point_advantage(
        entries=7921, scale=scale, sensitivity=np.sqrt(2), trials=200_000
    )
    assert advantage == pytest.approx(0.21664, abs=0.005)
    assert advantage > 1000 * allowed_advantage(epsilon=1e-5, delta=1e-7)


def test_the_attack_fails_on_noise_that_is_private() -> None:
    noise = np.random.default_rng(0).laplace(scale=4.0, size=(89, 89))
    advantage = moved_record_advantage(noise, pairs=200_000)
    assert advantage < allowed_advantage(epsilon=0.5, delta=0)
    exact = 1 - (1 + 1 / 8) * np.exp(-1 / 4)  # of the difference of two Laplace variables
    assert advantage == pytest.approx(exact, abs=0.02)

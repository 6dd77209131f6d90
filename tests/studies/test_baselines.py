"""What the baselines promise: their guarantees, or what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from dpdask.types import Floats
from dpdask_studies.attack import (
    allowed_advantage,
    moved_record_advantage,
    nearest_point_advantage,
)
from dpdask_studies.baselines.hierarchy import consistent, depth
from dpdask_studies.baselines.johnson_lindenstrauss import SketchProfile, sketch, threshold
from dpdask_studies.baselines.pca import (
    bingham,
    mod_sulq,
    mod_sulq_profile,
    ppca,
    wishart,
    wishart_lost_mass,
)


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


def test_mod_sulq_is_more_private_than_claimed() -> None:
    for epsilon, features in ((0.2, 10), (0.9, 64)):
        profile = mod_sulq_profile(count=1000, features=features, epsilon=epsilon, delta=1e-6)
        assert profile.delta(epsilon) <= 1e-6


def test_replaced_records_change_the_upper_triangle_by_at_most_root_two() -> None:
    generator = np.random.default_rng(0)
    pairs = generator.normal(size=(2000, 2, 5))
    pairs /= np.linalg.norm(pairs, axis=2, keepdims=True)
    changes = [np.triu(np.outer(a, a) - np.outer(b, b)) for a, b in pairs]
    worst = max(float(np.linalg.norm(change)) for change in changes)
    basis = np.triu(np.outer(*np.eye(5)[[0, 0]]) - np.outer(*np.eye(5)[[1, 1]]))
    assert worst <= np.sqrt(2) + 1e-12
    assert np.linalg.norm(basis) == pytest.approx(np.sqrt(2))


def test_mod_sulq_has_the_noise_of_its_profile() -> None:
    records = np.zeros((500, 30))
    noise = mod_sulq(records, epsilon=0.5, delta=1e-6, seed=1)
    assert np.array_equal(noise, noise.T)
    mu = mod_sulq_profile(count=500, features=30, epsilon=0.5, delta=1e-6).mu
    drawn = noise[np.triu_indices(30)]
    assert drawn.std() == pytest.approx(np.sqrt(2) / (500 * mu), rel=0.1)


def test_outputs_of_the_wishart_mechanism_exclude_a_neighbour() -> None:
    # Outputs without record v that the data with v cannot give, against the closed form.
    epsilon, features, trials = 1.0, 4, 20_000
    v = np.array([1.0, 0, 0, 0])
    excluded = 0
    for seed in range(trials // 100):
        generator = np.random.default_rng(seed)
        scale = np.sqrt(3 / (2 * epsilon))  # n = 1
        draws = generator.normal(0, scale, (100, features, features + 1))
        noise = draws @ draws.transpose(0, 2, 1)
        excluded += int((np.linalg.eigvalsh(noise - np.outer(v, v))[:, 0] < 0).sum())
    lost = wishart_lost_mass(epsilon)
    assert lost == pytest.approx(0.2835, abs=1e-4)
    deviation = np.sqrt(lost * (1 - lost) / trials)
    assert abs(excluded / trials - lost) < 8 * deviation
    drawn = wishart(np.zeros((1, 3)), epsilon=epsilon, seed=0)
    assert np.linalg.eigvalsh(drawn)[0] > 0  # positive definite: what gives it away


def test_bingham_draws_have_their_density() -> None:
    # In the plane, twice the angle is von Mises with kappa = half the difference of eigenvalues.
    energy = np.diag([3.0, 0.0])
    generator = np.random.default_rng(5)
    points = np.array([bingham(energy, generator) for _ in range(4000)])
    cosines = points[:, 0] ** 2 - points[:, 1] ** 2
    expected = special.ive(1, 1.5) / special.ive(0, 1.5)
    assert cosines.mean() == pytest.approx(expected, abs=8 * cosines.std() / np.sqrt(4000))
    flatter = special.ive(1, 1.0) / special.ive(0, 1.0)  # of a wrong energy: told apart
    assert abs(cosines.mean() - flatter) > 8 * cosines.std() / np.sqrt(4000)


def test_one_component_of_ppca_is_pure_epsilon() -> None:
    # log density ratios over the circle, normalised numerically, for hostile neighbours
    epsilon, angles = 0.7, np.linspace(0, np.pi, 20_001)
    circle = np.stack([np.cos(angles), np.sin(angles)])

    def log_density(moments: Floats) -> Floats:
        energy = epsilon / 2 * np.einsum("ia,ij,ja->a", circle, moments, circle)
        return np.asarray(energy - np.log(np.exp(energy).mean()))

    others = np.outer([1.0, 0], [1.0, 0]) * 5
    for replaced in ([0.0, 1.0], [0.6, 0.8], [0.0, 0.0]):
        other = np.outer(replaced, replaced)
        loss = log_density(others + np.diag([1.0, 0])) - log_density(others + other)
        assert np.abs(loss).max() <= epsilon


def test_components_of_ppca_are_orthonormal_and_find_a_strong_direction() -> None:
    generator = np.random.default_rng(0)
    records = generator.normal(size=(2000, 6)) * [3, 2, 0.1, 0.1, 0.1, 0.1]
    records /= np.linalg.norm(records, axis=1).max()
    columns = ppca(records, components=2, epsilon=1.0, seed=3)
    assert np.allclose(columns.T @ columns, np.eye(2))
    assert np.square(columns[:2]).sum() > 1.8


def test_a_sketch_meets_its_guarantee_with_much_to_spare() -> None:
    for rows in (10, 100):
        w = threshold(rows=rows, epsilon=1.0, delta=1e-3)
        assert SketchProfile(rows, w).delta(1.0) <= 1e-3
        assert SketchProfile(rows, 0.5).delta(1.0) > 1e-3  # too low a threshold is seen


def test_the_profile_of_a_sketch_is_that_of_its_draws() -> None:
    rows, w, epsilon, trials = 5, 1.5, 0.2, 400_000
    excess = 1 / w**2
    generator = np.random.default_rng(2)
    squares = generator.chisquare(rows, trials)

    def loss(total: Floats) -> Floats:  # of data without the record, against with it
        return rows / 2 * np.log1p(excess) - total * excess / (2 * (1 + excess))

    removed = np.maximum(0, 1 - np.exp(epsilon - loss(squares))).mean()
    added = np.maximum(0, 1 - np.exp(epsilon + loss(squares * (1 + excess)))).mean()
    assert SketchProfile(rows, w).delta(epsilon) == pytest.approx(max(removed, added), rel=0.02)


def test_a_sketch_estimates_the_second_moments() -> None:
    records = np.tile([0.6, 0.8], (400, 1)) * 0.5
    rows = 20_000
    drawn = sketch(records, rows=rows, epsilon=1e6, delta=0.5, seed=0)
    w = threshold(rows=rows, epsilon=1e6, delta=0.5)
    estimate = drawn.T @ drawn / rows - w**2 * np.eye(2)
    assert estimate == pytest.approx(records.T @ records, rel=0.05)

"""What a covariance publishes from its noisy parts: without bias, with the noise that it states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpdask.errors import OutOfReach
from dpdask.noise import IidNoise
from dpdask.privacy import Adjacency
from dpdask.queries import Center, Clip, JointCovariance
from dpdask.queries.base import COUNT, DATA, NOISE_STD
from dpdask.queries.covariance import MEAN, MEAN_NOISE_STD, SUM
from dpdask.sensitivity import L2Ball, Origin

Values = np.ndarray[Any, Any]
D = 3


def _query(
    *, records: int, private: bool, counted: bool, center: float = 5.0, norm: float = 10.0
) -> JointCovariance:
    adjacency = Adjacency.ADD_REMOVE_ONE if counted else Adjacency.REPLACE_ONE
    return JointCovariance(
        source_shape=(records, D),
        answer_shape=(D, D),
        sensitivity=L2Ball(l2=norm**2, adjacency=adjacency, origin=Origin.CLIPPED),
        bound=Clip(norm=norm, record_axis=0, center=Center.at(center)),
        norm_bound=None,
        record_axis=0,
        sum_scale=0.3 if private else None,
        count_scale=0.2 if counted else None,
    )


def _many(query: JointCovariance, sigma: float, rounds: int = 4000) -> dict[str, Values]:
    """What is published for many draws of the noise, around known moments."""
    rng = np.random.default_rng(11)
    n = query.records
    mean = np.array([2.0, -0.5, 1.0])
    moments = np.array([[9.0, 1.0, 2.0], [1.0, 4.0, 0.0], [2.0, 0.0, 3.0]])
    scales = {DATA: 1.0, SUM: query.sum_scale, COUNT: query.count_scale}
    stds = {name: sigma * scale for name, scale in scales.items() if scale is not None}
    box = (slice(0, D), slice(0, D))
    found: dict[str, list[Values]] = {}
    for _ in range(rounds):
        noise = sigma * rng.standard_normal((D, D))
        noisy = {DATA: moments * n + (noise + noise.T) / 2}
        if query.sum_scale is not None:
            noisy[SUM] = mean * n + stds[SUM] * rng.standard_normal(D)
        if query.count_scale is not None:
            noisy[COUNT] = n + stds[COUNT] * rng.standard_normal(1)
        for name, values in query.release(noisy, stds, box).items():
            found.setdefault(name, []).append(values)
    truth = moments - np.outer(mean, mean) if query.sum_scale is not None else moments
    return {
        "truth": truth,
        "mean": mean,
        **{f"all {name}": np.array(each) for name, each in found.items()},
    }


@pytest.mark.parametrize(("private", "counted"), [(True, False), (True, True), (False, True)])
def test_covariance_has_no_bias_and_the_noise_that_it_states(private: bool, counted: bool) -> None:
    query = _query(records=2000, private=private, counted=counted)
    found = _many(query, sigma=150.0)
    data, std = found[f"all {DATA}"], found[f"all {NOISE_STD}"]
    spread = data.std(axis=0)
    score = (data.mean(axis=0) - found["truth"]) / (spread / math.sqrt(len(data)))
    assert np.abs(score).max() < 5
    np.testing.assert_allclose(spread, std.mean(axis=0), rtol=0.06)
    np.testing.assert_array_equal(data, data.transpose(0, 2, 1))
    if private:
        means = found[f"all {MEAN}"]
        stated = found[f"all {MEAN_NOISE_STD}"].mean(axis=0)
        np.testing.assert_allclose(means.std(axis=0), stated, rtol=0.06)
        np.testing.assert_allclose(means.mean(axis=0), 5.0 + found["mean"], atol=0.01)


def test_square_of_the_noisy_mean_is_taken_back() -> None:
    """The sum of 200 records is as noisy as their mean is large: its square would be noticed."""
    query = _query(records=200, private=True, counted=False)
    found = _many(query, sigma=400.0)
    data = found[f"all {DATA}"]
    errors = data.mean(axis=0) - found["truth"]
    standard_error = data.std(axis=0) / math.sqrt(len(data))
    assert np.abs(errors / standard_error).max() < 5
    square = (400.0 * 0.3 / 200) ** 2
    assert np.all(square / np.diag(standard_error) > 7)  # what it would have been


def test_no_count_is_divided_by_that_is_below_one() -> None:
    query = _query(records=0, private=True, counted=True)
    noisy = {DATA: np.ones((D, D)), SUM: np.ones(D), COUNT: np.array([-40.0])}
    released = query.release(noisy, {DATA: 1.0, SUM: 1.0, COUNT: 1.0}, (slice(0, D),) * 2)
    assert all(np.all(np.isfinite(values)) for values in released.values())
    assert released[COUNT] == -40.0


def test_no_value_raises_or_warns() -> None:
    query = _query(records=0, private=True, counted=True)
    stds = {DATA: 1e140, SUM: 1e140, COUNT: 1e140}
    for number in (0.0, 1e-300, 1e150, -1e300):
        noisy = {DATA: np.full((D, D), number), SUM: np.full(D, number), COUNT: np.array([number])}
        with np.errstate(all="raise"):
            query.release(noisy, stds, (slice(0, D),) * 2)


def test_so_many_records_that_their_mean_is_not_exact_are_refused() -> None:
    query = _query(records=2**36, private=True, counted=False)
    with pytest.raises(OutOfReach, match="too many for an exact mean"):
        query.discretize(IidNoise((D, D), 300.0), mu=1.0, steps_per_sigma=None)


@pytest.mark.parametrize("private", [True, False])
def test_planned_noise_is_that_of_means_at_the_planned_distance(private: bool) -> None:
    """The figure of a plan, at its distance from the centre and half of the norm of a record."""
    query = _query(records=2000, private=private, counted=True, center=0.0)
    distance, sigma = 3.0, 50.0
    stds = {DATA: sigma, SUM: 0.3 * sigma, COUNT: 0.2 * sigma}
    noises = {name: IidNoise((1,), std) for name, std in stds.items() if private or name != SUM}
    planned = query.deviations(noises, distance=distance)
    mean = np.full(D, distance if private else 0.0)
    offset = np.full((D, D), query.reach**2 / (2 * D))  # of m m' less the covariance
    n = float(query.records)
    noisy = {DATA: (2 * np.outer(mean, mean) - offset) * n, COUNT: np.array([n])}
    if private:
        noisy[SUM] = mean * n
    given = {name: noise.entry_std for name, noise in noises.items()}
    stated = query.release(noisy, given, (slice(0, D),) * 2)[NOISE_STD] * n
    np.testing.assert_allclose([stated[0, 0], stated[0, 1]], planned.values, rtol=1e-3)
    assert query.divided_by_count

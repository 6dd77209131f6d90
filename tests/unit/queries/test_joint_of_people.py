"""The joint radius of people whose records are clipped together, or counted although some are left
out, against brute force over pairs of people.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpdask.privacy import Adjacency
from dpdask.queries import joint_moments
from dpdask.queries.joint import Counting, SumShape, best_scale, joint_square
from dpdask.queries.joint_moments import MomentShape

Values = np.ndarray[Any, Any]
REPLACE, ADD_REMOVE = Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE_ONE
NORM = 3.0
GROUPS = 3  # one in common, and one of its own for the old and for the new version


def _directions(d: int) -> Values:
    """Records of norm 1 or 0, NaN where an entry is missing."""
    every = np.array(list(itertools.product([-1.0, 0.0, 1.0, math.nan], repeat=d)))
    norms = np.linalg.norm(np.nan_to_num(every), axis=1)
    return every / np.where(norms > 0, norms, 1.0)[:, None]


def _weights(count: int) -> Iterator[tuple[float, ...]]:
    """How a person shares the norm between its records."""
    parts = (0.0, 0.5, 1.0) if count == 2 else (0.0, 1.0)
    return (weights for weights in itertools.product(parts, repeat=count) if sum(weights) <= 1)


def _people(d: int, most: int, counting: Counting, grouped: bool, scale: float) -> Values:
    """What every person of up to ``most`` records adds to sums, and to counts in their units."""
    groups = GROUPS if grouped else 1
    one = [(record, group) for record in _directions(d) for group in range(groups)]
    rows: list[Values] = [np.zeros(2 * groups * d)]
    for count in range(1, most + 1):
        for records in itertools.combinations_with_replacement(one, count):
            for weights in _weights(count):
                sums, counts = np.zeros((2, groups, d))
                for weight, (record, group) in zip(weights, records, strict=True):
                    sums[group] += NORM * weight * np.nan_to_num(record)
                    if counting is Counting.ENTRIES:
                        counts[group] += ~np.isnan(record)
                    elif counting is Counting.RECORDS:
                        counts[group, 0] += 1
                rows.append(np.concatenate([sums.ravel(), counts.ravel() / scale]))
    return np.unique(np.round(np.array(rows), 12), axis=0)


def _worst(people: Values, adjacency: Adjacency) -> float:
    squares = np.sum(people**2, axis=1)
    if adjacency is ADD_REMOVE:
        return float(squares.max())
    worst = 0.0
    for first in range(0, len(people), 512):
        some = people[first : first + 512]
        distances = squares[first : first + 512, None] + squares[None, :] - 2 * some @ people.T
        worst = max(worst, float(distances.max()))
    return worst


CASES = [
    (d, most, counting, grouped)
    for counting in Counting
    for grouped in (False, True)
    for d, most in ((1, 1), (1, 2), (1, 3), (2, 2))
    if (d, most, counting, grouped) != (2, 2, Counting.NONE, True)
]


@pytest.mark.parametrize("adjacency", [REPLACE, ADD_REMOVE])
@pytest.mark.parametrize(("d", "most", "counting", "grouped"), CASES)
def test_no_two_people_are_further_apart_than_the_joint_radius(
    d: int, most: int, counting: Counting, grouped: bool, adjacency: Adjacency
) -> None:
    for scale in (0.3, 1.0, 4.0):
        shape = SumShape(
            clip_norm=NORM, entries=d, counting=counting, grouped=grouped,
            adjacency=adjacency, together=most,
        )  # fmt: skip
        stated = joint_square(shape, scale)
        worst = _worst(_people(d, most, counting, grouped, scale), adjacency)
        assert worst <= stated * (1 + 1e-9)
        assert worst >= 0.6 * stated  # of entries in groups it is not attained
        if counting is not Counting.ENTRIES:
            assert worst >= stated * (1 - 1e-9)


def test_counts_of_a_person_are_not_those_of_a_record() -> None:
    """What the formula of one record says of a person with two is too little."""
    of_record = SumShape(
        clip_norm=NORM, entries=1, counting=Counting.RECORDS, grouped=False, adjacency=ADD_REMOVE
    )
    people = _people(1, 2, Counting.RECORDS, False, 0.3)
    assert _worst(people, ADD_REMOVE) > 2 * joint_square(of_record, 0.3)


@pytest.mark.parametrize("most", [1, 2, 10])
@pytest.mark.parametrize("adjacency", [REPLACE, ADD_REMOVE])
def test_no_other_scale_of_counts_has_less_error(most: int, adjacency: Adjacency) -> None:
    shape = SumShape(
        clip_norm=NORM, entries=4, counting=Counting.RECORDS, grouped=True,
        adjacency=adjacency, together=most,
    )  # fmt: skip
    best = best_scale(shape, weight=0.7)
    least = joint_square(shape, best) * (1 + (0.7 * best) ** 2)
    for factor in np.exp(np.linspace(-3, 3, 241)):
        scale = best * float(factor)
        assert joint_square(shape, scale) * (1 + (0.7 * scale) ** 2) >= least * (1 - 1e-9)


def _moment_shape(
    d: int, adjacency: Adjacency, *, counted: bool, together: int | None, summed: bool = True
) -> MomentShape:
    return MomentShape(
        reach=NORM, features=d, summed=summed, counted=counted or adjacency is ADD_REMOVE,
        adjacency=adjacency, together=together,
    )  # fmt: skip


def _unit_vectors(d: int) -> Values:
    if d == 1:
        return np.array([[-1.0], [1.0]])
    angles = np.linspace(0, math.pi, 13)
    half = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.unique(np.round(np.concatenate([half, -half]), 12), axis=0)


def _moments_of_people(
    d: int, most: int, p: float, q: float, norms_add_up: bool, each: bool = False
) -> Values:
    """(M, T, n) of people, in units of M. A person's records have parts of the norm, or, where
    ``each`` has the norm of its own, all of it.
    """
    rows = [np.zeros(d * d + d + 1)]
    for count in sorted({1, min(2, most), most}):
        for pair in itertools.combinations_with_replacement(_unit_vectors(d), 2):
            for share in (0.0, 0.3, 0.5, 1.0):
                # the first record has the share, the others the rest in equal parts
                rest = (1 - share) / max(1, count - 1)
                sizes = [share, *[rest] * (count - 1)] if count > 1 else [1.0]
                if not norms_add_up:
                    sizes = [math.sqrt(size) for size in sizes]
                if each:
                    sizes = [1.0] * count
                records = np.array([size * NORM * pair[i > 0] for i, size in enumerate(sizes)])
                parts = [(records.T @ records).ravel(), records.sum(axis=0) * math.sqrt(p)]
                rows.append(np.concatenate([*parts, [math.sqrt(q) * count]]))
    return np.unique(np.round(np.array(rows), 12), axis=0)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("most", [1, 2, 40])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("adjacency", [REPLACE, ADD_REMOVE])
def test_no_two_people_clipped_together_move_moments_by_more(
    d: int, most: int, counted: bool, adjacency: Adjacency
) -> None:
    for p_of_square in (0.1, 0.6, 1.0, 2.0, 3.0, 9.0):
        p = p_of_square * NORM**2
        q = 0.5 * NORM**4 / most**2 if counted or adjacency is ADD_REMOVE else 0.0
        shape = _moment_shape(d, adjacency, counted=counted, together=most)
        stated = joint_moments.joint_square(
            shape, sum_scale=p**-0.5, count_scale=q**-0.5 if q else None
        )
        people = _moments_of_people(d, most, p, q, norms_add_up=True)
        worst = _worst(people, adjacency)
        assert worst <= stated * (1 + 1e-9)
        if most == 40 or adjacency is ADD_REMOVE:  # fewer records cannot be as small
            assert worst >= 0.9 * stated


def test_a_person_of_small_records_moves_moments_further_than_one_record() -> None:
    p = 2 * NORM**2
    people = _moments_of_people(2, 40, p, 0.0, norms_add_up=True)
    of_record = _moment_shape(2, REPLACE, counted=False, together=None)
    stated = joint_moments.joint_square(of_record, sum_scale=p**-0.5, count_scale=None)
    assert _worst(people, REPLACE) > 1.1 * stated


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("adjacency", [REPLACE, ADD_REMOVE])
def test_squares_that_add_up_bound_moments_without_a_sum(d: int, adjacency: Adjacency) -> None:
    shape = _moment_shape(d, adjacency, counted=False, together=40, summed=False)
    stated = joint_moments.joint_square(shape, sum_scale=None, count_scale=None)
    worst = _worst(_moments_of_people(d, 40, 0.0, 0.0, norms_add_up=False), adjacency)
    assert stated * (1 - 1e-9) <= worst <= stated * (1 + 1e-9)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_no_two_people_whose_records_are_counted_move_moments_by_more(d: int, most: int) -> None:
    """Replace-one: each record has the norm, and one person may have fewer records than another."""
    for p_of_square, q_of_square in itertools.product((0.1, 1.0, 4.0), (0.1, 1.0, 9.0)):
        p, q = p_of_square * NORM**2, q_of_square * NORM**4
        shape = _moment_shape(d, REPLACE, counted=True, together=None)
        one = joint_moments.joint_square(shape, sum_scale=p**-0.5, count_scale=q**-0.5)
        people = _moments_of_people(d, most, p, q, norms_add_up=True, each=True)
        worst = _worst(people, REPLACE)
        assert worst <= most**2 * one * (1 + 1e-9)
        assert worst >= 0.9 * most**2 * one


@pytest.mark.parametrize("d", [1, 3, 50])
@pytest.mark.parametrize("together", [None, 1, 7])
@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("adjacency", [REPLACE, ADD_REMOVE])
def test_no_other_scales_have_less_error(
    d: int, together: int | None, summed: bool, adjacency: Adjacency
) -> None:
    shape = _moment_shape(d, adjacency, counted=True, together=together, summed=summed)
    distance = 0.4
    best = joint_moments.best_scales(shape, distance=distance)

    def error(sum_scale: float | None, count_scale: float | None) -> float:
        square = joint_moments.joint_square(shape, sum_scale=sum_scale, count_scale=count_scale)
        v = NORM**2 / math.sqrt(2 * d * (d + 1))
        of_sum = (2 * distance * (sum_scale or 0.0)) ** 2
        return square * (1 + of_sum + (v * (count_scale or 0.0)) ** 2)

    least = error(*best)
    factors = np.exp(np.linspace(-2, 2, 41))
    for of_sum, of_count in itertools.product(factors, factors):
        sum_scale = None if best[0] is None else best[0] * float(of_sum)
        assert best[1] is not None
        assert error(sum_scale, best[1] * float(of_count)) >= least * (1 - 1e-6)

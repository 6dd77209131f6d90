"""The exact audit of sessions: neighbours under one key, and how far each step is moved.

Noise is a function of key, recipe and step, so two sessions on neighbouring records draw the same
integers. The difference of their outputs, in steps of the grid over steps per sigma, is the mu that
an observer sees in that step, and must not exceed the mu that was verified for one step.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dpdask
from tests.support.snapshots import restore, state
from tests.support.step_sessions import SHAPE, STEPS, records, session_spec
from tests.support.workspace import Workspace

Values = np.ndarray[Any, Any]
Hand = Callable[[Values], Values]

PRECOMPUTED = {
    "privacy_unit": {"adjacency": "add-remove-one"},
    "query": {"name": "precomputed", "l2_sensitivity": 1.0},
}
WITHOUT_NOISE_IN_FLOATS = {"output_dtype": "int64"}


def hostile(step: int) -> Values:
    """A record that reaches as far as a record can, in another way in every step."""
    one = np.full(SHAPE, 1e6) if step % 2 else np.zeros(SHAPE)
    if step % 3 == 0:
        one[2, 1] = -np.inf
    if step % 3 == 1:
        one[1, 1] = np.nan
    return one[np.newaxis] * (-1) ** step


def mu_of_each_step(
    space: Workspace, spec: dict[str, Any], hand: Hand, neighbour: Callable[[int], Values]
) -> tuple[list[float], float]:
    """What a pair shows in every step, and what was verified of one step."""
    with dpdask.steps(spec) as session:
        grid = session.plan.data.grid_to_dict()
        verified = 1 / session.noise_multiplier
    kept = state(space.folder)
    stacks = []
    for pair in (records, neighbour):
        restore(space.folder, kept)
        with dpdask.steps(spec) as session:
            for step in session:
                session.step(hand(pair(step)))
        stacks.append(space.values())
    moved = stacks[0] - stacks[1]
    assert moved.dtype == np.int64
    squares = [sum(int(entry) ** 2 for entry in step.reshape(-1)) for step in moved]
    return [float(Fraction(square)) ** 0.5 / grid["steps_per_sigma"] for square in squares], (
        verified
    )


def add_one(step: int) -> Values:
    return np.concatenate([records(step), hostile(step)])


def replace_one(step: int) -> Values:
    return np.concatenate([records(step)[1:], hostile(step)])


@pytest.mark.parametrize(
    ("unit", "neighbour"),
    [
        ({"adjacency": "add-remove-one", "l2_clip_norm": 1.0}, add_one),
        ({"adjacency": "replace-one", "l2_clip_norm": 1.0}, replace_one),
        ({"adjacency": "add-remove-one", "ranges": [[-1.0, 0.5]]}, add_one),
    ],
)
def test_one_record_moves_no_step_by_more_than_was_verified(
    space: Workspace, unit: dict[str, Any], neighbour: Callable[[int], Values]
) -> None:
    spec = session_spec(space, privacy_unit=unit, noise=WITHOUT_NOISE_IN_FLOATS)
    shown, verified = mu_of_each_step(space, spec, lambda values: values, neighbour)
    assert len(shown) == STEPS
    assert max(shown) <= verified
    assert max(shown) > 0.3 * verified  # and the record does reach


def test_a_sum_that_was_not_clipped_shows_more_than_was_verified(space: Workspace) -> None:
    """The twin: the same neighbours, their sums declared to be clipped and handed over raw."""
    spec = session_spec(space, noise=WITHOUT_NOISE_IN_FLOATS, **PRECOMPUTED)
    larger = lambda step: np.concatenate([records(step), 3 * np.ones((1, *SHAPE))])  # noqa: E731
    shown, verified = mu_of_each_step(space, spec, lambda values: values.sum(0), larger)
    assert min(shown) > verified


@pytest.mark.parametrize("same", [range(STEPS), [3]])
def test_the_noise_of_a_step_depends_on_key_recipe_and_step_alone(
    space: Workspace, same: range | list[int]
) -> None:
    """Whatever was handed over before: equal inputs of one step have equal outputs."""
    spec = session_spec(space, noise=WITHOUT_NOISE_IN_FLOATS)

    def other(step: int) -> Values:
        return records(step, seed=7 if step in same else 8)

    shown, _ = mu_of_each_step(space, spec, lambda values: values, other)
    assert [mu == 0 for mu in shown] == [step in same for step in range(STEPS)]


def test_steps_have_noise_of_their_own(space: Workspace) -> None:
    with dpdask.steps(session_spec(space)) as session:
        noises = [session.step(np.zeros((0, *SHAPE))).reshape(-1) for _ in session]
    for one in range(STEPS):
        for other in range(one):
            assert not np.isclose(noises[one], noises[other]).any()
            assert not np.isclose(noises[one], -noises[other]).any()

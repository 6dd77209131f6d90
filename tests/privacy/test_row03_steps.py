"""Row 3: a finished stack of steps is not T clipped sums, unless no step was computed from
another's raw result.

0.1.0 certified the raw gradients of an ordinary training run as T steps of one clip norm each.
Every later step depends on a record through the weights: one record moves a later step by many clip
norms (56 in the review's example), and nothing bounds how many.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dpdask.accounting import GaussianProfile
from dpdask.cli import main
from dpdask.errors import InvalidSpec
from dpdask.planning import make_plan
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

CLIP, STEPS = 1.0, 60


def training_run(
    features: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The clipped gradient sums of a linear regression by gradient descent, without noise: what
    people would stack.
    """
    weights = np.zeros(features.shape[1])
    steps = []
    for _ in range(STEPS):
        gradients = features * (features @ weights - targets)[:, None]
        norms = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-300)
        total = np.sum(gradients * np.minimum(1.0, CLIP / norms), axis=0)
        steps.append(total)
        weights = weights - 10.0 * total / len(features)
    return np.array(steps)


def neighbours() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The same training run with one record and without it."""
    random = np.random.default_rng(0)
    features = random.standard_normal((100, 5))
    targets = features @ random.standard_normal(5) + 0.3 * random.standard_normal(100)
    features[0] *= 20
    return training_run(features, targets), training_run(features[1:], targets[1:])


def stack_spec(space: Workspace, **composition: Any) -> dict[str, Any]:
    return space.spec(
        privacy_unit={"adjacency": "add-remove-one"},
        query={"name": "precomputed", "l2_sensitivity": CLIP},
        composition={"steps": STEPS, **composition},
    )


def test_one_record_moves_a_later_step_of_a_training_run_by_many_clip_norms(
    space: Workspace,
) -> None:
    """The attack: the distance of the two runs in the noise's own units is far above the mu that
    would be certified.
    """
    with_record, without = neighbours()
    moved = np.linalg.norm(with_record - without, axis=1) / CLIP
    assert moved[0] <= 1 + 1e-12  # the first step is what its clip norm says
    assert moved.max() > 15
    space.source(with_record)
    falsely = make_plan(parse_release_spec(stack_spec(space, steps_are_independent=True)))
    assert falsely.guarantee.certified
    assert isinstance(falsely.guarantee.verified, GaussianProfile)
    real_mu = float(np.linalg.norm(with_record - without)) / falsely.entry_std
    assert real_mu > 5 * falsely.guarantee.verified.mu  # so the declaration is not a formality
    first_steps = math.sqrt(STEPS) * CLIP / falsely.entry_std
    assert (
        first_steps <= falsely.guarantee.verified.mu
    )  # and what it covers is T steps of one clip norm each


@pytest.mark.parametrize("composition", [{}, {"steps_are_independent": False}])
def test_a_stack_that_is_not_declared_independent_is_refused_before_the_charge(
    space: Workspace, composition: dict[str, Any]
) -> None:
    space.source(neighbours()[0])
    path = space.write_spec(**stack_spec(space, **composition))
    for command in ("plan", "run"):
        result = CliRunner().invoke(main, [command, str(path)])
        assert result.exit_code == 2
        assert len(result.stderr.strip().splitlines()) == 1
        assert "steps_are_independent: true" in result.stderr
        assert "before the next one is computed" in result.stderr
    assert space.spent() == 0
    assert space.left_behind() == []


def test_the_gradients_flow_passes_the_declaration_on_and_has_none_of_its_own(
    space: Workspace,
) -> None:
    import inspect

    from dpdask.flows.gradients import gradient_spec, privatize_gradients
    from dpdask.spec.release import BudgetSection, OutputSection, PrivacyUnitSection, SourceSection

    assert (
        inspect.signature(privatize_gradients.fn).parameters["steps_are_independent"].default
        is inspect.Parameter.empty
    )
    space.source(neighbours()[0])
    spec = gradient_spec(
        privacy={"epsilon": 1.0, "delta": 1e-5},
        clip_norm=CLIP,
        steps=STEPS,
        steps_are_independent=False,
        sampling=None,
        privacy_unit=PrivacyUnitSection(adjacency="add-remove-one"),  # type: ignore[arg-type]
        source=SourceSection(**space.spec()["source"]),
        output=OutputSection(**space.spec()["output"]),
        budget=BudgetSection(**space.spec()["budget"]),
    )
    with pytest.raises(InvalidSpec, match="steps_are_independent"):
        make_plan(spec)


def test_the_card_of_a_stack_says_that_its_independence_is_declared(space: Workspace) -> None:
    space.source(np.ones((3, 4)))
    changes = stack_spec(space, steps_are_independent=True) | {
        "composition": {"steps": 3, "steps_are_independent": True},
    }
    space.release(**changes)
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert card.composition.steps_are_independent == "declared"
    result = CliRunner().invoke(main, ["show", str(space.folder / "out.zarr")])
    assert "declared independent" in result.stdout


def test_a_single_result_needs_no_declaration(space: Workspace) -> None:
    space.source(np.ones(4))
    space.release(
        privacy_unit={"adjacency": "add-remove-one"},
        query={"name": "precomputed", "l2_sensitivity": CLIP},
    )
    card = verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert card.composition.steps_are_independent is None

"""Laplace releases and the choice of ``auto``, from the spec to the verified card."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import dpdask
from dpdask.errors import BudgetExceeded, InvalidMechanism, VerificationFailed
from dpdask.ledger import Ledger
from dpdask.planning import make_plan
from dpdask.privacy import PrivacyBudget, PureBudget
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.views.plan_rows import plan_rows
from tests.support.forging import rewrite_card
from tests.support.workspace import Workspace, people

COUNTS: dict[str, Any] = {
    "query": {"name": "histogram", "edges": [[-0.5, 0.0, 0.5]], "columns": [1]},
    "privacy_unit": {"record_dim": 0},
    "privacy": {"epsilon": 1.0, "delta": 1e-6},
}


def without_mechanism(space: Workspace, **changes: Any) -> dict[str, Any]:
    spec = space.spec(**changes)
    del spec["mechanism"]
    return spec


def card_of(space: Workspace) -> Any:
    import json

    return json.loads((space.folder / "out.zarr" / "zarr.json").read_text())["attributes"]["dp"]


def released(space: Workspace, **changes: Any) -> str:
    space.source(people(64, 8), chunks=(64, 8))
    space.release(**COUNTS | changes)
    return str(space.folder / "out.zarr")


def test_counts_are_released_with_laplace_noise_when_no_mechanism_is_named(
    space: Workspace,
) -> None:
    from dpdask.releases.api import release

    space.source(people(64, 8), chunks=(64, 8))
    spec = without_mechanism(space, **COUNTS)
    plan = make_plan(parse_release_spec(spec)).to_dict()
    assert plan["mechanism"]["name"] == "laplace"
    assert plan["mechanism"]["reason"].startswith("laplace: std 2.8")
    assert "analytic-gaussian 5.9" in plan["mechanism"]["reason"]
    assert any(
        row.label == "mechanism" and "chosen by auto: laplace" in row.value
        for row in plan_rows(plan)
    )
    assert any("a ledger charges laplace" in warning for warning in plan["warnings"])
    release(spec)
    url = str(space.folder / "out.zarr")
    verify_release(url)
    card = card_of(space)
    assert card["mechanism"] == {"name": "laplace", "chosen_by": "auto"}
    assert card["guarantee"]["certified"] is True
    assert card["guarantee"]["verified"]["name"] == "pure"
    assert card["released"]["noise_std"] == pytest.approx(2 * math.sqrt(2), rel=2e-3)


def test_the_ledger_charges_the_gaussian_that_dominates_pure_epsilon(space: Workspace) -> None:
    released(space, mechanism="laplace")
    mu = -2 * float(stats.norm.ppf(1 / (1 + math.e)))
    from dpdask.accounting import GaussianProfile

    total = PrivacyBudget(epsilon=1e6, delta=0.1)
    assert space.spent() == pytest.approx(GaussianProfile(mu).epsilon(total.delta), rel=1e-3)


def test_a_total_that_the_charge_exceeds_is_refused_before_it_is_spent(space: Workspace) -> None:
    """The total that the reason names is the least that suffices."""
    space.source(people(64, 8), chunks=(64, 8))
    for name, epsilon in (("small", 1.0), ("enough", 6.5)):
        Ledger(space.ledger_url).open_dataset(name, PrivacyBudget(epsilon=epsilon, delta=1e-6))
    budget = {"ledger": space.ledger_url, "dataset": "small"}
    with pytest.raises(BudgetExceeded, match=r"make it 6\.\d"):
        space.release(**COUNTS, mechanism="laplace", budget=budget)
    space.release(**COUNTS, mechanism="laplace", budget={**budget, "dataset": "enough"})


def test_an_l2_clip_norm_is_refused_in_planning(space: Workspace) -> None:
    space.source(people())
    with pytest.raises(InvalidMechanism, match="give ranges or an l1 bound"):
        make_plan(parse_release_spec(space.spec(mechanism="laplace")))
    assert space.spent() == 0


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0}}, "analytic-gaussian"),
        (
            {"query": "mean", "privacy_unit": {"record_dim": 0, "ranges": [0.0, 1.0]}},
            "analytic-gaussian",
        ),
        (
            {
                "query": "mean",
                "privacy_unit": {"record_dim": 0, "ranges": [[0.0, 1.0], [0.0, 1e6]] * 32},
            },
            "directional",
        ),
        (COUNTS, "laplace"),
    ],
)
def test_what_auto_chooses(space: Workspace, changes: dict[str, Any], name: str) -> None:
    space.source(np.zeros((10, 64)))
    plan = make_plan(parse_release_spec(without_mechanism(space, **changes)))
    assert plan.to_dict()["mechanism"]["name"] == name
    named = make_plan(parse_release_spec(space.spec(**changes, mechanism=name)))
    assert plan.data.noise.to_dict() == named.data.noise.to_dict()
    assert named.to_dict()["mechanism"] == {"name": name, "reason": None}


TAMPERED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a smaller l1": (
        lambda card: card["sensitivity"]["set"]["configuration"].update(l1_radius=1.5),
        "l1 sensitivity on the card is smaller",
    ),
    "an l2 ball": (
        lambda card: card["sensitivity"].update(
            set={
                "name": "l2-ball",
                "configuration": {
                    key: value
                    for key, value in card["sensitivity"]["set"]["configuration"].items()
                    if key in ("l2", "adjacency", "origin")
                },
            }
        ),
        "cannot be recomputed",
    ),
    "a Gaussian sampler's noise": (
        lambda card: card["noise"].update(
            name="iid",
            configuration={
                "shape": card["noise"]["configuration"]["shape"],
                "sigma": card["noise"]["configuration"]["scale"],
            },
        ),
        "noise level on the card",
    ),
    "a smaller epsilon": (
        lambda card: card["guarantee"]["verified"]["configuration"].update(epsilon=0.5),
        "does not follow from the profile",
    ),
    "a coarser grid": (
        lambda card: card["grid"].update(step=card["grid"]["step"] * 2),
        "noise on the card is smaller|not that of its noise",
    ),
    "noise that is not exact": (
        lambda card: card["grid"].update(exact=False),
        "not that of its noise",
    ),
    "more records per unit": (
        lambda card: card["privacy_unit"].update(max_contributions=2, contributions="declared"),
        "smaller than what its bound",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_changed_card_does_not_verify(space: Workspace, name: str) -> None:
    url = released(space, mechanism="laplace")
    verify_release(url)
    change, reason = TAMPERED[name]
    rewrite_card(space.folder / "out.zarr", change)
    with pytest.raises(VerificationFailed, match=reason):
        verify_release(url)


def test_fewer_records_in_the_box_of_a_unit_do_not_verify(space: Workspace) -> None:
    """Its l2 norm would still be right."""
    unit = {"record_dim": 0, "ranges": [-0.5, 0.5], "max_contributions": 3}
    url = released(space, query="identity", privacy_unit=unit, mechanism="laplace")
    verify_release(url)

    def one_record(card: Any) -> None:
        del card["sensitivity"]["set"]["configuration"]["records"]

    rewrite_card(space.folder / "out.zarr", one_record)
    with pytest.raises(VerificationFailed, match="l1 sensitivity on the card is smaller"):
        verify_release(url)


def test_a_gaussian_card_with_a_small_l1_does_not_verify(space: Workspace) -> None:
    url = released(space)
    verify_release(url)
    configuration = {"l1_radius": 1.45}
    rewrite_card(
        space.folder / "out.zarr",
        lambda card: card["sensitivity"]["set"]["configuration"].update(configuration),
    )
    with pytest.raises(VerificationFailed, match="l1 sensitivity on the card is smaller"):
        verify_release(url)


@pytest.mark.parametrize(
    ("total", "policy", "chosen"),
    [
        (PrivacyBudget(epsilon=3.0, delta=1e-5), "adaptive", "analytic-gaussian"),
        (PrivacyBudget(epsilon=9.0, delta=1e-5), "adaptive", "laplace"),
        (PureBudget(epsilon=2.0), "pure", "laplace"),
    ],
)
def test_auto_takes_what_the_dataset_could_hold(
    space: Workspace, total: PrivacyBudget, policy: str, chosen: str
) -> None:
    """A resumed release has the same noise: what is spent meanwhile does not change the choice."""
    space.ledger.open_dataset("counts", total, policy=policy)
    space.source(people(64, 8), chunks=(64, 8))
    budget = {"ledger": space.ledger_url, "dataset": "counts"}
    spec = parse_release_spec(without_mechanism(space, **COUNTS, budget=budget))
    again = make_plan(spec, ledger=space.ledger, resuming=True, forecast=False)
    dpdask.release(spec)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    assert card_of(space)["mechanism"]["name"] == chosen
    later = make_plan(spec, ledger=space.ledger, resuming=True, forecast=False)
    assert later.fingerprint == again.fingerprint


def test_a_pure_dataset_takes_laplace_where_gaussian_noise_is_smaller(space: Workspace) -> None:
    space.ledger.open_dataset("counts", PureBudget(epsilon=2.0), policy="pure")
    space.source(people(64, 30), chunks=(64, 30))
    spec = without_mechanism(
        space,
        query="mean",
        privacy_unit={"record_dim": 0, "ranges": [-1, 1]},
        budget={"ledger": space.ledger_url, "dataset": "counts"},
    )
    assert make_plan(parse_release_spec(spec)).data.noise.name == "iid"
    assert dpdask.plan(spec).data.noise.name == "laplace"

"""Every published number is reproduced: 1e-9 relative, 1e-6 for the exact rank-one calibration."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dpdask import Adjacency, GaussianProfile, Origin, Steps
from dpdask.mechanisms import amortise, analytic_gaussian, classic_gaussian, idn, mgm, mvg, rank_one
from dpdask.sensitivity import EntrywiseBox
from tests.conftest import VECTORS, ball, budget_of


def cases(name: str) -> Any:
    return pytest.mark.parametrize("vector", VECTORS[name])


def close(found: float, expected: float, tolerance: float = 1e-9) -> bool:
    return math.isclose(found, expected, rel_tol=tolerance)


@cases("gaussian_delta")
def test_gaussian_delta(vector: dict[str, float]) -> None:
    assert close(GaussianProfile(vector["mu"]).delta(vector["epsilon"]), vector["delta"])


@cases("analytic_sigma")
def test_analytic_sigma(vector: dict[str, Any]) -> None:
    calibration = analytic_gaussian(
        budget=budget_of(vector),
        sensitivity=ball(vector["l2_sensitivity"]),
        shape=(3,),
        steps=Steps(count=vector["steps"]),
    )
    assert close(calibration.quantities["sigma"], vector["sigma"])
    assert calibration.quantities["sigma"] >= vector["sigma"] * (1 - 1e-11)


@cases("classic_sigma")
def test_classic_sigma(vector: dict[str, float]) -> None:
    calibration = classic_gaussian(
        budget=budget_of(vector), sensitivity=ball(vector["l2_sensitivity"]), shape=(3,)
    )
    assert close(calibration.quantities["sigma"], vector["sigma"])


@cases("mvg_general")
def test_mvg_general_bound(vector: dict[str, Any]) -> None:
    shape = (vector["m"], vector["n"])
    calibration = mvg(
        budget=budget_of(vector),
        sensitivity=ball(vector["l2_sensitivity"]),
        shape=shape,
        gamma=vector["gamma"],
    )
    assert close(calibration.quantities["bound"], vector["bound"])


@cases("mvg_psd")
def test_mvg_psd_bound(vector: dict[str, Any]) -> None:
    calibration = mvg(
        budget=budget_of(vector),
        sensitivity=ball(vector["l2_sensitivity"]),
        shape=(vector["r"], vector["r"]),
        gamma=vector["gamma"],
        theorem="psd",
    )
    assert close(calibration.quantities["bound"], vector["bound"])


@cases("mgm")
def test_mgm_bound(vector: dict[str, Any]) -> None:
    shape = (vector["m"], vector["n"])
    calibration = mgm(
        budget=budget_of(vector), sensitivity=ball(vector["l2_sensitivity"]), shape=shape
    )
    assert close(calibration.quantities["bound"], vector["bound"])


@cases("idn")
def test_idn_bound(vector: dict[str, Any]) -> None:
    shape = (vector["m"], vector["n"])
    box = EntrywiseBox(
        shape=shape,
        feature_axis=0,
        widths=(vector["high"] - vector["low"],),
        adjacency=Adjacency.REPLACE_ONE,
        origin=Origin.PUBLIC_RANGE,
    )
    assert close(
        idn(budget=budget_of(vector), sensitivity=box, shape=shape).quantities["bound"],
        vector["bound"],
    )


@cases("rank_one")
def test_rank_one_paper_and_its_true_delta(vector: dict[str, Any]) -> None:
    calibration = rank_one(
        budget=budget_of(vector),
        sensitivity=ball(vector["l2_sensitivity"]),
        shape=(vector["dimension"],),
        calibration="paper",
    )
    assert close(calibration.quantities["psi"], vector["psi"])
    assert close(calibration.quantities["sigma_star"], vector["paper_sigma_star"])
    assert close(
        calibration.guarantee.verified.delta(vector["epsilon"]), vector["true_delta_at_epsilon"]
    )
    assert close(calibration.guarantee.verified.delta(1.0), vector["true_delta_at_1"])
    assert not calibration.guarantee.certified


@cases("rank_one_exact")
def test_rank_one_exact(vector: dict[str, Any]) -> None:
    asked: dict[str, Any] = {
        "budget": budget_of(vector),
        "sensitivity": ball(vector["l2_sensitivity"]),
        "shape": (vector["dimension"],),
    }
    calibration = rank_one(**asked)
    assert close(calibration.quantities["sigma_star"], vector["sigma_star"], 1e-6)
    assert calibration.guarantee.verified.delta(vector["epsilon"]) <= vector["delta"]
    plain = analytic_gaussian(**asked).noise.expected_squared_loss
    assert close(plain, vector["analytic_gaussian_expected_loss"])


@cases("dpsgd_step")
def test_dpsgd_step(vector: dict[str, Any]) -> None:
    rate = vector["sampling_rate"]
    step = amortise(
        budget_of(vector), steps=vector["epochs"] / rate, sampling_rate=rate, slack=vector["slack"]
    )
    assert close(step.epsilon, vector["step"][0])
    assert close(step.delta, vector["step"][1])

"""Row 2: amplification by sampling counts every record of a privacy unit.

0.1.0 amplified by the rate q at which records were drawn, whatever max_contributions said. A unit
with ten records that are drawn independently takes part in a step with 1 - (1 - q)^10: at q = 0.01
and a thousand steps a release that was certified at epsilon 1 had a real epsilon of 13.

Brute force here: every subset of a unit's records, with its probability, through a real clipped
sum; the privacy loss of that mixture of Gaussians is dp-accounting's, estimated from above or from
below.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from dp_accounting.pld import privacy_loss_distribution

from dpdask.accounting import GaussianProfile, SampledProfile
from dpdask.cli import main
from dpdask.errors import VerificationFailed
from dpdask.mechanisms import Steps, amplified_rate
from dpdask.planning import make_plan
from dpdask.privacy import Adjacency, PrivacyBudget
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

RATE, RECORDS, STEPS, DELTA = 0.01, 10, 1000, 1e-5
Shifts = tuple[list[float], list[float]]


def clipped(vector: np.ndarray[Any, Any], norm: float) -> np.ndarray[Any, Any]:
    length = float(np.linalg.norm(vector))
    return vector if length <= norm else vector * (norm / length)


def unit_clipped_together(records: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a unit adds to a step whose caller clips all that a unit has in the sample to norm 1."""
    return clipped(records.sum(axis=0), 1.0)


def records_clipped_each(records: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What a unit adds to a step whose caller clips every record to a tenth: one in all."""
    return (
        np.sum([clipped(record, 1 / RECORDS) for record in records], axis=0)
        if len(records)
        else np.zeros(3)
    )


def every_sample(
    contribution: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], count: int, rate: float
) -> Shifts:
    """How far a unit moves a step, and with which probability, over every subset of its records."""
    records = np.tile([3.0, 4.0, 0.0], (count, 1))
    weights: dict[float, float] = {}
    for mask in itertools.product([False, True], repeat=count):
        drawn = sum(mask)
        shift = round(float(np.linalg.norm(contribution(records[list(mask)]))), 12)
        weights[shift] = weights.get(shift, 0.0) + rate**drawn * (1 - rate) ** (count - drawn)
    return list(weights), list(weights.values())


def real_epsilon(
    shifts: Shifts, *, sigma: float, steps: int, from_below: bool, interval: float = 1e-3
) -> float:
    """The privacy loss of the exact mixture; from below it is an attack that succeeds, whatever
    else is true.
    """
    one = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma,
        *shifts,
        pessimistic_estimate=not from_below,
        value_discretization_interval=interval,
        use_connect_dots=not from_below,
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(DELTA))


def stack_spec(space: Workspace, of: str, **changes: Any) -> dict[str, Any]:
    space.source(np.zeros((STEPS, 4)))
    return space.spec(
        privacy_unit={"adjacency": "add-remove-one", "max_contributions": RECORDS},
        query={"name": "precomputed", "l2_sensitivity": 1.0},
        privacy={"epsilon": 1.0, "delta": DELTA},
        composition={
            "steps": STEPS,
            "steps_are_independent": True,
            "sampling": {"rate": RATE, "of": of},
        },
        **changes,
    )


def test_records_drawn_one_by_one_break_what_0_1_0_certified_and_not_what_is_certified_now(
    space: Workspace,
) -> None:
    """The attack of row 2, on the noise of a planned release."""
    worst = every_sample(unit_clipped_together, RECORDS, RATE)
    assert math.isclose(1 - worst[1][worst[0].index(0.0)], 1 - (1 - RATE) ** RECORDS)

    as_0_1_0 = make_plan(
        parse_release_spec(stack_spec(space, "privacy-units"))
    )  # its profile: rate q, whatever k is
    sigma = as_0_1_0.entry_std
    assert as_0_1_0.guarantee.certified
    assert real_epsilon(worst, sigma=sigma, steps=STEPS, from_below=True) > 12

    now = make_plan(parse_release_spec(stack_spec(space, "records")))
    assert now.guarantee.certified
    assert now.entry_std > 5 * sigma
    real = real_epsilon(worst, sigma=now.entry_std, steps=STEPS, from_below=True, interval=1e-4)
    verified = now.guarantee.verified.epsilon(DELTA)
    assert 0.5 * verified < real <= verified <= 1.0  # the bound holds and is attained
    each = every_sample(records_clipped_each, RECORDS, RATE)
    assert (
        real_epsilon(each, sigma=now.entry_std, steps=STEPS, from_below=False, interval=1e-4)
        <= verified
    )


def hockey_stick(upper: Shifts, lower: Shifts, *, epsilon: float) -> float:
    """delta between two mixtures of unit Gaussians, by the trapezoidal rule, exact to about 1e-12
    for such smooth functions.
    """
    x = np.linspace(-14, 18, 32_001)

    def density(shifts: Shifts) -> np.ndarray[Any, Any]:
        where, weights = (np.array(part)[:, None] for part in shifts)
        return np.asarray(
            np.sum(weights * np.exp(-((x - where) ** 2) / 2), axis=0) / math.sqrt(2 * math.pi)
        )

    gap = np.maximum(density(upper) - math.exp(epsilon) * density(lower), 0.0)
    return float(np.sum(gap) * (x[1] - x[0]))


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.6])
@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_two_point_mixture_dominates_every_sample_of_a_units_records(
    count: int, rate: float, mu: float
) -> None:
    """Joint convexity, by numbers: binomially many records, records that reach the bound alone, and
    random shifts.
    """
    random = np.random.default_rng(count)
    weights = [math.comb(count, j) * rate**j * (1 - rate) ** (count - j) for j in range(count + 1)]
    nobody: Shifts = ([0.0], [1.0])
    designs = [[mu * j / count for j in range(count + 1)], [0.0] + [mu] * count]
    designs += [[0.0, *(mu * random.uniform(-1, 1, count))] for _ in range(4)]
    profile = SampledProfile(
        GaussianProfile(mu),
        amplified_rate(rate=rate, of="records", contributions=count),
        Adjacency.ADD_REMOVE_ONE,
    )
    short = SampledProfile(GaussianProfile(mu), rate, Adjacency.ADD_REMOVE_ONE)
    broken = False
    for epsilon in (0.0, 0.1, 0.7, 2.0):
        for design in designs:
            present: Shifts = (design, weights)
            found = max(
                hockey_stick(present, nobody, epsilon=epsilon),
                hockey_stick(nobody, present, epsilon=epsilon),
            )
            assert found <= profile.delta(epsilon) * (1 + 1e-6) + 1e-11
            broken |= found > short.delta(epsilon) * (1 + 1e-6) + 1e-11
    assert broken == (
        count > 1
    )  # the twin: amplification by the records' own rate does not dominate


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_replaced_records_that_are_drawn_one_by_one_stay_below_the_bound(
    count: int, rate: float
) -> None:
    """Under replace-one both neighbours hold records, at the same places: advanced joint convexity
    with the unit's rate.
    """
    random = np.random.default_rng(count)
    masks = list(itertools.product([0, 1], repeat=count))
    weights = [rate ** sum(mask) * (1 - rate) ** (count - sum(mask)) for mask in masks]
    mu = 1.5  # of replacing all records of the unit: from -mu/2 to mu/2
    profile = SampledProfile(
        GaussianProfile(mu),
        amplified_rate(rate=rate, of="records", contributions=count),
        Adjacency.REPLACE_ONE,
    )
    short = SampledProfile(GaussianProfile(mu), rate, Adjacency.REPLACE_ONE)
    broken = False
    for design in range(8):
        reach = [
            0.0 if not any(mask) else 1.0 if design == 0 else float(random.uniform(0, 1))
            for mask in masks
        ]
        before: Shifts = ([mu / 2 * r for r in reach], weights)
        after: Shifts = ([-mu / 2 * r for r in reach], weights)
        for epsilon in (0.0, 0.2, 1.0):
            found = hockey_stick(before, after, epsilon=epsilon)
            assert found <= profile.delta(epsilon) * (1 + 1e-6) + 1e-11
            broken |= found > short.delta(epsilon) * (1 + 1e-6) + 1e-11
    assert broken == (count > 1)


@pytest.mark.parametrize(
    ("rate", "count"), [(0.01, 10), (1e-9, 3), (0.5, 60), (1.0, 4), (0.999, 1000)]
)
def test_the_amplified_rate_is_rounded_up(rate: float, count: int) -> None:
    from fractions import Fraction

    exact = 1 - (1 - Fraction(rate)) ** count
    found = amplified_rate(rate=rate, of="records", contributions=count)
    assert Fraction(found) >= exact or found == 1.0
    assert float(exact) <= found <= float(exact) * (1 + 1e-13)
    assert amplified_rate(rate=rate, of="privacy-units", contributions=count) == rate


def test_the_card_says_who_was_sampled_and_verify_computes_the_rate_again(space: Workspace) -> None:
    space.source(np.zeros((4, 3)))
    receipt = space.release(
        privacy_unit={"adjacency": "add-remove-one", "max_contributions": 3},
        query={"name": "precomputed", "l2_sensitivity": 1.0},
        composition={
            "steps": 4,
            "steps_are_independent": True,
            "sampling": {"rate": 0.1, "of": "records"},
        },
    )
    sampling = receipt.card.composition.sampling
    assert sampling is not None
    assert (sampling.rate, sampling.of) == (0.1, "records")
    assert sampling.amplified_rate == pytest.approx(0.271)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    path = space.folder / "out.zarr" / "zarr.json"
    document = json.loads(path.read_text())
    for changed in ({"amplified_rate": 0.1}, {"of": "privacy-units"}, {"rate": 0.03451}):
        card = json.loads(path.read_text())["attributes"]["dp"]
        card["composition"]["sampling"].update(changed)
        path.write_text(
            json.dumps({**document, "attributes": {**document["attributes"], "dp": card}})
        )
        with pytest.raises(VerificationFailed):
            verify_release(str(space.folder / "out.zarr"))
        path.write_text(json.dumps(document))


def test_a_spec_that_does_not_say_who_is_sampled_is_refused_by_the_command(
    space: Workspace,
) -> None:
    spec = stack_spec(space, "records")
    spec["composition"] = {"steps": STEPS, "steps_are_independent": True, "sampling_rate": RATE}
    path = space.write_spec(**spec)
    result = CliRunner().invoke(main, ["run", str(path)])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "of: privacy-units" in result.stderr
    assert space.spent() == 0
    assert space.left_behind() == []


def test_steps_of_a_calibration_spec_amplify_by_the_unit_too() -> None:
    budget = PrivacyBudget(epsilon=1.0, delta=DELTA)
    rate = amplified_rate(rate=RATE, of="records", contributions=RECORDS)
    alone = Steps(count=100, sampling_rate=RATE).step_mu(budget, Adjacency.ADD_REMOVE_ONE)
    together = Steps(count=100, sampling_rate=rate).step_mu(budget, Adjacency.ADD_REMOVE_ONE)
    assert together < alone / 3

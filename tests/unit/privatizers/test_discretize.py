"""Discretization and the rules of queries: what a plan records is what a verifier computes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest

from dpdask.errors import InvalidMechanism, OutOfReach, VerificationFailed
from dpdask.keystream import ReleaseKey
from dpdask.mechanisms import Steps
from dpdask.noise import DiagonalFactor, IidNoise, KroneckerNoise, Noise, ScaledIdentity
from dpdask.noise.rounding import product_rounding
from dpdask.planning.component import make_component
from dpdask.planning.plan import Component
from dpdask.planning.verified import recorded_answer, rounding_in_sigmas, verified_profile
from dpdask.privacy import Adjacency
from dpdask.privatizers.base import Discretized, Tile
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.privatizers.discretize import discretize
from dpdask.queries import (
    ExactSum,
    QueryRules,
    RecordedAnswer,
    SummedQuery,
    register_query_rules,
    unregister_query_rules,
)
from dpdask.sensitivity import L2Ball, Origin
from dpdask.spec import parse_release_spec
from dpdask.types import Array, Floats, Integers, Json, Region

RECORDS = np.linspace(-1, 1, 1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountAbove(SummedQuery):
    """How many records lie above each of some public thresholds: no query of the library."""

    name: ClassVar[str] = "count-above"
    thresholds: tuple[float, ...]

    def bounds(self) -> AnswerBounds:
        most = float(self.public_records)
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-most,),
            high=(most,),
            rounded_entries=len(self.thresholds),
        )

    def bound_to_dict(self, discretized: Discretized) -> Json:
        return {"kind": "count", "enforced": True}

    def partial(
        self,
        source: Any,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        values = source.read((records,))
        above = [np.count_nonzero(values > threshold) for threshold in self.thresholds]
        return np.array(above, dtype=np.int64)


class CountAboveRules(QueryRules):
    """Every count may change by one per record."""

    def least_radius(self, answer: RecordedAnswer) -> float:
        if answer.bound["kind"] != "count":
            raise answer.mismatch()
        return answer.contributions * math.sqrt(answer.entries)

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        return product_rounding(step=answer.step, entries=answer.entries, most=answer.grid_bound)


class InMemory:
    """Records that a query reads."""

    def read(self, box: Region) -> Array:
        return RECORDS[box]


@pytest.fixture
def registered() -> Iterator[None]:
    register_query_rules(CountAbove.name, CountAboveRules())
    yield
    unregister_query_rules(CountAbove.name)


def count_component(mechanism: Any = "analytic-gaussian") -> Component:
    sensitivity = L2Ball(l2=math.sqrt(3), adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED)
    query = CountAbove(
        source_shape=RECORDS.shape,
        answer_shape=(3,),
        sensitivity=sensitivity,
        bound=None,
        norm_bound=None,
        record_axis=0,
        thresholds=(-0.5, 0.0, 0.5),
    )
    spec = parse_release_spec(
        {
            "source": {"url": "file:///nowhere/in.zarr"},
            "output": {"url": "file:///nowhere/out.zarr"},
            "privacy_unit": {"record_dim": 0},
            "query": {"name": "histogram", "edges": [[0, 1]], "columns": [0]},
            "mechanism": mechanism,
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "budget": {"dataset": "d", "ledger": "sqlite:////nowhere/ledger.db"},
        }
    )
    budget = spec.privacy.budget()
    return make_component("data", spec, query, spec.mechanism, budget, spec.composition, (3,))


MECHANISMS = ["analytic-gaussian", {"name": "udn", "weights": [1, 2, 3]}]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_query_of_our_own_is_planned_released_and_verified(mechanism: Any) -> None:
    component = count_component(mechanism)
    query, exact_sum = component.query, component.exact_sum
    assert isinstance(query, CountAbove)
    assert exact_sum is not None
    halves = [
        query.partial(InMemory(), exact_sum, (slice(0, 3),), part, None)
        for part in (slice(0, 400), slice(400, 1000))
    ]
    answer = exact_sum.answer(halves[0] + halves[1])
    stream = ReleaseKey(bytes(32)).tile(fingerprint=bytes(32), component="data", index=(0,))
    out = np.empty(3)
    component.privatizer.apply(Tile(values=answer, box=(slice(0, 3),), stream=stream), out)
    assert np.all(np.abs(out - [750, 500, 250]) < 8 * component.noise.entry_std)
    recorded = recorded_answer(component)
    assert recorded.rules.least_radius(recorded) <= query.sensitivity.radius
    verified = verified_profile(recorded, Steps())
    assert verified.delta(1.0) <= 1e-6
    assert component.guarantee.certified


@pytest.mark.usefixtures("registered")
def test_the_rules_of_a_query_refuse_another_bound() -> None:
    recorded = recorded_answer(count_component())
    forged = dataclasses.replace(recorded, bound={"kind": "l2-clip", "norm": 1.0})
    with pytest.raises(VerificationFailed, match="does not go with query 'count-above'"):
        forged.rules.least_radius(forged)


@pytest.mark.usefixtures("registered")
def test_a_query_is_registered_once() -> None:
    with pytest.raises(InvalidMechanism, match="registered already"):
        register_query_rules(CountAbove.name, CountAboveRules())


def test_a_query_without_rules_is_not_planned() -> None:
    with pytest.raises(InvalidMechanism, match="register its rules"):
        count_component()


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_rounding_of_a_plan_is_that_of_its_card(mechanism: Any) -> None:
    component = count_component(mechanism)
    planned = component.discretized.rounding
    assert planned > 0
    assert rounding_in_sigmas(recorded_answer(component)) == pytest.approx(planned, rel=1e-12)


BALL = L2Ball(l2=1.0, adjacency=Adjacency.REPLACE_ONE, origin=Origin.DECLARED)


def test_results_without_bounds_are_clamped_where_the_grid_ends() -> None:
    unbounded = AnswerBounds(
        sensitivity=BALL, low=(-math.inf,), high=(math.inf,), rounded_entries=4
    )
    assert not unbounded.bounded
    diagonal = KroneckerNoise((DiagonalFactor(np.array([1.0, 2.0, 3.0, 4.0])),))
    for noise, mu in ((IidNoise((4,), 4.0), 0.25), (diagonal, 1.0)):
        discretized = discretize(noise, unbounded, mu=mu, steps_per_sigma=None)
        assert 2.0**12 < discretized.privatizer.largest < math.inf
        assert discretized.noise.entry_std >= noise.entry_std


def test_ranges_that_differ_give_every_feature_a_grid() -> None:
    bounds = AnswerBounds(
        sensitivity=BALL, low=(-math.inf, (-1.0, -2.0)), high=(math.inf, (1.0, 2.0)), record_axis=0
    )
    assert bounds.common_range is None
    discretized = discretize(IidNoise((8, 2), 3.0), bounds, mu=1 / 3, steps_per_sigma=None)
    assert isinstance(discretized.noise, KroneckerNoise)
    assert discretized.rounding > 0


def test_bounds_that_no_grid_holds_are_refused() -> None:
    wide = AnswerBounds(sensitivity=BALL, low=(-1e18,), high=(1e18,))
    noise = KroneckerNoise((ScaledIdentity(4, 1.0),))
    with pytest.raises(OutOfReach, match="narrow the bounds"):
        discretize(noise, wide, mu=1.0, steps_per_sigma=None)


def test_noise_of_another_distribution_has_no_grid() -> None:
    class Other(Noise):
        """A distribution that nobody registered."""

        tensor_shape = (4,)
        expected_squared_loss = 1.0

        def loss_moments(self) -> tuple[float, float, float, float]:
            return 1.0, 1.0, 1.0, 1.0

        def variances_along(self, axis: int) -> Floats:
            return np.ones(1)

        def to_dict(self) -> Json:
            return {}

    bounds = AnswerBounds(sensitivity=BALL, low=(-1.0,), high=(1.0,))
    with pytest.raises(InvalidMechanism, match="Other has no grid"):
        discretize(Other(), bounds, mu=1.0, steps_per_sigma=None)

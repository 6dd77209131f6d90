"""One noisy answer of a release: calibrated, fitted to the grid, with the guarantee of what is
really added.
"""

from __future__ import annotations

import dataclasses

from dpdask.accounting import GaussianProfile, compose
from dpdask.errors import InvalidMechanism
from dpdask.noise import IidNoise, KroneckerNoise
from dpdask.planning.build_mechanism import calibrate_mechanism, steps_of
from dpdask.planning.build_query import build_query
from dpdask.planning.plan import Component, ReleasePlan
from dpdask.planning.tiling import Tiling
from dpdask.planning.verified import Answer, verified_step
from dpdask.privacy import Guarantee, PrivacyBudget, PrivacyProfile
from dpdask.privatizers.recipes import NOTHING
from dpdask.queries import Clip, Query
from dpdask.spec import CompositionSection, MechanismSection
from dpdask.spec.mechanism import AnalyticGaussianSection, EstimatedDirections
from dpdask.spec.query import CovarianceSection
from dpdask.spec.release import ReleaseSpec, StackSection

__all__ = [
    "component_with_directions",
    "directions_component",
    "make_component",
    "share_of",
    "together",
]


def make_component(
    name: str,
    spec: ReleaseSpec,
    query: Query,
    section: MechanismSection,
    budget: PrivacyBudget,
    composition: CompositionSection,
) -> Component:
    """Calibrate a mechanism to a query and fit its noise; the guarantee is that of what is really
    added.
    """
    steps = composition.steps
    shape = query.answer_shape if steps == 1 else query.answer_shape[1:] or (1,)
    composed = steps_of(composition, query.max_contributions)
    calibrated = calibrate_mechanism(
        section,
        budget=budget,
        sensitivity=query.sensitivity,
        shape=shape,
        steps=composed,
        norm_bound=query.norm_bound,
    )
    noise = calibrated.noise
    if steps > 1:
        if not isinstance(noise, IidNoise):
            raise InvalidMechanism("a stack of steps takes i.i.d. noise; use analytic-gaussian")
        noise = IidNoise(query.answer_shape, noise.sigma)
    fitted = query.fit(noise, mu=calibrated.quantities.get("mu"), asked=spec.noise.steps_per_sigma)
    guarantee = calibrated.guarantee
    step = verified_step(Answer.of(query, fitted, steps))
    if isinstance(step, GaussianProfile) and step.mu > calibrated.quantities["mu"] * NOTHING:
        verified = composed.compose(step, query.sensitivity.adjacency)
        guarantee = dataclasses.replace(guarantee, verified=verified)
    return Component(
        name=name,
        query=query,
        calibrated=calibrated,
        fitted=fitted,
        guarantee=guarantee,
        tiling=Tiling(
            shape=query.answer_shape, write_chunk=query.answer_shape, symmetric=query.symmetric
        ),
    )


def share_of(budget: PrivacyBudget, share: float) -> PrivacyBudget:
    """A part of a budget."""
    return PrivacyBudget(epsilon=budget.epsilon * share, delta=budget.delta * share)


def directions_component(
    spec: ReleaseSpec, query: Query, estimated: EstimatedDirections, budget: PrivacyBudget
) -> Component:
    """The DP covariance whose eigenvectors become the noise directions of the feature axis."""
    bound = query.bound
    if query.name != "identity" or not isinstance(bound, Clip) or len(query.source_shape) != 2:
        raise InvalidMechanism(
            "directions from dp-covariance need query: identity on a matrix of l2-clipped"
            " records; give public directions"
        )
    feature = 1 - bound.record_axis
    if getattr(spec.mechanism, "axis", 0) % 2 != feature:
        raise InvalidMechanism(
            f"directions from dp-covariance lie along the features; set mechanism.axis: {feature}"
        )
    privacy_unit = spec.privacy_unit.model_copy(update={"record_dim": bound.record_axis})
    covariance = build_query(
        CovarianceSection(name="covariance"), privacy_unit, query.source_shape, StackSection()
    )
    return make_component(
        "directions",
        spec.model_copy(update={"noise": type(spec.noise)()}),
        covariance,
        AnalyticGaussianSection(name="analytic-gaussian"),
        share_of(budget, estimated.share),
        CompositionSection(),
    )


def component_with_directions(plan: ReleasePlan, directions: list[list[float]]) -> Component:
    """The data component with its noise turned to ``directions``; rounding never makes it weaker
    than planned.
    """
    estimated = getattr(plan.spec.mechanism, "directions", None)
    assert isinstance(estimated, EstimatedDirections)
    section = plan.spec.mechanism.model_copy(update={"directions": directions})
    budget = share_of(plan.spec.privacy.budget(), 1 - estimated.share)
    query = plan.data.query
    calibrated = calibrate_mechanism(
        section,
        budget=budget,
        sensitivity=query.sensitivity,
        shape=query.answer_shape,
        steps=steps_of(plan.spec.composition, query.max_contributions),
        norm_bound=query.norm_bound,
    )
    planned = plan.data.calibrated.quantities["mu"]
    assert isinstance(calibrated.noise, KroneckerNoise)
    first, *others = calibrated.noise.factors
    growth = max(1.0, calibrated.quantities["mu"] / planned) * (1 + 1e-12)
    charged = max(planned, _mu(verified_step(Answer.of(query, plan.data.fitted))))
    while True:
        noise = KroneckerNoise((first.times(growth), *others))
        fitted = query.fit(noise, mu=planned, asked=plan.spec.noise.steps_per_sigma)
        real = _mu(verified_step(Answer.of(query, fitted)))
        if real <= charged * NOTHING:
            return dataclasses.replace(plan.data, calibrated=calibrated, fitted=fitted)
        growth *= real / charged * (1 + 1e-12)


def _mu(profile: PrivacyProfile) -> float:
    assert isinstance(profile, GaussianProfile)
    return profile.mu


def together(budget: PrivacyBudget, directions: Component, data: Component) -> Guarantee:
    """The guarantee of directions and data, released one after the other."""
    verified = compose([(directions.guarantee.verified, 1), (data.guarantee.verified, 1)])
    theorem = (
        f"{directions.guarantee.theorem} for the directions, then"
        f" {data.guarantee.theorem}; basic composition"
    )
    doubt = directions.guarantee.doubt or data.guarantee.doubt
    return Guarantee(claimed=budget, theorem=theorem, verified=verified, doubt=doubt)

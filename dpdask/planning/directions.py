"""Noise directions from the data: the eigenvectors of a DP covariance that is drawn first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpdask.errors import InvalidMechanism
from dpdask.noise import KroneckerNoise
from dpdask.planning.build_mechanism import calibrate_mechanism, steps_of
from dpdask.planning.component import make_component, share_of, verified_mu
from dpdask.planning.drafts import data_component
from dpdask.planning.estimate import Estimate
from dpdask.planning.plan import Component, ReleasePlan, Variable
from dpdask.planning.principal_axes import (
    PrincipalAxes,
    moments_along,
    with_axes,
    with_unknown_axes,
)
from dpdask.planning.variables import Draft
from dpdask.privacy import PrivacyBudget
from dpdask.privatizers.whitened_grid import MU_TOLERANCE, known_mu
from dpdask.queries import Query
from dpdask.spec import CompositionSection, MechanismSection
from dpdask.spec.mechanism import AnalyticGaussianSection, EstimatedDirections
from dpdask.spec.release import ReleaseSpec
from dpdask.types import Floats

__all__ = ["DirectionsEstimate", "component_with_directions", "with_directions"]


@dataclass(frozen=True, kw_only=True)
class DirectionsEstimate(Estimate):
    """The DP second moment whose principal axes the noise of the data has.

    Args:
        query: The question whose noise they are for.
        section: The mechanism.
    """

    kind: ClassVar[str] = "directions"
    decides_on_sums: ClassVar[bool] = False
    shares_mu: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    query: Query
    section: MechanismSection

    def choose(self, noisy: Floats) -> str:
        """Return the eigenvectors, strongest first, with eigenvalues where the noise needs them."""
        axes = PrincipalAxes.of(noisy, self.component, self.query)
        return axes.to_json(self.section)

    def settle(self, plan: ReleasePlan, variable: Variable, chosen: str) -> Variable:
        """Return the data with their noise turned to the directions."""
        axes = PrincipalAxes.from_json(chosen)
        component = component_with_directions(plan, axes.directions, axes.eigenvalues)
        return variable.answering(component)

    def arrays(self, noisy: Floats, chosen: str) -> Mapping[str, Floats]:
        """Return the directions, and the eigenvalues where there are any."""
        return PrincipalAxes.from_json(chosen).arrays()


def with_directions(
    draft: Draft, name: str, budget: PrivacyBudget
) -> tuple[DirectionsEstimate, Component]:
    """Return the covariance that directions come from, and the data with a basis for them.

    Args:
        draft: The source with its question.
        name: The name of the data component.
        budget: What both may cost.
    """
    spec, query = draft.spec, draft.query
    estimated = getattr(spec.mechanism, "directions", None)
    assert isinstance(estimated, EstimatedDirections)
    if query.people is not None:
        raise InvalidMechanism(
            "directions from dp-covariance are estimated from all records, and privacy_unit.ids"
            " keeps some; give public directions"
        )
    directions = _directions_component(spec, query, estimated, budget)
    # The estimated axes are put in at run time.
    section = with_unknown_axes(spec.mechanism, directions.query.answer_shape[0])
    data = data_component(draft, name, share_of(budget, 1 - estimated.share), section)
    estimate = DirectionsEstimate(component=directions, query=query, section=spec.mechanism)
    return estimate, data


def _directions_component(
    spec: ReleaseSpec, query: Query, estimated: EstimatedDirections, budget: PrivacyBudget
) -> Component:
    """Return the DP covariance whose eigenvectors become the noise directions of the features.

    Args:
        spec: The release.
        query: The question of the release.
        estimated: Which share of the budget directions may cost.
        budget: The budget of the release.
    """
    moments = moments_along(query, spec.privacy_unit, getattr(spec.mechanism, "axis", 0))
    return make_component(
        "directions",
        spec.model_copy(update={"noise": type(spec.noise)()}),
        moments,
        AnalyticGaussianSection(name="analytic-gaussian"),
        share_of(budget, estimated.share),
        CompositionSection(),
        moments.answer_shape,
    )


def component_with_directions(
    plan: ReleasePlan, directions: list[list[float]], eigenvalues: Sequence[float] = ()
) -> Component:
    """Return the data component with its noise turned to ``directions``.

    Args:
        plan: What was planned.
        directions: Orthonormal rows.
        eigenvalues: Those of f f' along them, where the spec leaves them to the DP covariance.

    Guarantee: the noise grows until rounding makes it no weaker than planned.
    """
    estimated = getattr(plan.spec.mechanism, "directions", None)
    assert isinstance(estimated, EstimatedDirections)
    axes = PrincipalAxes(directions=directions, eigenvalues=list(eigenvalues))
    section = with_axes(plan.spec.mechanism, axes)
    query, planned = plan.data.query, known_mu(plan.data.mu)
    calibrated = calibrate_mechanism(
        section,
        budget=share_of(plan.spec.privacy.budget(), 1 - estimated.share),
        sensitivity=query.sensitivity,
        shape=query.answer_shape,
        steps=steps_of(plan.spec.composition, query.max_contributions),
        norm_bound=query.norm_bound,
    )
    assert isinstance(calibrated.noise, KroneckerNoise)
    first, *others = calibrated.noise.factors
    growth = max(1.0, calibrated.quantities["mu"] / planned) * (1 + 1e-12)
    charged = max(planned, verified_mu(plan.data))
    while True:
        noise = KroneckerNoise((first.times(growth), *others))
        discretized, _ = query.discretize(
            noise, mu=planned, steps_per_sigma=plan.spec.noise.steps_per_sigma
        )
        component = dataclasses.replace(plan.data, discretized=discretized)
        real = verified_mu(component)
        if real <= charged * MU_TOLERANCE:
            return component
        growth *= real / charged * (1 + 1e-12)

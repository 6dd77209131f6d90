"""One noisy answer of a release: calibrated, on its grid, with the guarantee of what is added."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dpdask.accounting import GaussianProfile, compose
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms import Calibration
from dpdask.noise import IidNoise, Noise
from dpdask.planning.answer import Component, Part
from dpdask.planning.build_mechanism import calibrate_mechanism, steps_of
from dpdask.planning.sessions import slices_of
from dpdask.planning.tiling import Tiling
from dpdask.planning.verified import exceeds_calibration, recorded_answer, verified_step
from dpdask.privacy import Guarantee, PrivacyBudget
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.discretize import discretize
from dpdask.privatizers.whitened_grid import known_mu
from dpdask.queries import ExactSum, Layer, Query, SidePart
from dpdask.sensitivity import L2Ball
from dpdask.spec import CompositionSection, MechanismSection
from dpdask.spec.release import ReleaseSpec
from dpdask.types import Shape

__all__ = [
    "jointly",
    "make_component",
    "share_of",
    "together",
    "verified_mu",
    "with_layers",
]

_NOT_FOR_PARTS = ("laplace", "directional")  # what they would advise, ranges, changes nothing


def make_component(
    name: str,
    spec: ReleaseSpec,
    query: Query,
    section: MechanismSection,
    budget: PrivacyBudget,
    composition: CompositionSection,
    write_chunk: Shape,
) -> Component:
    """Return a query with its noise on a grid, and the guarantee of what is really added.

    Args:
        name: The name of the component, part of what its noise is drawn for.
        spec: The release, for the user's choice of a grid.
        query: The question.
        section: The mechanism.
        budget: What the component may cost.
        composition: How many steps the answer holds, and who takes part in each.
        write_chunk: The chunk in which the answer is written.
    """
    if query.arrays_beside and section.name in _NOT_FOR_PARTS:
        raise _parts_need_gaussian(query)
    steps = slices_of(spec, composition.steps)
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
    if query.arrays_beside:
        return _joint_component(name, spec, query, calibrated, write_chunk)
    component = _on_grid(name, spec, query, noise, calibrated, write_chunk)
    step = verified_step(recorded_answer(component, steps))
    if exceeds_calibration(step, calibrated):
        verified = composed.compose(step, query.sensitivity.adjacency)
        guarantee = dataclasses.replace(calibrated.guarantee, verified=verified)
        return dataclasses.replace(component, guarantee=guarantee)
    return component


def _parts_need_gaussian(query: Query) -> InvalidMechanism:
    return InvalidMechanism(
        f"query {query.spec_name} is computed from noisy parts here (counts, a mean, distances from"
        " a centre), which take i.i.d. Gaussian noise; use mechanism: analytic-gaussian"
    )


def _on_grid(
    name: str,
    spec: ReleaseSpec,
    query: Query,
    noise: Noise,
    calibrated: Calibration,
    write_chunk: Shape,
) -> Component:
    """Return a query with its noise on a grid, and the guarantee that was calibrated."""
    mu = calibrated.quantities.get("mu")
    discretized, exact_sum = query.discretize(
        noise, mu=mu, steps_per_sigma=spec.noise.steps_per_sigma
    )
    return Component(
        name=name,
        query=query,
        discretized=discretized,
        exact_sum=exact_sum,
        guarantee=calibrated.guarantee,
        tiling=_tiling(query, discretized, write_chunk),
        mu=mu,
        warnings=calibrated.warnings,
        choice=calibrated.choice,
    )


def _joint_component(
    name: str, spec: ReleaseSpec, query: Query, calibrated: Calibration, write_chunk: Shape
) -> Component:
    """Return a sum with those beside it; all their noise grows by what rounding costs.

    Guarantee: the verified mu of all parts together is at most the calibrated one.
    """
    if not isinstance(calibrated.noise, IidNoise):
        raise _parts_need_gaussian(query)
    mu = known_mu(calibrated.quantities.get("mu"))
    sigma = calibrated.noise.sigma
    while True:
        noise = IidNoise(query.answer_shape, sigma)
        component = _on_grid(name, spec, query, noise, calibrated, write_chunk)
        # Relative to the noise that is really added, rounding included: the joint radius is for
        # parts with that much noise or more.
        added = component.noise.entry_std
        parts = tuple(_part(side, added, mu, component) for side in query.beside)
        component = dataclasses.replace(component, parts=parts)
        real = verified_mu(component)
        if real <= mu:
            return component
        sigma *= real / mu * (1 + 1e-9)


def _part(side: SidePart, sigma: float, mu: float, main: Component) -> Part:
    """Return a further sum with its noise, ``side.scale`` times that of the main one."""
    noise = IidNoise(side.shape, sigma * side.scale)
    alone = L2Ball(  # rounding may cost the share of mu that a sum of its own would lose
        l2=mu * noise.sigma,
        adjacency=side.bounds.sensitivity.adjacency,
        origin=side.bounds.sensitivity.origin,
    )
    bounds = dataclasses.replace(side.bounds, sensitivity=alone)
    exact_sum = ExactSum()
    if side.in_record_steps and main.exact_sum is not None:
        exact_sum = ExactSum(answer_step=main.exact_sum.rule().grid.step)
    return Part(
        name=side.name,
        discretized=discretize(noise, bounds, mu=mu, steps_per_sigma=None),
        exact_sum=exact_sum,
        tiling=main.tiling if side.aligned else Tiling(shape=side.shape, write_chunk=side.shape),
        aligned=side.aligned,
    )


def _tiling(query: Query, discretized: Discretized, write_chunk: Shape) -> Tiling:
    """Return the tiles of an answer: write chunks, whole along the axes that the noise mixes."""
    spanned = discretized.privatizer.spanned
    if query.whole or (query.symmetric and spanned):
        spanned = tuple(range(len(query.answer_shape)))
    return Tiling(
        shape=query.answer_shape,
        write_chunk=write_chunk,
        spanned=spanned,
        symmetric=query.symmetric,
    )


def with_layers(component: Component, layers: tuple[Layer, ...]) -> Component:
    """Return a component with its layers; one tile where a layer needs all of the answer."""
    for layer in layers:
        layer.check_noise(component.noise, symmetric=component.query.symmetric)
    if not any(layer.whole for layer in layers):
        return dataclasses.replace(component, layers=layers)
    axes = tuple(range(len(component.query.answer_shape)))
    tiling = dataclasses.replace(component.tiling, spanned=axes)
    parts = tuple(
        dataclasses.replace(part, tiling=tiling) if part.aligned else part
        for part in component.parts
    )
    return dataclasses.replace(component, layers=layers, tiling=tiling, parts=parts)


def share_of(budget: PrivacyBudget, share: float) -> PrivacyBudget:
    """Return a part of a budget."""
    return PrivacyBudget(epsilon=budget.epsilon * share, delta=budget.delta * share)


def verified_mu(component: Component) -> float:
    """Return the mu of a Gaussian component, rounding included."""
    profile = verified_step(recorded_answer(component))
    assert isinstance(profile, GaussianProfile)
    return profile.mu


def together(budget: PrivacyBudget, directions: Component, data: Component) -> Guarantee:
    """Return the guarantee of directions and data, released one after the other."""
    verified = compose([(directions.guarantee.verified, 1), (data.guarantee.verified, 1)])
    theorem = (
        f"{directions.guarantee.theorem} for the directions, then"
        f" {data.guarantee.theorem}; basic composition"
    )
    doubt = directions.guarantee.doubt or data.guarantee.doubt
    return Guarantee(claimed=budget, theorem=theorem, verified=verified, doubt=doubt)


def jointly(
    budget: PrivacyBudget, components: Sequence[Component], bounds: Sequence[Component] = ()
) -> Guarantee:
    """Return the guarantee of variables, all of which one privacy unit can change at once.

    Guarantee: exact. Gaussian noise of all of them has the sum of their squared mu, also where
    the bounds of one follow from another that was drawn before it.

    Args:
        budget: What was asked for.
        components: The data of every variable.
        bounds: The histograms from which bounds are chosen.
    """
    every = (*bounds, *components)
    for component in every:
        if not isinstance(component.guarantee.verified, GaussianProfile):
            raise InvalidMechanism(
                "the noise of several variables composes exactly where it is Gaussian; use"
                " mechanism: auto, analytic-gaussian or directional"
            )
    theorems = sorted({component.guarantee.theorem for component in every})
    what = f"{len(components)} variables" if len(components) > 1 else "the data"
    first = "bounds, then for " if bounds else ""
    return Guarantee(
        claimed=budget,
        theorem=f"{', '.join(theorems)} for {first}{what}; mu^2 adds",
        verified=compose([(component.guarantee.verified, 1) for component in every]),
        doubt=next(filter(None, (component.guarantee.doubt for component in every)), None),
    )

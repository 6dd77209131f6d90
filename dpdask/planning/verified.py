"""The privacy profile of what is really released: one function for planning and for verifying.

Nothing here looks at how a grid was chosen. All that counts is on the card: the query, the bound,
the grid, the noise and the sensitivity set. So a plan and a reader of the card compute the same
number.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from dpdask.accounting import GaussianProfile, PureProfile, SphericalProfile, StepProfile
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms import Calibration, Steps
from dpdask.mechanisms.gaussian import gaussian_mu
from dpdask.mechanisms.laplace import laplace_loss
from dpdask.noise import IidNoise, KroneckerNoise, LaplaceNoise, Noise, SphericalNoise
from dpdask.noise.factors import mixing_axes
from dpdask.noise.rounding import moved_entries, moved_records, whitened_rounding
from dpdask.planning.answer import Component
from dpdask.privacy import PrivacyProfile
from dpdask.privatizers.whitened_grid import MU_TOLERANCE, known_mu
from dpdask.queries import RecordedAnswer, RecordedPart

__all__ = [
    "exceeds_calibration",
    "mu_shares",
    "mu_squared",
    "recorded_answer",
    "rounding_in_sigmas",
    "verified_profile",
    "verified_step",
]

_UP = 1 + 1e-14  # rounds up what a few operations computed


def recorded_answer(component: Component, steps: int = 1) -> RecordedAnswer:
    """Return a component as the card will describe it."""
    query = component.query
    return RecordedAnswer(
        noise=component.noise,
        sensitivity=query.sensitivity,
        query=query.to_dict(),
        bound=query.bound_to_dict(component.discretized),
        grid=component.grid_to_dict(),
        record_axis=query.units_axis,
        contributions=query.max_contributions,
        enforced=query.people is not None,
        distinct=query.people is not None and query.people.distinct,
        together=query.people is not None and query.people.clipped,
        limited=query.people is None or query.people.limited,
        steps=steps,
        parts=tuple(
            RecordedPart(name=part.name, noise=part.noise, grid=part.privatizer.to_dict())
            for part in component.parts
        ),
    )


def verified_profile(answer: RecordedAnswer, steps: Steps) -> PrivacyProfile:
    """Return the profile of all steps of an answer, the rounding of each included."""
    return steps.compose(verified_step(answer), answer.sensitivity.adjacency)


def verified_step(answer: RecordedAnswer) -> StepProfile:
    """Return the profile of one step, in terms of the noise that is really added.

    The parts of a joint answer are whitened each by its own noise; their common sensitivity is
    that of the answer, in units of the main part.

    Guarantee: it covers the sensitivity and everything that rounding and floating point add to it,
    for noise that is drawn exactly.
    """
    if answer.parts and not isinstance(answer.noise, IidNoise):
        raise InvalidMechanism("the parts of a joint answer take i.i.d. noise; use that")
    return _profile_of(answer.noise, answer)


def mu_squared(answers: Sequence[RecordedAnswer]) -> float:
    """Return the squared mu of Gaussian answers together.

    Raises:
        InvalidMechanism: The noise of one is not Gaussian.
    """
    squares = []
    for answer in answers:
        profile = verified_step(answer)
        if not isinstance(profile, GaussianProfile):
            raise InvalidMechanism("answers that share mu^2 take Gaussian noise; use that")
        squares.append(profile.mu**2)
    return math.fsum(squares)


def mu_shares(groups: Sequence[Sequence[RecordedAnswer]]) -> list[float]:
    """Return the share of every group of Gaussian answers in the squared mu of all of them."""
    squares = [mu_squared(answers) for answers in groups]
    total = math.fsum(squares)
    return [square / total for square in squares]


def exceeds_calibration(step: StepProfile, calibration: Calibration) -> bool:
    """Return whether rounding left a step less private than its noise was calibrated to be."""
    if isinstance(step, GaussianProfile):
        return step.mu > known_mu(calibration.quantities.get("mu")) * MU_TOLERANCE
    if isinstance(step, PureProfile):
        return step.largest_loss > calibration.quantities["loss"]
    return False


def rounding_in_sigmas(answer: RecordedAnswer) -> float:
    """Return by how much rounding increases the distance between neighbours, in sigmas.

    In l1 and in scales for Laplace noise.
    """
    return _rounding_of(answer.noise, answer)


@functools.singledispatch
def _profile_of(noise: Noise, answer: RecordedAnswer) -> StepProfile:
    raise InvalidMechanism(
        f"noise {type(noise).__name__} has no profile; use i.i.d., Laplace, Kronecker or"
        " spherical noise"
    )


@_profile_of.register(IidNoise)
def _iid_profile(noise: IidNoise, answer: RecordedAnswer) -> GaussianProfile:
    rounding = _rounding_of(noise, answer)
    return GaussianProfile(gaussian_mu(noise, answer.sensitivity) + rounding * _UP)


@_profile_of.register(LaplaceNoise)
def _laplace_profile(noise: LaplaceNoise, answer: RecordedAnswer) -> PureProfile:
    rounding = _rounding_of(noise, answer)
    return PureProfile((laplace_loss(noise, answer.sensitivity) + rounding) * _UP)


@_profile_of.register(KroneckerNoise)
def _kronecker_profile(noise: KroneckerNoise, answer: RecordedAnswer) -> GaussianProfile:
    rounding = _rounding_of(noise, answer)
    return GaussianProfile((gaussian_mu(noise, answer.sensitivity) + rounding) * (1 + 4e-16))


@_profile_of.register(SphericalNoise)
def _spherical_profile(noise: SphericalNoise, answer: RecordedAnswer) -> SphericalProfile:
    radius = answer.sensitivity.radius * _UP
    return SphericalProfile(dimension=noise.entries, law=noise.law, sensitivity=radius)


@functools.singledispatch
def _rounding_of(noise: Noise, answer: RecordedAnswer) -> float:
    """Return 0: the sum of answer and noise is rounded, which is post-processing."""
    return 0.0


@_rounding_of.register(IidNoise)
def _iid_rounding(noise: IidNoise, answer: RecordedAnswer) -> float:
    """Round the answer, and every further part, to the grid of its noise."""
    own = answer.rules.rounding_l2(answer) / noise.sigma
    if not answer.parts:
        return own
    others = [
        answer.rules.part_rounding(answer, part.name) / _iid(part).sigma for part in answer.parts
    ]
    return math.sqrt(math.fsum(share**2 for share in (own, *others))) * _UP


def _iid(part: RecordedPart) -> IidNoise:
    if not isinstance(part.noise, IidNoise):
        raise InvalidMechanism("the parts of a joint answer take i.i.d. noise; use that")
    return part.noise


@_rounding_of.register(LaplaceNoise)
def _laplace_rounding(noise: LaplaceNoise, answer: RecordedAnswer) -> float:
    """Round the answer to the grid of the noise; in l1, and in scales of the noise."""
    return answer.rules.rounding_l1(answer) / noise.scale


@_rounding_of.register(KroneckerNoise)
def _whitened_rounding(noise: KroneckerNoise, answer: RecordedAnswer) -> float:
    """Whiten the answer in floating point and round it to the whitened grid."""
    keeps_records = answer.rules.keeps_records
    record_axis = answer.record_axis if keeps_records else None
    most = answer.most_records if keeps_records else answer.contributions
    unit = (noise.tensor_shape, mixing_axes(noise.factors), record_axis, most)
    moved = moved_entries(*unit)
    if keeps_records and answer.bound["kind"] == "l2-clip":
        norm = answer.bound["norm"] * math.sqrt(moved_records(*unit))
    else:
        norm = _largest_entry(answer) * math.sqrt(moved)
    increase, _ = whitened_rounding(
        noise.factors,
        steps_per_sigma=answer.grid["steps_per_sigma"],
        moved=moved,
        norm=norm,
        prior_rounding=math.sqrt(answer.entries) * answer.grid.get("answer_step", 0.0),
    )
    return increase


def _largest_entry(answer: RecordedAnswer) -> float:
    """Return the largest absolute value of an entry, by the bounds recorded."""
    if "low" in answer.grid:
        return answer.grid_bound
    if answer.bound["kind"] == "ranges":
        return float(max(abs(end) for pair in answer.bound["ranges"] for end in pair))
    raise InvalidMechanism(
        "an answer without a bound cannot be whitened in floating point; give bounds"
    )

"""Composition: Gaussian histories exactly, everything else through dp-accounting's privacy loss
distributions.

A privacy loss distribution is built from a profile by connecting the dots of its delta(epsilon)
curve (Doroshenko et al. 2022): between grid points the curve is replaced by a chord that lies above
it, so every composed delta is an upper bound.

All our profiles are symmetric in the two neighbours; the curve at negative epsilon follows from
that: delta(-epsilon) = 1 - e^-epsilon (1 - delta(epsilon)).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from dpdask.accounting.gaussian import GaussianProfile
from dpdask.accounting.pure import PureProfile
from dpdask.accounting.radial import radial_law_from_dict
from dpdask.accounting.spherical import SphericalProfile
from dpdask.errors import InvalidMechanism
from dpdask.privacy import Adjacency, PrivacyProfile
from dpdask.types import Json

__all__ = ["ComposedProfile", "SampledProfile", "StepProfile", "compose", "profile_from_dict"]

StepProfile: TypeAlias = GaussianProfile | SphericalProfile | PureProfile
"""The profile of one release of some noise."""

_NEGLIGIBLE = 1e-15  # mass that a privacy loss distribution counts as infinite loss
_GRID_POINTS = 500_000  # of the losses of one step, at most
_RESOLUTION = 1e-14  # of a delta that a privacy loss distribution computes


class LossDistribution(Protocol):
    """What we call of dp-accounting's privacy loss distributions."""

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """An upper bound on delta."""

    def get_epsilon_for_delta(self, delta: float) -> float:
        """An upper bound on epsilon."""

    def self_compose(self, count: int, tail_mass_truncation: float) -> LossDistribution:
        """The distribution of ``count`` independent releases."""

    def compose(self, other: LossDistribution, tail_mass_truncation: float) -> LossDistribution:
        """The distribution of both releases."""


def compose(parts: Iterable[tuple[PrivacyProfile, int]]) -> PrivacyProfile:
    """Return the profile of releasing every part, each ``count`` times, on the same data.

    Guarantee: Gaussian parts compose exactly (``mu^2`` adds, also when later parts are chosen
    adaptively; IMGM Thm 4); a mixture is an upper bound by privacy loss distributions.
    """
    gathered: dict[PrivacyProfile, int] = {}
    for profile, count in parts:
        if count < 1:
            raise InvalidMechanism(
                f"count={count} composes nothing; compose each profile at least once"
            )
        inner = profile.parts if isinstance(profile, ComposedProfile) else ((profile, 1),)
        for part, times in inner:
            gathered[part] = gathered.get(part, 0) + times * count
    squares = [
        count * part.mu**2 for part, count in gathered.items() if isinstance(part, GaussianProfile)
    ]
    others = [
        (part, count) for part, count in gathered.items() if not isinstance(part, GaussianProfile)
    ]
    merged: list[tuple[PrivacyProfile, int]] = []
    if squares:
        merged.append((GaussianProfile(math.sqrt(math.fsum(squares)) * (1 + 1e-15)), 1))
    merged += others
    if not merged:
        raise InvalidMechanism("an empty history has no profile; compose at least one release")
    if len(merged) == 1 and merged[0][1] == 1:
        return merged[0][0]
    return ComposedProfile(tuple(merged))


@dataclass(frozen=True, slots=True)
class SampledProfile:
    """One Poisson-sampled step: a privacy unit takes part with probability ``sampling_rate``.

    Guarantee: exact for Gaussian noise under add/remove-one (dp-accounting) where a privacy unit
    takes part as a whole, an upper bound where some of its records do
    (docs/mechanisms/composition.md). Otherwise the bound ``delta_q(epsilon) = q delta(ln(1 +
    (e^epsilon - 1)/q))`` of Balle, Barthe & Gaboardi 2018 (advanced joint convexity), valid in both
    directions; under replace-one it assumes that leaving a privacy unit's records out of a sample
    moves the query by no more than replacing them does, as for clipped sums.
    """

    step: StepProfile
    sampling_rate: float
    adjacency: Adjacency

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise InvalidMechanism(
                f"sampling_rate={self.sampling_rate:g} is not a valid probability; choose 0 <"
                " sampling_rate <= 1"
            )

    def delta(self, epsilon: float) -> float:
        """The smallest delta at ``epsilon`` that the bound gives, rounded up."""
        inner = _inner_epsilon(epsilon, self.sampling_rate)
        return min(1.0, self.sampling_rate * self.step.delta(inner))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at ``delta`` that the bound gives, rounded up."""
        if delta >= self.sampling_rate:
            return 0.0
        inner = self.step.epsilon(delta / self.sampling_rate)
        if inner > 700:
            return inner
        return math.log1p(self.sampling_rate * math.expm1(inner)) * (1 + 1e-15)

    def to_dict(self) -> Json:
        """``{"name": "sampled", "configuration": ...}``."""
        return {
            "name": "sampled",
            "configuration": {
                "step": self.step.to_dict(),
                "sampling_rate": self.sampling_rate,
                "adjacency": str(self.adjacency),
            },
        }


def _inner_epsilon(epsilon: float, rate: float) -> float:
    if epsilon > 600:
        return epsilon - math.log(rate)
    return math.log1p(math.expm1(epsilon) / rate)


@dataclass(frozen=True, slots=True)
class ComposedProfile:
    """Several profiles released on the same data, composed by privacy loss distributions; see
    :func:`compose`.
    """

    parts: tuple[tuple[PrivacyProfile, int], ...]

    def __post_init__(self) -> None:
        for part, count in self.parts:
            most = 10_000 if _is_slow(part) else 10_000_000
            if count > most:
                raise InvalidMechanism(
                    f"{count} steps of {part.to_dict()['name']} noise are more than the {most}"
                    " that can be composed;"
                    " use analytic-gaussian without sampling, which composes exactly"
                )

    def delta(self, epsilon: float) -> float:
        """An upper bound on delta at ``epsilon``."""
        try:
            delta = float(_loss_distribution(self.parts).get_delta_for_epsilon(epsilon))
        except (ValueError, ZeroDivisionError):  # all of the mass lies at infinity
            return 1.0
        return min(1.0, delta * (1 + 1e-9) + _RESOLUTION) if math.isfinite(delta) else 1.0

    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon at ``delta``; infinite below the resolution of the
        distribution.
        """
        if delta <= _RESOLUTION:
            return math.inf
        target = (delta - _RESOLUTION) / (1 + 1e-9)
        try:
            epsilon = float(_loss_distribution(self.parts).get_epsilon_for_delta(target))
        except (ValueError, ZeroDivisionError):
            return math.inf
        return math.inf if math.isnan(epsilon) else epsilon

    def to_dict(self) -> Json:
        """``{"name": "composed", "configuration": {"parts": [...]}}``."""
        return {
            "name": "composed",
            "configuration": {
                "parts": [{"profile": part.to_dict(), "count": count} for part, count in self.parts]
            },
        }


@functools.lru_cache(maxsize=64)
def _loss_distribution(parts: tuple[tuple[PrivacyProfile, int], ...]) -> LossDistribution:
    """Return the composed privacy loss distribution of ``parts`` on one common grid."""
    reach = max(_reach(part) for part, _ in parts)
    interval = max(min(1e-4, reach / 2000), reach / _GRID_POINTS)
    total: LossDistribution | None = None
    for part, count in parts:
        single = _single(part, interval)
        many = single
        if count > 1:
            many = single.self_compose(count, tail_mass_truncation=_NEGLIGIBLE)
        total = many if total is None else total.compose(many, tail_mass_truncation=_NEGLIGIBLE)
    assert total is not None
    return total


def _reach(profile: PrivacyProfile) -> float:
    """Return an epsilon beyond which so little delta is left that it may count as infinite loss."""
    if isinstance(profile, SampledProfile):
        return max(1e-9, min(profile.epsilon(_NEGLIGIBLE), 200.0))
    if isinstance(profile, SphericalProfile):
        return max(1e-9, min(profile.epsilon(1e-12), 200.0))
    return max(1e-9, min(profile.epsilon(_NEGLIGIBLE), 2000.0))


def _single(profile: PrivacyProfile, interval: float) -> LossDistribution:
    """Return the privacy loss distribution of one release."""
    if isinstance(profile, GaussianProfile):
        return _gaussian_loss(profile, interval, sampling_rate=1.0)
    if (
        isinstance(profile, SampledProfile)
        and isinstance(profile.step, GaussianProfile)
        and profile.adjacency is Adjacency.ADD_REMOVE_ONE
    ):
        return _gaussian_loss(profile.step, interval, sampling_rate=profile.sampling_rate)
    return _loss_of_curve(profile, interval)


def _gaussian_loss(
    profile: GaussianProfile, interval: float, *, sampling_rate: float
) -> LossDistribution:
    """Return the privacy loss distribution of Poisson-sampled Gaussian noise."""
    from dp_accounting.pld import privacy_loss_distribution

    distribution: LossDistribution = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=1 / profile.mu,
        value_discretization_interval=interval,
        sampling_prob=sampling_rate,
    )
    return distribution


def _loss_of_curve(profile: PrivacyProfile, interval: float) -> LossDistribution:
    """Return a privacy loss distribution whose delta(epsilon) lies above the profile's."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    smooth_points = 160 if _is_slow(profile) else 2000
    steps = max(2, math.ceil(_reach(profile) / interval))
    grid = np.unique(np.round(np.geomspace(1, steps, smooth_points)).astype(int))
    positive = np.array([profile.delta(float(point) * interval) for point in grid])
    at_zero = max(profile.delta(0.0), float(positive[0]))
    positive = np.minimum.accumulate(np.concatenate([[at_zero], positive]))
    epsilons = np.concatenate([[0], grid])
    mirrored = 1 - np.exp(-epsilons[:0:-1] * interval) * (1 - positive[:0:-1])
    rounded = np.concatenate([-epsilons[:0:-1], epsilons])
    deltas = np.minimum.accumulate(np.concatenate([mirrored, positive]))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(interval, rounded, deltas)
    distribution: LossDistribution = privacy_loss_distribution.PrivacyLossDistribution(pmf)
    return distribution


def _is_slow(profile: PrivacyProfile) -> bool:
    return isinstance(profile, SphericalProfile) or (
        isinstance(profile, SampledProfile) and isinstance(profile.step, SphericalProfile)
    )


def _spherical_from_dict(configuration: Json) -> SphericalProfile:
    return SphericalProfile(
        dimension=configuration["dimension"],
        law=radial_law_from_dict(configuration["radius"]),
        sensitivity=configuration["sensitivity"],
    )


def _sampled_from_dict(configuration: Json) -> SampledProfile:
    step = profile_from_dict(configuration["step"])
    if not isinstance(step, (GaussianProfile, SphericalProfile, PureProfile)):
        raise InvalidMechanism(
            f"a sampled step of kind {configuration['step']['name']!r} is unknown; use gaussian,"
            " spherical or pure"
        )
    adjacency = Adjacency(configuration["adjacency"])
    return SampledProfile(step, configuration["sampling_rate"], adjacency)


def _composed_from_dict(configuration: Json) -> ComposedProfile:
    parts = configuration["parts"]
    return ComposedProfile(
        tuple((profile_from_dict(part["profile"]), part["count"]) for part in parts)
    )


_FROM_DICT: dict[str, Callable[[Json], PrivacyProfile]] = {
    "gaussian": lambda configuration: GaussianProfile(configuration["mu"]),
    "pure": lambda configuration: PureProfile(configuration["epsilon"]),
    "spherical": _spherical_from_dict,
    "sampled": _sampled_from_dict,
    "composed": _composed_from_dict,
}


def profile_from_dict(description: Json) -> PrivacyProfile:
    """Return the profile that ``to_dict`` wrote; floats survive JSON exactly."""
    name = description["name"]
    if name not in _FROM_DICT:
        raise InvalidMechanism(f"profile {name!r} is unknown; use {', '.join(_FROM_DICT)}")
    return _FROM_DICT[name](description["configuration"])

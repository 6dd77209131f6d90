"""What a release is charged across adaptively chosen releases: a Gaussian, and a mass, that lie
above its whole profile.

Privacy loss distributions compose what is fixed in advance. A ledger admits releases that are
chosen after earlier results were seen, and there only filters are valid: Gaussian releases whose
mu^2 add up to at most a bound are together as private as one Gaussian with that mu^2, however they
were chosen (Smith & Thakurta 2022; Koskela, Tobaben & Honkela 2023). So every release is charged a
pair (mu, delta0) with

    delta(epsilon) <= delta0 + (1 - delta0) G_mu(epsilon)   for all epsilon,

G_mu the profile of a Gaussian. The right side belongs to the mechanism that reveals everything with
probability delta0 and is a Gaussian one otherwise. By Blackwell's theorem the release is a
post-processing of it, so releases together are a post-processing of Gaussians with the summed mu^2,
but for an event of probability at most the sum of the delta0: mu^2 and delta0 add up. Profiles
bound both directions of a pair of neighbours, and both sides follow the same rule delta(-epsilon) =
1 - e^-epsilon (1 - delta(epsilon)), so epsilon >= 0 suffices.

The least mu is computed without sampling error. A profile is convex in x = e^epsilon, so between
two points it lies below their chord. G_mu minus a chord is convex in x too, with derivative
-Phi(-mu/2 - epsilon/mu) minus the chord's, so its least value lies where both agree, which is a
closed formula: one check proves the bound on the whole interval. Beyond the last point the profile
is at most delta0.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

from scipy import special

from dpdask.accounting.gaussian import GaussianProfile, gaussian_log_delta
from dpdask.accounting.pure import PureProfile
from dpdask.accounting.radial import Chi, Gamma
from dpdask.accounting.rounding import DELTA_SLACK
from dpdask.accounting.spherical import SphericalProfile
from dpdask.errors import InvalidBudget, OutOfReach
from dpdask.privacy import PrivacyProfile
from dpdask.types import Json

__all__ = ["Dominated", "dominating_gaussian"]

_PER_OCTAVE = 4  # epsilons at which a profile is looked at first
_OCTAVES = 6
_ROUNDS = 8  # of refinement where the bound is tight
_LARGEST = 2.0**20


@dataclass(frozen=True, slots=True)
class Dominated:
    """A Gaussian profile with ``mu`` beside a mass ``delta`` that is lost: what a release, or many
    together, are charged.
    """

    mu: float
    delta0: float

    def __post_init__(self) -> None:
        if not (0 <= self.mu < math.inf and 0 <= self.delta0 <= 1):
            raise InvalidBudget(
                f"mu={self.mu:g}, delta0={self.delta0:g} is not a valid charge; choose mu >= 0,"
                " 0 <= delta0 <= 1"
            )

    def delta(self, epsilon: float) -> float:
        """The smallest delta at ``epsilon``, rounded up."""
        gaussian = GaussianProfile(self.mu).delta(epsilon) if self.mu else 0.0
        return (
            gaussian if self.delta0 == 0 else min(1.0, math.nextafter(self.delta0 + gaussian, 2.0))
        )

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at ``delta``, rounded up; infinite where ``delta0`` alone takes all
        of it.
        """
        if self.mu == 0 and self.delta0 == 0:
            return 0.0  # nothing was lost, at any delta
        left = delta if self.delta0 == 0 else math.nextafter(delta - self.delta0, 0.0)
        if left <= 0:
            return math.inf
        return GaussianProfile(self.mu).epsilon(left) if self.mu else 0.0

    def to_dict(self) -> Json:
        """``{"name": "dominated", "configuration": {"mu": ..., "delta0": ...}}``."""
        return {"name": "dominated", "configuration": {"mu": self.mu, "delta0": self.delta0}}


def dominating_gaussian(profile: PrivacyProfile, *, delta0: float) -> Dominated:
    """Return the least charge of a release with this profile, when ``delta0`` of it may be lost.

    Guarantee: ``delta0 + (1 - delta0) G_mu`` lies above the profile at every epsilon. A Gaussian is
    charged its own mu and no delta0. Raises :class:`OutOfReach` where the profile stays above
    ``delta0``, so that no Gaussian dominates it.
    """
    if not 0 <= delta0 < 1:
        raise InvalidBudget(
            f"delta0={delta0:g} is not a probability below 1; choose 0 <= delta0 < 1"
        )
    return _dominating(profile, delta0)  # type: ignore[arg-type]  # profiles are frozen values, which hash


@functools.lru_cache(maxsize=4096)
def _dominating(profile: PrivacyProfile, delta0: float) -> Dominated:
    if isinstance(profile, GaussianProfile):
        return Dominated(profile.mu, 0.0)
    if isinstance(profile, SphericalProfile) and isinstance(
        profile.law, Chi
    ):  # Gaussian noise by another name
        return Dominated(profile.sensitivity / profile.law.scale * (1 + 1e-15), 0.0)
    last = _last_epsilon(profile, delta0)
    if last == 0:
        return Dominated(0.0, delta0)
    points = [
        0.0,
        *(last * 2 ** (-step / _PER_OCTAVE) for step in range(_PER_OCTAVE * _OCTAVES, -1, -1)),
    ]
    curve = {point: profile.delta(point) for point in points}
    mu, tight = _cover(curve, delta0)
    for _ in range(_ROUNDS):
        for left, right in tight:
            middle = (left + right) / 2
            if left < middle < right:
                curve[middle] = profile.delta(middle)
        finer, tight = _cover(curve, delta0)
        if finer > mu * (1 - 1e-5):
            break
        mu = finer
    return Dominated(min(mu, finer), delta0)


def _last_epsilon(profile: PrivacyProfile, delta0: float) -> float:
    """An epsilon, from which on the profile is at most ``delta0``; not much larger than need be."""
    if isinstance(profile, PureProfile):
        return profile.largest_loss
    if isinstance(profile, SphericalProfile) and isinstance(profile.law, Gamma):
        largest = profile.sensitivity / profile.law.scale * (1 + 1e-12)  # no loss is larger
        if profile.delta(largest) <= delta0:
            return largest
    refusal = OutOfReach(
        f"no Gaussian lies above this {profile.to_dict()['name']} profile but for a mass of"
        f" {delta0:g};"
        " choose analytic-gaussian, or a larger delta"
    )
    if delta0 == 0:  # its losses are not bounded, or nobody proved it
        raise refusal
    if profile.delta(0.0) <= delta0:
        return 0.0
    step = 2 ** (1 / _PER_OCTAVE)
    epsilon = 1.0
    while profile.delta(epsilon) > delta0:
        epsilon *= step
        if epsilon > _LARGEST:
            raise refusal
    while epsilon > 1e-9 and profile.delta(epsilon / step) <= delta0:
        epsilon /= step
    return epsilon


def _cover(curve: dict[float, float], delta0: float) -> tuple[float, list[tuple[float, float]]]:
    """The least mu that covers every chord of the curve, and the intervals around the one that
    decided it.
    """
    points = sorted(curve)
    intervals = list(itertools.pairwise(points))
    distance = max(0.0, (curve[0.0] - delta0) / (1 - delta0))  # in total variation
    mu = max(1e-9, 2 * float(special.ndtri((1 + min(distance, 1 - 1e-16)) / 2)) * (1 - 1e-9))
    decided = 0
    for number, (left, right) in enumerate(intervals):
        chord = _Chord(left, right, curve[left], curve[right], delta0)
        if not chord.covered(mu):
            mu, decided = chord.least_mu(mu), number
    return mu, intervals[max(decided - 1, 0) : decided + 2]


@dataclass(frozen=True, slots=True)
class _Chord:
    """A straight line in e^epsilon between two points of a profile."""

    left: float
    right: float
    high: float
    low: float
    delta0: float

    def _worst(self, mu: float) -> float:
        """The epsilon at which a Gaussian comes closest to the chord: where their slopes in
        e^epsilon agree.
        """
        fall = self.high - self.low
        if fall <= 0:
            return self.right
        log_slope = (
            math.log(fall / (1 - self.delta0)) - _log_expm1(self.right - self.left) - self.left
        )
        if log_slope >= 0:
            return self.left
        touching = -mu * (float(special.ndtri_exp(log_slope)) + mu / 2)
        return min(max(touching, self.left), self.right)

    def _needed(self, epsilon: float) -> float:
        """What the Gaussian must reach at ``epsilon``, rounded up."""
        share = (
            math.exp(_log_expm1(epsilon - self.left) - _log_expm1(self.right - self.left))
            if epsilon > self.left
            else 0.0
        )
        height = self.high - (self.high - self.low) * min(1.0, share)
        return (height * (1 + 1e-14) - self.delta0) / (1 - self.delta0)

    def covered(self, mu: float) -> bool:
        """Whether the Gaussian lies above the chord, its numerical error taken off."""
        for epsilon in {self._worst(mu), self.left, self.right}:
            needed = self._needed(epsilon)
            if needed > 0 and gaussian_log_delta(mu, epsilon) < math.log(needed) + 2 * DELTA_SLACK:
                return False
        return True

    def least_mu(self, low: float) -> float:
        """The least mu that covers, from above; ``low`` does not."""
        high = low * 2
        while not self.covered(high):
            low, high = high, high * 2
            if high > _LARGEST:
                raise OutOfReach(
                    "the profile is as good as no privacy, and no Gaussian lies above it;"
                    " release less"
                )
        while high > low * (1 + 1e-7):
            middle = (low + high) / 2
            low, high = (low, middle) if self.covered(middle) else (middle, high)
        return high


def _log_expm1(width: float) -> float:
    return width + math.log(-math.expm1(-width)) if width > 1 else math.log(math.expm1(width))

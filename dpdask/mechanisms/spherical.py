"""Spherical noise R v, with a random radius R and a direction v that is uniform on the sphere:
rank-one noise (R1SMG, Ji & Li) with its exact calibration, and the l2 K-norm mechanism.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq

from dpdask.accounting import Gamma, HalfNormal, SphericalProfile
from dpdask.accounting.radial import gamma_ratio
from dpdask.accounting.rounding import CALIBRATION_SLACK
from dpdask.errors import InvalidMechanism, OutOfReach
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.noise import SphericalNoise
from dpdask.privacy import Guarantee, PrivacyBudget
from dpdask.sensitivity import SensitivitySet
from dpdask.types import Shape

__all__ = ["SPHERICAL_DOUBT", "k_norm", "paper_psi", "rank_one"]

SPHERICAL_DOUBT = (
    "spherical noise is scaled in floating point and lies on a lattice, which its"
    " profile does not cover"
)

_UP = 1 + 1e-14


def paper_psi(*, dimension: int, delta: float) -> float:
    """Return psi of R1SMG Thm 5: (delta Gamma((M-1)/2) / (sqrt(pi) Gamma(M/2)))^(2/(M-2))."""
    n = (dimension - 1) / 2
    log_ratio = (
        math.log(delta) - 0.5 * math.log(math.pi) - math.log(gamma_ratio(n)) - 0.5 * math.log(n)
    )
    return math.exp(2 / (dimension - 2) * log_ratio)


def rank_one(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    calibration: str = "exact",
    steps: Steps = Steps(),
) -> Calibration:
    """Return noise sqrt(sigma_star) |z| v along one random direction v, with z standard normal.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step; s is its radius.
        shape: The shape of the tensor, of M > 2 entries.
        calibration: ``exact``, or ``paper`` for sigma_star = 2 s^2 / (epsilon psi) as printed.
        steps: How many steps share the budget.

    Guarantee: with ``exact``, sigma_star solves delta(epsilon) = delta for the exact profile of the
    ideal vector; the vector that is drawn is a floating-point approximation of it, so it is not
    certified. With ``paper`` (R1SMG Thm 5) none: the published guarantee is false.
    """
    dimension = math.prod(shape)
    if dimension <= 2:
        raise InvalidMechanism(
            f"M={dimension} entries are too few for rank-one noise, which needs M > 2; use"
            " analytic-gaussian"
        )
    if calibration not in _RANK_ONE:
        raise InvalidMechanism(f"calibration {calibration!r} is unknown; choose exact or paper")
    scale, theorem, quantities, warnings = _RANK_ONE[calibration](
        budget, dimension, sensitivity.radius, steps
    )
    law = HalfNormal(scale)
    profile = SphericalProfile(dimension=dimension, law=law, sensitivity=sensitivity.radius * _UP)
    return Calibration(
        noise=SphericalNoise(shape, law),
        guarantee=Guarantee(
            claimed=budget,
            theorem=theorem,
            verified=steps.compose(profile, sensitivity.adjacency),
            doubt=SPHERICAL_DOUBT,
        ),
        quantities=quantities,
        warnings=warnings,
    )


_RankOne = tuple[float, str, dict[str, float], tuple[str, ...]]
"""The scale sqrt(sigma_star), the theorem, its quantities and warnings."""


def _rank_one_exact(
    budget: PrivacyBudget, dimension: int, sensitivity: float, steps: Steps
) -> _RankOne:
    scale = _exact_scale(steps.basic_step(budget), dimension, sensitivity)
    theorem = "exact spherical profile" + steps.suffix("basic composition")
    return scale, theorem, {"sigma_star": scale**2}, ()


def _rank_one_paper(
    budget: PrivacyBudget, dimension: int, sensitivity: float, steps: Steps
) -> _RankOne:
    step = steps.strong_step(budget)
    psi = paper_psi(dimension=dimension, delta=step.delta)
    sigma_star = 2 * sensitivity**2 / (step.epsilon * psi)
    theorem = "R1SMG Thm 5 (disproved)" + steps.suffix("strong composition (R1SMG eq. 16)")
    warnings: tuple[str, ...] = (
        "the published guarantee of rank-one noise is false; use calibration: exact for any real"
        " release",
    )
    if step.epsilon >= 1 / dimension:
        warnings += (
            f"epsilon={step.epsilon:g} is not below 1/M = {1 / dimension:g}, as the R1SMG paper"
            " requires; recorded as claimed",
        )
    return math.sqrt(sigma_star), theorem, {"psi": psi, "sigma_star": sigma_star}, warnings


_RANK_ONE = {"exact": _rank_one_exact, "paper": _rank_one_paper}


def _exact_scale(budget: PrivacyBudget, dimension: int, sensitivity: float) -> float:
    """Return the least sqrt(sigma_star) whose exact profile meets ``budget``.

    delta falls as 1/scale for large scales, so the search cannot run away.
    """
    target = math.log(budget.delta) + math.log1p(-CALIBRATION_SLACK)

    def excess(log_scale: float) -> float:
        profile = SphericalProfile(
            dimension=dimension, law=HalfNormal(math.exp(log_scale)), sensitivity=1.0
        )
        return profile.log_delta(budget.epsilon) - target

    low = 0.5 * math.log(dimension / budget.epsilon) - 3
    high = low + max(2.0, excess(low))
    while excess(low) <= 0:
        low, high = low - 4, low
    while excess(high) > 0:
        low, high = high, high + max(1.0, excess(high))
    log_scale = float(brentq(excess, low, high, xtol=1e-12, rtol=1e-14, maxiter=200))
    while excess(log_scale) > 0:
        log_scale += 1e-11
    if log_scale + math.log(sensitivity) > 350:
        raise OutOfReach(
            f"rank-one noise at epsilon={budget.epsilon:g}, delta={budget.delta:g} needs a"
            " sigma_star above 1e300; use analytic-gaussian"
        )
    return math.exp(log_scale) * sensitivity * (1 + 1e-12)


def k_norm(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    steps: Steps = Steps(),
) -> Calibration:
    """Return noise n with density proportional to exp(-epsilon ||n|| / s).

    Args:
        budget: epsilon of all steps together; delta is not used.
        sensitivity: What one privacy unit can change in one step; s is its radius.
        shape: The shape of the tensor, of at least two entries.
        steps: How many steps share the budget, by basic composition.

    Guarantee: pure epsilon-DP in exact arithmetic (Hardt & Talwar 2010). The vector that is drawn
    is a floating-point approximation, so it is not certified.
    """
    dimension = math.prod(shape)
    if dimension < 2:
        raise InvalidMechanism(
            "M=1 entry has no direction; k-norm noise needs M >= 2; use analytic-gaussian"
        )
    scale = sensitivity.radius / (budget.epsilon / steps.count) * (1 + 1e-12)
    law = Gamma(scale)
    profile = SphericalProfile(dimension=dimension, law=law, sensitivity=sensitivity.radius * _UP)
    return Calibration(
        noise=SphericalNoise(shape, law),
        guarantee=Guarantee(
            claimed=budget,
            theorem="Hardt & Talwar 2010, K-norm" + steps.suffix("basic composition"),
            verified=steps.compose(profile, sensitivity.adjacency),
            doubt=SPHERICAL_DOUBT,
        ),
        quantities={"scale": scale},
    )

"""Gaussian noise, i.i.d. or with Kronecker factors: the classic, analytic and IMGM mechanisms.

Notation: s is the l2 sensitivity sup ||D|| over the sensitivity set, W the whitening map of the
noise (the inverse of its factors), and mu = sup ||W D|| the parameter of its exact profile.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from dpdask.accounting import GaussianProfile
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.noise import Factor, IidNoise, KroneckerNoise
from dpdask.privacy import Guarantee, PrivacyBudget
from dpdask.sensitivity import SensitivitySet
from dpdask.types import Shape

__all__ = [
    "analytic_gaussian",
    "check_factors",
    "classic_gaussian",
    "exact_suffix",
    "gaussian_mu",
    "imgm",
    "verified_gaussian",
]

_UP = 1 + 1e-14


def check_factors(factors: Sequence[Factor], shape: Sequence[int]) -> tuple[Factor, ...]:
    """Return the factors, which must fit the axes of ``shape`` one by one."""
    sizes = tuple(factor.size for factor in factors)
    if sizes != tuple(shape):
        raise InvalidMechanism(
            f"factors of sizes {sizes} do not fit shape {tuple(shape)}; give one factor per axis"
        )
    return tuple(factors)


def gaussian_mu(noise: IidNoise | KroneckerNoise, sensitivity: SensitivitySet) -> float:
    """Return mu = sup ||W D||, the parameter of the noise's exact profile, rounded up."""
    if isinstance(noise, IidNoise):
        return sensitivity.radius / noise.sigma * _UP
    return sensitivity.whitened(noise.factors)


def verified_gaussian(
    *,
    noise: IidNoise | KroneckerNoise,
    sensitivity: SensitivitySet,
    budget: PrivacyBudget,
    theorem: str,
    steps: Steps,
    quantities: Mapping[str, float],
) -> Calibration:
    """Return Gaussian noise with what a theorem claims of it and its exact profile.

    Args:
        noise: The noise.
        sensitivity: What one privacy unit can change in one step.
        budget: The claimed budget of all steps together.
        theorem: The theorem that claims it.
        steps: How many steps share the budget.
        quantities: The theorem's quantities; ``mu`` is added to them.

    Guarantee: the verified profile is exact for mu = sup ||W D||, rounded up.
    """
    mu = gaussian_mu(noise, sensitivity)
    return Calibration(
        noise=noise,
        guarantee=Guarantee(
            claimed=budget,
            theorem=theorem,
            verified=steps.compose(GaussianProfile(mu), sensitivity.adjacency),
        ),
        quantities={**quantities, "mu": mu},
    )


def classic_gaussian(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    steps: Steps = Steps(),
) -> Calibration:
    """Return i.i.d. Gaussian noise of standard deviation s sqrt(2 ln(1.25/delta)) / epsilon.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step; s is its radius.
        shape: The shape of the tensor.
        steps: How many steps share the budget, by strong composition.

    Guarantee: sufficient (Dwork & Roth 2014, Thm A.1) for epsilon < 1, where the verified profile
    is strictly better. From 1 on the formula is not a theorem, and the verified profile alone
    decides whether the noise is certified.
    """
    step = steps.strong_step(budget)
    theorem = "Dwork & Roth 2014, Thm A.1"
    warnings: tuple[str, ...] = ()
    if step.epsilon >= 1:
        theorem = "formula of Dwork & Roth 2014, Thm A.1, beyond its epsilon < 1"
        warnings = (
            f"epsilon={step.epsilon:g} is outside the classic theorem, which needs epsilon < 1;"
            " its verified profile decides",
        )
    sigma = sensitivity.radius * math.sqrt(2 * math.log(1.25 / step.delta)) / step.epsilon * _UP
    calibration = verified_gaussian(
        noise=IidNoise(shape, sigma),
        sensitivity=sensitivity,
        budget=budget,
        theorem=theorem + steps.suffix("strong composition (R1SMG eq. 16)"),
        steps=steps,
        quantities={"sigma": sigma},
    )
    return dataclasses.replace(calibration, warnings=warnings)


def analytic_gaussian(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    steps: Steps = Steps(),
) -> Calibration:
    """Return the least i.i.d. Gaussian noise that meets ``budget``: sigma = s / mu, where mu solves
    Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) = delta.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step; s is its radius.
        shape: The shape of the tensor.
        steps: How many steps share the budget, by exact composition.

    Guarantee: exact (Balle & Wang 2018, Thm 8 = IMGM Alg 1; IMGM Thm 4 for several steps);
    delta(epsilon) of the noise equals ``budget.delta`` up to conservative rounding.
    """
    mu = steps.step_mu(budget, sensitivity.adjacency)
    sigma = sensitivity.radius / mu * _UP
    return verified_gaussian(
        noise=IidNoise(shape, sigma),
        sensitivity=sensitivity,
        budget=budget,
        theorem="Balle & Wang 2018, Thm 8 = IMGM Alg 1" + exact_suffix(steps),
        steps=steps,
        quantities={"sigma": sigma},
    )


def imgm(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    factors: Sequence[Factor] | None = None,
    steps: Steps = Steps(),
) -> Calibration:
    """Return the least multiple of Kronecker factors that meets ``budget``: sup ||W D|| = mu, with
    mu as for :func:`analytic_gaussian`, which it is without factors.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step.
        shape: The shape of the tensor.
        factors: One factor per axis, up to a common scale.
        steps: How many steps share the budget, by exact composition.

    Guarantee: exact on every sensitivity set (IMGM Thm 2). On an l2 ball no factors have a smaller
    error than i.i.d. noise.
    """
    if factors is None:
        return analytic_gaussian(budget=budget, sensitivity=sensitivity, shape=shape, steps=steps)
    shaped = check_factors(factors, shape)
    mu = steps.step_mu(budget, sensitivity.adjacency)
    scale = sensitivity.whitened(shaped) / mu * _UP
    noise = KroneckerNoise((shaped[0].times(scale), *shaped[1:]))
    return verified_gaussian(
        noise=noise,
        sensitivity=sensitivity,
        budget=budget,
        theorem="IMGM Thm 2" + exact_suffix(steps),
        steps=steps,
        quantities={"scale": scale},
    )


def exact_suffix(steps: Steps) -> str:
    """Return what to append to the theorem of exactly calibrated Gaussian steps."""
    return steps.suffix(
        "exact composition (IMGM Thm 4)"
        if steps.sampling_rate is None
        else "privacy loss distributions"
    )

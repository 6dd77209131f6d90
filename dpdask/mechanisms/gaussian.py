"""Independent and Kronecker-shaped Gaussian noise at the exact privacy price: classic, analytic,
IMGM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dpdask.accounting import GaussianProfile
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.noise import Factor, IidNoise, KroneckerNoise
from dpdask.privacy import Guarantee, PrivacyBudget
from dpdask.sensitivity import SensitivitySet

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
    """The factors, one per axis of ``shape`` and of its length."""
    sizes = tuple(factor.size for factor in factors)
    if sizes != tuple(shape):
        raise InvalidMechanism(
            f"factors of sizes {sizes} do not fit shape {tuple(shape)}; give one factor per axis"
        )
    return tuple(factors)


def gaussian_mu(noise: IidNoise | KroneckerNoise, sensitivity: SensitivitySet) -> float:
    """mu of the noise really added: the furthest the whitened body reaches, rounded up."""
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
    calibration: Mapping[str, float],
) -> Calibration:
    """Any Gaussian noise with its claim and the exact profile of what is added."""
    mu = gaussian_mu(noise, sensitivity)
    return Calibration(
        noise=noise,
        guarantee=Guarantee(
            claimed=budget,
            theorem=theorem,
            verified=steps.compose(GaussianProfile(mu), sensitivity.adjacency),
        ),
        calibration={**calibration, "mu": mu},
    )


def classic_gaussian(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    steps: Steps = Steps(),
) -> Calibration:
    """i.i.d. noise by the textbook formula ``sigma = s sqrt(2 ln(1.25/delta)) / epsilon`` (Dwork &
    Roth 2014, Thm A.1).

    Guarantee: sufficient, for epsilon < 1 only; the verified profile is strictly better.
    """
    step = steps.strong_step(budget)
    if step.epsilon >= 1:
        raise InvalidMechanism(
            f"epsilon={step.epsilon:g} is outside the classic theorem, which needs epsilon < 1;"
            " use analytic-gaussian"
        )
    sigma = sensitivity.radius * math.sqrt(2 * math.log(1.25 / step.delta)) / step.epsilon * _UP
    return verified_gaussian(
        noise=IidNoise(shape, sigma),
        sensitivity=sensitivity,
        budget=budget,
        theorem="Dwork & Roth 2014, Thm A.1" + steps.suffix("strong composition (R1SMG eq. 16)"),
        steps=steps,
        calibration={"sigma": sigma},
    )


def analytic_gaussian(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    steps: Steps = Steps(),
) -> Calibration:
    """The least i.i.d. Gaussian noise that honours ``budget`` (Balle & Wang 2018, Thm 8; IMGM Alg
    1, Thm 4).

    Guarantee: exact; delta(epsilon) of the noise equals ``budget.delta`` up to rounding towards
    privacy.
    """
    mu = steps.step_mu(budget, sensitivity.adjacency)
    sigma = sensitivity.radius / mu * _UP
    return verified_gaussian(
        noise=IidNoise(shape, sigma),
        sensitivity=sensitivity,
        budget=budget,
        theorem="Balle & Wang 2018, Thm 8 = IMGM Alg 1" + exact_suffix(steps),
        steps=steps,
        calibration={"sigma": sigma},
    )


def imgm(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    factors: Sequence[Factor] | None = None,
    steps: Steps = Steps(),
) -> Calibration:
    """The least multiple of given Kronecker factors that honours ``budget`` (IMGM Thm 2); i.i.d.
    without factors.

    Guarantee: exact on every body: ``mu = sup ||W D||``. On an l2 ball no factors beat i.i.d.
    noise.
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
        calibration={"scale": scale},
    )


def exact_suffix(steps: Steps) -> str:
    """How exactly calibrated Gaussian steps compose."""
    return steps.suffix(
        "exact composition (IMGM Thm 4)"
        if steps.sampling_rate is None
        else "privacy loss distributions"
    )

"""The matrix-variate Gaussian mechanism (MVG; Chanyaswad, Dytso, Poor & Mittal, full version).

A matrix f of m rows and n columns gets noise with row covariance Sigma and column covariance Psi.
Both theorems bound the precision ||sigma(Sigma^-1)|| ||sigma(Psi^-1)|| <= phi^2; how it is shared
among directions is the user's choice:

    unimodal (Alg 1):   one axis has directional noise; precisions p_i with sum p_i <= phi^4 / n,
                        variances 1/sqrt(p_i)
    equi-modal (Alg 2): both axes have the same covariance; sum p_i <= phi^2

A tensor is the matrix of its unfolding along ``axis``: m rows, n = M/m columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from dpdask.errors import InvalidMechanism
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.mechanisms.gaussian import check_factors, verified_gaussian
from dpdask.mechanisms.reproductions.mvg_allocation import Allocation, Uniform
from dpdask.noise import Factor, KroneckerNoise, ScaledIdentity
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import SensitivitySet
from dpdask.types import Shape

__all__ = ["mvg", "precision_bound"]

_UP, _DOWN = 1 + 1e-14, 1 - 1e-13
_STRONG = "strong composition (R1SMG eq. 16)"


def _harmonic(r: int) -> float:
    """Return 1 + 1/2 + ... + 1/r, rounded up."""
    return float(special.digamma(r + 1) + np.euler_gamma) * (1 + 1e-13)


def _harmonic_half(r: int) -> float:
    """Return 1 + 2^-1/2 + ... + r^-1/2, rounded up (Euler-Maclaurin beyond 10,000 terms)."""
    if r <= 10_000:
        return math.fsum(1 / np.sqrt(np.arange(1, r + 1))) * (1 + 1e-13)
    zeta_half = -1.4603545088095868  # the Riemann zeta function at 1/2
    return (2 * math.sqrt(r) + zeta_half + 0.5 / math.sqrt(r) - 1 / (24 * r * math.sqrt(r))) * (
        1 + 1e-12
    )


def precision_bound(
    *,
    theorem: str,
    rows: int,
    columns: int,
    budget: PrivacyBudget,
    sensitivity: float,
    gamma: float,
) -> float:
    """Return phi^2, the bound of MVG's Thm 2 or Thm 3 on ||sigma(Sigma^-1)|| ||sigma(Psi^-1)||.

    Args:
        theorem: ``general`` (Thm 2), or ``psd`` (Thm 3) for positive semi-definite queries.
        rows: m.
        columns: n.
        budget: (epsilon, delta).
        sensitivity: The l2 sensitivity.
        gamma: sup ||f||.
    """
    entries = rows * columns
    log_delta = -math.log(budget.delta)
    zeta = 2 * math.sqrt(entries * log_delta) + 2 * log_delta + entries
    r = min(rows, columns)
    h = _harmonic(r)
    if theorem == "general":
        if gamma < sensitivity / 2 * (1 - 1e-12):
            raise InvalidMechanism(
                f"gamma={gamma:g} is below half the sensitivity {sensitivity:g}, yet sup||f||"
                " cannot be; give the true bound on ||f||"
            )
        alpha = (h + _harmonic_half(r)) * gamma**2 + 2 * h * gamma * sensitivity
        beta = 2 * math.sqrt(math.sqrt(entries)) * zeta * h * sensitivity
    elif theorem == "psd":
        if rows != columns:
            raise InvalidMechanism(
                f"a {rows} x {columns} query is not symmetric, as theorem psd needs; use"
                " theorem: general"
            )
        if gamma < sensitivity / math.sqrt(2) * (1 - 1e-12):
            raise InvalidMechanism(
                f"gamma={gamma:g} is below {sensitivity / math.sqrt(2):g}, the least sup||f|| of"
                " a positive semi-definite query"
                f" with sensitivity {sensitivity:g}; give the true bound on ||f||"
            )
        alpha = 4 * h * gamma * sensitivity
        beta = 2 * math.sqrt(r) * zeta * h * sensitivity
    else:
        raise InvalidMechanism(f"theorem {theorem!r} is unknown; choose general or psd")
    phi = 4 * budget.epsilon / (beta + math.sqrt(beta**2 + 8 * alpha * budget.epsilon))
    return phi**2


def mvg(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    gamma: float,
    theorem: str = "general",
    axis: int = 0,
    modality: str | None = None,
    allocation: Allocation = Uniform(),
    factors: Sequence[Factor] | None = None,
    steps: Steps = Steps(),
) -> Calibration:
    """Return matrix-variate Gaussian noise whose precision is the bound phi^2 of MVG's theorems.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step; its radius counts.
        shape: The shape of the tensor, of at least two axes.
        gamma: A public bound on ||f||, never measured on the data.
        theorem: ``general`` (Thm 2), or ``psd`` (Thm 3) for positive semi-definite queries.
        axis: The axis with directional noise.
        modality: ``unimodal`` or ``equi-modal``; ``equi-modal`` for ``psd`` where left out.
        allocation: How the precision is shared among directions.
        factors: One factor per axis, up to a common scale, instead of an allocation.
        steps: How many steps share the budget, by strong composition.

    Guarantee: sufficient and very loose; the verified profile is the exact one of the noise.
    """
    axis = _check_arguments(gamma, shape, axis)
    step = steps.strong_step(budget)
    rows, columns = shape[axis], math.prod(shape) // shape[axis]
    bound = precision_bound(
        theorem=theorem,
        rows=rows,
        columns=columns,
        budget=step,
        sensitivity=sensitivity.radius,
        gamma=gamma,
    )
    equal = _is_equi_modal(theorem, modality, shape)
    if factors is not None:
        chosen_factors = _scaled_to_bound(check_factors(factors, shape), bound, theorem)
    else:
        # One axis: sqrt(n) ||sigma(Sigma^-1)||_2 <= bound. Two equal ones:
        # ||sigma(Sigma^-1)||_2^2 <= bound.
        precision = (bound if equal else bound**2 / columns) * _DOWN
        factor = allocation.factor(rows, precision=precision)
        chosen_factors = tuple(
            factor if equal or i == axis else ScaledIdentity(size) for i, size in enumerate(shape)
        )
    return verified_gaussian(
        noise=KroneckerNoise(chosen_factors),
        sensitivity=sensitivity,
        budget=budget,
        theorem=f"MVG Thm {3 if theorem == 'psd' else 2}" + steps.suffix(_STRONG),
        steps=steps,
        quantities={"bound": bound, "gamma": gamma},
    )


def _check_arguments(gamma: float, shape: Shape, axis: int) -> int:
    """Return the axis, counted from the front."""
    if not 1e-100 <= gamma <= 1e100:
        raise InvalidMechanism(
            f"gamma={gamma:g} is not a valid bound on ||f||; give a finite number > 0 (1e-100 to"
            " 1e100)"
        )
    if len(shape) < 2:
        raise InvalidMechanism(f"shape={shape} is not a matrix; mvg needs at least two axes")
    if not -len(shape) <= axis < len(shape):
        raise InvalidMechanism(
            f"axis={axis} is not an axis of shape {shape}; choose one from 0 to {len(shape) - 1}"
        )
    return axis % len(shape)


def _is_equi_modal(theorem: str, modality: str | None, shape: Shape) -> bool:
    """Return whether both axes have the same covariance, which ``psd`` needs."""
    modality = modality or ("equi-modal" if theorem == "psd" else "unimodal")
    if modality not in ("unimodal", "equi-modal"):
        raise InvalidMechanism(f"modality {modality!r} is unknown; choose unimodal or equi-modal")
    equal = modality == "equi-modal"
    if equal and (len(shape) != 2 or shape[0] != shape[1]):
        raise InvalidMechanism(
            f"shape={shape} is not square, as equi-modal noise needs; use modality: unimodal"
        )
    if theorem == "psd" and not equal:
        raise InvalidMechanism(
            "theorem psd is proved for equal covariances only; use modality: equi-modal"
        )
    return equal


def _scaled_to_bound(factors: tuple[Factor, ...], bound: float, theorem: str) -> tuple[Factor, ...]:
    """Return the factors times the least scale for which the product of ||sigma(Sigma_k^-1)||_2 is
    at most ``bound``.
    """
    if theorem == "psd":
        if factors[0] != factors[1]:
            raise InvalidMechanism(
                "theorem psd is proved for equal covariances only; give the same factor twice"
            )
        scale = (factors[0].power_sum(-4) / bound) ** 0.25 * _UP
        return factors[0].times(scale), factors[1].times(scale)
    norm = math.prod(math.sqrt(factor.power_sum(-4)) for factor in factors)
    return factors[0].times(math.sqrt(norm / bound) * _UP), *factors[1:]

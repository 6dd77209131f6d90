"""The matrix-variate Gaussian mechanism (MVG; Chanyaswad, Dytso, Poor & Mittal, full version).

Its two theorems bound the precision of the noise; how that precision is shared among directions is
the user's choice:

    unimodal (Alg 1): only one mode is coloured; precisions p_i with sum p_i <= phi^4 / n, variance
    1/sqrt(p_i) equi-modal (Alg 2): both modes alike; sum p_i <= phi^2

A tensor of order k is the matrix of its unfolding along ``axis``: m rows, n = M/m columns.
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

__all__ = ["mvg", "precision_bound"]

_UP, _DOWN = 1 + 1e-14, 1 - 1e-13
_STRONG = "strong composition (R1SMG eq. 16)"


def _harmonic(r: int) -> float:
    """1 + 1/2 + ... + 1/r, rounded up."""
    return float(special.digamma(r + 1) + np.euler_gamma) * (1 + 1e-13)


def _harmonic_half(r: int) -> float:
    """1 + 2^-1/2 + ... + r^-1/2, rounded up (Euler-Maclaurin beyond 10,000 terms)."""
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
    """phi^2, the bound of MVG's Thm 2 (``general``) or Thm 3 (``psd``) on ||sigma(Sigma^-1)||
    ||sigma(Psi^-1)||.
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
                " cannot be;"
                " give the true bound on ||f||"
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
                " a positive semi-definite"
                f" query with sensitivity {sensitivity:g}; give the true bound on ||f||"
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
    shape: tuple[int, ...],
    gamma: float,
    theorem: str = "general",
    axis: int = 0,
    modality: str | None = None,
    allocation: Allocation = Uniform(),
    factors: Sequence[Factor] | None = None,
    steps: Steps = Steps(),
) -> Calibration:
    """Directional matrix noise by MVG's sufficient conditions.

    Guarantee: sufficient and very loose; the verified profile is the exact one of the noise.
    ``gamma`` bounds ||f|| from public facts, never from the data.
    """
    if not 1e-100 <= gamma <= 1e100:
        raise InvalidMechanism(
            f"gamma={gamma:g} is no bound on ||f||; give a finite number > 0 (1e-100 to 1e100)"
        )
    if len(shape) < 2:
        raise InvalidMechanism(f"shape={shape} is no matrix; mvg needs at least two axes")
    if not -len(shape) <= axis < len(shape):
        raise InvalidMechanism(
            f"axis={axis} is not an axis of shape {shape}; choose one from 0 to {len(shape) - 1}"
        )
    axis %= len(shape)
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
    if factors is not None:
        chosen_factors = _scaled_to_bound(check_factors(factors, shape), bound, theorem)
    else:
        # One coloured mode: sqrt(n) ||sigma(Sigma^-1)||_2 <= bound. Two equal ones:
        # ||sigma(Sigma^-1)||_2^2 <= bound.
        precision = (bound if equal else bound**2 / columns) * _DOWN
        l1_precision = (math.sqrt(bound) if equal else bound / columns) * _DOWN
        factor = allocation.factor(rows, precision=precision, l1_precision=l1_precision)
        chosen_factors = tuple(
            factor if equal or i == axis else ScaledIdentity(size) for i, size in enumerate(shape)
        )
    return verified_gaussian(
        noise=KroneckerNoise(chosen_factors),
        sensitivity=sensitivity,
        budget=budget,
        theorem=f"MVG Thm {3 if theorem == 'psd' else 2}" + steps.suffix(_STRONG),
        steps=steps,
        calibration={"bound": bound, "gamma": gamma},
    )


def _scaled_to_bound(factors: tuple[Factor, ...], bound: float, theorem: str) -> tuple[Factor, ...]:
    """The factors times the least scale for which the product of ||sigma(Sigma_k^-1)||_2 is at most
    ``bound``.
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

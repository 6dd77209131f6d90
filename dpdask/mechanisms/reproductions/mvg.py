"""The matrix-variate Gaussian mechanism (MVG; Chanyaswad, Dytso, Poor & Mittal, full version).

A matrix f of m rows and n columns gets noise with row covariance Sigma and column covariance Psi.
All theorems bound the precision ||sigma(Sigma^-1)|| ||sigma(Psi^-1)|| <= phi^2; how it is shared
among directions is the user's choice:

    unimodal (Alg 1):   one axis has directional noise; precisions p_i with sum p_i <= phi^4 / n,
                        variances 1/sqrt(p_i)
    equi-modal (Alg 2): both axes have the same covariance; sum p_i <= phi^2

A tensor is the matrix of its unfolding along ``axis``: m rows, n = M/m columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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

__all__ = ["harmonic", "harmonic_half", "mvg", "precision_bound"]

_UP, _DOWN = 1 + 1e-14, 1 - 1e-13
_STRONG = "strong composition (R1SMG eq. 16)"


def harmonic(r: int) -> float:
    """Return 1 + 1/2 + ... + 1/r, rounded up."""
    return float(special.digamma(r + 1) + np.euler_gamma) * (1 + 1e-13)


def harmonic_half(r: int) -> float:
    """Return 1 + 2^-1/2 + ... + r^-1/2, rounded up (Euler-Maclaurin beyond 10,000 terms)."""
    if r <= 10_000:
        return math.fsum(1 / np.sqrt(np.arange(1, r + 1))) * (1 + 1e-13)
    zeta_half = -1.4603545088095868  # the Riemann zeta function at 1/2
    return (2 * math.sqrt(r) + zeta_half + 0.5 / math.sqrt(r) - 1 / (24 * r * math.sqrt(r))) * (
        1 + 1e-12
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What MVG's theorems bound the precision by.

    Args:
        rows: m.
        columns: n.
        sensitivity: The l2 sensitivity s.
        gamma: sup ||f||; None where it is not known.
        zeta: The bound on the norm of mn standard normal numbers.
    """

    rows: int
    columns: int
    sensitivity: float
    gamma: float | None
    zeta: float

    @property
    def rank(self) -> int:
        """r = min(m, n)."""
        return min(self.rows, self.columns)

    def known_gamma(self, least: float, why: str) -> float:
        """Return gamma, which cannot be below ``least``."""
        if self.gamma is None:
            raise InvalidMechanism(
                "mvg has no gamma; give mechanism.gamma, a public bound on ||f||, or ranges, or"
                " theorem: general-improved, which needs none"
            )
        if self.gamma < least * (1 - 1e-12):
            raise InvalidMechanism(
                f"gamma={self.gamma:g} is below {why}; give the true bound on ||f||"
            )
        return self.gamma

    def beta(self) -> float:
        """beta of Thm 2."""
        h = harmonic(self.rank)
        root = math.sqrt(math.sqrt(self.rows * self.columns))
        return 2 * root * self.zeta * h * self.sensitivity


def _general(setting: _Setting) -> tuple[float, float]:
    """Return alpha and beta of Thm 2."""
    s, h = setting.sensitivity, harmonic(setting.rank)
    why = f"half the sensitivity {s:g}, yet sup||f|| cannot be"
    gamma = setting.known_gamma(s / 2, why)
    alpha = (h + harmonic_half(setting.rank)) * gamma**2 + 2 * h * gamma * s
    return alpha, setting.beta()


def _general_improved(setting: _Setting) -> tuple[float, float]:
    """Return alpha and beta of Thm 2 without gamma, by R1SMG App. C.

    With Z = Y - f(x) the trace term of the proof is tr[Psi^-1 D' Sigma^-1 D] + 2 tr[Psi^-1 Z'
    Sigma^-1 D]: at most H s^2 phi^2 + beta phi.
    """
    return harmonic(setting.rank) * setting.sensitivity**2, setting.beta()


def _psd(setting: _Setting) -> tuple[float, float]:
    """Return omega and beta of Thm 3, for positive semi-definite queries."""
    rows, columns, s = setting.rows, setting.columns, setting.sensitivity
    if rows != columns:
        raise InvalidMechanism(
            f"a {rows} x {columns} query is not symmetric, as theorem psd needs; use"
            " theorem: general"
        )
    least = s / math.sqrt(2)
    why = f"{least:g}, the least sup||f|| of a positive semi-definite query with sensitivity {s:g}"
    gamma, h = setting.known_gamma(least, why), harmonic(setting.rank)
    return 4 * h * gamma * s, 2 * math.sqrt(setting.rank) * setting.zeta * h * s


@dataclass(frozen=True, slots=True)
class _Theorem:
    """A sufficient condition, by its constants alpha and beta, and how it is cited."""

    constants: Callable[[_Setting], tuple[float, float]]
    citation: str


_THEOREMS = {
    "general": _Theorem(_general, "MVG Thm 2"),
    "general-improved": _Theorem(_general_improved, "MVG Thm 2, improved by R1SMG App. C"),
    "psd": _Theorem(_psd, "MVG Thm 3"),
}
_ZETAS: dict[str, tuple[Callable[[float], float], str]] = {
    "paper": (lambda zeta: zeta, ""),
    "sqrt": (math.sqrt, ", sqrt(zeta) by Laurent & Massart"),
}


def precision_bound(
    *,
    theorem: str,
    rows: int,
    columns: int,
    budget: PrivacyBudget,
    sensitivity: float,
    gamma: float | None,
    zeta: str = "paper",
) -> float:
    """Return phi^2, the bound of MVG's theorems on ||sigma(Sigma^-1)|| ||sigma(Psi^-1)||.

    Args:
        theorem: ``general`` (Thm 2), ``general-improved`` (without gamma, by R1SMG App. C), or
            ``psd`` (Thm 3) for positive semi-definite queries.
        rows: m.
        columns: n.
        budget: (epsilon, delta).
        sensitivity: The l2 sensitivity.
        gamma: sup ||f||, which ``general-improved`` does not need.
        zeta: ``paper`` for zeta as the bound on the norm of mn normal numbers, as in MVG's Lemma 1;
            ``sqrt`` for its square root, which Laurent & Massart prove.
    """
    if theorem not in _THEOREMS:
        raise InvalidMechanism(
            f"theorem {theorem!r} is unknown; choose one of {', '.join(_THEOREMS)}"
        )
    if zeta not in _ZETAS:
        raise InvalidMechanism(f"zeta {zeta!r} is unknown; choose paper or sqrt")
    entries = rows * columns
    log_delta = -math.log(budget.delta)
    norm_bound, _ = _ZETAS[zeta]
    setting = _Setting(
        rows=rows,
        columns=columns,
        sensitivity=sensitivity,
        gamma=gamma,
        zeta=norm_bound(2 * math.sqrt(entries * log_delta) + 2 * log_delta + entries),
    )
    alpha, beta = _THEOREMS[theorem].constants(setting)
    phi = 4 * budget.epsilon / (beta + math.sqrt(beta**2 + 8 * alpha * budget.epsilon))
    return phi**2


def mvg(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    gamma: float | None = None,
    theorem: str = "general",
    zeta: str = "paper",
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
        gamma: A public bound on ||f||, never measured on the data; ``general-improved`` needs none.
        theorem: As for :func:`precision_bound`.
        zeta: As for :func:`precision_bound`.
        axis: The axis with directional noise.
        modality: ``unimodal`` or ``equi-modal``; ``equi-modal`` for ``psd`` where left out.
        allocation: How the precision is shared among directions.
        factors: One factor per axis, up to a common scale, instead of an allocation.
        steps: How many steps share the budget, by strong composition.

    Guarantee: sufficient and very loose; the verified profile is the exact one of the noise.
    """
    axis = _check_arguments(gamma, shape, axis)
    rows, columns = shape[axis], math.prod(shape) // shape[axis]
    bound = precision_bound(
        theorem=theorem,
        rows=rows,
        columns=columns,
        budget=steps.strong_step(budget),
        sensitivity=sensitivity.radius,
        gamma=gamma,
        zeta=zeta,
    )
    equal = _is_equi_modal(theorem, modality, shape)
    if factors is not None:
        chosen_factors = _scaled_to_bound(check_factors(factors, shape), bound, theorem)
    else:
        # One axis: sqrt(n) ||sigma(Sigma^-1)||_2 <= bound. Two equal ones: its square <= bound.
        precision = (bound if equal else bound**2 / columns) * _DOWN
        own = allocation.factor(rows, precision=precision)
        chosen_factors = tuple(
            own if equal or i == axis else ScaledIdentity(size) for i, size in enumerate(shape)
        )
    return verified_gaussian(
        noise=KroneckerNoise(chosen_factors),
        sensitivity=sensitivity,
        budget=budget,
        theorem=_THEOREMS[theorem].citation + _ZETAS[zeta][1] + steps.suffix(_STRONG),
        steps=steps,
        quantities={"bound": bound} | ({} if gamma is None else {"gamma": gamma}),
    )


def _check_arguments(gamma: float | None, shape: Shape, axis: int) -> int:
    """Return the axis, counted from the front."""
    if gamma is not None and not 1e-100 <= gamma <= 1e100:
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

"""The matrix Gaussian mechanisms (MGM, UDN, IDN; Yang et al., Matrix Gaussian Mechanisms for DP
Learning).

    zeta^2 = -2 ln delta + 2 sqrt(-M ln delta) + M,    B = (sqrt(zeta^2 + 2 epsilon) - zeta)^2 / s^2

MGM (Thm 1) asks for a product of ||U_k^-1||_F^2 of at most B, UDN (Thm 2: one coloured mode) for
||U^-1||_F^2 <= B, IDN (Thm 3: one diagonal mode of length m, entries in [a, b]) for ||U^-1||_F^2 <=
m B with s = (b - a) sqrt(M). The proofs are in terms of the Kronecker product, so they hold for
tensors of any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpdask.errors import InvalidMechanism
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.mechanisms.gaussian import check_factors, verified_gaussian
from dpdask.noise import Factor, KroneckerNoise, ScaledIdentity
from dpdask.noise.factors import Floats, along_directions, check_orthonormal
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, RecordBox, SensitivitySet

__all__ = ["check_weights", "idn", "mgm", "noise_bound", "udn", "utility_weights"]

_UP = 1 + 1e-14
_STRONG = "strong composition (R1SMG eq. 16)"


def noise_bound(*, entries: int, budget: PrivacyBudget, sensitivity: float) -> float:
    """B, the bound on the noise's inverse Frobenius norms."""
    log_delta = -math.log(budget.delta)
    zeta_squared = 2 * log_delta + 2 * math.sqrt(entries * log_delta) + entries
    zeta = math.sqrt(zeta_squared)
    return (
        2 * budget.epsilon / (zeta + math.sqrt(zeta_squared + 2 * budget.epsilon)) / sensitivity
    ) ** 2


def utility_weights(utility: Any, directions: Floats | None = None) -> Floats:
    """P_k = sum_j (W V)_jk^2: how much the output W f cares for noise along direction k (MGM Alg
    1).
    """
    matrix = np.asarray(utility, dtype=np.float64)
    if directions is not None and matrix.shape[-1] != directions.shape[0]:
        raise InvalidMechanism(
            f"utility of {matrix.shape[-1]} columns does not fit directions of length"
            f" {directions.shape[0]}; give both alike"
        )
    seen = matrix if directions is None else matrix @ directions
    return np.asarray(np.sum(seen**2, axis=0), dtype=np.float64)


def check_weights(weights: Any, size: int) -> Floats:
    """One finite weight > 0 for each index of a mode."""
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (size,):
        raise InvalidMechanism(
            f"{values.size} weights do not fit a mode of length {size}; give one weight per index"
        )
    if not np.all((values >= 1e-100) & (values <= 1e100)):
        raise InvalidMechanism(
            "a weight is not > 0, that is, allows infinite noise; give every index a finite"
            " weight > 0"
        )
    return values


def _mode_factor(size: int, weights: Any, directions: Any, inverse_budget: float) -> Factor:
    """The factor with ||U^-1||_F^2 = ``inverse_budget`` and the least weighted variance (MGM Alg
    1).
    """
    basis = None
    if directions is not None:
        basis = np.asarray(directions, dtype=np.float64).T
        if basis.shape != (size, size):
            raise InvalidMechanism(
                f"directions of shape {basis.T.shape} are no basis of a mode of length {size};"
                f" give {size} rows"
            )
        check_orthonormal(basis)
    if weights is None:
        return ScaledIdentity(size, math.sqrt(size / inverse_budget) * _UP)
    root = np.sqrt(check_weights(weights, size))
    return along_directions(
        size, basis, np.sqrt(math.fsum(root) / (root * inverse_budget)) * _UP, None
    )


def mgm(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    weights: Sequence[Any] | None = None,
    directions: Sequence[Any] | None = None,
    factors: Sequence[Factor] | None = None,
    steps: Steps = Steps(),
) -> Calibration:
    """Kronecker noise with one factor per mode, by Thm 1; utility-optimal for ``weights`` per mode
    (Alg 1).

    Guarantee: sufficient, looser by about sqrt(M) than the exact profile.
    """
    bound = noise_bound(
        entries=math.prod(shape), budget=steps.strong_step(budget), sensitivity=sensitivity.radius
    )
    if factors is not None:
        shaped = check_factors(factors, shape)
        norm = math.prod(factor.power_sum(-2) for factor in shaped)
        made: tuple[Factor, ...] = (shaped[0].times(math.sqrt(norm / bound) * _UP), *shaped[1:])
    else:
        per_mode = bound ** (1 / len(shape))
        made = tuple(
            _mode_factor(
                size, _for_axis(weights, i, shape), _for_axis(directions, i, shape), per_mode
            )
            for i, size in enumerate(shape)
        )
    return verified_gaussian(
        noise=KroneckerNoise(made),
        sensitivity=sensitivity,
        budget=budget,
        theorem="MGM Thm 1" + steps.suffix(_STRONG),
        steps=steps,
        calibration={"bound": bound},
    )


def _for_axis(values: Sequence[Any] | None, axis: int, shape: tuple[int, ...]) -> Any:
    if values is None:
        return None
    if len(values) != len(shape):
        raise InvalidMechanism(
            f"{len(values)} per-axis lists do not fit shape {shape}; give one (or null) per axis"
        )
    return values[axis]


def _one_mode(shape: tuple[int, ...], axis: int, factor: Factor) -> KroneckerNoise:
    return KroneckerNoise(
        tuple(factor if i == axis else ScaledIdentity(size) for i, size in enumerate(shape))
    )


def _check_axis(axis: int, shape: tuple[int, ...]) -> int:
    if not -len(shape) <= axis < len(shape):
        raise InvalidMechanism(
            f"axis={axis} is not an axis of shape {shape}; choose one from 0 to {len(shape) - 1}"
        )
    return axis % len(shape)


def udn(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    axis: int = 0,
    weights: Sequence[float] | None = None,
    directions: Sequence[Any] | None = None,
    steps: Steps = Steps(),
) -> Calibration:
    """Unimodal directional noise by Thm 2: only ``axis`` is coloured.

    Guarantee: sufficient; the verified profile is the exact one.
    """
    axis = _check_axis(axis, shape)
    bound = noise_bound(
        entries=math.prod(shape), budget=steps.strong_step(budget), sensitivity=sensitivity.radius
    )
    return verified_gaussian(
        noise=_one_mode(shape, axis, _mode_factor(shape[axis], weights, directions, bound)),
        sensitivity=sensitivity,
        budget=budget,
        theorem="MGM Thm 2 (UDN)" + steps.suffix(_STRONG),
        steps=steps,
        calibration={"bound": bound},
    )


def idn(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    axis: int = 0,
    weights: Sequence[float] | None = None,
    steps: Steps = Steps(),
) -> Calibration:
    """Independent directional noise by Thm 3: a diagonal factor on ``axis``, entries in one public
    range.

    Guarantee: sufficient on a box of ranges (unequal ranges count as the widest); the verified
    profile is exact.
    """
    if not isinstance(sensitivity, (EntrywiseBox, RecordBox)):
        raise InvalidMechanism(
            "idn is proved for entries in a public range, not for an l2 ball; give sensitivity:"
            " {ranges: ...}"
        )
    axis = _check_axis(axis, shape)
    entries = math.prod(shape)
    step = steps.strong_step(budget)
    bound = shape[axis] * noise_bound(
        entries=entries, budget=step, sensitivity=max(sensitivity.widths) * math.sqrt(entries)
    )
    return verified_gaussian(
        noise=_one_mode(shape, axis, _mode_factor(shape[axis], weights, None, bound)),
        sensitivity=sensitivity,
        budget=budget,
        theorem="MGM Thm 3 (IDN)" + steps.suffix(_STRONG),
        steps=steps,
        calibration={"bound": bound},
    )

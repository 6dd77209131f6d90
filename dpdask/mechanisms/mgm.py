"""The matrix Gaussian mechanisms MGM, UDN and IDN (Yang et al., Matrix Gaussian Mechanisms for
Differentially-Private Learning).

A tensor of M entries and l2 sensitivity s gets Gaussian noise with one factor U_k per axis. With

    zeta^2 = -2 ln delta + 2 sqrt(-M ln delta) + M,    B = (sqrt(zeta^2 + 2 epsilon) - zeta)^2 / s^2

(epsilon, delta)-DP follows from

    MGM (Thm 1): the product of ||U_k^-1||_F^2 is at most B;
    UDN (Thm 2): one axis has a factor U, and ||U^-1||_F^2 <= B;
    IDN (Thm 3): one axis of length m has a diagonal factor U, entries lie in [a, b], and
                 ||U^-1||_F^2 <= m B with s = (b - a) sqrt(M).

The proofs are in terms of the Kronecker product, so they hold for tensors of any order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from dpdask.errors import InvalidMechanism
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.mechanisms.gaussian import check_factors, verified_gaussian
from dpdask.noise import Factor, KroneckerNoise, ScaledIdentity
from dpdask.noise.factors import along_directions, check_orthonormal
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, RecordBox, SensitivitySet
from dpdask.types import Floats, Shape

__all__ = ["check_weights", "idn", "mgm", "noise_bound", "udn", "utility_weights"]

_UP = 1 + 1e-14
_STRONG = "strong composition (R1SMG eq. 16)"
_Rows = Sequence[Sequence[float]]
_T = TypeVar("_T")


def noise_bound(*, entries: int, budget: PrivacyBudget, sensitivity: float) -> float:
    """Return B, the bound on the squared Frobenius norms of inverse factors.

    Args:
        entries: M.
        budget: (epsilon, delta).
        sensitivity: s.
    """
    log_delta = -math.log(budget.delta)
    zeta_squared = 2 * log_delta + 2 * math.sqrt(entries * log_delta) + entries
    zeta = math.sqrt(zeta_squared)
    return (
        2 * budget.epsilon / (zeta + math.sqrt(zeta_squared + 2 * budget.epsilon)) / sensitivity
    ) ** 2


def utility_weights(utility: _Rows, directions: Floats | None = None) -> Floats:
    """Return P_k = sum_j (W V)_jk^2, the weight of noise along direction k in the output W f.

    MGM Alg 1; ``utility`` is W, the columns of ``directions`` are V.
    """
    matrix = np.asarray(utility, dtype=np.float64)
    if directions is not None and matrix.shape[-1] != directions.shape[0]:
        raise InvalidMechanism(
            f"utility of {matrix.shape[-1]} columns does not fit directions of length"
            f" {directions.shape[0]}; give both the same length"
        )
    along = matrix if directions is None else matrix @ directions
    return np.asarray(np.sum(along**2, axis=0), dtype=np.float64)


def check_weights(weights: Sequence[float] | Floats, size: int, floor: float = 0.0) -> Floats:
    """Return the weights of an axis of length ``size``: one finite number > 0 for each index.

    Args:
        weights: The importance of each index's error.
        size: The length of the axis.
        floor: The share of the precision that all indices have in equal parts; where it is above 0,
            some weights may be 0.
    """
    values = np.asarray(weights, dtype=np.float64)
    if not 0 <= floor < 1:
        raise InvalidMechanism(f"floor={floor:g} is not a valid share; choose 0 <= floor < 1")
    if values.shape != (size,):
        raise InvalidMechanism(
            f"{values.size} weights do not fit an axis of length {size}; give one weight per index"
        )
    important = (values >= 1e-100) & (values <= 1e100)
    if not np.all(important | (values == 0)) or not np.any(important):
        raise InvalidMechanism(
            "a weight is not a finite number >= 0, or none is above 0; give weights from 1e-100 to"
            " 1e100, or 0 where an error does not matter"
        )
    if floor == 0 and not np.all(important):
        raise InvalidMechanism(
            "a weight is not > 0, which would allow infinite noise; give every index a finite"
            " weight > 0, or a floor such as 0.05, the share of the precision that is spread evenly"
        )
    return values


def _check_floor(floor: float, weights: object) -> None:
    if floor and weights is None:
        raise InvalidMechanism(
            f"floor={floor:g} goes with weights, which leave precision to spread; give weights or"
            " utility, or drop floor"
        )


def _axis_factor(
    size: int,
    weights: Sequence[float] | None,
    directions: _Rows | None,
    inverse_norm: float,
    floor: float,
) -> Factor:
    """Return the factor with ||U^-1||_F^2 = ``inverse_norm`` and the least weighted variance (MGM
    Alg 1), after the share ``floor`` of it was spread evenly.
    """
    basis = None
    if directions is not None:
        basis = np.asarray(directions, dtype=np.float64).T
        if basis.shape != (size, size):
            raise InvalidMechanism(
                f"directions of shape {basis.T.shape} are not a basis of an axis of length {size};"
                f" give {size} rows"
            )
        check_orthonormal(basis)
    if weights is None:
        return ScaledIdentity(size, math.sqrt(size / inverse_norm) * _UP)
    root = np.sqrt(check_weights(weights, size, floor))
    with np.errstate(divide="ignore"):  # a weight of 0 has no precision but the floor's
        variances = math.fsum(root) / (root * inverse_norm)
    if floor:
        variances = 1 / ((1 - floor) / variances + floor * inverse_norm / size)
    return along_directions(size, basis, np.sqrt(variances) * _UP, None)


def mgm(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    weights: Sequence[Sequence[float] | None] | None = None,
    directions: Sequence[_Rows | None] | None = None,
    factors: Sequence[Factor] | None = None,
    floor: float = 0.0,
    steps: Steps = Steps(),
) -> Calibration:
    """Return Kronecker noise with one factor U_k per axis, the product of ||U_k^-1||_F^2 being B.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step; s is its radius.
        shape: The shape of the tensor.
        weights: For each axis, the importance of each index's error (Alg 1), or None.
        directions: For each axis, an orthonormal basis as rows, or None for the standard one.
        factors: One factor per axis, up to a common scale, instead of weights.
        floor: The share of each weighted axis's precision that is spread evenly, so that weights
            may be 0: a utility subspace that leaves directions out.
        steps: How many steps share the budget, by strong composition.

    Guarantee: sufficient (MGM Thm 1), looser by about sqrt(M) than the exact profile.
    """
    bound = noise_bound(
        entries=math.prod(shape), budget=steps.strong_step(budget), sensitivity=sensitivity.radius
    )
    _check_floor(floor, weights)
    if factors is not None:
        first, *others = check_factors(factors, shape)
        norm = math.prod(factor.power_sum(-2) for factor in (first, *others))
        scaled: tuple[Factor, ...] = (first.times(math.sqrt(norm / bound) * _UP), *others)
    else:
        per_axis = bound ** (1 / len(shape))
        scaled = tuple(
            _axis_factor(
                size,
                _for_axis(weights, i, shape),
                _for_axis(directions, i, shape),
                per_axis,
                floor,
            )
            for i, size in enumerate(shape)
        )
    return verified_gaussian(
        noise=KroneckerNoise(scaled),
        sensitivity=sensitivity,
        budget=budget,
        theorem="MGM Thm 1" + steps.suffix(_STRONG),
        steps=steps,
        quantities={"bound": bound},
    )


def _for_axis(values: Sequence[_T | None] | None, axis: int, shape: Shape) -> _T | None:
    if values is None:
        return None
    if len(values) != len(shape):
        raise InvalidMechanism(
            f"{len(values)} per-axis lists do not fit shape {shape}; give one (or null) per axis"
        )
    return values[axis]


def _one_axis(shape: Shape, axis: int, factor: Factor) -> KroneckerNoise:
    return KroneckerNoise(
        tuple(factor if i == axis else ScaledIdentity(size) for i, size in enumerate(shape))
    )


def _check_axis(axis: int, shape: Shape) -> int:
    if not -len(shape) <= axis < len(shape):
        raise InvalidMechanism(
            f"axis={axis} is not an axis of shape {shape}; choose one from 0 to {len(shape) - 1}"
        )
    return axis % len(shape)


def udn(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    axis: int = 0,
    weights: Sequence[float] | None = None,
    directions: _Rows | None = None,
    floor: float = 0.0,
    steps: Steps = Steps(),
) -> Calibration:
    """Return noise with a factor U on one axis, ||U^-1||_F^2 = B, independent along all others.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step; s is its radius.
        shape: The shape of the tensor.
        axis: The axis of the factor.
        weights: The importance of the error along each direction.
        directions: An orthonormal basis as rows; the standard one where left out.
        floor: The share of the precision that is spread evenly, so that weights may be 0.
        steps: How many steps share the budget, by strong composition.

    Guarantee: sufficient (MGM Thm 2); the verified profile is exact.
    """
    axis = _check_axis(axis, shape)
    _check_floor(floor, weights)
    bound = noise_bound(
        entries=math.prod(shape), budget=steps.strong_step(budget), sensitivity=sensitivity.radius
    )
    return verified_gaussian(
        noise=_one_axis(shape, axis, _axis_factor(shape[axis], weights, directions, bound, floor)),
        sensitivity=sensitivity,
        budget=budget,
        theorem="MGM Thm 2 (UDN)" + steps.suffix(_STRONG),
        steps=steps,
        quantities={"bound": bound},
    )


def idn(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    axis: int = 0,
    weights: Sequence[float] | None = None,
    floor: float = 0.0,
    steps: Steps = Steps(),
) -> Calibration:
    """Return noise with a diagonal factor U on one axis of length m, ||U^-1||_F^2 = m B, for
    entries in one public range.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: Public ranges; unequal ones count as the widest.
        shape: The shape of the tensor.
        axis: The axis of the factor.
        weights: The importance of each index's error.
        floor: The share of the precision that is spread evenly, so that weights may be 0.
        steps: How many steps share the budget, by strong composition.

    Guarantee: sufficient on a box of ranges (MGM Thm 3); the verified profile is exact.
    """
    if not isinstance(sensitivity, (EntrywiseBox, RecordBox)):
        raise InvalidMechanism(
            "idn is proved for entries in a public range, not for an l2 ball; give sensitivity:"
            " {ranges: ...}"
        )
    axis = _check_axis(axis, shape)
    _check_floor(floor, weights)
    entries = math.prod(shape)
    step = steps.strong_step(budget)
    bound = shape[axis] * noise_bound(
        entries=entries, budget=step, sensitivity=max(sensitivity.widths) * math.sqrt(entries)
    )
    return verified_gaussian(
        noise=_one_axis(shape, axis, _axis_factor(shape[axis], weights, None, bound, floor)),
        sensitivity=sensitivity,
        budget=budget,
        theorem="MGM Thm 3 (IDN)" + steps.suffix(_STRONG),
        steps=steps,
        quantities={"bound": bound},
    )

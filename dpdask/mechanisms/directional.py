"""Directional noise on a box of public ranges, calibrated exactly: the idea of MVG and IDN without
their loose bounds.

With standard deviation sigma_i along feature i, range width c_i and weight P_i, the exact profile
of the noise has mu^2 = r sum c_i^2/sigma_i^2, where r entries share a feature's range. Minimising
sum P_i sigma_i^2 under that constraint gives

    sigma_i^2 = r (c_i / sqrt(P_i)) sum_k c_k sqrt(P_k) / mu^2.

Its weighted error is (sum c_i sqrt(P_i))^2 / (sum P_i sum c_i^2) <= 1 times that of i.i.d. noise
(by Cauchy-Schwarz).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpdask.errors import InvalidMechanism
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.mechanisms.gaussian import exact_suffix, verified_gaussian
from dpdask.mechanisms.mgm import check_weights
from dpdask.noise import DiagonalFactor, Factor, KroneckerNoise, ScaledIdentity
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, RecordBox, SensitivitySet
from dpdask.types import Floats, Shape

__all__ = ["directional"]


def directional(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    weights: Sequence[float] | None = None,
    floor: float = 0.0,
    steps: Steps = Steps(),
) -> Calibration:
    """Return the diagonal Gaussian noise with the least weighted error on a box of ranges.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: Public ranges, along its feature axis.
        shape: The shape of the tensor.
        weights: The importance of each feature's error; equal where left out.
        floor: The share of mu^2 that all features have in equal parts, so that weights may be 0.
        steps: How many steps share the budget, by exact composition.

    Guarantee: exact (Balle & Wang 2018, Thm 8, for mu of the box); delta(epsilon) of the noise
    equals ``budget.delta`` up to conservative rounding.
    """
    if not isinstance(sensitivity, (EntrywiseBox, RecordBox)):
        raise InvalidMechanism(
            "directional noise has no advantage on an l2 ball; give ranges instead of an l2 bound,"
            " or use analytic-gaussian"
        )
    if sensitivity.shape != tuple(shape):
        raise InvalidMechanism(
            f"ranges for shape {sensitivity.shape} do not fit shape {tuple(shape)}; give both"
            " the same"
        )
    axis = sensitivity.feature_axis
    size = shape[axis]
    importance = check_weights(np.ones(size) if weights is None else weights, size, floor)
    mu = steps.step_mu(budget, sensitivity.adjacency)
    if len(sensitivity.widths) == 1 and weights is None:
        unscaled: Factor = ScaledIdentity(size)
    else:
        widths = np.broadcast_to(np.asarray(sensitivity.widths), size)
        unscaled = DiagonalFactor(
            _scales(widths, importance, floor) / math.sqrt(max(sensitivity.widths))
        )
    shaped = [ScaledIdentity(n) if i != axis else unscaled for i, n in enumerate(shape)]
    scale = sensitivity.whitened(shaped) / mu * (1 + 1e-14)
    shaped[axis] = unscaled.times(scale)
    return verified_gaussian(
        noise=KroneckerNoise(tuple(shaped)),
        sensitivity=sensitivity,
        budget=budget,
        theorem="tight directional noise (Balle & Wang 2018, Thm 8, on a box)"
        + exact_suffix(steps),
        steps=steps,
        quantities={"scale": scale},
    )


def _scales(widths: Floats, importance: Floats, floor: float) -> Floats:
    """Return the standard deviations up to a common scale; feature i has the share c_i sqrt(P_i) of
    mu^2, after ``floor`` of it was spread evenly.
    """
    if floor == 0:
        return np.asarray(np.sqrt(widths / np.sqrt(importance)))
    shares = widths * np.sqrt(importance)
    shares = (1 - floor) * shares / math.fsum(shares) + floor / shares.size
    return np.asarray(widths / np.sqrt(shares) / math.sqrt(float(np.max(widths))))

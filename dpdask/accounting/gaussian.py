"""The exact privacy profile of Gaussian noise with a fixed covariance (Balle & Wang 2018, Thm 8;
IMGM Lemma 3).

Noise N(0, Xi) on a query whose neighbours differ by D is exactly as private as a one-dimensional
Gaussian mechanism with ``mu = sup ||Xi^(-1/2) D||``:

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

With x = epsilon/mu, h = mu/2 and Mills' ratio m(t) = Phi(-t)/phi(t), the two terms share the factor
phi(x - h):

    delta = phi(x - h) (m(x - h) - m(x + h)) = phi(x - h) * integral of (1 - t m(t)) for t from x -
    h to x + h.

The integrand is positive, so nothing cancels however small mu is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.optimize import brentq

from dpdask.accounting.rounding import CALIBRATION_SLACK, round_up_delta, smallest_epsilon
from dpdask.errors import InvalidBudget, OutOfReach
from dpdask.privacy import PrivacyBudget
from dpdask.types import Floats, Json

__all__ = ["GaussianProfile", "gaussian_log_delta"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def _mills(t: float) -> float:
    return float(math.sqrt(math.pi / 2) * special.erfcx(t / math.sqrt(2)))


def _one_minus_t_mills(
    t: Floats,
) -> Floats:
    near = np.minimum(t, 50.0)
    direct = 1 - near * math.sqrt(math.pi / 2) * special.erfcx(near / math.sqrt(2))
    far = 1 / np.maximum(t, 50.0) ** 2
    series = far * (1 - 3 * far * (1 - 5 * far * (1 - 7 * far * (1 - 9 * far))))
    return np.asarray(np.where(t < 50.0, direct, series), dtype=np.float64)


def gaussian_log_delta(mu: float, epsilon: float) -> float:
    """Return the natural logarithm of the exact delta(epsilon), accurate to about 1e-13."""
    x, h = epsilon / mu, mu / 2
    log_density = -0.5 * (x - h) ** 2 - _LOG_SQRT_2PI
    if h < 1:
        return log_density + math.log(
            h * float(np.dot(_WEIGHTS, _one_minus_t_mills(x + h * _NODES)))
        )
    if x < h:
        return math.log(float(special.ndtr(h - x)) - math.exp(log_density) * _mills(x + h))
    return log_density + math.log(_mills(x - h) - _mills(x + h))


@dataclass(frozen=True, slots=True)
class GaussianProfile:
    """mu-Gaussian differential privacy, exactly.

    Guarantee: ``delta`` and ``epsilon`` are necessary and sufficient for Gaussian noise, rounded
    towards more loss.
    """

    mu: float

    def __post_init__(self) -> None:
        if not (self.mu > 0 and math.isfinite(self.mu)):
            raise InvalidBudget(
                f"mu={self.mu:g} is not a valid Gaussian privacy parameter; it must be finite"
                " and > 0"
            )

    @classmethod
    def meeting(cls, budget: PrivacyBudget) -> GaussianProfile:
        """Return the largest mu whose profile meets ``budget``, on the conservative side."""
        target = math.log(budget.delta) + math.log1p(-CALIBRATION_SLACK)
        low = high = math.log(max(budget.delta, 1e-300)) if budget.delta > 1e-3 else 0.0

        def excess(log_mu: float) -> float:
            return gaussian_log_delta(math.exp(log_mu), budget.epsilon) - target

        while excess(low) > 0:
            low -= 2.0
            if low < -700:
                raise OutOfReach(
                    f"epsilon={budget.epsilon:g}, delta={budget.delta:g} needs a mu below"
                    " 1e-300; choose a larger delta"
                )
        high = max(high, low)
        while excess(high) <= 0:
            high += 1.0
        root = float(brentq(excess, low, high, xtol=1e-15, rtol=8.9e-16, maxiter=500))
        profile = cls(math.exp(root))
        while profile.delta(budget.epsilon) > budget.delta:
            profile = cls(profile.mu * (1 - CALIBRATION_SLACK))
        return profile

    def delta(self, epsilon: float) -> float:
        """The smallest delta at ``epsilon``, rounded up."""
        return round_up_delta(gaussian_log_delta(self.mu, epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at ``delta``, rounded up."""
        return smallest_epsilon(lambda e: gaussian_log_delta(self.mu, e), math.log(delta))

    def to_dict(self) -> Json:
        """``{"name": "gaussian", "configuration": {"mu": ...}}``."""
        return {"name": "gaussian", "configuration": {"mu": self.mu}}

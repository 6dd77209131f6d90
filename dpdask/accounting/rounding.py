"""One place for the direction of rounding: every profile errs towards more privacy loss.

The formulas of this package are accurate to a relative error of delta below 1e-10 over the
supported range (epsilon 1e-9 to 1e3, delta 1e-300 to 0.5; checked against 40-digit arithmetic in
the tests). A reported delta is enlarged by ``DELTA_SLACK``, twice that error. A calibrator aims
below its budget by ``CALIBRATION_SLACK``, so that the noise, after every later rounding, still
verifies.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

__all__ = ["CALIBRATION_SLACK", "DELTA_SLACK", "round_up_delta", "smallest_epsilon"]

DELTA_SLACK = 2e-10
CALIBRATION_SLACK = 5e-10


def round_up_delta(log_delta: float) -> float:
    """Return exp(``log_delta``) enlarged by the stated numerical error, never above 1."""
    if log_delta == -math.inf:
        return 0.0
    return min(1.0, max(math.exp(log_delta) * (1 + DELTA_SLACK), 5e-324))


def smallest_epsilon(log_delta_of: Callable[[float], float], log_delta: float) -> float:
    """Return the smallest epsilon >= 0 with ``log_delta_of(epsilon) <= log_delta``, rounded up.

    Guarantee: the conservative side of the root, never below it.

    ``log_delta_of`` is non-increasing. Infinite when no epsilon up to 1e15 suffices. The numerical
    error of the curve is taken off the target first.
    """
    log_delta -= DELTA_SLACK
    if log_delta_of(0.0) <= log_delta:
        return 0.0
    low, high, factor = 0.0, 1.0, 4.0
    if log_delta_of(high) > log_delta:
        while log_delta_of(high) > log_delta:
            low, high, factor = high, high * factor, factor * 2
            if high > 1e15:
                return math.inf
    else:
        low = high / factor
        while low > 1e-15 and log_delta_of(low) <= log_delta:
            low, high, factor = low / factor, low, factor * 2
        if low <= 1e-15:
            low = 0.0
    floor = -800.0

    def excess(epsilon: float) -> float:
        return max(log_delta_of(epsilon), floor + min(log_delta, 0.0)) - log_delta

    root = float(brentq(excess, low, high, xtol=1e-300, rtol=1e-13, maxiter=500))
    step = 1e-14
    while log_delta_of(root) > log_delta:
        root *= 1 + step
        step *= 2
    return root

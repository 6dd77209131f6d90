"""The nearest-point attack: is an output nearer to the answer with, or without, one record?"""

from __future__ import annotations

import math

import numpy as np

from dpdask.types import Floats

__all__ = ["allowed_advantage", "moved_record_advantage", "nearest_point_advantage"]


def allowed_advantage(*, epsilon: float, delta: float) -> float:
    """Return the largest advantage of an attack that (epsilon, delta)-DP allows.

    With p and q the probabilities of an answer for two neighbours, p <= e^epsilon q + delta and
    1 - q <= e^epsilon (1 - p) + delta add up to p - q <= (e^epsilon - 1 + 2 delta)/(e^epsilon + 1).
    """
    return (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1)


def nearest_point_advantage(
    *, entries: int, scale: float, sensitivity: float, trials: int, seed: int = 0
) -> float:
    """Return the attack's advantage against rank-one noise, by simulation.

    It is P(R |c| < s/2): R = scale |z|, c the cosine of a random direction with the difference.

    Args:
        entries: M.
        scale: sqrt(sigma_star).
        sensitivity: s.
        trials: How many outputs are attacked.
        seed: Of the simulation.
    """
    generator = np.random.default_rng(seed)
    radius = scale * np.abs(generator.standard_normal(trials))
    half = (entries - 1) / 2
    cosine = 2 * generator.beta(half, half, trials) - 1
    return float(np.mean(radius * np.abs(cosine) < sensitivity / 2))


def moved_record_advantage(noise: Floats, *, pairs: int, seed: int = 0) -> float:
    """Return the attack's advantage against the noise of one released histogram.

    The attacker asks of random pairs of cells whether a record was moved from one to the other. The
    output is nearer to the truth iff the noise of the second cell exceeds that of the first by less
    than 1.
    """
    generator = np.random.default_rng(seed)
    flat = noise.ravel()
    first, second = generator.integers(0, len(flat), (2, pairs))
    apart = first != second
    right = flat[second[apart]] - flat[first[apart]] < 1
    return float(2 * np.mean(right) - 1)

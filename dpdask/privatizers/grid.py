"""The grid: answers become integers before noise is added, so that no floating-point bit of the
data survives.

With S = sigma/step, an answer on the grid ``step * Z`` plus ``round(N(0, S^2))`` steps equals the
rounding of answer + N(0, sigma^2): post-processing of the ideal mechanism. Bounds are integers too:
a clamped entry or a clipped record obeys its bound exactly, with no rounding term in the
sensitivity.

All limits of the grid are here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpdask.errors import InvalidNoise, InvalidSensitivity, OutOfReach

__all__ = [
    "CLIP_LIMIT",
    "DEFAULT_STEPS_PER_SIGMA",
    "ENTRY_LIMIT",
    "GRID_LIMIT",
    "MAX_STEPS_PER_SIGMA",
    "MIN_STEPS_PER_SIGMA",
    "ROUNDED_LIMIT",
    "SUM_LIMIT",
    "TAIL_SIGMAS",
    "Grid",
    "check_steps_per_sigma",
    "steps_for_clip",
    "steps_for_rounding",
]

DEFAULT_STEPS_PER_SIGMA = 2.0**14
MIN_STEPS_PER_SIGMA = 2.0**6  # the proofs of the sampler cover 2^6 to 2^30
MAX_STEPS_PER_SIGMA = 2.0**30
TAIL_SIGMAS = 64  # outputs are clamped so far beyond the bounds: post-processing, and no overflow
GRID_LIMIT = 2**51  # steps; beyond it, adding and subtracting 1.5 * 2^52 does not round to integers
SUM_LIMIT = 2**50  # steps that the grid of an exact sum holds, whatever its records
ROUNDED_LIMIT = 2**49  # steps; an entry's product with 1/step is then exact to 3/16 of a step
CLIP_LIMIT = 2**31 - 1  # steps of a clip norm
# steps; an entry of a record to be clipped saturates here, 2^19 clip norms away at least
ENTRY_LIMIT = 2**50 - 1
_LEAST_CLIP_STEPS = 2**12  # steps that a clip norm has, where the user does not choose a grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Integer multiples of ``step`` from ``low`` to ``high`` for answers.

    Args:
        step: The distance of two grid points.
        steps_per_sigma: The standard deviation of the noise, in steps; a power of two.
        low: The least answer, in steps.
        high: The largest answer, in steps.
    """

    step: float
    steps_per_sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        if not (self.step > 0 and math.isfinite(self.step) and math.isfinite(1 / self.step)):
            raise OutOfReach(
                f"a grid step of {self.step:g} cannot be inverted in floating point; rescale the"
                " data"
            )
        if self.low > self.high:
            raise InvalidSensitivity(
                f"no grid point lies between {self.low} and {self.high} steps of {self.step:g};"
                " the range is narrower than the grid: raise noise.steps_per_sigma"
            )
        if self.limit >= GRID_LIMIT:
            raise OutOfReach(
                f"bounds of {max(-self.low, self.high):g} steps plus {TAIL_SIGMAS} sigma exceed"
                " 2^51; use a smaller noise.steps_per_sigma or narrower bounds"
            )

    @property
    def limit(self) -> int:
        """No output lies further than this many steps from zero."""
        return max(abs(self.low), abs(self.high)) + TAIL_SIGMAS * int(self.steps_per_sigma)

    @classmethod
    def for_range(
        cls,
        *,
        sigma: float,
        low: float,
        high: float,
        steps_per_sigma: float = DEFAULT_STEPS_PER_SIGMA,
    ) -> Grid:
        """Return the grid of answers clamped to [low, high].

        Guarantee: bounds are rounded inwards, so the width of the range never grows.
        """
        step = _step(sigma, steps_per_sigma)
        bottom, top = Fraction(low) / Fraction(step), Fraction(high) / Fraction(step)
        return cls(
            step=step,
            steps_per_sigma=steps_per_sigma,
            low=math.ceil(bottom),
            high=math.floor(top),
        )

    @classmethod
    def for_clip(
        cls, *, sigma: float, norm: float, steps_per_sigma: float = DEFAULT_STEPS_PER_SIGMA
    ) -> Grid:
        """Return the grid of records clipped to ``norm``.

        Guarantee: every record's integer norm is at most floor(norm / step).
        """
        step = _step(sigma, steps_per_sigma)
        bound = math.floor(Fraction(norm) / Fraction(step))
        if bound > CLIP_LIMIT:
            raise OutOfReach(
                f"clip norm {norm:g} is {bound:.3g} grid steps, above 2^31; use a smaller"
                " noise.steps_per_sigma or a smaller clip norm"
            )
        if bound < 1:
            raise InvalidSensitivity(
                f"clip norm {norm:g} is below one grid step {step:g}; raise noise.steps_per_sigma"
            )
        return cls(step=step, steps_per_sigma=steps_per_sigma, low=-bound, high=bound)


def _step(sigma: float, steps_per_sigma: float) -> float:
    if not (sigma > 0 and math.isfinite(sigma)):
        raise InvalidSensitivity(
            f"sigma={sigma:g} is not a valid noise scale; it must be finite and > 0"
        )
    return sigma / steps_per_sigma  # exact: steps_per_sigma is a power of two


def steps_for_clip(*, sigma: float, norm: float, steps_per_sigma: int | None) -> float:
    """Return the steps per sigma of noise on bounded records.

    Args:
        sigma: The standard deviation of the noise.
        norm: The clip norm of a record, or the width of its range.
        steps_per_sigma: The user's choice; None takes the least from 2^14 on that leaves ``norm``
            2^12 steps.
    """
    if steps_per_sigma is not None:
        return float(steps_per_sigma)
    steps = DEFAULT_STEPS_PER_SIGMA
    while norm * steps / sigma < _LEAST_CLIP_STEPS and steps < MAX_STEPS_PER_SIGMA:
        steps *= 2
    return steps


def steps_for_rounding(
    *, sigma: float, sensitivity: float, entries: int, moved_steps: float | None = None
) -> tuple[float, float]:
    """Return the least steps per sigma, from 2^14 on, at which rounding costs at most 0.1 %.

    Args:
        sigma: The noise for the sensitivity itself. The noise for the inflated one, and with it the
            step, grows by s'/s, so s' = s + (s'/s) step moved_steps.
        sensitivity: The sensitivity s of the answer before it is rounded.
        entries: How many entries are rounded.
        moved_steps: By how many steps rounding increases the distance between neighbours; where
            left out, sqrt(entries), for l2 distances.

    Returns:
        The steps per sigma, and the inflated sensitivity s' that the noise must be calibrated to.

    Raises:
        OutOfReach: No grid is fine enough.
    """
    steps = DEFAULT_STEPS_PER_SIGMA
    moved = math.sqrt(entries) if moved_steps is None else moved_steps
    while sigma / steps * moved > sensitivity / 1001:
        steps *= 2
        if steps > MAX_STEPS_PER_SIGMA:
            raise OutOfReach(
                f"{entries} entries at sensitivity {sensitivity:g} and sigma {sigma:g} need a"
                " grid finer than sigma/2^30; bound the answer by clipping or ranges instead"
            )
    share = sigma / steps * moved / sensitivity
    return steps, sensitivity / (1 - share) * (1 + 1e-14)


def check_steps_per_sigma(steps_per_sigma: float) -> float:
    """Return S = sigma / step as a float if it is a power of two from 2^6 to 2^30."""
    if not (
        math.isfinite(steps_per_sigma)
        and steps_per_sigma > 0
        and math.frexp(steps_per_sigma)[0] == 0.5
        and MIN_STEPS_PER_SIGMA <= steps_per_sigma <= MAX_STEPS_PER_SIGMA
    ):
        raise InvalidNoise(
            f"sigma/step={steps_per_sigma:g} is not a power of two from 2^6 to 2^30; use 2^14"
        )
    return float(steps_per_sigma)

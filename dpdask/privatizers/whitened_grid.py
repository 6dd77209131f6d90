"""The grid of whitened entries: fine enough that rounding costs little, coarse enough for doubles.

Rounding in whitened coordinates increases the distance between neighbouring outputs by at most
sqrt(d) / S, with d the whitened entries that one privacy unit can change and S the steps per sigma;
whitening in floating point by what :func:`dpdask.noise.rounding.whitened_rounding` proves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpdask.errors import InvalidMechanism, OutOfReach
from dpdask.noise.distributions import KroneckerNoise
from dpdask.noise.factors import mixing_axes
from dpdask.noise.rounding import moved_entries, moved_records, whitened_rounding
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.privatizers.clipping import fine_clip_grid
from dpdask.privatizers.grid import (
    DEFAULT_STEPS_PER_SIGMA,
    GRID_LIMIT,
    MAX_STEPS_PER_SIGMA,
    TAIL_SIGMAS,
)
from dpdask.privatizers.kronecker import KroneckerPrivatizer

__all__ = ["MU_TOLERANCE", "known_mu", "whitened_privatizer"]

MU_TOLERANCE = 1 + 4e-14  # so much of mu is far less than its profile rounds up
_MOST_GROWTH = 0.01  # of the noise, to make up for rounding
_MOST_FLOATING = 0.01  # of mu, that whitening in floating point may cost
_LITTLE = 1000  # rounding should cost less than mu divided by this


def known_mu(mu: float | None) -> float:
    """Return the mu of Gaussian noise, which must have been calibrated."""
    if mu is None or not math.isfinite(mu):
        raise InvalidMechanism("Gaussian noise without its mu has no grid; calibrate it first")
    return mu


def whitened_privatizer(
    noise: KroneckerNoise, bounds: AnswerBounds, *, mu: float, steps_per_sigma: int | None
) -> Discretized:
    """Return Kronecker noise on a whitened grid, and the mu that it really has.

    Where rounding costs at most a hundredth of mu, the noise grows by as much and mu stays; else mu
    is what the whitened sensitivity and the rounding add up to.

    Args:
        noise: The noise as it was calibrated.
        bounds: What is known of the answer, all of it finite.
        mu: The mu of the noise as it was calibrated.
        steps_per_sigma: The user's choice of a grid; None chooses one whose rounding costs less
            than mu / 1000, if doubles hold it.

    Raises:
        OutOfReach: No grid holds the answer, or floating point would cost more than mu / 100.
    """
    _check_scales(noise)
    mixing = mixing_axes(noise.factors)
    unit = (noise.tensor_shape, mixing, bounds.record_axis, bounds.contributions)
    moved = moved_entries(*unit)
    largest = bounds.largest
    if bounds.clip_norm is None:
        norm = largest * math.sqrt(moved)
    else:  # every record has that norm
        norm = largest * math.sqrt(moved_records(*unit))
    steps = _choose_steps(noise, largest, moved, mu, steps_per_sigma)
    grid = _WhitenedGrid(bounds, steps, moved, norm)
    rounding, floating = grid.rounding(noise)
    if floating > _MOST_FLOATING * mu:
        raise OutOfReach(
            f"whitening entries of up to {largest:.3g} in floating point may increase the distance"
            f" between neighbouring outputs by {floating:.2g} standard deviations, more than"
            f" {_MOST_FLOATING:.0%} of mu={mu:.3g}; narrow the bounds, or mix fewer entries"
        )
    if rounding <= _MOST_GROWTH * mu:
        noise, rounding = grid.grow(noise, mu)
    else:
        mu = max(mu, bounds.sensitivity.whitened(noise.factors) + rounding)
    privatizer = KroneckerPrivatizer(
        noise=noise,
        steps_per_sigma=steps,
        low=bounds.low,
        high=bounds.high,
        clipping=None if bounds.clip_norm is None else fine_clip_grid(bounds.clip_norm),
        record_axis=bounds.record_axis,
    )
    return Discretized(privatizer=privatizer, mu=mu, rounding=rounding)


@dataclass(frozen=True, slots=True)
class _WhitenedGrid:
    """A grid of whitened entries, of which ``moved`` can change, in an answer of norm ``norm``."""

    bounds: AnswerBounds
    steps_per_sigma: float
    moved: int
    norm: float

    def rounding(self, noise: KroneckerNoise) -> tuple[float, float]:
        """Return what rounding costs with this noise, and the part due to floating point."""
        return whitened_rounding(
            noise.factors,
            steps_per_sigma=self.steps_per_sigma,
            moved=self.moved,
            norm=self.norm,
            prior_rounding=self.bounds.prior_rounding,
        )

    def grow(self, noise: KroneckerNoise, mu: float) -> tuple[KroneckerNoise, float]:
        """Return the noise, grown until it has ``mu`` with rounding included, and the rounding."""
        rounding, _ = self.rounding(noise)
        growth = 1 / (1 - rounding / mu) * (1 + 1e-12)
        while True:
            grown = _times(noise, growth)
            rounding, _ = self.rounding(grown)
            real = self.bounds.sensitivity.whitened(grown.factors) + rounding
            if real <= mu * MU_TOLERANCE:
                return grown, rounding
            growth *= real / mu * (1 + 1e-12)


def _times(noise: KroneckerNoise, scale: float) -> KroneckerNoise:
    """Return the noise times a number."""
    first, *others = noise.factors
    return KroneckerNoise((first.times(scale), *others))


def _check_scales(noise: KroneckerNoise) -> None:
    """Refuse scales at which the bounds on rounding do not hold, because numbers underflow."""
    smallest = math.prod(factor.smallest for factor in noise.factors)
    largest = math.prod(math.sqrt(factor.power_sum(2)) for factor in noise.factors)
    if not (smallest > 1e-250 and largest < 1e250):
        raise OutOfReach(
            f"noise scales from {smallest:.3g} to {largest:.3g} leave the range of doubles;"
            " rescale the data"
        )


def _choose_steps(
    noise: KroneckerNoise, largest: float, moved: int, mu: float, steps_per_sigma: int | None
) -> float:
    """Return the steps per sigma: the user's, or the least whose rounding costs little."""
    mixing = mixing_axes(noise.factors)
    reach = largest  # in standard deviations
    for axis, factor in enumerate(noise.factors):
        reach *= (math.sqrt(factor.size) if axis in mixing else 1.0) / factor.smallest
    steps = DEFAULT_STEPS_PER_SIGMA if steps_per_sigma is None else float(steps_per_sigma)

    def finer_helps() -> bool:
        costly = 2 * math.sqrt(moved) / steps > mu / _LITTLE
        fits = (reach + TAIL_SIGMAS) * steps * 2 < GRID_LIMIT
        return costly and fits and steps < MAX_STEPS_PER_SIGMA

    while steps_per_sigma is None and finer_helps():
        steps *= 2
    if (reach + TAIL_SIGMAS) * steps >= GRID_LIMIT:
        raise OutOfReach(
            f"bounds of {reach:.3g} standard deviations do not fit a grid of {steps:g} steps"
            " each; narrow the bounds"
        )
    return steps

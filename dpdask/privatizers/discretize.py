"""Discretization: noise and the bounds of an answer become a privatizer on a grid of integers.

One function per noise distribution, registered with :func:`discretize`. Discretization never
weakens a guarantee: bounds become integers, rounded inwards; where rounding increases the distance
between neighbouring answers, the noise grows by as much, or the privacy parameter mu does.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from dpdask.errors import InvalidMechanism, OutOfReach
from dpdask.noise.distributions import (
    IidNoise,
    KroneckerNoise,
    LaplaceNoise,
    Noise,
    SphericalNoise,
)
from dpdask.noise.factors import ScaledIdentity, mixing_axes
from dpdask.noise.rounding import moved_entries, product_rounding, whitened_rounding
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.privatizers.clipping import fine_clip_grid
from dpdask.privatizers.grid import (
    GRID_LIMIT,
    MAX_STEPS_PER_SIGMA,
    TAIL_SIGMAS,
    Grid,
    steps_for_clip,
    steps_for_rounding,
)
from dpdask.privatizers.iid import IidPrivatizer
from dpdask.privatizers.laplace_grid import laplace_privatizer, rounded_grid
from dpdask.privatizers.spherical import SPHERICAL_STEPS_PER_SIGMA, SphericalPrivatizer
from dpdask.privatizers.whitened_grid import known_mu, whitened_privatizer

__all__ = ["discretize"]

# bits of the entries of a result without bounds, in standard deviations of the quietest direction
_MOST_BITS, _LEAST_BITS = 24, 12
_SPHERICAL_REACH = 2.0**36  # standard deviations that a result without bounds may have


@functools.singledispatch
def discretize(
    noise: Noise, bounds: AnswerBounds, *, mu: float | None, steps_per_sigma: int | None
) -> Discretized:
    """Return the noise on a grid that the answer is rounded to.

    Args:
        noise: The noise as it was calibrated.
        bounds: What is known of the answer.
        mu: The mu of Gaussian noise as it was calibrated; None for other noise.
        steps_per_sigma: The user's choice of a grid; None lets discretization choose.

    Raises:
        OutOfReach: No grid holds the answer exactly.
        InvalidMechanism: Noise of this distribution cannot be added to such an answer.
    """
    raise InvalidMechanism(
        f"noise {type(noise).__name__} has no grid; use i.i.d., Laplace, Kronecker or spherical"
        " noise"
    )


@discretize.register(IidNoise)
def _discretize_iid(
    noise: IidNoise, bounds: AnswerBounds, *, mu: float | None, steps_per_sigma: int | None
) -> Discretized:
    """Round entries to one grid; bounded records become integers of that grid exactly."""
    if bounds.rounded_entries:
        return _discretize_rounded(noise, bounds, mu, steps_per_sigma)
    if bounds.clip_norm is not None:
        norm = bounds.clip_norm
        steps = steps_for_clip(sigma=noise.sigma, norm=norm, steps_per_sigma=steps_per_sigma)
        grid = Grid.for_clip(sigma=noise.sigma, norm=norm, steps_per_sigma=steps)
    elif bounds.common_range is not None:
        low, high = bounds.common_range
        steps = steps_for_clip(sigma=noise.sigma, norm=high - low, steps_per_sigma=steps_per_sigma)
        grid = Grid.for_range(sigma=noise.sigma, low=low, high=high, steps_per_sigma=steps)
    else:  # every feature has a range, hence a grid of its own
        kronecker = _as_kronecker(noise)
        return _discretize_kronecker(kronecker, bounds, mu=mu, steps_per_sigma=steps_per_sigma)
    clips = bounds.clip_norm is not None
    privatizer = IidPrivatizer(noise=noise, grid=grid, clips=clips, record_axis=bounds.record_axis)
    return Discretized(privatizer=privatizer, mu=mu)


def _discretize_rounded(
    noise: IidNoise, bounds: AnswerBounds, mu: float | None, steps_per_sigma: int | None
) -> Discretized:
    """Round a finished result, or counts, to the grid; the noise grows by what that costs.

    Rounding increases the distance between neighbouring answers by at most 11/8 steps per entry;
    the noise grows by sqrt(2) steps, at most 0.1 %.
    """
    radius, entries = bounds.sensitivity.radius, bounds.rounded_entries
    least, inflated = steps_for_rounding(sigma=noise.sigma, sensitivity=radius, entries=2 * entries)
    sigma = noise.sigma * inflated / radius
    grid = rounded_grid(sigma, bounds, least_steps=least, steps_per_sigma=steps_per_sigma)
    privatizer = IidPrivatizer(noise=IidNoise(noise.shape, sigma), grid=grid)
    rounding = product_rounding(step=grid.step, entries=entries, most=grid.high) / sigma
    return Discretized(privatizer=privatizer, mu=mu, rounding=rounding)


@discretize.register(LaplaceNoise)
def _discretize_laplace(
    noise: LaplaceNoise, bounds: AnswerBounds, *, mu: float | None, steps_per_sigma: int | None
) -> Discretized:
    """Round entries to one grid; bounded entries become integers of that grid exactly."""
    return laplace_privatizer(noise, bounds, steps_per_sigma=steps_per_sigma)


def _as_kronecker(noise: IidNoise) -> KroneckerNoise:
    """Return i.i.d. noise as scaled identities."""
    first, *others = noise.shape
    return KroneckerNoise(
        (ScaledIdentity(first, noise.sigma), *(ScaledIdentity(size) for size in others))
    )


@discretize.register(KroneckerNoise)
def _discretize_kronecker(
    noise: KroneckerNoise, bounds: AnswerBounds, *, mu: float | None, steps_per_sigma: int | None
) -> Discretized:
    """Round whitened entries to a grid; records are clipped on a fine grid of their own."""
    if not bounds.bounded:
        bounds = _clamped(noise, bounds, known_mu(mu), steps_per_sigma)
    return whitened_privatizer(noise, bounds, mu=known_mu(mu), steps_per_sigma=steps_per_sigma)


def _clamped(
    noise: KroneckerNoise, bounds: AnswerBounds, mu: float, steps_per_sigma: int | None
) -> AnswerBounds:
    """Clamp a result without bounds at 2^24 standard deviations of the quietest direction or less.

    The wider the bounds, the coarser the grid that doubles can hold and the larger the errors of
    whitening: bounds become narrower until these cost at most mu / 500.
    """
    quietest = math.prod(factor.smallest for factor in noise.factors)
    mixing = mixing_axes(noise.factors)
    moved = moved_entries(noise.tensor_shape, mixing, None, 1)
    spread = math.prod(math.sqrt(noise.factors[axis].size) for axis in mixing)
    for bits in range(_MOST_BITS, _LEAST_BITS - 1, -1):
        largest = quietest * 2.0**bits
        most_steps = float(GRID_LIMIT) / (2.0**bits * spread + TAIL_SIGMAS) / 2
        extra, floating = whitened_rounding(
            noise.factors,
            steps_per_sigma=min(MAX_STEPS_PER_SIGMA, most_steps),
            moved=moved,
            norm=largest * math.sqrt(moved),
        )
        if (extra if steps_per_sigma is None else floating) <= mu / 500:
            break
    order = len(bounds.low)
    return dataclasses.replace(bounds, low=(-largest,) * order, high=(largest,) * order)


@discretize.register(SphericalNoise)
def _discretize_spherical(
    noise: SphericalNoise, bounds: AnswerBounds, *, mu: float | None, steps_per_sigma: int | None
) -> Discretized:
    """Round the sum of answer and noise to 1/64 of an entry's standard deviation."""
    if bounds.common_range is None:
        raise InvalidMechanism(
            "spherical noise takes one range for all entries; give one range, or a clip norm"
        )
    low, high = bounds.common_range
    if not bounds.bounded:
        high = noise.entry_std * _SPHERICAL_REACH
        low = -high
    rounding = noise.entry_std / SPHERICAL_STEPS_PER_SIGMA
    tail = TAIL_SIGMAS * SPHERICAL_STEPS_PER_SIGMA * math.sqrt(noise.entries)
    if max(abs(low), abs(high)) / rounding + tail >= GRID_LIMIT:
        raise OutOfReach(
            "bounds exceed 2^51 steps of the spherical grid; narrow the bounds or use"
            " analytic-gaussian"
        )
    clipping = None if bounds.clip_norm is None else fine_clip_grid(bounds.clip_norm)
    privatizer = SphericalPrivatizer(
        noise=noise,
        rounding=rounding,
        low=low,
        high=high,
        record_axis=bounds.record_axis,
        clipping=clipping,
    )
    return Discretized(privatizer=privatizer, mu=None)

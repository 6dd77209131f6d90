"""Laplace noise on its grid, and the grid of answers that are rounded before noise is added.

Laplace noise is calibrated to l1 distances: an entry that is rounded costs its whole step, so d
rounded entries cost d steps where Gaussian noise pays sqrt(d).
"""

from __future__ import annotations

import math

from dpdask.errors import InvalidMechanism, InvalidSpec, OutOfReach
from dpdask.noise.distributions import LaplaceNoise
from dpdask.noise.rounding import product_rounding
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds, AxisBound
from dpdask.privatizers.grid import ROUNDED_LIMIT, Grid, steps_for_clip, steps_for_rounding
from dpdask.privatizers.iid import LaplacePrivatizer, RangesLaplacePrivatizer
from dpdask.sensitivity import known_l1

__all__ = ["laplace_privatizer", "rounded_grid"]


def rounded_grid(
    scale: float, bounds: AnswerBounds, *, least_steps: float, steps_per_sigma: int | None
) -> Grid:
    """Return the grid to which a finished result, or counts, are rounded.

    Args:
        scale: The noise, grown by what rounding costs.
        bounds: What is known of the answer.
        least_steps: The steps per scale at which rounding costs no more than that.
        steps_per_sigma: The user's choice; None takes the least.
    """
    if not bounds.bounded and steps_per_sigma is not None and steps_per_sigma < least_steps:
        raise InvalidSpec(
            f"noise.steps_per_sigma={steps_per_sigma} is too coarse for {bounds.rounded_entries}"
            f" entries; use at least {least_steps:g} or leave it out"
        )
    steps = max(least_steps, float(steps_per_sigma or 0))
    step = scale / steps
    most = math.ceil(bounds.largest / step) if bounds.bounded else ROUNDED_LIMIT
    if most > ROUNDED_LIMIT:
        raise OutOfReach(
            f"{bounds.largest:g} records are {most:.3g} steps of the noise's grid, more than 2^49,"
            " beyond which rounding is not exact; use a smaller epsilon or a smaller"
            " noise.steps_per_sigma"
        )
    return Grid(step=step, steps_per_sigma=steps, low=-most, high=most)


def laplace_privatizer(
    noise: LaplaceNoise, bounds: AnswerBounds, *, steps_per_sigma: int | None
) -> Discretized:
    """Return Laplace noise on a grid that the answer is rounded to.

    Args:
        noise: The noise as it was calibrated.
        bounds: What is known of the answer.
        steps_per_sigma: The user's choice of steps per scale; None chooses.
    """
    known_l1(bounds.sensitivity)
    if bounds.rounded_entries:
        return _rounded(noise, bounds, steps_per_sigma)
    if bounds.clip_norm is not None:
        raise InvalidMechanism(
            "records are clipped to an l2 norm, which is not how Laplace noise bounds them; give"
            " ranges, or use analytic-gaussian"
        )
    if bounds.common_range is None:
        return _on_ranges(noise, bounds, steps_per_sigma)
    low, high = bounds.common_range
    steps = steps_for_clip(sigma=noise.scale, norm=high - low, steps_per_sigma=steps_per_sigma)
    grid = Grid.for_range(sigma=noise.scale, low=low, high=high, steps_per_sigma=steps)
    privatizer = LaplacePrivatizer(noise=noise, grid=grid, record_axis=bounds.record_axis)
    return Discretized(privatizer=privatizer, mu=None)


def _rounded(noise: LaplaceNoise, bounds: AnswerBounds, steps_per_sigma: int | None) -> Discretized:
    """Round a finished result, or counts, to the grid; the noise grows by what that costs.

    At most 11/8 steps per entry, of which sqrt(2) are charged: at most 0.1 %.
    """
    l1, entries = known_l1(bounds.sensitivity), bounds.rounded_entries
    least, inflated = steps_for_rounding(
        sigma=noise.scale, sensitivity=l1, entries=entries, moved_steps=math.sqrt(2) * entries
    )
    scale = noise.scale * inflated / l1
    grid = rounded_grid(scale, bounds, least_steps=least, steps_per_sigma=steps_per_sigma)
    privatizer = LaplacePrivatizer(noise=LaplaceNoise(noise.shape, scale), grid=grid)
    in_l2 = product_rounding(step=grid.step, entries=entries, most=grid.high)
    return Discretized(privatizer=privatizer, mu=None, rounding=in_l2 * math.sqrt(entries) / scale)


def _on_ranges(
    noise: LaplaceNoise, bounds: AnswerBounds, steps_per_sigma: int | None
) -> Discretized:
    """Clamp every feature to its own range on the one grid of the noise, rounded inwards."""
    axis, lows, highs = _ranges_along(bounds)
    narrowest = min(high - low for low, high in zip(lows, highs, strict=True))
    steps = steps_for_clip(sigma=noise.scale, norm=narrowest, steps_per_sigma=steps_per_sigma)
    grids = [
        Grid.for_range(sigma=noise.scale, low=low, high=high, steps_per_sigma=steps)
        for low, high in zip(lows, highs, strict=True)
    ]
    whole = Grid(
        step=grids[0].step,
        steps_per_sigma=steps,
        low=min(grid.low for grid in grids),
        high=max(grid.high for grid in grids),
    )
    privatizer = RangesLaplacePrivatizer(
        noise=noise,
        grid=whole,
        record_axis=bounds.record_axis,
        feature_axis=axis,
        lows=tuple(grid.low for grid in grids),
        highs=tuple(grid.high for grid in grids),
    )
    return Discretized(privatizer=privatizer, mu=None)


def _ranges_along(bounds: AnswerBounds) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """Return the axis along which ranges differ, and their ends."""
    several = [axis for axis, bound in enumerate(bounds.low) if isinstance(bound, tuple)]
    axis = several[0]
    return axis, _numbers(bounds.low[axis]), _numbers(bounds.high[axis])


def _numbers(bound: AxisBound) -> tuple[float, ...]:
    return bound if isinstance(bound, tuple) else (bound,)

"""The tensor itself, and finished results with a declared sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpdask.errors import InvalidMechanism, InvalidSpec
from dpdask.noise import IidNoise, KroneckerNoise, Noise, SphericalNoise
from dpdask.noise.rounding import moved_entries, whitened_rounding
from dpdask.privatizers.grid import DECLARED_REACH, Grid, fine_clip_grid, ratio_for_declared
from dpdask.privatizers.recipes import (
    LARGEST_RATIO,
    ROOM,
    IidRecipe,
    fit_spherical,
    mixing_axes,
    ratio_for_clip,
)
from dpdask.queries.base import Clip, Fitted, Query, Ranges, known_mu, kronecker_fit
from dpdask.sensitivity import Origin
from dpdask.types import Json

__all__ = ["Identity", "Precomputed"]

_MOST_BITS, _LEAST_BITS = (
    24,
    12,
)  # of a finished result's entries, in standard deviations of the quietest direction


@dataclass(frozen=True, kw_only=True)
class Identity(Query):
    """f(X) = X, every record bounded by clipping or ranges. Replace-one only: the number of records
    shows.
    """

    name: ClassVar[str] = "identity"
    bound: Clip | Ranges

    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """Bounds become integers of the noise's grid; with one range or a clip norm, i.i.d. noise
        is one fused pass.
        """
        bound = self.bound
        order = len(self.source_shape)
        if isinstance(bound, Clip):
            if isinstance(noise, IidNoise):
                ratio = ratio_for_clip(sigma=noise.sigma, norm=bound.norm, asked=asked)
                grid = Grid.for_clip(sigma=noise.sigma, norm=bound.norm, ratio=ratio)
                return Fitted(
                    recipe=IidRecipe(
                        noise=noise, grid=grid, clips=True, record_axis=bound.record_axis
                    ),
                    mu=mu,
                )
            fine = fine_clip_grid(bound.norm)
            reach = bound.norm
            if isinstance(noise, SphericalNoise):
                spherical = fit_spherical(
                    noise, low=-reach, high=reach, record_axis=bound.record_axis, clipping=fine
                )
                return Fitted(recipe=spherical, mu=None)
            if isinstance(noise, KroneckerNoise):
                low, high = [-reach] * order, [reach] * order
                return kronecker_fit(
                    noise,
                    mu=mu,
                    low=low,
                    high=high,
                    record_axis=bound.record_axis,
                    clipping=fine,
                    asked=asked,
                    sensitivity=self.sensitivity,
                    contributions=self.max_contributions,
                )
        elif len(bound.pairs) == 1 and isinstance(noise, IidNoise):
            low_, high_ = bound.pairs[0]
            ratio = ratio_for_clip(sigma=noise.sigma, norm=high_ - low_, asked=asked)
            grid = Grid.for_range(sigma=noise.sigma, low=low_, high=high_, ratio=ratio)
            return Fitted(
                recipe=IidRecipe(noise=noise, grid=grid, record_axis=bound.record_axis), mu=mu
            )
        elif isinstance(noise, SphericalNoise):
            if len(bound.pairs) > 1:
                raise InvalidMechanism(
                    "spherical noise knows one range for all entries; give one range, or a clip"
                    " norm"
                )
            low_, high_ = bound.pairs[0]
            spherical = fit_spherical(
                noise, low=low_, high=high_, record_axis=bound.record_axis, clipping=None
            )
            return Fitted(recipe=spherical, mu=None)
        elif isinstance(noise, IidNoise | KroneckerNoise):
            lows: list[Any] = [-math.inf] * order
            highs: list[Any] = [math.inf] * order
            axis = bound.feature_axis
            lows[axis] = bound.lows if len(bound.pairs) > 1 else bound.lows[0]
            highs[axis] = bound.highs if len(bound.pairs) > 1 else bound.highs[0]
            return kronecker_fit(
                noise,
                mu=mu,
                low=lows,
                high=highs,
                record_axis=bound.record_axis,
                clipping=None,
                asked=asked,
                sensitivity=self.sensitivity,
                contributions=self.max_contributions,
            )
        raise InvalidMechanism(
            f"noise {type(noise).__name__} cannot be fitted to an identity release"
        )


@dataclass(frozen=True, kw_only=True)
class Precomputed(Query):
    """A finished query result; its sensitivity is the caller's word, recorded as declared.
    ``steps`` slices compose.
    """

    name: ClassVar[str] = "precomputed"
    steps: int = 1

    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """Rounding moves neighbours apart by at most 11/8 steps an entry; the noise grows by
        sqrt(2) steps, at most 0.1 %.

        A finished result has no bound of its own; entries beyond what the grid holds are cut, and
        plan and card say where.
        """
        entries = math.prod(self.source_shape) // self.steps
        if isinstance(noise, SphericalNoise):
            largest = noise.entry_std * 2.0**36
            return Fitted(
                recipe=fit_spherical(
                    noise, low=-largest, high=largest, record_axis=None, clipping=None
                ),
                mu=None,
            )
        if isinstance(noise, KroneckerNoise):
            return self._fit_kronecker(noise, known_mu(mu), asked)
        if not isinstance(noise, IidNoise):
            raise InvalidMechanism(
                f"noise {type(noise).__name__} cannot be fitted to a declared result"
            )
        radius = self.sensitivity.radius
        ratio, inflated = ratio_for_declared(
            sigma=noise.sigma, sensitivity=radius, entries=2 * entries
        )
        if asked is not None and asked < ratio:
            raise InvalidSpec(
                f"noise.steps_per_sigma={asked} is too coarse for {entries} entries; use at"
                f" least {ratio:g} or leave it out"
            )
        ratio = max(ratio, float(asked or 0))
        sigma = noise.sigma * inflated / radius
        grid = Grid(step=sigma / ratio, ratio=ratio, low=-DECLARED_REACH, high=DECLARED_REACH)
        return Fitted(recipe=IidRecipe(noise=IidNoise(noise.shape, sigma), grid=grid), mu=mu)

    def _fit_kronecker(self, noise: KroneckerNoise, mu: float, asked: int | None) -> Fitted:
        """Entries are cut at 2^24 standard deviations of the quietest direction, or earlier where
        that costs noise.

        The wider the cut, the coarser the grid that doubles can hold and the larger the errors of
        whitening.
        """
        quietest = math.prod(factor.smallest for factor in noise.factors)
        order = len(self.source_shape)
        mixing = mixing_axes(noise.factors)
        moved = moved_entries(noise.tensor_shape, mixing, None, 1)
        spread = math.prod(math.sqrt(noise.factors[axis].size) for axis in mixing)
        for bits in range(_MOST_BITS, _LEAST_BITS - 1, -1):
            largest = quietest * 2.0**bits
            finest = min(LARGEST_RATIO, ROOM / (2.0**bits * spread + 64) / 2)
            extra, floating = whitened_rounding(
                noise.factors, ratio=finest, moved=moved, norm=largest * math.sqrt(moved)
            )
            if (extra if asked is None else floating) <= mu / 500:
                break
        low, high = [-largest] * order, [largest] * order
        return kronecker_fit(
            noise,
            mu=mu,
            low=low,
            high=high,
            record_axis=None,
            clipping=None,
            asked=asked,
            sensitivity=self.sensitivity,
        )

    def bound_to_dict(self, fitted: Fitted) -> Json:
        """The caller's word, and where entries are cut."""
        facts = {
            "l2_sensitivity": self.sensitivity.radius,
            "enforced": False,
            "origin": str(Origin.DECLARED),
        }
        return {"kind": "declared", **facts, "clamped_at": fitted.recipe.largest}

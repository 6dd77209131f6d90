"""Spherical noise: one random direction shared by all tiles, in floating point, rounded to a grid.

Its distribution is exact only up to floating point, so no guarantee of it is certified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.keystream import TileStream
from dpdask.loading import when_used
from dpdask.noise.distributions import SphericalNoise
from dpdask.privatizers.base import Privatizer, Tile, clipped_values
from dpdask.privatizers.blocks import draw_and_combine, flattened, output_scale
from dpdask.privatizers.grid import GRID_LIMIT, TAIL_SIGMAS, Grid
from dpdask.types import Array, Json

if TYPE_CHECKING:
    from dpdask.privatizers import kernels
else:
    kernels = when_used("dpdask.privatizers.kernels")

__all__ = ["SPHERICAL_STEPS_PER_SIGMA", "SphericalPrivatizer", "add_spherical"]

SPHERICAL_STEPS_PER_SIGMA = 2.0**6  # of the released grid
DIRECTION_STEPS_PER_SIGMA = 2.0**24  # of the integers that give the direction
_MOST_STEPS = 2.0**14  # of noise per entry; more would show the lattice of the direction


@dataclass(frozen=True, kw_only=True)
class SphericalPrivatizer(Privatizer):
    """Spherical noise, its sum with the data rounded to multiples of ``rounding``.

    Args:
        noise: The noise.
        rounding: The step of the released grid.
        low: The lower bound of entries.
        high: The upper bound of entries.
        clipping: The grid on which records are clipped; None where they are not.
    """

    noise: SphericalNoise
    rounding: float
    low: float
    high: float
    clipping: Grid | None = None

    @property
    def step(self) -> float:
        """The step of released values."""
        return self.rounding

    @property
    def largest(self) -> float:
        """The bound of all entries."""
        return max(abs(self.low), abs(self.high))

    @property
    def largest_output(self) -> float:
        """The bound, and 64 standard deviations of an entry that takes all of the noise."""
        spread = math.sqrt(self.noise.entries) * TAIL_SIGMAS * self.noise.entry_std
        return (self.largest + spread) / self.rounding

    @property
    def clip_grid(self) -> Grid | None:
        """A fine grid of its own."""
        return self.clipping

    def apply(self, tile: Tile, out: Array) -> None:
        """Clip, add the tile's part of the direction, round."""
        if tile.radius is None:
            raise InvalidNoise("a tile of spherical noise has no radius; draw it with chunk_radii")
        add_spherical(
            clipped_values(tile, self.clipping, self.record_axis),
            out,
            stream=tile.stream,
            step=self.rounding,
            radius=tile.radius,
            low=self.low,
            high=self.high,
        )

    def to_dict(self) -> Json:
        """Return the grid, and that this noise is not exact."""
        return {
            "step": self.rounding,
            "steps_per_sigma": SPHERICAL_STEPS_PER_SIGMA,
            "low": self.low,
            "high": self.high,
            **self._sampler(exact=False),
        }


def add_spherical(
    x: Array, out: Array, *, stream: TileStream, step: float, radius: float, low: float, high: float
) -> None:
    """Clamp, add a vector of norm ``radius`` in a uniform direction, round to ``step``.

    The direction comes from exact Gaussian integers of standard deviation 2^24, stretched to the
    radius in floating point. Stretched integers form a lattice; rounding the sum hides it as long
    as a step holds at least 2^10 of its points, so noise of more than 2^14 steps per entry is
    refused. A step of entry_std / 2^6 is far from that.

    The output serves as scratch for the integers.

    Args:
        x: The data.
        out: Where the result goes.
        stream: The random bytes of the tile.
        step: The step of released values.
        radius: The norm of the noise of this tile.
        low: The lower bound of entries.
        high: The upper bound of entries.
    """
    xs, outs = flattened(x, out)
    limit, scale = output_scale(out, GRID_LIMIT - 1, step)
    bounds = (1 / step, float(low), float(high))
    # the integers lie in the output; one above 2^31 would be a draw of 128 standard deviations
    kept = outs if out.dtype.itemsize == 8 else outs.view(np.int32)
    total = np.zeros(1)
    draw_and_combine(kernels.keep_and_norm, stream, DIRECTION_STEPS_PER_SIGMA, xs, kept, (total,))
    stretch = _stretch(radius / step, float(total[0]), x.size)
    kernels.finish_spherical(xs, kept, outs, *bounds, stretch, limit, scale)


def _stretch(radius: float, squared_norm: float, entries: int) -> float:
    """Return grid steps per integer of the direction.

    A vector of zeros, which one of 2^24 tiles of one entry draws, stays zero.
    """
    if not radius <= _MOST_STEPS * math.sqrt(entries):
        raise InvalidNoise(
            "the noise exceeds 2^14 grid steps per entry, which shows its lattice; use a coarser"
            " grid"
        )
    return radius / math.sqrt(max(squared_norm, 1.0))

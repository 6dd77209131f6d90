"""What every privatizer has in common: a tile goes in, the same tile with noise comes out."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from dpdask.keystream import TileStream
from dpdask.noise.distributions import Noise
from dpdask.privatizers.clipping import clipped_on_grid
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.samplers import GAUSSIAN, Sampler
from dpdask.types import Array, Floats, Json, Region, Shape

__all__ = ["LAYOUT_VERSION", "AddNoise", "Discretized", "Privatizer", "Tile", "clipped_values"]

AddNoise: TypeAlias = Callable[[Array, Array, int], None]
"""Adds noise to a part of a tile: its values, where the result goes, both flat, and the number of
its first entry.
"""

LAYOUT_VERSION = "tiles/1"  # which element of which stream goes to which entry


@dataclass(frozen=True, kw_only=True, repr=False)
class Tile:
    """A part of the answer that noise is added to. Its ``repr`` shows nothing of the data.

    Args:
        values: The data.
        box: The region of the answer that it is.
        stream: The random bytes of its noise.
        factors: What the records of the tile are multiplied by to obey their clip norm.
        radius: The norm of a tile's spherical noise.
    """

    values: Array
    box: Region
    stream: TileStream
    factors: Floats | None = None
    radius: float | None = None

    def __repr__(self) -> str:
        return "<Tile>"


@dataclass(frozen=True, kw_only=True)
class Privatizer(abc.ABC):
    """How noise is added to a tile. ``record_axis`` is the axis along which clip factors lie."""

    fused: ClassVar[bool] = False  # whether noise is added in one pass, with no copy of the tile
    sampler: ClassVar[Sampler] = GAUSSIAN
    noise: Noise
    record_axis: int | None = None

    def __init_subclass__(cls) -> None:
        """Let a class that applies noise in its own way not inherit another way to add it."""
        super().__init_subclass__()
        if "apply" in vars(cls) and "adder" not in vars(cls):
            cls.adder = Privatizer.adder  # type: ignore[method-assign]

    @property
    @abc.abstractmethod
    def step(self) -> float | None:
        """The grid of released values; None when entries have grids of their own."""

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """The absolute value that entries are clamped to before noise is added."""

    @property
    @abc.abstractmethod
    def largest_output(self) -> float:
        """The largest absolute value of a released entry, in steps; infinite without a step."""

    @property
    def spanned(self) -> tuple[int, ...]:
        """The axes that a tile must hold whole, since the noise mixes them."""
        return ()

    @property
    def clip_grid(self) -> Grid | None:
        """The grid on which records are clipped; None where they are not."""
        return None

    @abc.abstractmethod
    def apply(self, tile: Tile, out: Array) -> None:
        """Bound a tile, add noise, write ``out``. No value can make it raise."""

    def adder(
        self, *, shape: Shape, box: Region, stream: TileStream, factors: Floats | None
    ) -> AddNoise | None:
        """Return what bounds parts of a tile and adds noise to them, to the bytes of :meth:`apply`;
        None where noise mixes entries, or needs all of a tile at once.

        Args:
            shape: The shape of the tile.
            box: The region of the answer that it is.
            stream: The random bytes of its noise.
            factors: What its records are multiplied by; they may change between two parts.
        """
        return None

    @abc.abstractmethod
    def to_dict(self) -> Json:
        """Return the grid as it is recorded on the release card."""

    def _sampler(self, *, exact: bool) -> Json:
        return {"sampler": self.sampler.version, "layout": LAYOUT_VERSION, "exact": exact}


@dataclass(frozen=True, kw_only=True)
class Discretized:
    """Noise on its grid, and the privacy that it then has.

    Args:
        privatizer: How the noise is added; its noise is the one that is really added.
        mu: The mu of Gaussian noise, rounding included; None for other noise.
        rounding: By how much rounding and floating point increase the distance between neighbouring
            outputs, in standard deviations of the noise (scales of Laplace noise, in l1); 0 for
            noise that is not certified.
    """

    privatizer: Privatizer
    mu: float | None
    rounding: float = 0.0

    @property
    def noise(self) -> Noise:
        """The noise that is really added."""
        return self.privatizer.noise


def clipped_values(tile: Tile, clipping: Grid | None, record_axis: int | None) -> Array:
    """Return a tile with its records inside their clip norm, as exact floats.

    Args:
        tile: The data and the factors of its records.
        clipping: The grid on which records are clipped; None leaves the tile as it is.
        record_axis: The axis along which the factors lie.
    """
    if clipping is None or tile.factors is None:
        return tile.values
    steps = clipped_on_grid(
        tile.values, step=clipping.step, factors=tile.factors, record_axis=record_axis or 0
    )
    steps *= clipping.step
    return steps

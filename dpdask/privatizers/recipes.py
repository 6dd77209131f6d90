"""Recipes: a noise shape fitted to a grid and to bounds, ready to turn blocks of data into blocks
of released values.

A recipe is all a task needs to know of a mechanism. Fitting never weakens a guarantee: bounds
become integers, rounded inwards; where rounding to a whitened grid moves neighbours further apart,
the noise grows by as much, or the profile is charged for it.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.errors import InvalidNoise, OutOfReach
from dpdask.keystream import TileStream
from dpdask.noise.distributions import IidNoise, KroneckerNoise, Noise, SphericalNoise
from dpdask.noise.factors import DenseFactor, Factor, Floats, LowRankFactor, ScaledIdentity
from dpdask.noise.rounding import moved_entries, moved_records, whitened_rounding
from dpdask.privatizers.exact_gaussian import SAMPLER_VERSION
from dpdask.privatizers.grid import DEFAULT_RATIO, Grid, clipped_on_grid
from dpdask.privatizers.tiles import add_iid, add_iid_clipped, add_kronecker, add_spherical
from dpdask.sensitivity import SensitivitySet
from dpdask.types import Array, Json

__all__ = [
    "LAYOUT_VERSION",
    "NOTHING",
    "IidRecipe",
    "KroneckerRecipe",
    "Recipe",
    "SphericalRecipe",
    "Tile",
    "as_kronecker",
    "fit_kronecker",
    "fit_spherical",
    "mixing_axes",
    "ratio_for_clip",
]

LAYOUT_VERSION = "tiles/1"  # which element of which stream goes to which entry
SPHERICAL_RATIO = 2.0**6
LARGEST_RATIO = 2.0**30
ROOM = 2.0**51
NOTHING = 1 + 4e-14  # so much of mu is far less than its profile rounds up
_MOST_GROWTH = _MOST_FLOATING = 0.01

Bound = float | tuple[float, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Tile:
    """Data to be released, its place, the stream of its noise, factors that shrink its records, a
    spherical noise's norm.
    """

    values: Array
    box: tuple[slice, ...]
    stream: TileStream
    factors: Floats | None = None
    radius: float | None = None

    def __repr__(self) -> str:
        return "<Tile>"


@dataclass(frozen=True, kw_only=True)
class Recipe(abc.ABC):
    """How one tile is released. ``record_axis`` is the axis along which clip factors lie."""

    fused: ClassVar[bool] = False  # whether noise is added in one pass, with no copy of the tile
    noise: Noise
    record_axis: int | None = None

    @property
    @abc.abstractmethod
    def step(self) -> float | None:
        """The grid of released values; None when entries have grids of their own."""

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """Entries are cut to this absolute value before noise is added."""

    @property
    def spanned(self) -> tuple[int, ...]:
        """Axes that a tile must hold whole, since the noise mixes them."""
        return ()

    @property
    def clip_grid(self) -> Grid | None:
        """The grid on which records are clipped, where they are."""
        return None

    @abc.abstractmethod
    def release(self, tile: Tile, out: Array) -> None:
        """Bound a tile, add noise, write ``out``."""

    @abc.abstractmethod
    def to_dict(self) -> Json:
        """The grid as JSON-ready facts."""

    def _sampler(self, exact: bool) -> Json:
        return {"sampler": SAMPLER_VERSION, "layout": LAYOUT_VERSION, "exact": exact}


@dataclass(frozen=True, kw_only=True)
class IidRecipe(Recipe):
    """Independent noise on one grid."""

    fused: ClassVar[bool] = True
    grid: Grid
    clips: bool = False

    @property
    def step(self) -> float:
        """The grid's step."""
        return self.grid.step

    @property
    def largest(self) -> float:
        """The grid's bound."""
        return max(abs(self.grid.low), abs(self.grid.high)) * self.grid.step

    @property
    def clip_grid(self) -> Grid | None:
        """The noise's own grid."""
        return self.grid if self.clips else None

    def release(self, tile: Tile, out: Array) -> None:
        """One fused pass."""
        if tile.factors is None:
            add_iid(tile.values, out, stream=tile.stream, grid=self.grid)
            return
        axis = self.record_axis or 0
        add_iid_clipped(
            tile.values,
            out,
            stream=tile.stream,
            grid=self.grid,
            factors=tile.factors,
            record_axis=axis,
        )

    def to_dict(self) -> Json:
        """Step, ratio and integer bounds."""
        grid = self.grid
        return {
            "step": grid.step,
            "steps_per_sigma": grid.ratio,
            "low": grid.low,
            "high": grid.high,
            **self._sampler(True),
        }


def _restricted(values: Bound, part: slice) -> Floats | float:
    return np.asarray(values[part.start : part.stop]) if isinstance(values, tuple) else values


@dataclass(frozen=True, kw_only=True)
class KroneckerRecipe(Recipe):
    """Kronecker noise on the whitened grid 1/ratio; ``low`` and ``high`` bound entries, one item
    per axis.
    """

    noise: KroneckerNoise
    ratio: float
    low: tuple[Bound, ...]
    high: tuple[Bound, ...]
    clipping: Grid | None = None

    @property
    def step(self) -> None:
        """None: every entry has its own."""
        return

    @property
    def largest(self) -> float:
        """The narrowest bound of all axes."""
        return _largest(self.low, self.high)

    @property
    def spanned(self) -> tuple[int, ...]:
        """The axes of dense and low-rank factors."""
        return tuple(
            i
            for i, factor in enumerate(self.noise.factors)
            if isinstance(factor, DenseFactor | LowRankFactor)
        )

    @property
    def clip_grid(self) -> Grid | None:
        """A fine grid of its own."""
        return self.clipping

    def release(self, tile: Tile, out: Array) -> None:
        """Clip, whiten, round, add integers, un-whiten."""
        add_kronecker(
            _shrunk(tile, self.clipping, self.record_axis),
            out,
            stream=tile.stream,
            factors=[
                _part_of(factor, part)
                for factor, part in zip(self.noise.factors, tile.box, strict=True)
            ],
            ratio=self.ratio,
            low=[_restricted(bound, part) for bound, part in zip(self.low, tile.box, strict=True)],
            high=[
                _restricted(bound, part) for bound, part in zip(self.high, tile.box, strict=True)
            ],
        )

    def to_dict(self) -> Json:
        """The whitened grid."""
        facts: Json = {"whitened_step": 1 / self.ratio, "steps_per_sigma": self.ratio}
        clamps = [
            (low, high)
            for low, high in zip(self.low, self.high, strict=True)
            if isinstance(low, float)
        ]
        if clamps and self.clipping is None:
            facts |= {"low": max(low for low, _ in clamps), "high": min(high for _, high in clamps)}
        return {
            **{name: value for name, value in facts.items() if math.isfinite(value)},
            **self._sampler(True),
        }


@dataclass(frozen=True, kw_only=True)
class SphericalRecipe(Recipe):
    """One random direction shared by all tiles, drawn in floats, rounded to ``rounding``."""

    noise: SphericalNoise
    rounding: float
    low: float
    high: float
    clipping: Grid | None = None

    @property
    def step(self) -> float:
        """The grid of released values."""
        return self.rounding

    @property
    def largest(self) -> float:
        """The bound of all entries."""
        return max(abs(self.low), abs(self.high))

    @property
    def clip_grid(self) -> Grid | None:
        """A fine grid of its own."""
        return self.clipping

    def release(self, tile: Tile, out: Array) -> None:
        """Clip, add the tile's part of the direction, round."""
        if tile.radius is None:
            raise InvalidNoise("a tile of spherical noise has no radius; draw it with chunk_radii")
        shrunk, bounds = (
            _shrunk(tile, self.clipping, self.record_axis),
            {"low": self.low, "high": self.high},
        )
        add_spherical(
            shrunk, out, stream=tile.stream, step=self.rounding, radius=tile.radius, **bounds
        )

    def to_dict(self) -> Json:
        """The grid, and that this noise is not exact."""
        facts = {
            "step": self.rounding,
            "steps_per_sigma": SPHERICAL_RATIO,
            "low": self.low,
            "high": self.high,
        }
        return {**facts, **self._sampler(False)}


def _shrunk(tile: Tile, clipping: Grid | None, record_axis: int | None) -> Array:
    """Records inside their clip norm, as exact floats."""
    if clipping is None or tile.factors is None:
        return tile.values
    steps = clipped_on_grid(
        tile.values, step=clipping.step, factors=tile.factors, record_axis=record_axis or 0
    )
    steps *= clipping.step
    return steps


def _part_of(factor: Factor, part: slice) -> Factor | Floats | float:
    """A diagonal factor restricted to a tile; a mixing one as it is."""
    diagonal = factor.diagonal()
    if diagonal is None:
        return factor
    return diagonal[part] if isinstance(diagonal, np.ndarray) else diagonal


def as_kronecker(noise: IidNoise | KroneckerNoise) -> KroneckerNoise:
    """i.i.d. noise as scaled identities."""
    if isinstance(noise, KroneckerNoise):
        return noise
    first, *others = noise.shape
    return KroneckerNoise(
        (ScaledIdentity(first, noise.sigma), *(ScaledIdentity(n) for n in others))
    )


def mixing_axes(factors: Sequence[Factor]) -> tuple[int, ...]:
    """The axes whose factors mix entries."""
    return tuple(axis for axis, factor in enumerate(factors) if factor.diagonal() is None)


def ratio_for_clip(*, sigma: float, norm: float, asked: int | None) -> float:
    """Steps per sigma: what was asked for, else the least from 2^14 on that leaves a clipped record
    2^12 steps.
    """
    if asked is not None:
        return float(asked)
    ratio = DEFAULT_RATIO
    while norm * ratio / sigma < 2**12 and ratio < LARGEST_RATIO:
        ratio *= 2
    return ratio


def fit_kronecker(
    noise: KroneckerNoise,
    *,
    mu: float,
    low: Sequence[Bound],
    high: Sequence[Bound],
    record_axis: int | None,
    clipping: Grid | None,
    asked: int | None,
    sensitivity: SensitivitySet,
    contributions: int = 1,
    parted: float = 0.0,
) -> tuple[KroneckerRecipe, float]:
    """The recipe and the mu that it really has: how far the whitened body reaches, rounding and
    floating point included.

    Rounding in whitened coordinates moves two neighbours apart by at most sqrt(d)/ratio, d the
    whitened entries one unit can move, whitening in floating point by what
    :func:`whitened_rounding` proves. The ratio is chosen to make this a thousandth of mu and the
    noise grows by as much, so mu stays; where no ratio is fine enough, mu is what it is. What
    floating point alone makes more than a hundredth of mu is refused. ``parted`` is by how much an
    earlier rounding of the answer moved them apart.
    """
    scales = (
        math.prod(f.smallest for f in noise.factors),
        math.prod(math.sqrt(f.power_sum(2)) for f in noise.factors),
    )
    if not (
        scales[0] > 1e-250 and scales[1] < 1e250
    ):  # bounds on rounding hold where nothing underflows
        raise OutOfReach(
            f"noise scales from {scales[0]:.3g} to {scales[1]:.3g} leave the range of doubles;"
            " rescale the data"
        )
    mixing = mixing_axes(noise.factors)
    moved = moved_entries(noise.tensor_shape, mixing, record_axis, contributions)
    largest = _largest(low, high)
    if clipping is None:
        norm = largest * math.sqrt(moved)
    else:  # every record has that norm
        norm = largest * math.sqrt(
            moved_records(noise.tensor_shape, mixing, record_axis, contributions)
        )
    reach = largest
    for axis, factor in enumerate(noise.factors):  # in standard deviations
        reach *= (math.sqrt(factor.size) if axis in mixing else 1.0) / factor.smallest
    ratio = float(asked) if asked is not None else DEFAULT_RATIO
    while (
        asked is None
        and 2 * math.sqrt(moved) / ratio > mu / 1000
        and ratio < LARGEST_RATIO
        and (reach + 64) * ratio * 2 < ROOM
    ):
        ratio *= 2
    if (reach + 64) * ratio >= ROOM:
        raise OutOfReach(
            f"bounds of {reach:.3g} standard deviations do not fit a grid of {ratio:g} steps"
            " each; narrow the bounds"
        )
    extra, floating = whitened_rounding(
        noise.factors, ratio=ratio, moved=moved, norm=norm, parted=parted
    )
    if floating > _MOST_FLOATING * mu:
        raise OutOfReach(
            f"whitening entries of up to {largest:.3g} in floating point may move neighbours"
            f" apart by {floating:.2g} standard"
            f" deviations, more than {_MOST_FLOATING:.0%} of mu={mu:.3g}; narrow the bounds, or"
            " mix fewer entries"
        )
    if extra <= _MOST_GROWTH * mu:
        growth = 1 / (1 - extra / mu) * (1 + 1e-12)
        while True:
            first, *others = noise.factors
            grown = KroneckerNoise((first.times(growth), *others))
            extra, _ = whitened_rounding(
                grown.factors, ratio=ratio, moved=moved, norm=norm, parted=parted
            )
            real = sensitivity.whitened(grown.factors) + extra
            if real <= mu * NOTHING:
                break
            growth *= real / mu * (1 + 1e-12)
        noise = grown
    else:
        mu = max(mu, sensitivity.whitened(noise.factors) + extra)
    recipe = KroneckerRecipe(
        noise=noise,
        ratio=ratio,
        low=tuple(low),
        high=tuple(high),
        clipping=clipping,
        record_axis=record_axis,
    )
    return recipe, mu


def _largest(low: Sequence[Bound], high: Sequence[Bound]) -> float:
    """The narrowest bound of all axes."""
    return min(
        float(np.max(np.abs([*np.atleast_1d(a), *np.atleast_1d(b)])))
        for a, b in zip(low, high, strict=True)
    )


def fit_spherical(
    noise: SphericalNoise,
    *,
    low: float,
    high: float,
    record_axis: int | None,
    clipping: Grid | None,
) -> SphericalRecipe:
    """Spherical noise, its sum with the data rounded to 1/64 of an entry's standard deviation."""
    rounding = noise.entry_std / SPHERICAL_RATIO
    if (
        max(abs(low), abs(high)) / rounding + 64 * SPHERICAL_RATIO * math.sqrt(noise.entries)
        >= ROOM
    ):
        raise OutOfReach(
            "bounds exceed 2^51 steps of the spherical grid; narrow the bounds or use"
            " analytic-gaussian"
        )
    return SphericalRecipe(
        noise=noise,
        rounding=rounding,
        low=low,
        high=high,
        record_axis=record_axis,
        clipping=clipping,
    )

"""What every query knows: the shape of its answer, what one unit can change of it, and how noise is
fitted to it.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from dpdask.errors import InvalidMechanism, InvalidSpec
from dpdask.noise import IidNoise, KroneckerNoise, Noise
from dpdask.privacy import Adjacency
from dpdask.privatizers.grid import Grid, clip_factors, clipped_on_grid, on_grid, record_norms
from dpdask.privatizers.recipes import Recipe, as_kronecker, fit_kronecker
from dpdask.sensitivity import SensitivitySet
from dpdask.types import Array, Floats, Integers, Json, Region

__all__ = [
    "Clip",
    "Fitted",
    "Floats",
    "Integers",
    "Query",
    "Ranges",
    "Reader",
    "RecordRule",
    "Region",
    "SummedQuery",
    "known_mu",
    "kronecker_fit",
]

PRIVATE_COUNT = 2**30  # stands for the number of records where that is private; more are refused


class Reader(Protocol):
    """Whatever gives regions of the source."""

    def read(self, box: Region) -> Array:
        """A region as a C-ordered array."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Every record is shrunk to an l2 norm of at most ``norm``."""

    norm: float
    record_axis: int


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """Every entry is clamped to the range of its feature: one pair for all, or one per index of
    ``feature_axis``.
    """

    pairs: tuple[tuple[float, float], ...]
    feature_axis: int
    record_axis: int | None

    @property
    def lows(self) -> tuple[float, ...]:
        """The lower ends."""
        return tuple(low for low, _ in self.pairs)

    @property
    def highs(self) -> tuple[float, ...]:
        """The upper ends."""
        return tuple(high for _, high in self.pairs)

    @property
    def largest(self) -> float:
        """The largest absolute value of an entry."""
        return max(max(abs(low), abs(high)) for low, high in self.pairs)


@dataclass(frozen=True, kw_only=True)
class RecordRule:
    """How raw records become integers before they are summed: clipped or clamped, in steps of
    ``grid.step``.
    """

    grid: Grid
    record_axis: int
    ranges: Ranges | None = None

    def integers(self, block: Array, factors: Floats | None, offsets: tuple[int, ...]) -> Floats:
        """The block as whole numbers of steps; ``offsets`` say where it begins, ``factors`` shrink
        clipped records.
        """
        if self.ranges is None:
            if factors is None:
                factors = clip_factors(
                    record_norms(block, record_axis=self.record_axis, step=self.grid.step),
                    grid=self.grid,
                )
            return clipped_on_grid(
                block, step=self.grid.step, factors=factors, record_axis=self.record_axis
            )
        low, high = [], []
        for bottom, top in self.ranges.pairs:
            inner = Grid.for_range(
                sigma=self.grid.step * self.grid.ratio, low=bottom, high=top, ratio=self.grid.ratio
            )
            low.append(inner.low)
            high.append(inner.high)
        axis = self.ranges.feature_axis
        return on_grid(
            block,
            step=self.grid.step,
            low=_along(low, axis, offsets[axis], block.shape),
            high=_along(high, axis, offsets[axis], block.shape),
        )


def _along(values: list[int], axis: int, start: int, shape: tuple[int, ...]) -> Any:
    if len(values) == 1:
        return values[0]
    part = np.array(values[start : start + shape[axis]], dtype=np.float64)
    return part.reshape([-1 if i == axis else 1 for i in range(len(shape))])


_WORD = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A recipe, the mu it really has (None for noise that is not Gaussian), and the rule for
    records, if they are summed.

    ``answer_step`` is the value of an answer's integer 1, after its last ``shift`` bits were
    rounded away. A sum that may need more than 64 bits comes as two ``words``, high * 2^32 + low,
    along a first axis of its own.
    """

    recipe: Recipe
    mu: float | None
    records: RecordRule | None = None
    answer_step: float = 1.0
    shift: int = 0
    words: int = 1

    def answer(self, total: Integers) -> Floats:
        """An exact sum as values on the grid of the answer."""
        half = (1 << self.shift) >> 1
        if self.words == 1:
            rounded = (total + half) >> self.shift
        else:
            low = total[1] + (half & _WORD)
            high = total[0] + (half >> 32) + (low >> 32)
            low &= _WORD
            rounded = (
                (high << 32 - self.shift) + (low >> self.shift)
                if self.shift < 32
                else high >> self.shift - 32
            )
        return rounded.astype(np.float64) * self.answer_step

    def records_to_dict(self) -> Json:
        """The grid on which records are bounded before they are summed, and that of their sum if it
        is rounded on its own.
        """
        if self.records is None:
            return {}
        rounded = self.shift and self.recipe.step is None
        return {
            "record_step": self.records.grid.step,
            **({"answer_step": self.answer_step} if rounded else {}),
        }


@dataclass(frozen=True, kw_only=True)
class Query(abc.ABC):
    """A question to the source. ``divisor`` divides the noisy answer: post-processing."""

    name: ClassVar[str]
    source_shape: tuple[int, ...]
    answer_shape: tuple[int, ...]
    sensitivity: SensitivitySet
    bound: Clip | Ranges | None
    norm_bound: float | None
    max_contributions: int = 1
    divisor: int = 1
    symmetric: ClassVar[bool] = False
    summed: ClassVar[bool] = False

    @property
    def units_axis(self) -> int | None:
        """The axis of the source along which the protected records lie; None where it has none."""
        return getattr(self.bound, "record_axis", None)

    @abc.abstractmethod
    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """The noise on its grid; ``mu`` as calibrated, ``asked`` the steps per sigma the user
        insists on.
        """

    def released_std(self, noise: Noise) -> float:
        """The root mean square of a released entry's noise: divided as the answer is, quieter off a
        symmetrised diagonal.
        """
        shrink = (
            math.sqrt((self.answer_shape[0] + 1) / (2 * self.answer_shape[0]))
            if self.symmetric
            else 1.0
        )
        return noise.entry_std / self.divisor * shrink

    def to_dict(self) -> Json:
        """The query and the bound as JSON-ready facts; nothing of the data."""
        facts: Json = {"name": self.name, "answer_shape": list(self.answer_shape)}
        if self.divisor != 1:
            facts["divisor"] = self.divisor
        return facts

    def bound_to_dict(self, fitted: Fitted) -> Json:
        """How far one record reaches, and how that is enforced."""
        match self.bound:
            case Clip(norm=norm):
                return {"kind": "l2-clip", "norm": norm, "enforced": True}
            case Ranges(pairs=pairs):
                return {
                    "kind": "ranges",
                    "ranges": [list(pair) for pair in pairs],
                    "enforced": True,
                }
            case _:
                return {"kind": "none", "enforced": False}


@dataclass(frozen=True, kw_only=True)
class SummedQuery(Query):
    """A query whose answer is an integer sum over records, partial sums added in any order."""

    summed: ClassVar[bool] = True
    one_pass: ClassVar[bool] = False  # whether one pass over the records computes all of the answer
    record_axis: int

    @property
    def units_axis(self) -> int:
        """The axis that is summed over."""
        return self.record_axis

    @property
    def records(self) -> int:
        """How many records there are."""
        return self.source_shape[self.record_axis]

    @property
    def public_records(self) -> int:
        """The number of records where it is public, else one number for all: no published figure
        may depend on it.
        """
        if self.sensitivity.adjacency is Adjacency.REPLACE_ONE:
            return self.records
        if self.records > PRIVATE_COUNT:
            raise InvalidSpec(
                "the source has more than the 2^30 records that add-remove-one releases allow;"
                " release parts of it"
            )
        return PRIVATE_COUNT

    def region(self, records: int) -> tuple[int, ...]:
        """The shape of what :meth:`partial` reads of so many records, at most."""
        return tuple(
            records if axis == self.record_axis else n for axis, n in enumerate(self.source_shape)
        )

    def summing_bytes(self, records: int) -> int:
        """What :meth:`partial` holds beside what it read of so many records: every entry in steps,
        and a mask.
        """
        return 9 * math.prod(self.region(records))

    def bias(self, fitted: Fitted) -> float:
        """The most that bounding and rounding all records may move an entry of the answer."""
        return 0.0

    @abc.abstractmethod
    def partial(
        self,
        source: Reader,
        fitted: Fitted,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """The sum over some records of a region of the answer, in integers."""


def known_mu(mu: float | None) -> float:
    """The mu of Gaussian noise, which must have been calibrated."""
    if mu is None or not math.isfinite(mu):
        raise InvalidMechanism("Gaussian noise without its mu cannot be fitted; calibrate it first")
    return mu


def kronecker_fit(
    noise: IidNoise | KroneckerNoise,
    *,
    mu: float | None,
    low: list[Any],
    high: list[Any],
    record_axis: int | None,
    clipping: Grid | None,
    asked: int | None,
    sensitivity: SensitivitySet,
    contributions: int = 1,
) -> Fitted:
    """Gaussian noise on a whitened grid."""
    recipe, real = fit_kronecker(
        as_kronecker(noise),
        mu=known_mu(mu),
        low=low,
        high=high,
        record_axis=record_axis,
        clipping=clipping,
        asked=asked,
        sensitivity=sensitivity,
        contributions=contributions,
    )
    return Fitted(recipe=recipe, mu=real)

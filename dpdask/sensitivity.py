"""Sensitivity sets: the differences that one privacy unit can make, with adjacency and origin.

Sensitivity and adjacency are one value, so that no accountant can pair a radius with the wrong
neighbours. A set answers one question: how far it reaches after whitening, ``sup ||W D||`` for
Kronecker noise with factors U_k, W = the Kronecker product of their inverses.

- L2Ball: any difference with a norm of at most the radius; radius * product of 1/sigma_min(U_k).
- RecordBall: one slice along the record axis changes, with a norm of at most the radius; the same
  product with max_j ||U_record^-1 e_j|| on the record axis.
- RecordBox: one record changes, feature i by at most widths[i]; diagonal factors only.
- EntrywiseBox: every entry may change by at most its width; diagonal factors only.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from dpdask.errors import InvalidSensitivity
from dpdask.privacy import Adjacency
from dpdask.types import Floats, Json

__all__ = [
    "EntrywiseBox",
    "L2Ball",
    "Origin",
    "RecordBall",
    "RecordBox",
    "SensitivitySet",
    "Whitening",
    "sensitivity_from_dict",
]


class Origin(enum.StrEnum):
    """Where a bound comes from. A bound measured on the data is not a sensitivity and has no name
    here.
    """

    CLIPPED = "clipped"
    PUBLIC_RANGE = "public-range"
    DECLARED = "declared"


class Whitening(Protocol):
    """What a sensitivity set needs to know of one noise factor U."""

    @property
    def size(self) -> int:
        """The length of the mode."""

    @property
    def smallest(self) -> float:
        """The smallest singular value of U, rounded down."""

    def largest_whitened_axis(self) -> float:
        """max_j ||U^-1 e_j||, rounded up."""

    def diagonal(self) -> float | Floats | None:
        """The diagonal of U when U is diagonal (a number when constant), else None."""


_ROUND_UP = 1 + 1e-14


def _positive(name: str, value: float) -> float:
    if not (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 1e-100 <= value <= 1e100
    ):
        raise InvalidSensitivity(
            f"{name}={value!r} is not a valid sensitivity; give a finite number > 0"
            " (1e-100 to 1e100)"
        )
    return float(value)


def _axis(name: str, axis: int, shape: Sequence[int]) -> int:
    if not -len(shape) <= axis < len(shape):
        raise InvalidSensitivity(
            f"{name}={axis} is not an axis of shape {tuple(shape)}; choose one from 0 to"
            f" {len(shape) - 1}"
        )
    return axis % len(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivitySet(abc.ABC):
    """What one privacy unit can change."""

    name: ClassVar[str]
    adjacency: Adjacency
    origin: Origin

    @property
    @abc.abstractmethod
    def radius(self) -> float:
        """sup ||D||, the l2 (Frobenius) sensitivity, rounded up."""

    @abc.abstractmethod
    def whitened(self, factors: Sequence[Whitening]) -> float:
        """sup ||W D|| for Kronecker noise with these factors, rounded up."""

    def to_dict(self) -> Json:
        """``{"name": ..., "configuration": ...}``, enough to build the same set again."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
        }
        return {
            "name": self.name,
            "configuration": {
                **plain,
                "adjacency": str(self.adjacency),
                "origin": str(self.origin),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Ball(SensitivitySet):
    """Any difference of norm at most ``l2``."""

    name: ClassVar[str] = "l2-ball"
    l2: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2", _positive("l2 sensitivity", self.l2))

    @property
    def radius(self) -> float:
        """The radius itself."""
        return self.l2

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """l2 / product of the smallest singular values (IMGM Thm 2)."""
        return self.l2 / math.prod(factor.smallest for factor in factors) * _ROUND_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBall(SensitivitySet):
    """One record, a slice along ``record_axis``, changes by a vector of norm at most ``l2``."""

    name: ClassVar[str] = "record-ball"
    l2: float
    record_axis: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2", _positive("l2 sensitivity", self.l2))

    @property
    def radius(self) -> float:
        """The norm of the one record's change."""
        return self.l2

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """l2 * max_j ||U_record^-1 e_j|| / product of the other factors' least singular values."""
        record = _axis("record_axis", self.record_axis, [factor.size for factor in factors])
        reach = self.l2
        for axis, factor in enumerate(factors):
            reach *= factor.largest_whitened_axis() if axis == record else 1 / factor.smallest
        return reach * _ROUND_UP


def _squared_widths(widths: tuple[float, ...], size: int) -> Floats | float:
    if len(widths) == 1:
        return widths[0] ** 2
    if len(widths) != size:
        raise InvalidSensitivity(
            f"{len(widths)} ranges do not fit an axis of length {size}; give one range for all"
            f" or {size} of them"
        )
    return np.asarray(widths) ** 2


def _check_widths(widths: tuple[float, ...]) -> tuple[float, ...]:
    if not widths:
        raise InvalidSensitivity(
            "the list of ranges is empty; give one [low, high] or one per feature"
        )
    return tuple(_positive("range width", width) for width in widths)


def _diagonals(factors: Sequence[Whitening]) -> list[Floats | float]:
    diagonals = []
    for axis, factor in enumerate(factors):
        diagonal = factor.diagonal()
        if diagonal is None:
            raise InvalidSensitivity(
                f"a box of ranges under a dense or low-rank factor on axis {axis} has no exact"
                " bound;"
                " use diagonal factors or an l2 sensitivity"
            )
        diagonals.append(diagonal)
    return diagonals


def _total(diagonal: Floats | float, size: int, squares: Floats | float = 1.0) -> float:
    """Return the sum of squares_i / diagonal_i^2 over an axis."""
    if isinstance(diagonal, float) and not isinstance(squares, np.ndarray):
        return size * float(squares) / diagonal**2
    return math.fsum(np.broadcast_to(squares / np.asarray(diagonal) ** 2, size))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBox(SensitivitySet):
    """One record changes; its feature i (an index along ``feature_axis``) moves by at most
    ``widths[i]``.

    ``widths`` holds one number for all features or one for each index of the feature axis. Further
    axes share them.
    """

    name: ClassVar[str] = "record-box"
    shape: tuple[int, ...]
    record_axis: int
    feature_axis: int
    widths: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "record_axis", _axis("record_axis", self.record_axis, self.shape))
        object.__setattr__(
            self, "feature_axis", _axis("feature_axis", self.feature_axis, self.shape)
        )
        if self.record_axis == self.feature_axis:
            raise InvalidSensitivity(
                f"feature_axis={self.feature_axis} is the record axis; a record's features lie"
                " along another axis"
            )
        object.__setattr__(self, "widths", _check_widths(self.widths))
        _squared_widths(self.widths, self.shape[self.feature_axis])

    @property
    def radius(self) -> float:
        """The diagonal of one record's box."""
        squares = _squared_widths(self.widths, self.shape[self.feature_axis])
        others = [
            n
            for axis, n in enumerate(self.shape)
            if axis not in (self.record_axis, self.feature_axis)
        ]
        return (
            math.sqrt(_total(1.0, self.shape[self.feature_axis], squares) * math.prod(others))
            * _ROUND_UP
        )

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """sqrt(max_j u_j^-2 * sum_i widths_i^2 / v_i^2 * the other axes' sums): exact for diagonal
        factors.
        """
        diagonals = _diagonals(factors)
        total = 1.0
        for axis, (size, diagonal) in enumerate(zip(self.shape, diagonals, strict=True)):
            if axis == self.record_axis:
                total *= float(np.max(np.asarray(diagonal, dtype=float) ** -2.0))
            elif axis == self.feature_axis:
                total *= _total(diagonal, size, _squared_widths(self.widths, size))
            else:
                total *= _total(diagonal, size)
        return math.sqrt(total) * _ROUND_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class EntrywiseBox(SensitivitySet):
    """The whole tensor may change, an entry at index i of ``feature_axis`` by at most
    ``widths[i]``.
    """

    name: ClassVar[str] = "entrywise-box"
    shape: tuple[int, ...]
    feature_axis: int
    widths: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "feature_axis", _axis("feature_axis", self.feature_axis, self.shape)
        )
        object.__setattr__(self, "widths", _check_widths(self.widths))
        _squared_widths(self.widths, self.shape[self.feature_axis])

    @property
    def radius(self) -> float:
        """The diagonal of the box."""
        squares = _squared_widths(self.widths, self.shape[self.feature_axis])
        others = [n for axis, n in enumerate(self.shape) if axis != self.feature_axis]
        return (
            math.sqrt(_total(1.0, self.shape[self.feature_axis], squares) * math.prod(others))
            * _ROUND_UP
        )

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """sqrt of the product over axes of their sums: exact for diagonal factors."""
        total = 1.0
        for axis, (size, diagonal) in enumerate(zip(self.shape, _diagonals(factors), strict=True)):
            squares = _squared_widths(self.widths, size) if axis == self.feature_axis else 1.0
            total *= _total(diagonal, size, squares)
        return math.sqrt(total) * _ROUND_UP


_KINDS: dict[str, type[SensitivitySet]] = {
    kind.name: kind for kind in (L2Ball, RecordBall, RecordBox, EntrywiseBox)
}


def sensitivity_from_dict(description: Json) -> SensitivitySet:
    """Return the set that :meth:`SensitivitySet.to_dict` wrote."""
    name = description["name"]
    if name not in _KINDS:
        raise InvalidSensitivity(f"sensitivity {name!r} is unknown; use {', '.join(_KINDS)}")
    fields: Json = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in description["configuration"].items()
    }
    fields["adjacency"] = Adjacency(fields["adjacency"])
    fields["origin"] = Origin(fields["origin"])
    return _KINDS[name](**fields)

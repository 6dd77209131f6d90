"""Sensitivity sets of public ranges: boxes of one privacy unit's records, or of every entry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.errors import InvalidSensitivity
from dpdask.sensitivity.balls import L2Ball, RecordBall
from dpdask.sensitivity.base import ROUND_UP, SensitivitySet, Whitening, axis_of, positive
from dpdask.types import Floats

__all__ = ["EntrywiseBox", "RecordBox"]


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
    return tuple(positive("range width", width) for width in widths)


def _diagonals(factors: Sequence[Whitening]) -> list[Floats | float] | None:
    """Return the diagonals of all factors; None where one mixes entries."""
    diagonals = [factor.diagonal() for factor in factors]
    known = [diagonal for diagonal in diagonals if diagonal is not None]
    return known if len(known) == len(diagonals) else None


def _added_up(widths: tuple[float, ...], entries: int) -> float:
    """Return the sum of ``entries`` widths, as many of every one."""
    return math.fsum(widths) / len(widths) * entries


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
    axes share them. Where ``records`` records change, the changes of an entry in all of them have
    an l2 norm of at most its width.
    """

    name: ClassVar[str] = "record-box"
    shape: tuple[int, ...]
    record_axis: int
    feature_axis: int
    widths: tuple[float, ...]
    records: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "record_axis", axis_of("record_axis", self.record_axis, self.shape)
        )
        object.__setattr__(
            self, "feature_axis", axis_of("feature_axis", self.feature_axis, self.shape)
        )
        if self.record_axis == self.feature_axis:
            raise InvalidSensitivity(
                f"feature_axis={self.feature_axis} is the record axis; a record's features lie"
                " along another axis"
            )
        object.__setattr__(self, "widths", _check_widths(self.widths))
        _squared_widths(self.widths, self.shape[self.feature_axis])
        if not self.records >= 1:
            raise InvalidSensitivity(
                f"records={self.records} change nothing; a privacy unit has at least 1"
            )

    @property
    def l1(self) -> float:
        """The widths of one record's entries, added up; sqrt(k) times that for k records.

        An entry's changes in k records, of an l2 norm of at most w, add up to at most sqrt(k) w.
        """
        entries = math.prod(n for axis, n in enumerate(self.shape) if axis != self.record_axis)
        return _added_up(self.widths, entries) * math.sqrt(self.records) * ROUND_UP

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
            * ROUND_UP
        )

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """sqrt(max_j u_j^-2 * sum_i widths_i^2 / v_i^2 * the other axes' sums): exact for diagonal
        factors, else that of the ball around the box: an upper bound.
        """
        diagonals = _diagonals(factors)
        if diagonals is None:
            return self._enclosing_ball().whitened(factors)
        total = 1.0
        for axis, (size, diagonal) in enumerate(zip(self.shape, diagonals, strict=True)):
            if axis == self.record_axis:
                total *= float(np.max(np.asarray(diagonal, dtype=float) ** -2.0))
            elif axis == self.feature_axis:
                total *= _total(diagonal, size, _squared_widths(self.widths, size))
            else:
                total *= _total(diagonal, size)
        return math.sqrt(total) * ROUND_UP

    def _enclosing_ball(self) -> SensitivitySet:
        """Return the ball around the box; of one record only where no other one changes with it,
        since a factor that mixes records may add up the changes of several.
        """
        if self.records > 1:
            return L2Ball(l2=self.radius, adjacency=self.adjacency, origin=self.origin)
        return RecordBall(
            l2=self.radius,
            record_axis=self.record_axis,
            adjacency=self.adjacency,
            origin=self.origin,
        )


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
            self, "feature_axis", axis_of("feature_axis", self.feature_axis, self.shape)
        )
        object.__setattr__(self, "widths", _check_widths(self.widths))
        _squared_widths(self.widths, self.shape[self.feature_axis])

    @property
    def l1(self) -> float:
        """The widths of all entries, added up."""
        return _added_up(self.widths, math.prod(self.shape)) * ROUND_UP

    @property
    def radius(self) -> float:
        """The diagonal of the box."""
        squares = _squared_widths(self.widths, self.shape[self.feature_axis])
        others = [n for axis, n in enumerate(self.shape) if axis != self.feature_axis]
        return (
            math.sqrt(_total(1.0, self.shape[self.feature_axis], squares) * math.prod(others))
            * ROUND_UP
        )

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """sqrt of the product over axes of their sums: exact for diagonal factors, else that of the
        ball around the box: an upper bound.
        """
        diagonals = _diagonals(factors)
        if diagonals is None:
            ball = L2Ball(l2=self.radius, adjacency=self.adjacency, origin=self.origin)
            return ball.whitened(factors)
        total = 1.0
        for axis, (size, diagonal) in enumerate(zip(self.shape, diagonals, strict=True)):
            squares = _squared_widths(self.widths, size) if axis == self.feature_axis else 1.0
            total *= _total(diagonal, size, squares)
        return math.sqrt(total) * ROUND_UP

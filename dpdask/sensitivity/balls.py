"""Sensitivity sets that bound norms: l2 balls, those of one record, and l1 balls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dpdask.errors import InvalidSensitivity
from dpdask.sensitivity.base import ROUND_UP, SensitivitySet, Whitening, axis_of, positive

__all__ = ["L1Ball", "L2Ball", "RecordBall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class L2Ball(SensitivitySet):
    """Any difference of norm at most ``l2``."""

    name: ClassVar[str] = "l2-ball"
    l2: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2", positive("l2 sensitivity", self.l2))

    @property
    def radius(self) -> float:
        """The radius itself."""
        return self.l2

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """l2 / product of the smallest singular values (IMGM Thm 2)."""
        return self.l2 / math.prod(factor.smallest for factor in factors) * ROUND_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordBall(SensitivitySet):
    """One record, a slice along ``record_axis``, changes by a vector of norm at most ``l2``."""

    name: ClassVar[str] = "record-ball"
    l2: float
    record_axis: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2", positive("l2 sensitivity", self.l2))

    @property
    def radius(self) -> float:
        """The norm of the one record's change."""
        return self.l2

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """l2 * max_j ||U_record^-1 e_j|| / product of the other factors' least singular values."""
        record = axis_of("record_axis", self.record_axis, [factor.size for factor in factors])
        reach = self.l2
        for axis, factor in enumerate(factors):
            reach *= factor.largest_whitened_axis() if axis == record else 1 / factor.smallest
        return reach * ROUND_UP


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Ball(SensitivitySet):
    """Any difference of an l1 norm of at most ``l1_radius`` and an l2 norm of at most ``l2``.

    Args:
        l1_radius: The bound on the l1 norm.
        l2: The bound on the l2 norm.
        record_axis: The axis along which the one record that changes lies; None where the
            difference may lie anywhere.
    """

    name: ClassVar[str] = "l1-ball"
    l1_radius: float
    l2: float
    record_axis: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "l1_radius", positive("l1 sensitivity", self.l1_radius))
        object.__setattr__(self, "l2", positive("l2 sensitivity", self.l2))
        if self.l2 > self.l1_radius * ROUND_UP:
            raise InvalidSensitivity(
                f"l2 sensitivity {self.l2:g} is above the l1 sensitivity {self.l1_radius:g}, which"
                " no difference allows; give an l2 of at most l1"
            )

    @property
    def radius(self) -> float:
        """The bound on the l2 norm."""
        return self.l2

    @property
    def l1(self) -> float:
        """The bound on the l1 norm."""
        return self.l1_radius

    def whitened(self, factors: Sequence[Whitening]) -> float:
        """That of the l2 ball, or of one record's."""
        ball: SensitivitySet
        if self.record_axis is None:
            ball = L2Ball(l2=self.l2, adjacency=self.adjacency, origin=self.origin)
        else:
            ball = RecordBall(
                l2=self.l2,
                record_axis=self.record_axis,
                adjacency=self.adjacency,
                origin=self.origin,
            )
        return ball.whitened(factors)

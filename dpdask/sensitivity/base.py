"""What every sensitivity set has in common: adjacency, origin, and how far it reaches."""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from dpdask.errors import InvalidMechanism, InvalidSensitivity
from dpdask.privacy import Adjacency
from dpdask.types import Floats, Json

__all__ = [
    "ROUND_UP",
    "Origin",
    "SensitivitySet",
    "Whitening",
    "axis_of",
    "known_l1",
    "positive",
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


ROUND_UP = 1 + 1e-14  # above the rounding of a few operations
_NOT_LEFT_OUT = object()
# optional fields, and the values at which a description leaves them out
_LEFT_OUT: dict[str, object] = {"records": 1}


def positive(name: str, value: float) -> float:
    """Return a sensitivity, which must be a number within reach of doubles."""
    if not (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 1e-100 <= value <= 1e100
    ):
        raise InvalidSensitivity(
            f"{name}={value!r} is not a valid sensitivity; give a finite number > 0"
            " (1e-100 to 1e100)"
        )
    return float(value)


def axis_of(name: str, axis: int, shape: Sequence[int]) -> int:
    """Return an axis of ``shape`` as an index from 0 on; ``name`` is what the error calls it."""
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

    @property
    def l1(self) -> float | None:
        """sup ||D||_1, the l1 sensitivity, rounded up; None where it is not known."""
        return None

    @abc.abstractmethod
    def whitened(self, factors: Sequence[Whitening]) -> float:
        """sup ||W D|| for Kronecker noise with these factors, rounded up."""

    def to_dict(self) -> Json:
        """``{"name": ..., "configuration": ...}``, enough to build the same set again."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in fields.items()
            if value != _LEFT_OUT.get(name, _NOT_LEFT_OUT)
        }
        return {
            "name": self.name,
            "configuration": {
                **plain,
                "adjacency": str(self.adjacency),
                "origin": str(self.origin),
            },
        }


def known_l1(sensitivity: SensitivitySet) -> float:
    """Return the l1 sensitivity, which Laplace noise needs.

    Raises:
        InvalidMechanism: The set does not bound it.
    """
    if sensitivity.l1 is None:
        raise InvalidMechanism(
            f"an l2 bound ({sensitivity.name}) leaves the l1 sensitivity open, which Laplace noise"
            " needs; give ranges or an l1 bound, or use analytic-gaussian"
        )
    return sensitivity.l1

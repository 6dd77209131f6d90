"""Layers entry by entry: not below zero, whole numbers, within the public range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.queries.layers.base import EntrywiseLayer, register_layer_class
from dpdask.types import Floats, Json, Region

__all__ = ["Clamped", "Integer", "NonNegative"]


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class NonNegative(EntrywiseLayer):
    """max(x, 0): counts below zero are zero. Small counts are then too large on average."""

    name: ClassVar[str] = "non-negative"
    suffix: ClassVar[str] = "nonnegative"
    long_name: ClassVar[str] = "not below 0"

    def values(self, entries: Floats, box: Region) -> Floats:
        """Return the larger of an entry and 0."""
        return np.maximum(entries, 0.0)


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class Integer(EntrywiseLayer):
    """The nearest whole number, half to even."""

    name: ClassVar[str] = "integer"
    suffix: ClassVar[str] = "integer"
    long_name: ClassVar[str] = "rounded to whole numbers"

    def values(self, entries: Floats, box: Region) -> Floats:
        """Return entries rounded; 0 has no sign."""
        return np.rint(entries) + 0.0


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class Clamped(EntrywiseLayer):
    """Entries within their public range: that of the bound, times the records of a sum.

    Args:
        ranges: One pair for all entries, or one for each index along ``axis``.
        axis: The axis of the answer along which the ranges lie; None for a single one.
    """

    name: ClassVar[str] = "clamped"
    suffix: ClassVar[str] = "clamped"
    long_name: ClassVar[str] = "clamped to the public range"
    ranges: tuple[tuple[float, float], ...]
    axis: int | None = None

    def values(self, entries: Floats, box: Region) -> Floats:
        """Return entries within their ranges."""
        low, high = (self._along(ends, box) for ends in zip(*self.ranges, strict=True))
        return np.clip(entries, low, high)

    def _along(self, ends: tuple[float, ...], box: Region) -> Floats:
        numbers = np.asarray(ends, dtype=np.float64)
        if self.axis is None:
            return numbers.reshape(())
        return numbers[box[self.axis]].reshape(
            [-1 if axis == self.axis else 1 for axis in range(len(box))]
        )

    def configuration(self) -> Json:
        """Return the ranges."""
        return {"ranges": [list(pair) for pair in self.ranges], "axis": self.axis}

    @classmethod
    def from_configuration(cls, configuration: Json) -> Clamped:
        """Return the layer with these ranges."""
        pairs = tuple((float(low), float(high)) for low, high in configuration["ranges"])
        return cls(ranges=pairs, axis=configuration["axis"])

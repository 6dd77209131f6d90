"""The centre of a bound: a public point that records are measured from."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from dpdask.types import Array, Floats, Json, Region, Shape

__all__ = ["ORIGIN", "Center"]


@dataclass(frozen=True, eq=False)
class Center:
    """A public point: one number for all entries, or numbers that broadcast to the source.

    Args:
        values: A single number, or an array with as many axes as the source, of length 1 along
            the record axis and wherever it does not vary.
    """

    values: Floats

    @classmethod
    def at(cls, number: float) -> Center:
        """Return the centre with one number for all entries."""
        return cls(np.asarray(float(number)))

    @classmethod
    def per_feature(cls, numbers: tuple[float, ...], *, axis: int, order: int) -> Center:
        """Return the centre with one number for each index of an axis of ``order`` axes."""
        if len(numbers) == 1:
            return cls.at(numbers[0])
        shape = [-1 if other == axis else 1 for other in range(order)]
        return cls(np.asarray(numbers, dtype=np.float64).reshape(shape))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Center) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.values.tobytes())

    @property
    def zero(self) -> bool:
        """Whether it is the origin."""
        return not np.any(self.values)

    @property
    def common(self) -> bool:
        """Whether it is one number for all entries."""
        return self.values.size == 1

    def of(self, region: Region) -> Floats:
        """Return the centre of a region of the source, ready to broadcast."""
        if self.values.ndim == 0:
            return self.values
        return self.values[
            tuple(
                slice(0, 1) if size == 1 else part
                for size, part in zip(self.values.shape, region, strict=True)
            )
        ]

    def along(self, axis: int, count: int) -> tuple[float, ...]:
        """Return ``count`` numbers along an axis; it must not vary along another one."""
        flat = self.values.reshape(-1) if self.values.ndim else self.values[None]
        if flat.size not in (1, count):
            raise ValueError(f"{flat.size} centres for {count} features along axis {axis}")
        return tuple(float(value) for value in np.broadcast_to(flat, count))

    def without(self, axis: int, shape: Shape) -> Floats:
        """Return the centre of a result that lost the record axis, ready to broadcast to it.

        Args:
            axis: The record axis.
            shape: The shape of the result.
        """
        if self.values.ndim == 0:
            return self.values
        return np.broadcast_to(np.squeeze(self.values, axis=axis), shape)

    def mean_square(self, shape: Shape) -> float:
        """Return the mean square of the centre over the entries of a source of ``shape``."""
        if self.values.ndim == 0:
            return float(self.values) ** 2
        return float(np.mean(np.square(self.values)))

    def shifted(self, block: Array, region: Region) -> Array:
        """Return a block of the source as distances from the centre; NaN stays NaN."""
        if self.zero:
            return block
        with np.errstate(all="ignore"):  # no value may be told from another by a warning
            shifted: Floats = block.astype(np.float64) - self.of(region)
        return shifted

    def fill(self, block: Array, region: Region) -> Array:
        """Return a block with missing entries at the centre; a float block is changed in place."""
        if block.dtype.kind != "f" or self.zero:
            return block  # integers are never missing, and kernels count NaN as 0
        missing = np.isnan(block)
        if missing.any():
            np.copyto(block, np.broadcast_to(self.of(region), block.shape), where=missing)
        return block

    def to_dict(self) -> Json:
        """Return the centre as a card records it: a number, a short list, or a digest."""
        flat = self.values.reshape(-1) if self.values.ndim else self.values[None]
        varying = sum(size > 1 for size in self.values.shape)
        if flat.size == 1:
            return {"center": float(flat[0])}
        if varying == 1:
            return {"center": [float(value) for value in flat]}
        content = np.ascontiguousarray(self.values).tobytes()
        return {
            "center": {
                "shape": list(self.values.shape),
                "sha256": hashlib.sha256(content).hexdigest(),
                "rms": math.sqrt(float(np.mean(np.square(flat)))),
            }
        }


ORIGIN = Center.at(0.0)

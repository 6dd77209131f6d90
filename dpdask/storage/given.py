"""Values that a caller hands over instead of naming an array, and what is known of them before."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.decoding import Scratch, check_real_numbers
from dpdask.storage.memory import MemoryStorage
from dpdask.storage.source import SourceArray
from dpdask.types import Array, Json, Region, Shape

__all__ = ["GivenArray"]

_NOTHING_BESIDE = "values that are handed over have nothing beside them"


@dataclass(frozen=True, repr=False, eq=False)
class GivenArray(SourceArray):
    """An array in the caller's memory; without ``values``, its schema alone."""

    values: Array | None = None

    @classmethod
    def of_shape(cls, shape: Shape) -> GivenArray:
        """Return the schema of doubles that will be handed over."""
        return cls._make(shape, np.dtype(np.float64), None)

    @classmethod
    def of(cls, values: Array) -> GivenArray:
        """Return an array of the caller.

        Raises:
            StoreError: It does not hold real numbers.
        """
        check_real_numbers(values.dtype)
        return cls._make(values.shape, values.dtype, values)

    @classmethod
    def _make(cls, shape: Shape, dtype: np.dtype[np.generic], values: Array | None) -> GivenArray:
        return cls(
            storage=MemoryStorage("memory://"),
            path="",
            shape=shape,
            chunks=(1, *shape[1:]),
            dtype=dtype.str,
            dimension_names=None,
            metadata_digest="",
            plain=False,
            values=values,
        )

    def __repr__(self) -> str:
        return "<GivenArray>"

    @property
    def address_digest(self) -> str | None:
        """It lies nowhere that a ledger could name."""
        return None

    def identity(self) -> str:
        """Return one text for all: a ledger records every step's own digest."""
        return "handed over"

    def read(self, region: Region, scratch: Scratch | None = None) -> Array:
        """Return a copy of a region."""
        if self.values is None:
            raise StoreError("no values were handed over; give a step its records")
        return np.array(self.values[region], dtype=self.working_dtype, order="C")

    @property
    def stored_chunks(self) -> Shape:
        """Records one by one: all of them are in memory."""
        return self.chunks

    @property
    def stored_shape(self) -> Shape:
        """The shape as it is."""
        return self.shape

    @property
    def stored_bytes(self) -> int:
        """Nothing is read from a store."""
        return 0 if self.values is None else math.prod(self.shape) * self.entry_bytes

    def has_attribute(self, name: str) -> bool:
        """Return False: there are no attributes."""
        return False

    def attributes(self, names: list[str]) -> Json:
        """Refuse: there are no attributes to copy."""
        if names:
            raise StoreError(
                f"publish.attributes: {_NOTHING_BESIDE}; set attributes by {{name: value}}"
            )
        return {}

    def text_attribute(self, name: str) -> str | None:
        """Return None: there are no attributes."""
        return None

"""A layer that leaves out entries by a public mask, such as land beside sea."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.queries.layers.base import EntrywiseLayer, PublicArray, register_layer_class
from dpdask.types import Floats, Json, Region

__all__ = ["Masked"]


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class Masked(EntrywiseLayer):
    """Entries where a public mask is true; NaN elsewhere. It is true where it is neither 0 nor NaN.

    Args:
        mask: The name of the mask.
        axes: The axis of the answer that each axis of the mask is.
        array: Where the mask is read; None for a layer that is only described.
    """

    name: ClassVar[str] = "masked"
    suffix: ClassVar[str] = "masked"
    long_name: ClassVar[str] = "where a public mask is true"
    mask: str
    axes: tuple[int, ...]
    array: PublicArray | None = None

    @property
    def public(self) -> tuple[PublicArray, ...]:
        """The mask."""
        return () if self.array is None else (self.array,)

    @property
    def public_names(self) -> tuple[str, ...]:
        """That of the mask."""
        return (self.mask,)

    def values(self, entries: Floats, box: Region) -> Floats:
        """Return entries where the mask is true, NaN elsewhere."""
        assert self.array is not None
        read = np.asarray(self.array.read(tuple(box[axis] for axis in self.axes)))
        inside = (read != 0) & ~np.isnan(read)
        ordered = np.transpose(inside, np.argsort(self.axes))
        shape = [
            part.stop - part.start if axis in self.axes else 1 for axis, part in enumerate(box)
        ]
        return np.where(ordered.reshape(shape), entries, np.nan)

    def configuration(self) -> Json:
        """Return the mask's name, and along which axes it lies."""
        return {"mask": self.mask, "axes": list(self.axes)}

    @classmethod
    def from_configuration(cls, configuration: Json) -> Masked:
        """Return the layer as it is described."""
        return cls(mask=configuration["mask"], axes=tuple(configuration["axes"]))

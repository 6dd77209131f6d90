"""Arrays that are published beside the main one: counts, standard deviations, layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dpdask.noise import NoiseLevel
from dpdask.types import Json, Shape

__all__ = ["COUNT", "DATA", "NOISE_STD", "BesideArray"]

DATA = "data"  # the main part of an answer
COUNT = "count"
NOISE_STD = "noise_std"


@dataclass(frozen=True, kw_only=True)
class BesideArray:
    """An array that is published beside the main one, as ``<main>_<suffix>``.

    Args:
        suffix: The ending of its name.
        shape: Its shape.
        aligned: Whether it has the shape, and so the chunks, of the main array; else it is small,
            and written as one chunk.
        long_name: What it is, for readers.
        units: Its units, where ``{}`` stands for those of the main array.
        standard_name: Its CF standard name, where ``{}`` stands for that of the main array; None
            for none.
        dimension_names: The names of its dimensions; None for the first ones of the main array.
        constant: Whether it is known before any noise is drawn, and written with the metadata.
    """

    suffix: str
    shape: Shape
    aligned: bool
    long_name: str
    units: str = "{}"
    standard_name: str | None = "{}"
    dimension_names: tuple[str, ...] | None = None
    constant: bool = False

    @classmethod
    def noise_std(cls, shape: Shape, *, aligned: bool) -> BesideArray:
        """Return the standard deviation of every entry's noise."""
        return cls(
            suffix=NOISE_STD,
            shape=shape,
            aligned=aligned,
            long_name="standard deviation of the noise",
            standard_name="{} standard_error",
        )

    @classmethod
    def count(cls, shape: Shape, *, aligned: bool) -> BesideArray:
        """Return noisy counts."""
        return cls(
            suffix=COUNT,
            shape=shape,
            aligned=aligned,
            long_name="noisy count",
            units="1",
            standard_name=None,
        )

    @classmethod
    def of_level(
        cls, level: NoiseLevel, shape: Shape, dimension_names: tuple[str, ...]
    ) -> BesideArray:
        """Return a noise level along the axes where it varies; a large one as all others.

        Its axes are the last ones of ``shape``, which may begin with one of steps.
        """
        array = cls.noise_std(shape, aligned=True)
        if not level.small:
            return array
        first = len(shape) - len(level.noise.tensor_shape)
        names = tuple(dimension_names[first + axis] for axis in level.axes)
        return dataclasses.replace(
            array, shape=level.shape, dimension_names=names, aligned=False, constant=True
        )

    def attributes(self, main: Json) -> Json:
        """Return its CF attributes, given the public ones of the main array."""
        attributes: Json = {"long_name": self.long_name}
        if "{}" not in self.units or "units" in main:
            attributes["units"] = self.units.format(main.get("units"))
        if self.standard_name is not None and "standard_name" in main:
            attributes["standard_name"] = self.standard_name.format(main["standard_name"])
        return attributes

"""Counts of records in public bins, in any number of dimensions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.errors import InvalidMechanism, OutOfReach
from dpdask.noise import IidNoise, KroneckerNoise, Noise, SphericalNoise
from dpdask.privatizers.grid import DECLARED_REACH, Grid, ratio_for_declared
from dpdask.privatizers.recipes import IidRecipe, fit_spherical
from dpdask.queries.base import (
    Fitted,
    Floats,
    Integers,
    Query,
    Reader,
    Region,
    SummedQuery,
    kronecker_fit,
)
from dpdask.types import Array, Json

__all__ = ["Histogram"]


@dataclass(frozen=True, kw_only=True)
class Histogram(SummedQuery):
    """n-d counts; a record outside the edges, or with a NaN in a counted column, is not counted.

    Bins are [left, right), the last one closed, as everywhere in NumPy.
    """

    name: ClassVar[str] = "histogram"
    one_pass: ClassVar[bool] = True
    edges: tuple[tuple[float, ...], ...]
    columns: tuple[int, ...]

    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """Counts are rounded to the noise's grid; the two bins (per contribution) that one unit
        moves part by a step each.
        """
        moved = 2 * self.max_contributions
        largest = float(self.public_records)
        match noise:
            case IidNoise():
                radius = self.sensitivity.radius
                ratio, inflated = ratio_for_declared(
                    sigma=noise.sigma, sensitivity=radius, entries=2 * moved
                )
                ratio = max(ratio, float(asked or 0))
                sigma = noise.sigma * inflated / radius
                step = sigma / ratio
                most = math.ceil(largest / step)
                if most > DECLARED_REACH:
                    raise OutOfReach(
                        f"{largest:g} records are {most:.3g} steps of the noise's grid, more"
                        " than 2^49, beyond which"
                        " rounding is not exact; use a smaller epsilon or a smaller"
                        " noise.steps_per_sigma"
                    )
                grid = Grid(step=step, ratio=ratio, low=-most, high=most)
                return Fitted(
                    recipe=IidRecipe(noise=IidNoise(noise.shape, sigma), grid=grid), mu=mu
                )
            case KroneckerNoise():
                order = len(self.answer_shape)
                return kronecker_fit(
                    noise,
                    mu=mu,
                    low=[-largest] * order,
                    high=[largest] * order,
                    record_axis=None,
                    clipping=None,
                    asked=asked,
                    sensitivity=self.sensitivity,
                )
            case SphericalNoise():
                spherical = fit_spherical(
                    noise, low=-largest, high=largest, record_axis=None, clipping=None
                )
                return Fitted(recipe=spherical, mu=None)
        raise InvalidMechanism(f"noise {type(noise).__name__} cannot be fitted to a histogram")

    def partial(
        self,
        source: Reader,
        fitted: Fitted,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """The counts of some records in all bins."""
        bins = np.zeros(records.stop - records.start, np.int64)
        inside = np.ones(bins.size, bool)
        block = self._columns(source, records)
        for column, edges in zip(self.columns, self.edges, strict=True):
            values = block[:, column - min(self.columns)].astype(np.float64)
            found = np.searchsorted(np.asarray(edges), values, side="right") - 1
            found[values == edges[-1]] = len(edges) - 2
            inside &= (values >= edges[0]) & (values <= edges[-1])
            bins = bins * (len(edges) - 1) + np.clip(found, 0, len(edges) - 2)
        counts = np.bincount(bins[inside], minlength=math.prod(self.answer_shape))
        return counts.reshape(self.answer_shape).astype(np.int64)

    def region(self, records: int) -> tuple[int, ...]:
        """The counted columns and those between them."""
        if len(self.source_shape) == 1:
            return (records,)
        width = max(self.columns) + 1 - min(self.columns)
        return (records, width) if self.record_axis == 0 else (width, records)

    def summing_bytes(self, records: int) -> int:
        """A value, its bin, bins so far, and what they are computed by."""
        return 48 * records

    def _columns(self, source: Reader, records: slice) -> Array:
        """The counted columns, and those between them, of some records."""
        if len(self.source_shape) == 1:
            return source.read((records,))[:, None]
        features = slice(min(self.columns), max(self.columns) + 1)
        return (
            source.read((records, features))
            if self.record_axis == 0
            else source.read((features, records)).T
        )

    def to_dict(self) -> Json:
        """With its public edges."""
        return {
            **Query.to_dict(self),
            "edges": [list(edges) for edges in self.edges],
            "columns": list(self.columns),
        }

    def bound_to_dict(self, fitted: Fitted) -> Json:
        """One record, one count."""
        return {"kind": "count", "enforced": True}

"""Sums, means and covariances of bounded records: integer sums on a grid, the same bytes in any order and any chunking."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from dpdask.errors import InvalidSensitivity, OutOfReach
from dpdask.grid import ENTRY_LIMIT, Grid, fine_clip_grid
from dpdask.noise import IidNoise, Noise
from dpdask.noise.recipes import ratio_for_clip
from dpdask.queries.base import (
    Answer,
    Box,
    Clip,
    Fitted,
    Floats,
    Integers,
    Ranges,
    Reader,
    RecordRule,
    SummedQuery,
    fit_answer,
)

__all__ = ["Covariance", "Mean", "Sum"]


@dataclass(frozen=True, kw_only=True)
class Sum(SummedQuery):
    """The sum of all records."""

    name: ClassVar[str] = "sum"
    bound: Clip | Ranges

    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """Records are clipped or clamped on the noise's own grid, or on a fine one of powers of two."""
        bound = self.bound
        largest = bound.norm if isinstance(bound, Clip) else bound.largest
        if isinstance(noise, IidNoise):
            ratio = ratio_for_clip(sigma=noise.sigma, norm=largest, asked=asked)
            while asked is None and ratio > 2**6 and largest * ratio / noise.sigma * self.public_records >= 2**49:
                ratio /= 2
            if isinstance(bound, Clip):
                grid = Grid.for_clip(sigma=noise.sigma, norm=bound.norm, ratio=ratio)
            else:
                most = math.floor(Fraction(largest) / Fraction(noise.sigma / ratio))
                grid = Grid(step=noise.sigma / ratio, ratio=ratio, low=-most, high=most)
        else:
            bits = min(24, int(48 - math.log2(self.public_records)))
            if bits < 8:
                raise OutOfReach(f"{self.public_records} records are too many for an exact sum; release fewer")
            ratio, grid = 1.0, fine_clip_grid(largest, bits=bits)
        rule = RecordRule(grid=grid, record_axis=self.record_axis, ranges=bound if isinstance(bound, Ranges) else None)
        if isinstance(bound, Ranges):
            for low, high in bound.pairs:  # every range must hold a grid point; that is found here, not in a task
                Grid.for_range(sigma=grid.step * grid.ratio, low=low, high=high, ratio=grid.ratio)
        answer = Answer(largest=max(1, grid.high) * self.public_records, unit=grid.step)
        return fit_answer(noise, answer=answer, mu=mu, asked=asked, records=rule, ratio=ratio)

    def partial(self, source: Reader, fitted: Fitted, answer_box: Box, records: slice, factors: Floats | None) -> Integers:
        """The sum of some records over a region of the answer."""
        rule = _rule(fitted)
        inner = answer_box if len(self.source_shape) > 1 else ()
        box = (*inner[: self.record_axis], records, *inner[self.record_axis :])
        steps = rule.integers(source.read(box), factors, tuple(part.start for part in box))
        if rule.grid.high * (records.stop - records.start) >= 2**53:
            steps = steps.astype(np.int64)
        return np.atleast_1d(np.sum(steps, axis=self.record_axis)).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Mean(Sum):
    """The sum divided by the public number of records, after noise."""

    name: ClassVar[str] = "mean"


@dataclass(frozen=True, kw_only=True)
class Covariance(SummedQuery):
    """X'X of clipped records, divided by their public number under replace-one; symmetrised after noise."""

    name: ClassVar[str] = "covariance"
    symmetric: ClassVar[bool] = True
    bound: Clip

    def fit(self, noise: Noise, *, mu: float | None, asked: int | None) -> Fitted:
        """Products of grid integers are integers of a grid whose step is the square of the records' step.

        For i.i.d. noise that square is the noise's own step; the ratio grows until a record has 2^11 steps, as far as sums
        stay below 2^50.
        """
        norm = self.bound.norm
        if isinstance(noise, IidNoise):
            ratio = float(asked or 2**14)
            while asked is None and ratio < 2**30 and norm**2 / (noise.sigma / ratio) < 2**22:
                if 4 * self.public_records * norm**2 / (noise.sigma / ratio) >= 2**50:
                    break
                ratio *= 2
            step = math.nextafter(math.sqrt(noise.sigma / ratio), math.inf)
            unit = noise.sigma / ratio
            bound = math.floor(Fraction(norm) / Fraction(step))
            if bound < 1:
                raise InvalidSensitivity(
                    f"clip norm {norm:g} is below one grid step {step:.3g} of its covariance; raise noise.steps_per_sigma"
                )
            if bound > ENTRY_LIMIT:
                raise OutOfReach(f"clip norm {norm:g} is above 2^31 grid steps; use a smaller noise.steps_per_sigma")
            grid = Grid(step=step, ratio=ratio, low=-bound, high=bound)
        else:
            ratio = 1.0
            bits = min(20, int((48 - math.log2(self.public_records)) / 2))
            if bits < 8:
                raise OutOfReach(f"{self.public_records} records are too many for an exact covariance; release fewer")
            grid = fine_clip_grid(norm, bits=bits)
            unit = grid.step**2
        rule = RecordRule(grid=grid, record_axis=self.record_axis)
        answer = Answer(largest=grid.high**2 * self.public_records, unit=unit)
        return fit_answer(noise, answer=answer, mu=mu, asked=asked, records=rule, ratio=ratio)

    def partial(self, source: Reader, fitted: Fitted, answer_box: Box, records: slice, factors: Floats | None) -> Integers:
        """X_I' X_J over some records: float64 products of integers whose sums stay below 2^53, hence exact."""
        rule = _rule(fitted)
        left = self._block(source, rule, answer_box[0], records, factors)
        right = left if answer_box[0] == answer_box[1] else self._block(source, rule, answer_box[1], records, factors)
        most = max(1, 2**52 // max(1, rule.grid.high**2))
        total = np.zeros((left.shape[1], right.shape[1]), np.int64)
        for first in range(0, left.shape[0], most):
            total += (left[first : first + most].T @ right[first : first + most]).astype(np.int64)
        return total

    def summing_bytes(self, records: int) -> int:
        """Records along the second axis are also transposed."""
        return super().summing_bytes(records) * (1 if self.record_axis == 0 else 2)

    def _block(self, source: Reader, rule: RecordRule, features: slice, records: slice, factors: Any) -> Floats:
        box = (records, features) if self.record_axis == 0 else (features, records)
        steps = rule.integers(source.read(box), factors, (0, 0))
        return steps if self.record_axis == 0 else np.ascontiguousarray(steps.T)


def _rule(fitted: Fitted) -> RecordRule:
    if fitted.records is None:
        raise InvalidSensitivity("summed records have no rule that bounds them; fit the query first")
    return fitted.records

"""Sums and means with counts beside them: private numbers of records, missing values, groups.

The centred sum T and the counts n are two noisy answers of one release (:mod:`~dpdask.queries
.joint` has their common sensitivity). What is published follows from both, after the noise:

    sum  = T + centre * n,    mean = centre + T / max(n, 1),

with the counts beside it, and the standard deviation of every entry's noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.noise import Deviations, Noise, Tail
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.queries.axes import AnswerAxis
from dpdask.queries.base import COUNT, DATA, NOISE_STD, BesideArray, Reader, SidePart
from dpdask.queries.counted_rules import CountedSumRules, moved_counts
from dpdask.queries.exact_sum import ExactSum, SumBounds
from dpdask.queries.grouping import Groups
from dpdask.queries.joint import Counting
from dpdask.queries.people import first_codes
from dpdask.queries.records import Ranges
from dpdask.queries.sums import Sum
from dpdask.queries.verification import register_query_rules
from dpdask.types import Floats, Integers, Json, Region, Shape

__all__ = ["CountedMean", "CountedSum"]

_MOST_CENTERS = 2**20  # that the noise of a sum is computed from


@dataclass(frozen=True, kw_only=True)
class CountedSum(Sum):
    """The sum of records from their counts and their distances from a public centre.

    Args:
        counting: What is counted: records, entries that are present, or nothing.
        count_scale: The noise of a count over that of the centred sum; None without counts.
        groups: The groups of records; None where there are none.
    """

    name: ClassVar[str] = "counted-sum"
    counting: Counting
    count_scale: float | None
    groups: Groups | None = None

    @property
    def spec_name(self) -> str:
        """A sum, whatever is released with it."""
        return "sum"

    @property
    def record_shape(self) -> Shape:
        """The shape of one record."""
        return tuple(n for axis, n in enumerate(self.source_shape) if axis != self.record_axis)

    @property
    def missing_values(self) -> str:
        """They lower the counts of entries."""
        if self.counting is not Counting.ENTRIES:
            return super().missing_values
        return "count as absent; how many are present is released, too"

    @property
    def labels(self) -> dict[str, tuple[int | str, ...] | None]:
        """The keys of the groups."""
        return {} if self.groups is None else {key.array: key.groups for key in self.groups.keys}

    @property
    def new_axes(self) -> tuple[AnswerAxis, ...]:
        """The groups."""
        return () if self.groups is None else self.groups.axes

    @property
    def group_count(self) -> int:
        """How many groups there are, one where records are not grouped."""
        return 1 if self.groups is None else self.groups.count

    def sum_bounds(self) -> SumBounds:
        """Return the bounds of a sum of distances from the centre."""
        ranges = None
        largest = self.bound.largest
        if isinstance(self.bound, Ranges):
            pairs = self.bound.centered()
            ranges = Ranges(
                pairs=pairs,
                feature_axis=self.bound.feature_axis,
                record_axis=self.bound.record_axis,
            )
            largest = max(max(abs(low), abs(high)) for low, high in pairs)
        return SumBounds(
            largest=largest,
            power=1,
            records=self.public_records,
            sensitivity=self.sensitivity,
            shape=self.answer_shape,
            record_axis=self.record_axis,
            ranges=ranges,
            center=self.bound.center,
        )

    @property
    def beside(self) -> tuple[SidePart, ...]:
        """The counts."""
        if self.count_scale is None:
            return ()
        aligned = self.counting is Counting.ENTRIES
        shape = self.answer_shape if aligned else self._group_shape
        return (
            SidePart(
                name=COUNT,
                shape=shape,
                scale=self.count_scale,
                aligned=aligned,
                bounds=self._count_bounds(shape),
            ),
        )

    @property
    def _group_shape(self) -> Shape:
        return (1,) if self.groups is None else self.groups.shape

    def _count_bounds(self, shape: Shape) -> AnswerBounds:
        largest = float(self.public_records)
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-largest,) * len(shape),
            high=(largest,) * len(shape),
            rounded_entries=moved_counts(
                counting=self.counting,
                entries=math.prod(self.record_shape),
                grouped=self.groups is not None,
                contributions=self.max_contributions,
                counts=math.prod(shape),
            ),
        )

    def summing_bytes(self, records: int) -> int:
        """Return also the sums and counts of further groups."""
        further = 16 * (self.group_count - 1) * math.prod(self.region(1))
        return super().summing_bytes(records) + further

    def partials(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> dict[str, Integers]:
        """Return the sums of some records by group, and their counts."""
        inner = answer_box[-len(self.record_shape) :] if self.record_shape else ()
        box = (*inner[: self.record_axis], records, *inner[self.record_axis :])
        codes = first_codes(source, records)
        if self.groups is not None:
            codes = np.where(codes < 0, codes, self.groups.codes(source, records))
        added = self.record_sums(
            source,
            exact_sum,
            box,
            codes=codes,
            factors=factors,
            groups=self.group_count,
            counted=self.counting is Counting.ENTRIES,
        )
        shape = tuple(part.stop - part.start for part in inner)
        sums = {DATA: self._of_groups(added.totals, shape, answer_box)}
        if added.counts is not None:
            sums[COUNT] = self._of_groups(added.counts, shape, answer_box)
        elif self.counting is Counting.RECORDS:
            counts = np.bincount(codes[codes >= 0], minlength=self.group_count)
            sums[COUNT] = counts.astype(np.int64).reshape(self._group_shape)
        return sums

    def _of_groups(self, totals: Integers, shape: Shape, answer_box: Region) -> Integers:
        """Return flat sums by group in the shape of a region of the answer."""
        if self.groups is None:
            return totals.reshape(shape or (1,))
        whole = totals.reshape(*self.groups.shape, *shape)
        return whole[answer_box[: len(self.groups.shape)]]

    @property
    def arrays_beside(self) -> tuple[BesideArray, ...]:
        """The counts and the standard deviation of the noise."""
        counts = tuple(
            BesideArray.count(
                part.shape if part.aligned or self.groups is not None else (),
                aligned=part.aligned,
            )
            for part in self.beside
        )
        return (*counts, BesideArray.noise_std(self.answer_shape, aligned=True))

    @property
    def records_in_entry(self) -> int | None:
        """All of them, where that many are in every entry."""
        counted = self.counting is not Counting.NONE or self.groups is not None
        return None if counted else super().records_in_entry

    @property
    def public_count(self) -> float | None:
        """The public number of records, shared out equally to groups."""
        public = self.count_is_public and self.people is None
        return self.records / self.group_count if public else None

    @property
    def public_count_if(self) -> str:
        """Groups may be of any size, and entries may be missing."""
        conditions = []
        if self.counting is Counting.ENTRIES:
            conditions.append("nothing is missing")
        if self.groups is not None:
            conditions.append("groups are equally large")
        return " and ".join(conditions)

    def deviations(self, noises: Mapping[str, Noise], *, distance: float) -> Deviations:
        """Return what sum and count move an entry by together."""
        std = noises[DATA].entry_std
        if COUNT not in noises:
            return Deviations.same(std)
        values = np.abs(self.bound.center.values).reshape(-1)
        some = values[:: 1 + values.size // _MOST_CENTERS]  # of a large public array, a sample
        centers, counts = np.unique(some, return_counts=True)
        stds = np.hypot(std, centers * noises[COUNT].entry_std)
        return Deviations(stds, counts / counts.sum(), Tail.GAUSSIAN)

    def release(
        self, noisy: Mapping[str, Floats], stds: Mapping[str, float], box: Region
    ) -> dict[str, Floats]:
        """Return the sum, from noisy parts; see the module's docstring."""
        total, center = noisy[DATA], self._center(box)
        if COUNT not in noisy:
            released = {DATA: total, NOISE_STD: np.full_like(total, stds[DATA])}
            if self.groups is None:
                released[DATA] = total + center * self.records
            return released
        count = self._like(noisy[COUNT], total, box)
        std = np.hypot(stds[DATA], np.abs(center) * stds[COUNT])
        return {
            DATA: total + center * count,
            COUNT: noisy[COUNT],
            NOISE_STD: np.broadcast_to(std, total.shape),
        }

    def _center(self, box: Region) -> Floats:
        """Return the centre in a region of the answer, ready to broadcast."""
        center = self.bound.center
        if center.values.ndim == 0 or not self.record_shape:
            return center.values.reshape(())
        whole = center.without(self.record_axis, self.record_shape)
        return whole[box[-len(self.record_shape) :]]

    def _like(self, count: Floats, total: Floats, box: Region) -> Floats:
        """Return counts of groups, or one count, so that they broadcast to a region."""
        if self.counting is Counting.ENTRIES or self.groups is None:
            return count
        keys = len(self.groups.shape)
        return count[box[:keys]].reshape(total.shape[:keys] + (1,) * (total.ndim - keys))

    def to_dict(self) -> Json:
        """Return also what is counted, and the groups."""
        content: Json = {
            **super().to_dict(),
            "counts": str(self.counting),
            "record_entries": math.prod(self.record_shape),
        }
        if self.groups is not None:
            content["groups"] = self.groups.to_dict()
        return content


@dataclass(frozen=True, kw_only=True)
class CountedMean(CountedSum):
    """The mean of records whose number is private, or of which entries are missing."""

    name: ClassVar[str] = "counted-mean"

    @property
    def spec_name(self) -> str:
        """A mean, whatever is released with it."""
        return "mean"

    @property
    def divided_by_count(self) -> bool:
        """Unless the number of records is public."""
        return self.counting is not Counting.NONE

    def deviations(self, noises: Mapping[str, Noise], *, distance: float) -> Deviations:
        """Return those of the mean times its count, at a distance from the centre."""
        std = noises[DATA].entry_std
        if COUNT not in noises:
            return Deviations.same(std / self.records)
        return Deviations.same(math.hypot(std, distance * noises[COUNT].entry_std))

    @property
    def records_in_entry(self) -> int:
        """A mean lies where a record may."""
        return 1

    def release(
        self, noisy: Mapping[str, Floats], stds: Mapping[str, float], box: Region
    ) -> dict[str, Floats]:
        """Return the mean, and by how much the noise of both parts moves it."""
        total, center = noisy[DATA], self._center(box)
        if COUNT not in noisy:  # the number of records is public
            mean = center + total / self.records
            return {DATA: mean, NOISE_STD: np.full_like(mean, stds[DATA] / self.records)}
        count = np.maximum(self._like(noisy[COUNT], total, box), 1.0)
        distance = total / count
        std = np.hypot(stds[DATA], distance * stds[COUNT]) / count
        return {DATA: center + distance, COUNT: noisy[COUNT], NOISE_STD: std}


register_query_rules(CountedSum.name, CountedSumRules())
register_query_rules(CountedMean.name, CountedSumRules())

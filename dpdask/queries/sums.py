"""Sums and means of bounded records: integer sums on a grid, the same bytes in any order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpdask.errors import InvalidSpec
from dpdask.privacy import Adjacency
from dpdask.queries.base import PRIVATE_COUNT, Reader, RecordSumQuery
from dpdask.queries.exact_sum import ExactSum, SumBounds
from dpdask.queries.people import first_codes
from dpdask.queries.records import Clip, Ranges, RecordSums
from dpdask.queries.verification import (
    QueryRules,
    RecordedAnswer,
    holds_ranges,
    is_ball,
    l1_of_ranges,
    radius_of_ranges,
    register_query_rules,
    sum_rounding,
)
from dpdask.sensitivity import EntrywiseBox, SensitivitySet
from dpdask.types import Floats, Integers, Region

__all__ = ["LOST_STEPS", "Mean", "StepSum", "Sum"]

# steps that an entry of a record loses at most: half a one to rounding, one to clipping or to a
# bound rounded inwards
LOST_STEPS = 1.5

_NUMBERS_PER_ENTRY = 6  # of a record: its sum, its count, its centre, its bounds


@dataclass(frozen=True, kw_only=True)
class Sum(RecordSumQuery):
    """The sum of all records."""

    name: ClassVar[str] = "sum"
    bound: Clip | Ranges

    def sum_bounds(self) -> SumBounds:
        """Return the bounds of a sum of entries."""
        return SumBounds(
            largest=self.bound.largest,
            power=1,
            records=self.public_records,
            sensitivity=self.sensitivity,
            shape=self.answer_shape,
            record_axis=self.record_axis,
            ranges=self.bound if isinstance(self.bound, Ranges) else None,
        )

    @property
    def records_in_entry(self) -> int | None:
        """All of them, where their number is public."""
        private = self.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE or self.people is not None
        return None if private else self.records

    @property
    def norm_power(self) -> int:
        """The sum of norms bounds that of records."""
        return 1

    def summing_bytes(self, records: int) -> int:
        """Return the sums and bounds of one record, and distances from a centre before clipping."""
        numbers = _NUMBERS_PER_ENTRY * math.prod(self.region(1))
        if isinstance(self.bound, Clip) and not self.bound.center.zero:
            numbers += math.prod(self.region(records))
        return 8 * numbers

    def bias(self, exact_sum: ExactSum) -> float:
        """Return what all records together may lose."""
        return self.records * LOST_STEPS * exact_sum.rule().grid.step

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return the sum of some records over a region of the answer."""
        inner = answer_box if len(self.source_shape) > 1 else ()
        box = (*inner[: self.record_axis], records, *inner[self.record_axis :])
        codes = first_codes(source, records)
        sums = self.record_sums(source, exact_sum, box, codes=codes, factors=factors)
        return sums.totals.reshape(tuple(part.stop - part.start for part in inner) or (1,))

    def record_sums(
        self,
        source: Reader,
        exact_sum: ExactSum,
        box: Region,
        *,
        codes: Integers,
        factors: Floats | None,
        groups: int = 1,
        counted: bool = False,
    ) -> RecordSums:
        """Return the sums of the records in a region of the source, by group.

        Args:
            source: What reads the source.
            exact_sum: How records become integers.
            box: The region.
            codes: The group of every record, -1 for none.
            factors: Their clip factors, None where a record is clipped as it is read.
            groups: How many groups there are.
            counted: Whether present entries are counted.
        """
        sums = RecordSums(exact_sum.rule(), box, groups=groups, counted=counted)
        first = box[self.record_axis].start
        for part, block in source.blocks(box, self.record_axis):
            here = slice(part.start - first, part.stop - first)
            sums.add(block, codes[here], None if factors is None else factors[here])
        return sums


@dataclass(frozen=True, kw_only=True)
class Mean(Sum):
    """The sum divided by the public number of records, after noise."""

    name: ClassVar[str] = "mean"

    @property
    def records_in_entry(self) -> int:
        """A mean lies where a record may."""
        return 1


@dataclass(frozen=True, kw_only=True)
class StepSum(Sum):
    """The sum of the records of one step of many, each of which has its own number of records.

    Guarantee: noise and grid are the same for all of them, whatever their numbers are.
    """

    @property
    def public_records(self) -> int:
        """One number for all steps."""
        if self.records > PRIVATE_COUNT:
            raise InvalidSpec("a step has more than the 2^30 records that are allowed; give fewer")
        return PRIVATE_COUNT

    @property
    def records_in_entry(self) -> int | None:
        """Steps differ in it."""
        return None

    def bias(self, exact_sum: ExactSum) -> float:
        """Return 0: what records lose depends on how many a step has."""
        return 0.0


class SumRules(QueryRules):
    """All records of a privacy unit add up in every entry."""

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records change from one end of their bound to the other."""
        if answer.bound["kind"] == "l2-clip":
            norm: float = float(answer.bound["norm"])
            return norm * (1 if answer.private_count else 2) * answer.bounds_per_unit
        if answer.bound["kind"] == "ranges":
            return radius_of_ranges(self.least_widths(answer), math.prod(answer.shape))
        raise answer.mismatch()

    def least_l1(self, answer: RecordedAnswer) -> float:
        """k records change every entry by its whole range; nothing better for an l2 clip norm."""
        if answer.bound["kind"] == "ranges":
            return l1_of_ranges(self.least_widths(answer), math.prod(answer.shape))
        return super().least_l1(answer)

    def values_per_record(self, answer: RecordedAnswer) -> int:
        """The sum has the shape of a record."""
        return math.prod(answer.shape)

    def least_widths(self, answer: RecordedAnswer) -> list[float]:
        """k times the widths of the ranges."""
        return [width * answer.contributions for width in answer.range_widths()]

    def covers(self, sensitivity: SensitivitySet, answer: RecordedAnswer) -> bool:
        """Allow balls, and boxes as wide as the ranges."""
        if isinstance(sensitivity, EntrywiseBox):
            return holds_ranges(sensitivity, answer, self.least_widths(answer))
        return is_ball(sensitivity)

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding a sum of finer steps."""
        return sum_rounding(answer, power=1)


register_query_rules(Sum.name, SumRules())
register_query_rules(Mean.name, SumRules())

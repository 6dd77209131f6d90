"""Second moments of bounded records: integer sums of products, the same bytes in any order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpdask.loading import when_used
from dpdask.queries.base import Reader, RecordSumQuery
from dpdask.queries.center import ORIGIN
from dpdask.queries.exact_sum import ExactSum, SumBounds
from dpdask.queries.records import Clip, Ranges, RecordRule, SpreadRule
from dpdask.queries.sums import LOST_STEPS
from dpdask.queries.verification import (
    QueryRules,
    RecordedAnswer,
    radius_of_ranges,
    register_query_rules,
    sum_rounding,
)
from dpdask.types import Floats, Integers, Region

if TYPE_CHECKING:
    from dpdask.privatizers import record_steps
else:
    record_steps = when_used("dpdask.privatizers.record_steps")

__all__ = ["SecondMoment", "SecondMomentRules"]

_EXACT_SUM = 2**52  # sums of integers below it are exact in doubles
_CACHED_RECORDS = 2048


@dataclass(frozen=True, kw_only=True)
class SecondMoment(RecordSumQuery):
    """X'X of bounded records, divided by their public number under replace-one.

    It is symmetrised after noise. Records are measured from the origin, clipped ones from the
    centre of their clip norm.
    """

    name: ClassVar[str] = "second-moment"
    symmetric: ClassVar[bool] = True
    bound: Clip | Ranges

    @property
    def features(self) -> int:
        """How many numbers a record holds."""
        return self.answer_shape[0]

    @property
    def reach(self) -> float:
        """How far a record may lie from where it is measured."""
        if isinstance(self.bound, Clip):
            return self.bound.norm
        return radius_of_ranges(largest_values(self.moment_ranges().pairs), self.features)

    def moment_ranges(self) -> Ranges:
        """Return the ranges of what is multiplied."""
        assert isinstance(self.bound, Ranges)
        return self.bound

    def sum_bounds(self) -> SumBounds:
        """Return the bounds of a sum of products, whose step is the square of the records' step."""
        clipped = isinstance(self.bound, Clip)
        ranges = None if clipped else self.moment_ranges()
        center = ORIGIN if ranges is self.bound else self.bound.center
        return SumBounds(
            largest=self.reach if ranges is None else ranges.largest,
            power=2,
            records=self.public_records,
            sensitivity=self.sensitivity,
            shape=self.answer_shape,
            record_axis=self.record_axis,
            ranges=ranges,
            center=center,
        )

    def entry_widths(self) -> tuple[float, ...] | None:
        """Return the square of the reach times the number of records, over the divisor."""
        if not self.count_is_public:
            return None
        return (self.reach**2 * self.records / self.divisor,)

    def bias(self, exact_sum: ExactSum) -> float:
        """Return what either factor of every record's products may lose."""
        largest = self.sum_bounds().largest
        return self.records * 2 * largest * LOST_STEPS * exact_sum.rule().grid.step

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return X_I' X_J over some records, in two words."""
        return self.moments(source, exact_sum, answer_box, records, factors)[0]

    def moments(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> tuple[Integers, Integers]:
        """Return X_I' X_J over some records, in two words, and the sums of X_I."""
        most = most_at_once(exact_sum.rule().grid.high)
        rows, columns = (part.stop - part.start for part in answer_box)
        words = np.zeros((2, rows, columns), np.int64)
        total = np.zeros(rows, np.int64)
        for left, right in self.blocks(source, exact_sum, answer_box, records, factors, most):
            record_steps.add_words(left.T @ right, words)
            total += np.sum(left, axis=0).astype(np.int64)
        return words, total

    def blocks(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
        most: int,
    ) -> Iterator[tuple[Floats, Floats]]:
        """Yield the features of the rows and of the columns of a region, as integers of at most so
        many records at once; they are valid until the next ones.
        """
        rows, columns = answer_box
        arguments = (exact_sum.rule(), records, factors, most)
        lefts = self._integers(source, rows, *arguments, whole=rows != columns)
        if rows == columns:
            yield from ((left, left) for left in lefts)
            return
        yield from zip(lefts, self._integers(source, columns, *arguments, whole=True), strict=True)

    def summing_bytes(self, records: int) -> int:
        """Return also copies: records of the second axis are transposed, others are centred."""
        copies = (self.record_axis != 0) + (not self.sum_bounds().center.zero)
        return super().summing_bytes(records) * (1 + copies)

    def region_of(self, features: slice, records: slice) -> Region:
        """Return the region of the source that holds some features of some records."""
        return (records, features) if self.record_axis == 0 else (features, records)

    def _integers(
        self,
        source: Reader,
        features: slice,
        rule: RecordRule,
        records: slice,
        factors: Floats | None,
        most: int,
        *,
        whole: bool,
    ) -> Iterator[Floats]:
        """Yield some features as integers, one record per row.

        Args:
            source: Where records are read.
            features: Which features.
            rule: How they become integers.
            records: The range of records.
            factors: What clipped records are multiplied by; None where they are read whole.
            most: How many records come at once.
            whole: Whether all records are read at once, so that what is read of other features
                does not take their place.
        """
        box = self.region_of(features, records)
        spread = SpreadRule(rule, box)
        blocks = [(records, source.read(box))] if whole else source.blocks(box, self.record_axis)
        for part, block in blocks:
            here = slice(part.start - records.start, part.stop - records.start)
            own = None if factors is None else factors[here]
            absent = source.left_out(part)
            for some, rows in spread.integers(block, own, most):
                if absent is not None:
                    rows[absent[some]] = 0.0
                yield rows


def most_at_once(largest: int) -> int:
    """Return of how many records products of integers up to ``largest`` add up exactly in doubles:
    below 2^52. No more than fit the processor's cache.
    """
    return max(1, min(_CACHED_RECORDS, _EXACT_SUM // max(1, largest**2)))


def largest_values(pairs: tuple[tuple[float, float], ...]) -> list[float]:
    """Return the largest absolute value of every range."""
    return [max(abs(low), abs(high)) for low, high in pairs]


class SecondMomentRules(QueryRules):
    """Products of bounded records, symmetrised."""

    symmetric = True

    def reach(self, answer: RecordedAnswer) -> float:
        """Return how far a record may lie from where it is measured, by the bound recorded."""
        if answer.bound["kind"] == "l2-clip":
            return float(answer.bound["norm"])
        pairs = self.moment_ranges(answer)
        features, columns = answer.shape
        if features != columns or len(pairs) not in (1, features):
            raise answer.mismatch()
        return radius_of_ranges(largest_values(pairs), features)

    def moment_ranges(self, answer: RecordedAnswer) -> tuple[tuple[float, float], ...]:
        """Return the ranges of what is multiplied, by the bound recorded."""
        if answer.bound["kind"] != "ranges":
            raise answer.mismatch()
        return tuple((float(low), float(high)) for low, high in answer.bound["ranges"])

    def values_per_record(self, answer: RecordedAnswer) -> int:
        """A record is a row of features."""
        return answer.shape[0]

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records change their products."""
        square = self.reach(answer) ** 2
        return square * answer.bounds_per_unit * (1 if answer.private_count else math.sqrt(2))

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding a sum of finer steps."""
        return sum_rounding(answer, power=2)


register_query_rules(SecondMoment.name, SecondMomentRules())

"""Histograms from which a bound is chosen: of the records' norms, or of the values of features.

Every record is counted once, or with every entry that it has, whatever its values are. So k
records of a privacy unit, of m entries per feature and histogram, change f histograms by at most

    k m sqrt(f)  (add-remove-one),    sqrt(2) k m sqrt(f)  (replace-one),

with m = f = 1 for norms: at worst all of them lie in one bin, and in another one after they are
replaced. A record that is left out is not counted.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpdask.loading import when_used
from dpdask.noise.rounding import product_rounding
from dpdask.privacy import Adjacency
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.privatizers.clipping import norm_squares, record_norms
from dpdask.queries.base import Query, Reader, SummedQuery
from dpdask.queries.bound_choice import norm_edges, value_edges
from dpdask.queries.center import Center
from dpdask.queries.exact_sum import ExactSum
from dpdask.queries.people import first_codes
from dpdask.queries.records import Clip, Ranges
from dpdask.queries.verification import QueryRules, RecordedAnswer, register_query_rules
from dpdask.sensitivity import L2Ball, Origin, SensitivitySet
from dpdask.types import Array, Floats, Integers, Json, Region, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import counting
else:
    counting = when_used("dpdask.privatizers.counting")

__all__ = ["BoundHistogram", "NormHistogram", "ValueHistogram"]

_AT_ONCE = 2**18  # entries that are shifted or placed at once, in memory of their own
_FINER = 2.0**12  # steps of the grid of norms in the smallest one, but for sqrt(entries)
_MOST_STEPS = 2.0**49  # in the largest one: entries saturate at twice as many


@dataclass(frozen=True, kw_only=True)
class BoundHistogram(SummedQuery):
    """Counts from which a bound is chosen.

    Args:
        record_entries: How many entries of a record one histogram counts at most.
    """

    one_pass: ClassVar[bool] = True
    record_entries: int

    @property
    def histograms(self) -> int:
        """How many histograms there are, all of which one record changes."""
        return math.prod(self.answer_shape[:-1])

    @property
    @abc.abstractmethod
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """The smallest and the largest edge that may be chosen, by histogram."""

    @property
    @abc.abstractmethod
    def edges(self) -> Floats:
        """The edges that may be chosen, by histogram where there are several."""

    def bounds(self) -> AnswerBounds:
        """Return the number of entries as the bound of every count."""
        largest = float(self.public_records * self.record_entries)
        order = len(self.answer_shape)
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-largest,) * order,
            high=(largest,) * order,
            rounded_entries=_changed(
                self.max_contributions * self.record_entries, self.answer_shape
            ),
        )

    def region(self, records: int) -> Shape:
        """Return one entry of every record: more is read piece by piece."""
        return tuple(
            records if axis == self.record_axis else 1 for axis in range(len(self.source_shape))
        )

    def summing_bytes(self, records: int) -> int:
        """Return norms and codes of records, and copies of some entries."""
        return 64 * records + 32 * _AT_ONCE

    def _box(self, records: slice) -> Region:
        """Return the region of some records."""
        return tuple(
            records if axis == self.record_axis else slice(0, size)
            for axis, size in enumerate(self.source_shape)
        )

    def _blocks(self, source: Reader, box: Region) -> Iterator[tuple[Region, Array]]:
        """Yield a region piece by piece, some records of a piece at a time."""
        axis = self.record_axis
        for piece in source.pieces(box):
            block, part = source.read(piece), piece[axis]
            count = part.stop - part.start
            many = max(1, _AT_ONCE * count // max(1, block.size))
            for first in range(0, count, many):
                inner = (slice(None),) * axis + (slice(first, first + many),)
                some = slice(part.start + first, min(part.start + first + many, part.stop))
                yield (*piece[:axis], some, *piece[axis + 1 :]), block[inner]

    def to_dict(self) -> Json:
        """Return also how many entries of a record are counted in one histogram."""
        return {**Query.to_dict(self), "record_entries": self.record_entries}

    def bound_to_dict(self, discretized: Discretized) -> Json:
        """One entry, one count."""
        return {"kind": "count", "enforced": True}


@dataclass(frozen=True, kw_only=True)
class NormHistogram(BoundHistogram):
    """The records by their distance from the centre; a missing entry lies at the centre.

    Norms are computed in integers, whatever the chunks and tasks.

    Args:
        between: The smallest and the largest norm that may be chosen.
        center: What norms are measured from.
    """

    name: ClassVar[str] = "norm-histogram"
    between: tuple[float, float]
    center: Center

    @classmethod
    def of(cls, query: Query, bound: Clip, between: tuple[float, float]) -> NormHistogram:
        """Return the histogram for the clip norm of a query."""
        low, high = between
        return cls(
            **_common(query, bound.record_axis, shape=(len(norm_edges(low, high)),), entries=1),
            between=between,
            center=bound.center,
        )

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """The smallest and the largest norm."""
        return (self.between,)

    @property
    def edges(self) -> Floats:
        """The norms that may be chosen."""
        return np.asarray(norm_edges(*self.between))

    @property
    def _step(self) -> float:
        """The step of the grid that entries are rounded to: a power of two."""
        low, high = self.between
        finest = low / _FINER / math.sqrt(self.values_per_record)
        return 2.0 ** math.frexp(max(finest, high / _MOST_STEPS))[1]

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return how many of some records have which norm."""
        axis, step = self.record_axis, self._step
        codes = first_codes(source, records)
        squares = np.zeros((codes.size, 4), np.uint64)
        for box, block in self._blocks(source, self._box(records)):
            part = slice(box[axis].start - records.start, box[axis].stop - records.start)
            shifted = self.center.shifted(block, box)
            squares[part] += record_norms(shifted, record_axis=axis, step=step)
        bins = np.searchsorted((self.edges / step) ** 2, norm_squares(squares), side="left")
        cells = np.where(codes < 0, codes, np.minimum(bins, self.answer_shape[0] - 1))
        counts = np.zeros(self.answer_shape, np.int64)
        counting.count_cells(cells, counts)
        return counts


@dataclass(frozen=True, kw_only=True)
class ValueHistogram(BoundHistogram):
    """The entries of records by their values; what is missing is not counted.

    Args:
        between: The least and the largest end that may be chosen, for all entries or per feature.
        feature_axis: The axis of the features.
    """

    name: ClassVar[str] = "value-histogram"
    between: tuple[tuple[float, float], ...]
    feature_axis: int

    @classmethod
    def of(cls, query: Query, bound: Ranges) -> ValueHistogram:
        """Return the histograms for the ranges of a query, whose ends are the widest ones."""
        assert bound.record_axis is not None
        features = len(bound.pairs)
        entries = query.values_per_record // features
        shape = (features, len(value_edges(*bound.pairs[0])) - 1)
        return cls(
            **_common(query, bound.record_axis, shape=shape, entries=entries),
            between=bound.pairs,
            feature_axis=bound.feature_axis,
        )

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """The least and the largest end, by feature."""
        return self.between

    @property
    def edges(self) -> Floats:
        """The ends that may be chosen, by feature."""
        return np.asarray([value_edges(low, high) for low, high in self.between])

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return how many entries of some records have which value, by feature."""
        axis, edges = self.record_axis, self.edges
        codes = first_codes(source, records)
        counts = np.zeros(self.answer_shape, np.int64)
        for box, block in self._blocks(source, self._box(records)):
            part = slice(box[axis].start - records.start, box[axis].stop - records.start)
            for feature, inner in self._features(box):
                counts[feature] += self._counted(block[inner], codes[part], edges[feature])
        return counts

    def _counted(self, block: Array, codes: Integers, edges: Floats) -> Integers:
        """Return how many entries of present records have which value.

        Args:
            block: Entries of some records.
            codes: 0 for every record that is present, -1 for others.
            edges: The edges of the bins.
        """
        rows = np.moveaxis(block, self.record_axis, 0).reshape(codes.size, -1)
        counts = np.zeros(edges.size - 1, np.int64)
        width = max(1, _AT_ONCE // max(1, codes.size))
        for first in range(0, rows.shape[1], width):
            values = rows[:, first : first + width].astype(np.float64)
            cells = np.repeat(codes, values.shape[1])
            inside = np.clip(values, edges[0], edges[-1]).reshape(-1)
            counting.place_in_bins(inside, edges, cells)
            counting.count_cells(cells, counts)
        return counts

    def _features(self, box: Region) -> Iterator[tuple[int, tuple[slice, ...]]]:
        """Yield the features of a region, each with its part of a block."""
        if self.answer_shape[0] == 1:
            yield 0, (slice(None),)
            return
        along = box[self.feature_axis]
        for feature in range(along.start, along.stop):
            place = feature - along.start
            yield feature, (slice(None),) * self.feature_axis + (slice(place, place + 1),)


def _common(query: Query, record_axis: int, *, shape: Shape, entries: int) -> Json:
    """Return what both histograms take from the query whose bound is chosen.

    Args:
        query: The query.
        record_axis: The axis of its records.
        shape: The shape of the counts.
        entries: How many entries of a record one histogram counts.
    """
    adjacency = query.sensitivity.adjacency
    radius = _radius(query.max_contributions * entries, shape, adjacency) * (1 + 1e-14)
    return {
        "source_shape": query.source_shape,
        "answer_shape": shape,
        "sensitivity": L2Ball(l2=radius, adjacency=adjacency, origin=Origin.CLIPPED),
        "bound": None,
        "norm_bound": None,
        "max_contributions": query.max_contributions,
        "people": query.people,
        "record_axis": record_axis,
        "record_entries": entries,
    }


def _radius(moved: int, shape: Shape, adjacency: Adjacency) -> float:
    """Return by how much ``moved`` entries of a privacy unit change each of some histograms."""
    replaced = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    return moved * math.sqrt(replaced * math.prod(shape[:-1]))


def _changed(moved: int, shape: Shape) -> int:
    """Return how many counts one privacy unit changes at most."""
    return min(2 * moved * math.prod(shape[:-1]), math.prod(shape))


class BoundHistogramRules(QueryRules):
    """All entries that a privacy unit has in a histogram move from one bin to another."""

    def covers(self, sensitivity: SensitivitySet, answer: RecordedAnswer) -> bool:
        """Allow a ball that is an l2 norm: nothing is known of other norms."""
        return isinstance(sensitivity, L2Ball) and not answer.parts

    def least_radius(self, answer: RecordedAnswer) -> float:
        """Return the same number as the module's docstring."""
        if answer.bound["kind"] != "count":
            raise answer.mismatch()
        return _radius(self._moved(answer), answer.shape, answer.sensitivity.adjacency)

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding the counts that change."""
        return product_rounding(
            step=answer.step,
            entries=_changed(self._moved(answer), answer.shape),
            most=answer.grid_bound,
        )

    @staticmethod
    def _moved(answer: RecordedAnswer) -> int:
        entries = answer.query["record_entries"]
        if not (isinstance(entries, int) and entries >= 1):
            raise answer.mismatch()
        return answer.contributions * entries


register_query_rules(NormHistogram.name, BoundHistogramRules())
register_query_rules(ValueHistogram.name, BoundHistogramRules())

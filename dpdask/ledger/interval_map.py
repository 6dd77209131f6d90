"""Charges along a dimension: what every index of it was charged so far, and the largest.

A step function from indices to :class:`~dpdask.ledger.charges.Spent`, kept as maximal segments of
one value each; where there is none, nothing was charged. Its form is therefore unique: whoever adds
the same charges, in whatever order, has the same segments.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from dpdask.ledger.charges import NOTHING, Spent

__all__ = ["IntervalMap", "Segment"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Indices ``start`` to ``stop`` of a dimension, and what each of them was charged so far."""

    start: int
    stop: int
    spent: Spent


@dataclass(frozen=True, slots=True)
class Change:
    """What a charge does to the segments of a dimension."""

    removed: list[Segment]
    added: list[Segment]

    @property
    def largest(self) -> Spent:
        """The largest sums among the new segments."""
        return functools.reduce(Spent.maximum, (new.spent for new in self.added), NOTHING)


class IntervalMap:
    """What was charged at every index of a dimension, or at those of a part of it."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments = sorted(segments, key=_start)

    @property
    def segments(self) -> list[Segment]:
        """The segments, in order: disjoint, and no two that touch have one value."""
        return list(self._segments)

    def add(self, start: int, stop: int, amount: Spent) -> Change:
        """Charge an amount at every index from ``start`` to ``stop``.

        Args:
            start: the first index.
            stop: the index after the last one.
            amount: what is added.

        Returns:
            Which segments are gone, and which are new; what was charged now lies in new ones.
        """
        # Neighbours that only touch are taken along, since they may have the new value.
        first = bisect_left(self._segments, start, key=_stop)
        last = bisect_right(self._segments, stop, key=_start)
        pieces: list[Segment] = []
        cursor = start
        for old in self._segments[first:last]:
            left, right = max(old.start, start), min(old.stop, stop)
            if old.start < start:
                pieces.append(Segment(old.start, min(old.stop, start), old.spent))
            if left < right:
                if cursor < left:
                    pieces.append(Segment(cursor, left, amount))
                pieces.append(Segment(left, right, old.spent + amount))
                cursor = right
            if old.stop > stop:
                if cursor < stop:
                    pieces.append(Segment(cursor, stop, amount))
                    cursor = stop
                pieces.append(Segment(max(old.start, stop), old.stop, old.spent))
        if cursor < stop:
            pieces.append(Segment(cursor, stop, amount))
        merged = _merged(pieces)
        touched = self._segments[first:last]
        self._segments[first:last] = merged
        before, after = set(touched), set(merged)
        return Change(
            removed=[segment for segment in touched if segment not in after],
            added=[segment for segment in merged if segment not in before],
        )


def _start(segment: Segment) -> int:
    return segment.start


def _stop(segment: Segment) -> int:
    return segment.stop


def _merged(pieces: list[Segment]) -> list[Segment]:
    """Join pieces that touch and have one value; they are in order."""
    merged: list[Segment] = []
    for piece in sorted(pieces, key=_start):
        last = merged[-1] if merged else None
        if last is not None and last.stop == piece.start and last.spent == piece.spent:
            merged[-1] = Segment(last.start, piece.stop, piece.spent)
        else:
            merged.append(piece)
    return merged

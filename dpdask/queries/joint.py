"""What one record can change of a centred sum and of the counts beside it, as one l2 distance.

A joint answer is a sum T with noise of standard deviation sigma and counts n with noise of
``scale * sigma``. Measured in sigmas, one record moves the two together by at most

    sup sqrt(||dT||^2 + ||dn||^2 / scale^2) / sigma,

and that supremum, the joint radius, is the l2 sensitivity of the pair in units of T. Notation: d
entries, ranges of width w whose ends are at most h from the centre, clip norm C, p = 1/scale^2;
sums over entries are written out for one range.

Its square, for counts of nothing, of records, of present entries:

- ranges, add-remove-one: d h^2; d h^2 + p; d (h^2 + p)
- ranges, replace-one: d w^2; max(d w^2, d h^2 + p); d max(w^2, h^2 + p)
- ranges, replace-one, grouped: the larger of replace-one above (with d w^2 for counts of records)
  and twice add-remove-one
- clip, add-remove-one: C^2; C^2 + p; C^2 + d p
- clip, replace-one: 4 C^2; max(4 C^2, C^2 + p); max(4 C^2 + (d - 1) p, min(d, 2) C^2 + d p)
- clip, replace-one, grouped: as for ranges

A replaced record of the same group either has an entry in both versions, which can move by w (2 C
in all) and leaves the count, or in one of them, which moves the sum by h and the count by 1. Two
versions without a common entry are orthogonal: 2 C^2, of one entry C^2. In two groups the old and
the new version move entries of their own. Records are counted under replace-one, where their number
is public, only where a person's are left out: of k and k records, or of k and none, as the square
is convex in both numbers.

Where C is the norm of all records of a person together, k of which are kept, the norms of these
records add up to C. The square for counts of nothing, of records, of present entries:

- add-remove-one: C^2; C^2 + k^2 p; C^2 + d k^2 p
- replace-one: 4 C^2; max(4 C^2 + (k - 1)^2 p, C^2 + k^2 p);
  max(4 C^2 + ((d - 1) k^2 + (k - 1)^2) p, min(d, 2) C^2 + d k^2 p)
- replace-one, grouped: the larger of the first term above, with counts twice, and twice
  add-remove-one

Old and new sums with an entry of a group in common are up to 2 C apart. Of that entry, and of that
group, each version has a record at least, so the counts of k and 1 differ by k - 1, those of other
entries by k; where both versions also have groups of their own, twice the square of that. Without a
common entry the sums are orthogonal. As k records of norm C each, the square is at most k^2 times
that of a record: the smaller of both holds.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from scipy.optimize import minimize_scalar

from dpdask.privacy import Adjacency
from dpdask.queries.records import Clip, Ranges

__all__ = ["Counting", "SumShape", "best_scale", "joint_square"]


class Counting(enum.StrEnum):
    """What is counted beside a sum."""

    NONE = "none"
    RECORDS = "records"
    ENTRIES = "entries"


@dataclass(frozen=True, kw_only=True)
class SumShape:
    """All that the joint radius depends on, except the scale of the counts' noise.

    Args:
        widths: The width of every feature's range; empty where records are clipped.
        reaches: How far every feature's range reaches from its centre.
        clip_norm: The clip norm; None where entries lie in ranges.
        entries: How many numbers a record holds; as many of every feature.
        counting: What is counted.
        grouped: Whether every record belongs to a private group.
        adjacency: Which data sets are neighbours.
        together: Where the clip norm is that of all records of a person, how many of them are kept
            at most; None where it is that of one record.
    """

    widths: tuple[float, ...] = ()
    reaches: tuple[float, ...] = ()
    clip_norm: float | None = None
    entries: int
    counting: Counting
    grouped: bool
    adjacency: Adjacency
    together: int | None = None

    @classmethod
    def of(
        cls,
        bound: Clip | Ranges,
        *,
        entries: int,
        counting: Counting,
        grouped: bool,
        adjacency: Adjacency,
        together: int | None = None,
    ) -> SumShape:
        """Return the shape of a sum of records bounded by ``bound``."""
        widths: tuple[float, ...] = ()
        reaches: tuple[float, ...] = ()
        if isinstance(bound, Ranges):
            centered = bound.centered()
            widths = tuple(high - low for low, high in bound.pairs)
            reaches = tuple(max(abs(low), abs(high)) for low, high in centered)
        return cls(
            widths=widths,
            reaches=reaches,
            clip_norm=bound.norm if isinstance(bound, Clip) else None,
            entries=entries,
            counting=counting,
            grouped=grouped,
            adjacency=adjacency,
            together=together,
        )


def joint_square(shape: SumShape, scale: float | None) -> float:
    """Return the square of the joint radius of one record, or of one person's where they are
    clipped together.

    Args:
        shape: The sum and its counts.
        scale: The standard deviation of a count's noise over that of the sum; None without counts.
    """
    counted = shape.counting is not Counting.NONE
    p = 0.0 if scale is None or not counted else scale**-2
    if shape.clip_norm is None:
        return _ranged(shape, p)
    square = shape.clip_norm**2
    if shape.together is None:
        return _clipped(shape, square, p)
    # every record of a person has that norm, too
    of_records = shape.together**2 * _clipped(shape, square, p)
    return min(_clipped_together(shape, square, p, shape.together), of_records)


def _clipped(shape: SumShape, square: float, p: float) -> float:
    d = shape.entries
    of_entries = shape.counting is Counting.ENTRIES
    one_record = square + p * (d if of_entries else 1)
    if shape.adjacency is Adjacency.ADD_REMOVE_ONE:
        return one_record
    same_group = 4 * square
    if of_entries:
        disjoint = min(d, 2) * square + d * p
        same_group = max(4 * square + (d - 1) * p, disjoint)
    return _replaced(shape, same_group, one_record)


def _clipped_together(shape: SumShape, square: float, p: float, most: int) -> float:
    """Return the square for a person's records, ``most`` at most, of one norm together."""
    d = shape.entries if shape.counting is Counting.ENTRIES else 1
    groups = 2 if shape.grouped else 1
    one_person = square + d * p * most**2
    if shape.adjacency is Adjacency.ADD_REMOVE_ONE:
        return one_person
    common = 4 * square + groups * p * ((d - 1) * most**2 + (most - 1) ** 2)
    if shape.grouped:
        return max(common, 2 * one_person)
    if shape.counting is Counting.ENTRIES and d > 1:
        return max(common, 2 * square + d * p * most**2)
    return max(common, one_person)


def _ranged(shape: SumShape, p: float) -> float:
    of_entries = shape.counting is Counting.ENTRIES
    entry_p = p if of_entries else 0.0
    share = shape.entries / len(shape.widths)
    reach = share * math.fsum(h**2 + entry_p for h in shape.reaches)
    one_record = reach + (0.0 if of_entries else p)
    if shape.adjacency is Adjacency.ADD_REMOVE_ONE:
        return one_record
    pairs = zip(shape.widths, shape.reaches, strict=True)
    largest = [max(w**2, h**2 + entry_p) if of_entries else w**2 for w, h in pairs]
    return _replaced(shape, share * math.fsum(largest), one_record)


def _replaced(shape: SumShape, same_group: float, one_record: float) -> float:
    """Return the square under replace-one: in one group, in two, or with fewer records."""
    if shape.grouped:
        return max(same_group, 2 * one_record)
    return max(same_group, one_record) if shape.counting is Counting.RECORDS else same_group


def best_scale(shape: SumShape, *, weight: float) -> float:
    """Return the scale of the counts' noise with the least error of what is computed from both.

    Minimises sigma^2 (1 + weight^2 scale^2) at a fixed privacy cost, that is (joint radius)^2 times
    the bracket; in the logarithm of the scale it is a maximum of convex functions.

    Args:
        shape: The sum and its counts.
        weight: By how much an error of the count counts: how far the mean lies from the centre.
    """

    def error(log_scale: float) -> float:
        scale = math.exp(log_scale)
        return math.log(joint_square(shape, scale)) + math.log1p((weight * scale) ** 2)

    middle = -math.log(weight)
    best = minimize_scalar(
        error, bounds=(middle - 20, middle + 20), method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(float(best.x))

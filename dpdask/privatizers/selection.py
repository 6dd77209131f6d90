"""Which records of a person are kept: the k of the smallest random priorities.

A record that is not among the k smallest of its person in some part of the data is not among them
in all of the data, so parts may be reduced first, in any division and order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpdask.keystream import Words
from dpdask.loading import when_used
from dpdask.types import Integers, Mask

if TYPE_CHECKING:
    from dpdask.privatizers import people_kernels
else:
    people_kernels = when_used("dpdask.privatizers.people_kernels")

__all__ = [
    "Candidates",
    "bitmap",
    "in_buckets",
    "indices_of_smallest",
    "person_codes",
    "smallest_of_each",
]

Bits = np.ndarray[tuple[int], np.dtype[np.uint8]]


@dataclass(frozen=True, repr=False)
class Candidates:
    """Records that may be kept.

    Args:
        digests: The digest of each one's person, a row of two words.
        priorities: Their random priorities.
        indices: Which records they are.
        cells: The cell of a histogram of each; None where it does not matter.
    """

    digests: Words
    priorities: Words
    indices: Integers
    cells: Integers | None = None

    def __repr__(self) -> str:
        return "<Candidates>"

    @property
    def nbytes(self) -> int:
        """The bytes that they take."""
        cells = 0 if self.cells is None else self.cells.nbytes
        return self.digests.nbytes + self.priorities.nbytes + self.indices.nbytes + cells

    def at(self, positions: Integers) -> Candidates:
        """Return those at some positions, in that order."""
        cells = None if self.cells is None else np.take(self.cells, positions)
        return Candidates(
            np.take(self.digests, positions, axis=0),
            np.take(self.priorities, positions),
            np.take(self.indices, positions),
            cells,
        )

    def parts(self, ends: Integers) -> list[Candidates]:
        """Return them in parts that end at some positions: views, not copies."""
        return [self._part(slice(*pair)) for pair in zip([0, *ends[:-1]], ends, strict=True)]

    def _part(self, part: slice) -> Candidates:
        cells = None if self.cells is None else self.cells[part]
        return Candidates(self.digests[part], self.priorities[part], self.indices[part], cells)

    @classmethod
    def together(cls, *parts: Candidates) -> Candidates:
        """Return the records of all parts."""
        cells = [part.cells for part in parts if part.cells is not None]
        return cls(
            np.concatenate([part.digests for part in parts]),
            np.concatenate([part.priorities for part in parts]),
            np.concatenate([part.indices for part in parts]),
            np.concatenate(cells) if cells else None,
        )


def smallest_of_each(candidates: Candidates, count: int) -> Candidates:
    """Return of every person the ``count`` records of the smallest priorities.

    Where cells matter, a person's record of the smallest priority stands for its cell. Of equal
    priorities, which are as good as impossible, the earlier record comes first.
    """
    if candidates.cells is not None:
        candidates = candidates.at(_first_of_each_cell(candidates))
    kept = _smallest(candidates, count)
    return candidates if kept.all() else candidates.at(np.flatnonzero(kept))


def indices_of_smallest(candidates: Candidates, count: int) -> Integers:
    """Return which records :func:`smallest_of_each` returns."""
    if candidates.cells is not None:
        candidates = candidates.at(_first_of_each_cell(candidates))
    indices: Integers = candidates.indices[_smallest(candidates, count)]
    return indices


def _smallest(candidates: Candidates, count: int) -> Mask:
    codes, people = person_codes(candidates.digests)
    kept: Mask = np.zeros(codes.size, np.bool_)
    people_kernels.keep_smallest(
        codes, people, candidates.priorities, candidates.indices, count, kept
    )
    return kept


def in_buckets(
    digests: Words, present: Mask, *, modulus: int, buckets: range
) -> tuple[Integers, Integers]:
    """Return the positions of the records in some buckets, one bucket after the other, and where
    each of them ends.

    Args:
        digests: The digests of records' people, whose first word chooses the bucket.
        present: Which records count.
        modulus: How many buckets there are in all.
        buckets: Which of them are asked for.
    """
    ends: Integers = np.empty(len(buckets), np.int64)
    order: Integers = people_kernels.order_by_bucket(
        digests, present, np.uint64(modulus), np.uint64(buckets.start), ends
    )
    return order, ends


def bitmap(indices: Integers, length: int) -> Bits:
    """Return a bitmap of ``length`` records in which some are set, the highest bit first."""
    bits: Bits = np.zeros(-(-length // 8), np.uint8)
    people_kernels.set_bits(indices, bits)
    return bits


def person_codes(digests: Words) -> tuple[Integers, int]:
    """Return a number for the person of every record, from 0 on, and how many people there are.

    Digests are random bits under a key that nobody knows, so their own bits are a hash that nobody
    can make collide.
    """
    codes: Integers = np.empty(len(digests), np.int64)
    slots = 1 << max(4, (2 * len(digests) - 1).bit_length())
    table = np.full(slots, -1, np.int32 if len(digests) < 2**31 else np.int64)
    return codes, int(people_kernels.number_people(digests, table, codes))


def _first_of_each_cell(candidates: Candidates) -> Integers:
    """Return the positions of the smallest priorities of every person in each of its cells."""
    assert candidates.cells is not None
    keys = (candidates.cells, candidates.digests[:, 1], candidates.digests[:, 0])
    order = np.lexsort((candidates.indices, candidates.priorities, *keys))
    begins = np.zeros(order.size, bool)
    begins[:1] = True
    for key in keys:
        begins[1:] |= key[order[1:]] != key[order[:-1]]
    first: Integers = order[begins]
    return first

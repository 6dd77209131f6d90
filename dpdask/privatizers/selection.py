"""Which records of a person are kept: the k of the smallest random priorities.

A record that is not among the k smallest of its person in some part of the data is not among them
in all of the data, so parts may be reduced first, in any division and order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdask.keystream import Words
from dpdask.types import Array, Integers

__all__ = ["Candidates", "smallest_of_each"]


@dataclass(frozen=True, repr=False)
class Candidates:
    """Records that may be kept.

    Args:
        digests: The digest of each one's person, a row of two words.
        priorities: Their random priorities.
        indices: Which records they are.
    """

    digests: Words
    priorities: Words
    indices: Integers

    def __repr__(self) -> str:
        return "<Candidates>"

    @property
    def nbytes(self) -> int:
        """The bytes that they take."""
        return self.digests.nbytes + self.priorities.nbytes + self.indices.nbytes

    def where(self, chosen: Array) -> Candidates:
        """Return some of them, by a mask or by positions."""
        return Candidates(self.digests[chosen], self.priorities[chosen], self.indices[chosen])

    @classmethod
    def together(cls, *parts: Candidates) -> Candidates:
        """Return the records of all parts."""
        return cls(
            np.concatenate([part.digests for part in parts]),
            np.concatenate([part.priorities for part in parts]),
            np.concatenate([part.indices for part in parts]),
        )


def smallest_of_each(candidates: Candidates, count: int) -> Candidates:
    """Return of every person the ``count`` records of the smallest priorities.

    Of equal priorities, which are as good as impossible, the earlier record comes first.
    """
    high, low = candidates.digests[:, 0], candidates.digests[:, 1]
    order = np.lexsort((candidates.indices, candidates.priorities, low, high))
    high, low = high[order], low[order]
    begins = np.ones(order.size, bool)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    positions = np.arange(order.size)
    starts = np.maximum.accumulate(np.where(begins, positions, 0))
    return candidates.where(order[positions - starts < count])

"""People: privacy units that ids tell apart, of whose records only so many are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dpdask.types import Integers, Json, Mask

__all__ = ["DISTINCT", "NORM", "SUBSET", "SUBSET_AND_NORM", "People", "first_codes"]

SUBSET, DISTINCT = "random subset", "distinct cells"
NORM, SUBSET_AND_NORM = "clip norm", "random subset and clip norm"


@dataclass(frozen=True, kw_only=True)
class People:
    """Whom ids tell apart.

    Args:
        ids: The name of the array of ids, one per record.
        name: What one of them is called.
        missing: Whether a record without an id is a unit of its own, or left out.
        distinct: Whether the records that are kept lie in different cells of a histogram.
        clipped: Whether the clip norm is that of all records of one of them together.
        limited: Whether only so many records of each are kept.
    """

    ids: str
    name: str
    missing: Literal["own", "drop"]
    distinct: bool = False
    clipped: bool = False
    limited: bool = True

    @property
    def by(self) -> str:
        """How their contributions are enforced."""
        if not self.clipped:
            return DISTINCT if self.distinct else SUBSET
        return SUBSET_AND_NORM if self.limited else NORM

    @property
    def leaves_out(self) -> bool:
        """Whether records may be left out, so that the number of the others is private."""
        return self.limited or self.missing == "drop"

    def to_dict(self) -> Json:
        """Return what a card records of them."""
        return {
            "name": self.name,
            "ids": self.ids,
            "missing_ids": self.missing,
            "enforced": True,
            "by": self.by,
        }


class Selecting(Protocol):
    """Whatever knows which records are left out."""

    def left_out(self, records: slice) -> Mask | None:
        """Return which records are absent; None for none."""


def first_codes(source: Selecting, records: slice) -> Integers:
    """Return 0 for every record, -1 for those that are left out."""
    codes = np.zeros(records.stop - records.start, np.int64)
    absent = source.left_out(records)
    if absent is not None:
        codes[absent] = -1
    return codes

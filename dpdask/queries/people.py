"""People: privacy units that ids tell apart, of whose records only so many are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from dpdask.types import Integers, Json, Mask

__all__ = ["People", "first_codes"]


@dataclass(frozen=True, kw_only=True)
class People:
    """Whom ids tell apart.

    Args:
        ids: The name of the array of ids, one per record.
        name: What one of them is called.
        missing: Whether a record without an id is a unit of its own, or left out.
        distinct: Whether the records that are kept lie in different cells of a histogram.
    """

    ids: str
    name: str
    missing: Literal["own", "drop"]
    distinct: bool = False

    def to_dict(self) -> Json:
        """Return what a card records of them."""
        return {
            "name": self.name,
            "ids": self.ids,
            "missing_ids": self.missing,
            "enforced": True,
            "by": "distinct cells" if self.distinct else "random subset",
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

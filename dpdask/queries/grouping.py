"""Groups of records by private labels: the groups are public, who belongs to which is not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpdask.queries.axes import AnswerAxis
from dpdask.types import Integers, Json, Shape

__all__ = ["GroupKey", "Groups", "LabelReader"]


class LabelReader(Protocol):
    """Whatever reads the labels of records."""

    def codes(self, name: str, records: slice, groups: tuple[int | str, ...]) -> Integers:
        """Return the position of every record's label in ``groups``, -1 where it is not there."""


@dataclass(frozen=True)
class GroupKey:
    """One array of labels along the record axis, and the public list of its groups."""

    array: str
    groups: tuple[int | str, ...]

    def to_dict(self) -> Json:
        """Return the key as a card records it."""
        return {"array": self.array, "groups": list(self.groups)}


@dataclass(frozen=True)
class Groups:
    """The product of one or more keys; a record without a listed label of each counts nowhere."""

    keys: tuple[GroupKey, ...]

    @property
    def shape(self) -> Shape:
        """The leading axes of a grouped answer."""
        return tuple(len(key.groups) for key in self.keys)

    @property
    def axes(self) -> tuple[AnswerAxis, ...]:
        """The leading axes as they are published."""
        return tuple(AnswerAxis(name=key.array, groups=key.groups) for key in self.keys)

    @property
    def count(self) -> int:
        """How many groups there are."""
        return math.prod(self.shape)

    def codes(self, reader: LabelReader, records: slice) -> Integers:
        """Return the group of every record as a number, -1 for none."""
        total = np.zeros(records.stop - records.start, np.int64)
        inside = np.ones(total.size, bool)
        for key in self.keys:
            codes = reader.codes(key.array, records, key.groups)
            inside &= codes >= 0
            total = total * len(key.groups) + np.maximum(codes, 0)
        return np.where(inside, total, -1)

    def to_dict(self) -> list[Json]:
        """Return the keys as a card records them."""
        return [key.to_dict() for key in self.keys]

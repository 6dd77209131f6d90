"""How far noise moves what is released, from public values alone.

Only the noise is in it: what clipping removes depends on the data, and no plan knows it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dpdask.noise import Deviations, Noise
from dpdask.queries import Query
from dpdask.queries.base import COUNT
from dpdask.spec.release import PrivacyUnitSection
from dpdask.types import Json

__all__ = ["Accuracy", "accuracy_of"]

_SHARE = 0.95


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The noise of released entries.

    Args:
        deviations: The standard deviations of entries; of means with a private count, times it.
        divided_by_count: Whether they are still to be divided by the count of an entry.
        distance: Up to how far from the centre a mean may lie for these to hold; None where they
            do not depend on that.
        public_count: The count of an entry under a condition; None where the number of records is
            private.
        public_count_if: The condition, such as that nothing is missing.
        count_deviations: Those of the counts beside the result; None without counts.
    """

    deviations: Deviations
    divided_by_count: bool
    distance: float | None
    public_count: float | None
    public_count_if: str
    count_deviations: Deviations | None

    @property
    def std(self) -> float:
        """The root mean square of an entry's noise, times its count where it is divided by one."""
        return self.deviations.rms

    @property
    def expected(self) -> Deviations | None:
        """The standard deviations at the public count; None where the count is private."""
        if not self.divided_by_count:
            return self.deviations
        return None if self.public_count is None else self.deviations.scaled(1 / self.public_count)

    def to_dict(self) -> Json:
        """Return all figures, for a plan."""
        counts = self.count_deviations
        return {
            **_figures(self.deviations),
            "divided_by_count": self.divided_by_count,
            "up_to_distance_from_center": self.distance,
            "at_public_count": self._at_public_count(),
            "counts": None if counts is None else _figures(counts),
        }

    def _at_public_count(self) -> Json | None:
        if not self.divided_by_count or self.public_count is None:
            return None
        return {
            "count": self.public_count,
            "if": self.public_count_if,
            **_figures(self.deviations.scaled(1 / self.public_count)),
        }


def _figures(deviations: Deviations) -> Json:
    return {
        "entry_std": deviations.rms,
        "entry_std_range": [deviations.least, deviations.largest],
        "within_95": deviations.within(_SHARE),
    }


def accuracy_of(query: Query, noises: Mapping[str, Noise], unit: PrivacyUnitSection) -> Accuracy:
    """Return how far noise moves the released entries of a query.

    Guarantee: nothing in it depends on a private number of records.

    Args:
        query: What is computed.
        noises: The noise of every part of its answer, by name.
        unit: The spec's privacy unit, for a hint how far means lie from the centre.
    """
    distance = _distance(query, unit)
    counts = noises.get(COUNT)
    divided = query.divided_by_count
    return Accuracy(
        deviations=query.deviations(noises, distance=distance),
        divided_by_count=divided,
        distance=distance if divided else None,
        public_count=query.public_count,
        public_count_if=query.public_count_if,
        count_deviations=None if counts is None else counts.deviations(),
    )


def _distance(query: Query, unit: PrivacyUnitSection) -> float:
    """Return how far a mean may lie from the centre: the spec's hint, else half the bound."""
    if unit.expected_distance is not None:
        return unit.expected_distance
    if query.bound is None:
        return 0.0
    axis = query.bound.record_axis
    record = (size for other, size in enumerate(query.source_shape) if other != axis)
    return query.bound.typical_distance(math.prod(record))

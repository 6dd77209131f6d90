"""A query of one file: how many records are above a public threshold, for each feature.

An indicator is a number in [0, 1], so the count is a sum of clamped records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dpdask.errors import InvalidSensitivity
from dpdask.planning.build_query import QueryInputs, register_query, unregister_query
from dpdask.planning.sum_builders import build_sum
from dpdask.queries.base import Reader
from dpdask.queries.exact_sum import ExactSum
from dpdask.queries.sums import Sum, SumRules
from dpdask.queries.verification import register_query_rules, unregister_query_rules
from dpdask.spec.fields import Number
from dpdask.spec.query import QuerySection, SumSection
from dpdask.types import Array, Floats, Integers, Json, Mask, Region


class CountAboveSection(QuerySection):
    """``count-above``: counts of records above ``threshold``."""

    name: Literal["count-above"]
    threshold: Number


@dataclass(frozen=True)
class Indicators:
    """A source as zeros and ones; NaN is not above any threshold."""

    source: Reader
    threshold: float

    def read(self, box: Region) -> Array:
        return (self.source.read(box) > self.threshold).astype(np.float64)

    def blocks(self, box: Region, axis: int) -> Iterator[tuple[slice, Array]]:
        for records, block in self.source.blocks(box, axis):
            yield records, (block > self.threshold).astype(np.float64)

    def left_out(self, records: slice) -> Mask | None:
        return self.source.left_out(records)


@dataclass(frozen=True, kw_only=True)
class CountAbove(Sum):
    """The sum of the indicators, under a name of its own on the card."""

    name: ClassVar[str] = "count-above"
    threshold: float

    def to_dict(self) -> Json:
        return {**super().to_dict(), "threshold": self.threshold}

    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        indicators = Indicators(source, self.threshold)
        return super().partial(indicators, exact_sum, answer_box, records, factors)


def build_count_above(section: CountAboveSection, inputs: QueryInputs) -> CountAbove:
    if inputs.privacy_unit.ranges is not None or inputs.privacy_unit.l2_clip_norm is not None:
        raise InvalidSensitivity("count-above bounds records by itself; drop ranges and clip norm")
    unit = inputs.privacy_unit.model_copy(update={"ranges": [[0.0, 1.0]]})
    summed = build_sum(
        SumSection(name="sum"),
        QueryInputs(
            privacy_unit=unit,
            shape=inputs.shape,
            composition=inputs.composition,
            dimension_names=inputs.dimension_names,
            counts_beside=False,  # its answer is the counts themselves
        ),
    )
    return CountAbove(
        source_shape=summed.source_shape,
        answer_shape=summed.answer_shape,
        sensitivity=summed.sensitivity,
        bound=summed.bound,
        norm_bound=summed.norm_bound,
        max_contributions=summed.max_contributions,
        record_axis=summed.record_axis,
        threshold=section.threshold,
    )


def register() -> None:
    register_query_rules(CountAbove.name, SumRules())
    register_query(CountAboveSection, build_count_above)


def unregister() -> None:
    unregister_query(CountAboveSection)
    unregister_query_rules(CountAbove.name)

"""From the sections ``query`` and ``privacy_unit`` of a spec to a query.

A query takes one file and one line: ``register_query(SectionClass, builder)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

from dpdask.errors import InvalidSensitivity, InvalidSpec, StoreError
from dpdask.planning import query_builders as builders
from dpdask.planning.histogram_builder import build_histogram
from dpdask.planning.moment_builders import build_covariance, build_second_moment
from dpdask.planning.people import people_of
from dpdask.planning.query_inputs import ChosenBound, QueryInputs
from dpdask.planning.sum_builders import build_mean, build_sum
from dpdask.queries import Query
from dpdask.spec import QUERIES, QuerySection
from dpdask.spec import query as sections
from dpdask.spec.release import PrivacyUnitSection, StackSection
from dpdask.types import Shape

__all__ = ["QueryInputs", "build_query", "register_query", "unregister_query"]

_S = TypeVar("_S", bound=QuerySection)
_Build = Callable[[QuerySection, QueryInputs], Query]
_BUILDERS: dict[type[QuerySection], _Build] = {}


def register_query(section: type[_S], builder: Callable[[_S, QueryInputs], Query]) -> None:
    """Add a query: the section that specs name it by, and the function that builds it."""
    QUERIES.register(section)

    def build(content: QuerySection, inputs: QueryInputs) -> Query:
        assert isinstance(content, section)
        return builder(content, inputs)

    _BUILDERS[section] = build


def unregister_query(section: type[QuerySection]) -> None:
    """Remove a query. Idempotent."""
    QUERIES.unregister(section)
    _BUILDERS.pop(section, None)


def build_query(
    section: QuerySection,
    privacy_unit: PrivacyUnitSection,
    shape: Shape,
    composition: StackSection,
    dimension_names: tuple[str, ...] | None = None,
    *,
    counts_beside: bool = True,
    chosen: ChosenBound | None = None,
) -> Query:
    """Return the query of a spec, with what one privacy unit can change of its answer.

    Args:
        section: The section ``query``.
        privacy_unit: The section ``privacy_unit``.
        shape: The shape of the source.
        composition: The section ``composition``.
        dimension_names: The names of the source's dimensions, None where it has none.
        counts_beside: Whether the mechanism's noise can be shared between a sum and counts.
        chosen: The bound that was chosen privately, once it is.

    Raises:
        InvalidSensitivity: If what one privacy unit can change is not bounded.
        InvalidSpec: If the sections do not go together.
        StoreError: If records have no entries.
    """
    if not section.takes_steps:
        _refuse_steps(composition)
    builder = _BUILDERS.get(type(section))
    if builder is None:
        raise InvalidSpec(
            f"query {section.name!r} has no builder; call register_query with its section first"
        )
    inputs = QueryInputs(
        privacy_unit=privacy_unit,
        shape=shape,
        composition=composition,
        dimension_names=dimension_names,
        counts_beside=counts_beside,
        people=people_of(privacy_unit, section),
        chosen=chosen,
    )
    _refuse_empty_records(inputs)
    inputs.check_reach()
    try:
        return dataclasses.replace(builder(section, inputs), people=inputs.people)
    except ArithmeticError:  # squares of bounds that doubles hold
        raise InvalidSensitivity(
            "the bounds of privacy_unit leave the range of doubles when they are squared; rescale"
            " the data"
        ) from None


def _refuse_empty_records(inputs: QueryInputs) -> None:
    """Refuse records without a single entry; whether there may be no records depends on more."""
    record_axis = inputs.record_axis()
    for axis, length in enumerate(inputs.shape):
        if length == 0 and axis != record_axis:
            raise StoreError(
                f"the source has no entries along axis {axis}, so that no record has a value;"
                " choose another array, or wait until this one is filled"
            )


def _refuse_steps(composition: StackSection) -> None:
    if composition.steps > 1:
        raise InvalidSpec(
            "composition.steps goes with query: precomputed, a stack of per-step results; leave it"
            " out"
        )
    if composition.sampling is not None:
        raise InvalidSpec(
            "composition.sampling amplifies privacy only where records were sampled, and this query"
            " reads them all; leave it out, or release sampled results as query: precomputed"
        )


register_query(sections.IdentitySection, builders.build_identity)
register_query(sections.SumSection, build_sum)
register_query(sections.MeanSection, build_mean)
register_query(sections.SecondMomentSection, build_second_moment)
register_query(sections.CovarianceSection, build_covariance)
register_query(sections.HistogramSection, build_histogram)
register_query(sections.PrecomputedSection, builders.build_precomputed)

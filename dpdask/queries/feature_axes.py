"""Where the features of records lie in an answer, and how strong the answer is along them."""

from __future__ import annotations

import functools

from dpdask.queries.base import Query
from dpdask.queries.identity import Identity
from dpdask.queries.second_moment import SecondMoment
from dpdask.queries.sums import Sum
from dpdask.types import Floats

__all__ = ["power_along", "source_axis"]


@functools.singledispatch
def source_axis(query: Query, axis: int) -> int | None:
    """Return the axis of the source whose features lie along an axis of the answer.

    None where records or groups lie there.
    """
    return None


@source_axis.register(Identity)
def _of_identity(query: Identity, axis: int) -> int | None:
    """Return the axis itself, unless records lie along it."""
    return None if axis == query.bound.record_axis else axis


@source_axis.register(Sum)
def _of_sum(query: Sum, axis: int) -> int | None:
    """Return an axis of a record; none where sums are by group, which have axes of their own."""
    if query.new_axes or len(query.source_shape) == 1:
        return None
    return axis + (axis >= query.record_axis)


@source_axis.register(SecondMoment)
def _of_moment(query: SecondMoment, axis: int) -> int:
    """Return the axis of the features, which lie along both axes."""
    return 1 - query.record_axis


@functools.singledispatch
def power_along(query: Query, moments: Floats) -> Floats:
    """Return the eigenvalues of f f' along such an axis, given those of the sum of the records'
    products there: exact where the answer is the records themselves.
    """
    return moments


@power_along.register(Sum)
def _power_of_sum(query: Sum, moments: Floats) -> Floats:
    """Return at most n times those of n records, by Cauchy-Schwarz.

    As if there were one record where their number is private.
    """
    return moments * (query.records if query.count_is_public else 1)


@power_along.register(SecondMoment)
def _power_of_moment(query: SecondMoment, moments: Floats) -> Floats:
    """Return squares: the answer is the sum of products itself."""
    return moments**2

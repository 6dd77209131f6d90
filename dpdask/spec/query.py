"""The ``query`` of a release spec: one section class for each query."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpdask.spec.fields import Number, Positive, Section, Vector, Whole
from dpdask.spec.registry import NamedSection, SectionRegistry

__all__ = [
    "QUERIES",
    "Bins",
    "GroupBySection",
    "HistogramSection",
    "IdentitySection",
    "MeanSection",
    "PrecomputedSection",
    "Query",
    "QuerySection",
    "SecondMomentSection",
    "SumSection",
]


class QuerySection(NamedSection):
    """The base of every section under ``query``.

    ``takes_steps`` says whether the source is a stack of per-step results, to which
    ``composition`` applies.
    """

    takes_steps: ClassVar[bool] = False


QUERIES = SectionRegistry("query", QuerySection)

Query = Annotated[QuerySection, QUERIES]
"""The type of a spec's key ``query``."""


@QUERIES.register
class IdentitySection(QuerySection):
    """``identity``: the tensor itself."""

    name: Literal["identity"]


class GroupBySection(Section):
    """``by``: a private array of labels along the record dimension, and the public groups.

    Args:
        array: The array beside the source, integers or text.
        groups: The labels that are groups; a record with another label counts nowhere.
    """

    array: Annotated[str, Field(min_length=1)]
    groups: Annotated[list[Whole | str], Field(min_length=1)]


GroupBy = GroupBySection | Annotated[list[GroupBySection], Field(min_length=1)]


@QUERIES.register
class SumSection(QuerySection):
    """``sum`` over records, by group where ``by`` says so."""

    name: Literal["sum"]
    by: GroupBy | None = None


@QUERIES.register
class MeanSection(QuerySection):
    """``mean`` over records, by group where ``by`` says so."""

    name: Literal["mean"]
    by: GroupBy | None = None


@QUERIES.register
class SecondMomentSection(QuerySection):
    """``second-moment``: X'X / n of bounded records (X'X under add-remove-one)."""

    name: Literal["second-moment"]


class Bins(Section):
    """Equal bins from ``low`` to ``high``."""

    low: Number
    high: Number
    bins: Positive


@QUERIES.register
class HistogramSection(QuerySection):
    """``histogram``: counts of records in public bins; one list of edges per counted column."""

    name: Literal["histogram"]
    edges: Annotated[list[Vector | Bins], Field(min_length=1)]
    columns: list[Whole] | None = None


@QUERIES.register
class PrecomputedSection(QuerySection):
    """``precomputed``: a finished query result whose sensitivity the caller declares.

    Args:
        name: The name of the query.
        l2_sensitivity: A bound on the l2 norm of what one privacy unit changes.
        l1_sensitivity: A bound on the l1 norm, for Laplace noise.
    """

    takes_steps: ClassVar[bool] = True

    name: Literal["precomputed"]
    l2_sensitivity: Number
    l1_sensitivity: Number | None = None

"""The ``query`` of a release spec: one section class for each query."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpdask.spec.fields import Number, Positive, Section, Vector, Whole
from dpdask.spec.registry import NamedSection, SectionRegistry

__all__ = [
    "QUERIES",
    "Bins",
    "CovarianceSection",
    "HistogramSection",
    "IdentitySection",
    "MeanSection",
    "PrecomputedSection",
    "Query",
    "QuerySection",
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


@QUERIES.register
class SumSection(QuerySection):
    """``sum`` over records."""

    name: Literal["sum"]


@QUERIES.register
class MeanSection(QuerySection):
    """``mean`` over records, whose number is public."""

    name: Literal["mean"]


@QUERIES.register
class CovarianceSection(QuerySection):
    """``covariance``: X'X / n of clipped records (X'X under add-remove-one)."""

    name: Literal["covariance"]


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
    """``precomputed``: a finished query result whose l2 sensitivity the caller declares."""

    takes_steps: ClassVar[bool] = True

    name: Literal["precomputed"]
    l2_sensitivity: Number

"""The ``query`` of a release spec: one section class for each query."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from dpdask.spec.fields import Label, Number, Positive, Section, Vector, Whole
from dpdask.spec.registry import NamedSection, SectionRegistry

__all__ = [
    "QUERIES",
    "Bins",
    "CategoriesSection",
    "CovarianceSection",
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
    ``composition`` applies; ``takes_variables`` whether it may be asked of several arrays in one
    release; ``takes_ids`` whether it leaves out the records that ids leave out, in every sum;
    ``takes_clip_of_person`` whether its sensitivity holds for all records of a person together;
    ``private_bounds`` which bounds may be chosen privately, and whether the ``best`` norm.
    """

    takes_steps: ClassVar[bool] = False
    takes_variables: ClassVar[bool] = False
    takes_ids: ClassVar[bool] = False
    takes_clip_of_person: ClassVar[bool] = False
    private_bounds: ClassVar[tuple[str, ...]] = ()

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays of the source's group that are read instead of one array, in their order."""
        return ()


QUERIES = SectionRegistry("query", QuerySection)

Query = Annotated[QuerySection, QUERIES]
"""The type of a spec's key ``query``."""


@QUERIES.register
class IdentitySection(QuerySection):
    """``identity``: the tensor itself."""

    takes_variables: ClassVar[bool] = True
    takes_ids: ClassVar[bool] = True
    takes_clip_of_person: ClassVar[bool] = True
    private_bounds: ClassVar[tuple[str, ...]] = ("l2_clip_norm", "ranges")

    name: Literal["identity"]


class GroupBySection(Section):
    """``by``: a private array of labels along the record dimension, and the public groups.

    Args:
        array: The array beside the source, integers or text.
        groups: The labels that are groups; a record with another label counts nowhere.
    """

    array: Annotated[str, Field(min_length=1)]
    groups: Annotated[list[Label], Field(min_length=1)]


GroupBy = GroupBySection | Annotated[list[GroupBySection], Field(min_length=1)]


@QUERIES.register
class SumSection(QuerySection):
    """``sum`` over records, by group where ``by`` says so."""

    takes_variables: ClassVar[bool] = True
    takes_ids: ClassVar[bool] = True
    takes_clip_of_person: ClassVar[bool] = True
    private_bounds: ClassVar[tuple[str, ...]] = ("l2_clip_norm", "ranges", "best")

    name: Literal["sum"]
    by: GroupBy | None = None


@QUERIES.register
class MeanSection(QuerySection):
    """``mean`` over records, by group where ``by`` says so."""

    takes_variables: ClassVar[bool] = True
    takes_ids: ClassVar[bool] = True
    takes_clip_of_person: ClassVar[bool] = True
    private_bounds: ClassVar[tuple[str, ...]] = ("l2_clip_norm", "ranges", "best")

    name: Literal["mean"]
    by: GroupBy | None = None


@QUERIES.register
class SecondMomentSection(QuerySection):
    """``second-moment``: X'X / n of bounded records (X'X under add-remove-one)."""

    takes_ids: ClassVar[bool] = True
    takes_clip_of_person: ClassVar[bool] = True
    private_bounds: ClassVar[tuple[str, ...]] = ("l2_clip_norm",)

    name: Literal["second-moment"]


@QUERIES.register
class CovarianceSection(QuerySection):
    """``covariance`` of records.

    Args:
        name: The name of the query.
        center: ``private``, the mean, which is released with it; or a public number or one per
            feature, around which second moments are taken.
    """

    takes_ids: ClassVar[bool] = True
    takes_clip_of_person: ClassVar[bool] = True
    private_bounds: ClassVar[tuple[str, ...]] = ("l2_clip_norm",)

    name: Literal["covariance"]
    center: Literal["private"] | Number | Vector = "private"


class Bins(Section):
    """Equal bins from ``low`` to ``high``."""

    low: Number
    high: Number
    bins: Positive


class CategoriesSection(Section):
    """Categories: records with another label, or a missing one, count nowhere."""

    values: Annotated[list[Label], Field(min_length=1)]


def _kind_of_edges(value: object) -> str:
    return "[mapping]" if isinstance(value, dict) else "[list]"


def _kind_of_axis(value: object) -> str:
    if isinstance(value, Bins | CategoriesSection):
        return "[categories]" if isinstance(value, CategoriesSection) else "[bins]"
    if isinstance(value, dict):
        return "[categories]" if "values" in value else "[bins]"
    return "[edges]"


def _check_keys(value: object) -> object:
    """Refuse a mapping that is neither bins nor categories."""
    if isinstance(value, dict) and not {*value} <= {"low", "high", "bins", "values"}:
        raise ValueError("not valid; write a list of edges, {low, high, bins}, or {values: [..]}")
    return value


def _refuse_categories(value: object) -> object:
    """Refuse categories of a column, which holds numbers."""
    if isinstance(value, dict) and "values" in value:
        raise ValueError(
            "a column of a table has edges; write query.edges as a mapping from arrays to edges or"
            " {values: [..]}"
        )
    return value


def _refuse_text(value: object) -> object:
    """Refuse labels where edges belong."""
    if isinstance(value, list) and any(isinstance(item, str) for item in value):
        raise ValueError(
            "edges are numbers; write categories as {values: [..]}, under the name of their array"
        )
    return value


# Tags in brackets are left out of the place that an error names.
_Edges = Annotated[Vector, BeforeValidator(_refuse_text), Tag("[edges]")]
_Bins = Annotated[Bins, Tag("[bins]")]
_Categories = Annotated[CategoriesSection, Tag("[categories]")]
_ColumnAxis = Annotated[
    _Edges | _Bins,
    Discriminator(_kind_of_axis),
    BeforeValidator(_refuse_categories),
    BeforeValidator(_check_keys),
]
_ArrayAxis = Annotated[
    _Edges | _Bins | _Categories, Discriminator(_kind_of_axis), BeforeValidator(_check_keys)
]
_Columns = Annotated[list[_ColumnAxis], Field(min_length=1), Tag("[list]")]
_Arrays = Annotated[dict[str, _ArrayAxis], Field(min_length=1), Tag("[mapping]")]


@QUERIES.register
class HistogramSection(QuerySection):
    """``histogram``: counts of records in public bins and categories.

    Args:
        name: The name of the query.
        edges: Edges or categories of arrays of one entry per record, by the array's name; or one
            list of edges per counted column of a table.
        columns: The counted columns of a table; the first ones where left out.
        by: Groups of records; the result has a leading axis of groups for each.
    """

    takes_ids: ClassVar[bool] = True

    name: Literal["histogram"]
    edges: Annotated[_Columns | _Arrays, Discriminator(_kind_of_edges)]
    columns: list[Whole] | None = None
    by: GroupBy | None = None

    @property
    def arrays(self) -> tuple[str, ...]:
        """The arrays that are counted, in their order; none for columns of a table."""
        return tuple(self.edges) if isinstance(self.edges, dict) else ()


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

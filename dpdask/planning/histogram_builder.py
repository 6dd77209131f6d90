"""How histograms are built: bins and categories of arrays, or bins of a table's columns."""

from __future__ import annotations

import itertools
import math

from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.planning.build_sensitivity import ROUND_UP
from dpdask.planning.query_inputs import QueryInputs
from dpdask.planning.sum_builders import groups_of
from dpdask.privacy import Adjacency
from dpdask.queries.bins import ArrayBins, Categories, ColumnBins, CountedAxis
from dpdask.queries.grouping import GroupKey
from dpdask.queries.histogram import Histogram
from dpdask.sensitivity import L1Ball, Origin
from dpdask.spec.query import Bins, CategoriesSection, HistogramSection
from dpdask.spec.release import PrivacyUnitSection
from dpdask.types import Shape

__all__ = ["build_histogram"]

_MOST_BINS = 2**20
_MOST_CELLS = 2**26  # all cells are counted at once: half a gigabyte


def build_histogram(section: HistogramSection, inputs: QueryInputs) -> Histogram:
    """Return the counts of records in public bins and categories.

    One record is in one cell at most: it enters or leaves that one, or moves to another.
    """
    unit, shape = inputs.privacy_unit, inputs.shape
    _check_unit(unit)
    axis = inputs.record_axis()
    if axis is None or len(shape) > 2:
        raise InvalidSensitivity(
            "a histogram counts records of a table: one or two axes and privacy_unit.record_dim;"
            f" the source has {len(shape)}"
        )
    axes = _axes(section, shape, axis)
    private_count = unit.adjacency is Adjacency.ADD_REMOVE_ONE
    most = unit.max_cells or unit.max_contributions
    moved = most if unit.max_cells is None else math.sqrt(most)
    reach = moved if private_count else math.sqrt(2) * moved
    return Histogram(
        source_shape=shape,
        answer_shape=tuple(each.size for each in axes),
        sensitivity=L1Ball(
            l1_radius=most * (1.0 if private_count else 2.0),
            l2=reach * ROUND_UP,
            adjacency=unit.adjacency,
            origin=Origin.CLIPPED,
        ),
        bound=None,
        norm_bound=None if private_count else float(shape[axis]),
        max_contributions=most,
        record_axis=axis,
        axes=axes,
    )


def _check_unit(unit: PrivacyUnitSection) -> None:
    """Refuse what bounds records, which are counted and need no bound."""
    if unit.l2_clip_norm is not None or unit.ranges is not None:
        raise InvalidSensitivity(
            "a histogram needs no clip norm or ranges, only its public edges; drop them"
        )
    if unit.missing is not None:
        raise InvalidSensitivity(
            f"privacy_unit.missing: {unit.missing} goes with sums and means, and a histogram does"
            " not count a record where a value is missing; drop it"
        )
    for key in ("center", "feature_dim", "expected_distance"):
        if getattr(unit, key) is not None:
            raise InvalidSensitivity(
                f"privacy_unit.{key} goes with bounded records, and a histogram counts them; drop"
                " it"
            )


def _axes(section: HistogramSection, shape: Shape, record_axis: int) -> tuple[CountedAxis, ...]:
    """Return the groups, then the bins and categories in the order of the spec."""
    groups = groups_of(section.by)
    axes: list[CountedAxis] = [Categories(key) for key in groups.keys] if groups else []
    if isinstance(section.edges, dict):
        if section.columns is not None:
            raise InvalidSpec(
                "query.columns goes with lists of edges; drop it, since query.edges names arrays"
            )
        axes += [_array_axis(name, content) for name, content in section.edges.items()]
    else:
        available = 1 if len(shape) == 1 else shape[1 - record_axis]
        columns = _columns(section, len(section.edges), available=available)
        axes += [
            ColumnBins(column, _edges(edges, f"column {column}"))
            for column, edges in zip(columns, section.edges, strict=True)
        ]
    names = [name for each in axes for name in each.labels]
    repeated = [name for place, name in enumerate(names) if name in names[:place]]
    if repeated:
        raise InvalidSpec(
            f"query.by: {repeated[0]!r} is among query.edges, too; name it in one of them"
        )
    cells = math.prod(each.size for each in axes)
    if cells > _MOST_CELLS:
        raise InvalidSpec(
            f"query.edges: {cells} cells are more than the {_MOST_CELLS} of a histogram; choose"
            " fewer bins or categories"
        )
    return tuple(axes)


def _array_axis(name: str, content: list[float] | Bins | CategoriesSection) -> CountedAxis:
    if not isinstance(content, CategoriesSection):
        return ArrayBins(name, _edges(content, repr(name)))
    values = tuple(content.values)
    key = f"query.edges: {name!r}"
    if len(set(values)) != len(values):
        raise InvalidSpec(f"{key} has a category twice; name each category once")
    if len({isinstance(value, str) for value in values}) > 1:
        raise InvalidSpec(f"{key} has categories of text and numbers; give one kind")
    if len(values) > _MOST_BINS:
        raise InvalidSpec(
            f"{key} has {len(values)} categories, more than the {_MOST_BINS} of one array; choose"
            " fewer"
        )
    return Categories(GroupKey(name, values))


def _columns(section: HistogramSection, count: int, *, available: int) -> tuple[int, ...]:
    columns = tuple(range(count)) if section.columns is None else tuple(section.columns)
    if len(columns) != count or len(set(columns)) != len(columns):
        raise InvalidSpec(
            f"query.edges: {count} lists of edges for {len(columns)} columns; give one per column"
        )
    if any(not 0 <= column < available for column in columns):
        raise InvalidSpec(
            f"query.columns: {list(columns)} are not all columns of a table of {available};"
            " choose existing ones"
        )
    return columns


def _edges(edges: list[float] | Bins, counted: str) -> tuple[float, ...]:
    bins = edges.bins if isinstance(edges, Bins) else len(edges) - 1
    if bins > _MOST_BINS:
        raise InvalidSpec(
            f"query.edges: {bins} bins are more than the {_MOST_BINS} of one column; choose fewer"
        )
    row = _equal_edges(edges) if isinstance(edges, Bins) else tuple(edges)
    finite = all(math.isfinite(edge) for edge in row)
    increasing = all(left < right for left, right in itertools.pairwise(row))
    if len(row) < 2 or not finite or not increasing:
        raise InvalidSpec(
            f"query.edges: those of {counted} are not at least two edges, finite and increasing;"
            " correct them"
        )
    return row


def _equal_edges(section: Bins) -> tuple[float, ...]:
    """Return the edges that NumPy has for so many equal bins."""
    width = (section.high - section.low) / section.bins
    return (*(section.low + i * width for i in range(section.bins)), section.high)

"""Coordinates of the released array: which arrays beside the source fit it, and its window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dpdask.errors import InvalidSpec, StoreError
from dpdask.planning.axis_coordinates import axis_coordinates, check_axis_coordinates
from dpdask.planning.naming import released_axis
from dpdask.planning.plan import ReleasePlan, Variable
from dpdask.queries import Query
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import (
    CARD_ARRAYS,
    Coordinate,
    CoordinateSchema,
    Layout,
    SourceArray,
    coordinate_beside,
    coordinate_schema,
    has_beside,
    plain_name,
)
from dpdask.types import Json

__all__ = [
    "auxiliary_coordinates",
    "check_coordinates",
    "grid_mapping",
    "public_records",
    "published_coordinates",
    "window_to_dict",
]

_MOST_COORDINATE_BYTES = 2**30


def check_coordinates(variables: Sequence[Variable]) -> None:
    """Check that every coordinate of the spec exists, fits the result, and may be published.

    All variables have the same records, groups and window; a coordinate lies along dimensions of
    any of them.

    Raises:
        DpdaskError: A coordinate cannot be published.
    """
    first, layouts = variables[0], [variable.layout for variable in variables]
    spec, source, query, layout = first.spec, first.source, first.query, first.layout
    names = spec.publish.coordinates
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidSpec(f"publish.coordinates: {repeated[0]!r} is there twice; name it once")
    for variable in variables:
        if variable.name in names:
            raise StoreError(
                f"publish.coordinates: {variable.name!r} is the name of the released array; rename"
                " that by output.array, or drop it"
            )
    _check_labels(source, query, names)
    taken = [*names, *(each.name for each in layouts), CARD_ARRAYS]
    check_axis_coordinates(query.new_axes, layout, taken)
    along = _released_window_name(source, query, layout)
    schemas = {name: coordinate_schema(source, name, along) for name in names}
    for name, schema in schemas.items():
        _check_records(spec, name, schema, source=source, query=query, layout=layout)
    _check_fit(schemas, layouts)
    total = sum(schema.size for schema in schemas.values())
    if total > _MOST_COORDINATE_BYTES:
        raise StoreError(
            f"publish.coordinates hold {total / 1e9:.3g} GB, and are copied whole: at most"
            f" {_MOST_COORDINATE_BYTES / 1e9:.3g} GB; drop the largest"
        )


def _check_labels(source: SourceArray, query: Query, names: list[str]) -> None:
    """Refuse the labels by which records are grouped, whatever their dimension is called."""
    ids = [] if query.people is None else [query.people.ids]
    private = {source.path_beside(label).strip("/") for label in (*query.labels, *ids)}
    for name in names:
        if source.path_beside(name).strip("/") in private:
            raise StoreError(
                f"publish.coordinates: {name!r} holds the private label or id of every record;"
                " drop it, groups themselves are published beside the result"
            )


def _check_records(
    spec: ReleaseSpec,
    name: str,
    schema: CoordinateSchema,
    *,
    source: SourceArray,
    query: Query,
    layout: Layout,
) -> None:
    """Refuse what lies along the records: they vanish in a sum, and may be people elsewhere."""
    own = _record_name(source, query)
    if query.summed:
        if own in schema.dimensions:
            raise StoreError(
                f"publish.coordinates: {name!r} lies along the record dimension {own!r}, which"
                f" query {spec.query.name} sums over; drop it from the list"
            )
        return
    along = _along_records(schema.dimensions, {own, _released_record_name(query, layout)})
    if along is not None and not spec.publish.records_are_public:
        raise StoreError(
            f"publish.coordinates: {name!r} lies along the record dimension {along!r}, so it would"
            " tell something of every record; drop it, or set publish.records_are_public: true"
        )


def _record_name(source: SourceArray, query: Query) -> str | None:
    """Return what the source calls the dimension of the records."""
    if query.units_axis is None or source.dimension_names is None:
        return None
    return source.dimension_names[query.units_axis]


def _released_record_name(query: Query, layout: Layout) -> str | None:
    """Return what the result calls the dimension of the records, None where it has none."""
    axis = None if query.units_axis is None else released_axis(query, query.units_axis)
    return None if axis is None else layout.dimension_names[axis]


def _along_records(dimensions: tuple[str, ...], names: set[str | None]) -> str | None:
    return next((name for name in dimensions if name in names), None)


def _check_fit(schemas: Mapping[str, CoordinateSchema], layouts: Sequence[Layout]) -> None:
    """Check that coordinates lie along dimensions of the result.

    One that is named after a dimension must lie along that dimension alone. CF bounds of another
    one have one more dimension, of vertices.
    """
    sizes = {
        dimension: size
        for layout in layouts
        for dimension, size in zip(layout.dimension_names, layout.shape, strict=True)
    }
    released = {layout.name for layout in layouts}
    bounded = {vertices: name for name, each in schemas.items() for vertices in each.vertices}
    vertex_counts: dict[str, int] = {}
    for name, schema in schemas.items():
        owner = schemas.get(bounded.get(name, ""))
        if owner is not None and schema.dimensions[:-1] == owner.dimensions:
            dimension, count = schema.dimensions[-1], schema.shape[-1]
            taken = {CARD_ARRAYS, *released, *schemas, *sizes}
            known = vertex_counts.setdefault(dimension, count)
            if dimension in taken or known != count or schema.shape[:-1] != owner.shape:
                raise StoreError(
                    f"publish.coordinates: the bounds {name!r} do not fit beside the result: their"
                    f" dimension {dimension!r} is there with another meaning or length; drop them"
                )
            continue
        fits = [sizes.get(dimension) for dimension in schema.dimensions] == list(schema.shape)
        if not fits or (name in sizes and schema.dimensions != (name,)):
            raise StoreError(
                f"publish.coordinates: {name!r} does not lie along the result's dimensions"
                f" {list(sizes)}; name them by publish.dimension_names or drop it"
            )


def published_coordinates(plan: ReleasePlan) -> list[Coordinate]:
    """Return the arrays that are published beside the result.

    They are those that the spec names, groups and bins of the answer, what its columns have as well
    as its rows, and the indices of the window where its dimension has no coordinate in the source.

    Raises:
        StoreError: One cannot be read.
    """
    names, first = plan.spec.publish.coordinates, plan.variables[0]
    along = _released_window_name(first.source, first.query, first.layout)
    coordinates = [coordinate_beside(first.source, name, names, along) for name in names]
    coordinates += axis_coordinates(first.query.new_axes, first.layout, coordinates)
    coordinates += _coarse_cells(plan.variables)
    coordinates += _of_columns(first, coordinates)
    window = first.source.window
    if window is None or along is None or not _needs_indices(plan, along):
        return coordinates
    _, start, stop = window
    return [*coordinates, (along, np.arange(start, stop, dtype=np.int64), (along,), {})]


def _of_columns(variable: Variable, coordinates: Sequence[Coordinate]) -> list[Coordinate]:
    """Return the coordinate of a covariance's rows once more, for its columns."""
    names = variable.layout.dimension_names
    taken = {name for name, *_ in coordinates} | {variable.name, CARD_ARRAYS}
    if not variable.query.symmetric or names[1] in taken or not plain_name(names[1]):
        return []
    return [
        (names[1], values, (names[1],), attributes)
        for name, values, dimensions, attributes in coordinates
        if name == names[0] and dimensions == (names[0],) and "bounds" not in attributes
    ]


def _coarse_cells(variables: Sequence[Variable]) -> list[Coordinate]:
    """Return the labels of entries that were added up, where their dimension remains."""
    coordinates: dict[str, Coordinate] = {}
    for variable in variables:
        cells = variable.source.coarse_cells
        if cells is None or not cells[1]:
            continue
        axis = released_axis(variable.query, cells[0])
        if axis is None or variable.query.symmetric:
            continue
        name = variable.layout.dimension_names[axis]
        coordinates.setdefault(name, (name, np.asarray(cells[1]), (name,), {}))
    return list(coordinates.values())


def _needs_indices(plan: ReleasePlan, along: str) -> bool:
    """Return whether nothing else has the name of the window's dimension."""
    source = plan.variables[0].source
    own, window = source.dimension_names, source.window
    names = {along} if own is None or window is None else {along, own[window[0]]}
    released = {variable.name for variable in plan.variables}
    taken = {CARD_ARRAYS, *released, *plan.spec.publish.coordinates}
    return (
        along not in taken
        and plain_name(along)
        and not any(has_beside(source, name) for name in names)
    )


def _released_window_name(source: SourceArray, query: Query, layout: Layout) -> str | None:
    """Return what the result calls the dimension of the window, None where it vanishes."""
    if source.window is None:
        return None
    axis = released_axis(query, source.window[0])
    return None if axis is None else layout.dimension_names[axis]


def window_to_dict(source: SourceArray) -> Json | None:
    """Return the window as the card records it: its dimension by name, else by index."""
    if source.window is None:
        return None
    axis, start, stop = source.window
    names = source.dimension_names
    return {"dimension": axis if names is None else names[axis], "start": start, "stop": stop}


def auxiliary_coordinates(coordinates: Iterable[Coordinate], layout: Layout) -> list[str]:
    """Return the names that the CF attribute ``coordinates`` of the result lists.

    These are scalars, and coordinates along its dimensions that are not named after one; not CF
    bounds, which have a dimension more, nor names with blanks, which the attribute cannot hold.
    """
    return [
        name
        for name, _, dimensions, _ in coordinates
        if name not in layout.dimension_names
        and set(dimensions) <= set(layout.dimension_names)
        and not any(letter.isspace() for letter in name)
    ]


def grid_mapping(source: SourceArray, names: list[str]) -> str | None:
    """Return the source's CF attribute ``grid_mapping`` if all that it names is published."""
    text = source.text_attribute("grid_mapping")
    if text is None or not text.split():
        return None
    return text if all(name.rstrip(":") in names for name in text.split()) else None


def public_records(plan: ReleasePlan, coordinates: Iterable[Coordinate]) -> list[str]:
    """Return the declared coordinates that lie along the records of the result."""
    first = plan.variables[0]
    query = first.query
    names = {_record_name(first.source, query), _released_record_name(query, first.layout)}
    declared = plan.spec.publish.coordinates
    return [
        name
        for name, _, dimensions, _ in coordinates
        if name in declared and _along_records(dimensions, names) is not None
    ]

"""The arrays that lie beside a source, cut to its window: coordinates that may be published."""

from __future__ import annotations

from collections.abc import Collection

from dpdask.storage.coordinates import (
    AxisPart,
    CoordinateSchema,
    is_array,
    plain_name,
    read_coordinate,
    read_coordinate_schema,
)
from dpdask.storage.documents import Coordinate
from dpdask.storage.source import SourceArray

__all__ = ["coordinate_beside", "coordinate_schema", "has_beside"]


def coordinate_schema(source: SourceArray, name: str, along: str | None = None) -> CoordinateSchema:
    """Return what is known of an array beside the source without its values.

    Args:
        source: the source, with its window.
        name: the array's name.
        along: what the result calls the dimension of the window.

    Raises:
        StoreError: there is no such array, or it cannot be published.
    """
    return read_coordinate_schema(
        source.storage,
        name,
        path=source.path_beside(name),
        source_path=source.path,
        window=_window(source, along),
    )


def coordinate_beside(
    source: SourceArray, name: str, published: Collection[str], along: str | None = None
) -> Coordinate:
    """Return a public array beside the source.

    Args:
        source: the source, with its window.
        name: the array's name.
        published: the names of all arrays that are published.
        along: what the result calls the dimension of the window.

    Raises:
        StoreError: it cannot be read.
    """
    values, dimensions, attributes = read_coordinate(
        source.storage,
        name,
        path=source.path_beside(name),
        published=published,
        window=_window(source, along),
    )
    return name, values, dimensions, attributes


def has_beside(source: SourceArray, name: str) -> bool:
    """Return whether an array of that name lies beside the source."""
    return plain_name(name) and is_array(source.storage, source.path_beside(name))


def _window(source: SourceArray, along: str | None) -> AxisPart | None:
    """Return the window as a part of its dimension."""
    if source.window is None:
        return None
    axis, start, stop = source.window
    names = set() if along is None else {along}
    if source.dimension_names is not None:
        names.add(source.dimension_names[axis])
    return AxisPart(names, source.stored_shape[axis], start, stop)

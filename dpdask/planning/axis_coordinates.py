"""Coordinates of groups and bins: public, from the spec alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from dpdask.errors import InvalidSpec
from dpdask.queries import AnswerAxis
from dpdask.storage import Coordinate, Layout, plain_name
from dpdask.types import Floats

__all__ = ["axis_coordinates", "check_axis_coordinates"]

_VERTICES = "bnds"  # the dimension of a bin's two ends, as CF calls it in examples


def axis_coordinates(
    axes: Collection[AnswerAxis], layout: Layout, declared: Collection[Coordinate]
) -> list[Coordinate]:
    """Return the coordinates of the leading dimensions: groups, or centres of bins with CF bounds.

    Args:
        axes: The leading axes of the answer.
        layout: The released array.
        declared: What else is published beside it.
    """
    along = {name for _, _, dimensions, _ in declared for name in dimensions}
    taken = {*layout.dimension_names, *along, *(name for name, _, _, _ in declared)}
    vertices = _VERTICES
    while vertices in taken:
        vertices += "_"
    coordinates: list[Coordinate] = []
    for name, axis in zip(layout.dimension_names, axes, strict=False):
        if axis.groups:
            coordinates.append((name, np.asarray(axis.groups), (name,), {}))
            continue
        edges = np.asarray(axis.edges)
        bounds = _bounds_of(name)
        coordinates += [
            (name, _centres(edges), (name,), {"bounds": bounds}),
            (bounds, np.stack([edges[:-1], edges[1:]], axis=1), (name, vertices), {}),
        ]
    return coordinates


def check_axis_coordinates(
    axes: Collection[AnswerAxis], layout: Layout, others: Collection[str]
) -> None:
    """Refuse names of groups and bins that are not valid, or that something else has.

    Args:
        axes: The leading axes of the answer.
        layout: The released array.
        others: The names of what else is published beside it.

    Raises:
        InvalidSpec: Two arrays would have one name.
    """
    for name in _names(axes, layout):
        if not plain_name(name):
            raise InvalidSpec(
                f"{name!r} is not a valid name of a coordinate; set publish.dimension_names"
            )
        if name == layout.name or name in others:
            raise InvalidSpec(
                f"the groups or bins and another array of the release would be called {name!r};"
                " rename one by output.array or publish.dimension_names, or drop it from"
                " publish.coordinates"
            )


def _names(axes: Collection[AnswerAxis], layout: Layout) -> Iterator[str]:
    for name, axis in zip(layout.dimension_names, axes, strict=False):
        yield name
        if axis.edges:
            yield _bounds_of(name)


def _bounds_of(name: str) -> str:
    return f"{name}_bounds"


def _centres(edges: Floats) -> Floats:
    """Return the middle of every bin, for the widest ones, too."""
    with np.errstate(over="ignore"):
        middles = (edges[:-1] + edges[1:]) / 2
    return np.where(np.isfinite(middles), middles, edges[:-1] / 2 + edges[1:] / 2)

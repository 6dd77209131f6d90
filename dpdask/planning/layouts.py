"""The layouts of arrays that are published beside the main one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from dpdask.queries import BesideArray
from dpdask.storage import Layout

__all__ = ["layouts_beside"]


def layouts_beside(layout: Layout, arrays: Iterable[BesideArray]) -> tuple[Layout, ...]:
    """Return the layout of every array beside the main one, in their order.

    An array of the main one's shape has its chunks; a smaller one is a single chunk along its own
    dimensions or the main one's first ones, or a single number.
    """
    layouts = []
    for array in arrays:
        name = f"{layout.name}_{array.suffix}"
        if array.aligned:
            layouts.append(dataclasses.replace(layout, name=name, dtype="float64"))
            continue
        layouts.append(
            Layout(
                name=name,
                shape=array.shape,
                chunks=array.shape,
                shards=None,
                dtype="float64",
                codec=layout.codec,
                dimension_names=array.dimension_names or layout.dimension_names[: len(array.shape)],
            )
        )
    return tuple(layouts)

"""Zarr groups: open a published one, list the arrays of a source, write an example."""

from __future__ import annotations

from pathlib import Path

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.documents import ROOT
from dpdask.storage.object_faults import raise_if_unavailable
from dpdask.storage.zarr_types import ZarrGroup
from dpdask.types import Array, Json

__all__ = ["array_names", "open_group", "write_example"]


def open_group(storage: Storage, *, consolidated: bool | None = None) -> ZarrGroup:
    """Open a published group for reading.

    Args:
        storage: where the group is.
        consolidated: whether to trust the group's copy of all metadata; None for: if there is one.

    Raises:
        StoreError: there is no group, or its metadata cannot be read.
    """
    import zarr

    if storage.read(ROOT) is None:
        raise StoreError("there is no published release; check the path or URL")
    try:
        return zarr.open_group(storage.zarr_store(), mode="r", use_consolidated=consolidated)
    except Exception as error:
        raise_if_unavailable(error)
        kind = type(error).__name__
    raise StoreError(f"the group's metadata cannot be read ({kind}); restore it from a copy")


def array_names(storage: Storage) -> list[str]:
    """Return the paths of all arrays of a group, sorted."""
    import zarr

    try:
        group = zarr.open_group(storage.zarr_store(), mode="r")
        return sorted(
            name for name, member in group.members(max_depth=None) if isinstance(member, zarr.Array)
        )
    except Exception as error:
        raise_if_unavailable(error)
        kind = type(error).__name__
    raise StoreError(f"the source is not a valid group that zarr can open ({kind}); check its URL")


def write_example(
    folder: Path,
    *,
    name: str,
    values: Array,
    chunks: tuple[int, ...],
    dimension_names: tuple[str, ...],
    attributes: Json,
    coordinates: dict[str, Array],
) -> None:
    """Write a group with one array and its coordinates, as a source for demos.

    Args:
        folder: where the group is written; nothing may be there.
        name: the array's name.
        values: the array's values.
        chunks: the array's chunk shape.
        dimension_names: one name for each axis.
        attributes: the array's attributes.
        coordinates: one-dimensional arrays by the name of their dimension.
    """
    import zarr

    group = zarr.open_group(folder, mode="w-")
    group.create_array(
        name, data=values, chunks=chunks, dimension_names=dimension_names, attributes=attributes
    )
    for coordinate, along in coordinates.items():
        group.create_array(coordinate, data=along, dimension_names=(coordinate,))

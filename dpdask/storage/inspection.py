"""The arrays of a source by their schemas alone: what there is to release, and what lies beside."""

from __future__ import annotations

from dataclasses import dataclass

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.coordinates import dimension_names
from dpdask.storage.groups import array_names
from dpdask.storage.opening import check_there, open_or_explain
from dpdask.storage.source import open_source
from dpdask.types import Shape

__all__ = ["ArraySchema", "array_schemas"]


@dataclass(frozen=True, kw_only=True)
class ArraySchema:
    """What the metadata of one array says.

    Args:
        path: Its path in the source.
        shape: The length of each axis.
        chunks: The shape of a chunk.
        dtype: The type of the stored numbers.
        dimension_names: The name of each axis, None where it has none.
        units: Its unit, if an attribute tells one.
        decoding: How stored numbers are read; None where it cannot be released.
        refusal: Why it cannot be released; None where it can.
        may_miss_values: Whether an entry may be missing.
    """

    path: str
    shape: Shape
    chunks: Shape
    dtype: str
    dimension_names: tuple[str, ...] | None
    units: str | None
    decoding: str | None
    refusal: str | None
    may_miss_values: bool

    @property
    def is_coordinate(self) -> bool:
        """Whether it is the coordinate of the dimension that it is named after."""
        return self.dimension_names == (self.path.rpartition("/")[2],)


def array_schemas(storage: Storage) -> list[ArraySchema]:
    """Return every array of a source, by path.

    Guarantee: no value is read.

    Raises:
        StoreError: There is no source, or it is not Zarr.
    """
    check_there(storage)
    return [_schema(storage, path) for path in array_names(storage) or [""]]


def _schema(storage: Storage, path: str) -> ArraySchema:
    array = open_or_explain(storage, path)
    units = dict(array.attrs).get("units")
    refusal = decoding = None
    may_miss = False
    try:
        source = open_source(storage, path)
        decoding, may_miss = source.describe_decoding(), source.may_miss_values
    except StoreError as error:
        refusal = str(error)
    return ArraySchema(
        path=path,
        shape=tuple(array.shape),
        chunks=tuple(array.shards or array.chunks),
        dtype=str(array.dtype),
        dimension_names=dimension_names(array),
        units=units if isinstance(units, str) else None,
        decoding=decoding,
        refusal=refusal,
        may_miss_values=may_miss,
    )

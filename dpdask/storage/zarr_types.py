"""What dpdask uses of zarr's arrays, as types: zarr's own are unions of its two formats."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpdask.types import Array, Json, Region, Shape

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["ZarrArray", "ZarrGroup", "ZarrMetadata", "metadata_of", "open_zarr_array"]


class ZarrMetadata(Protocol):
    """An array's metadata document, of format 2 or 3."""

    @property
    def zarr_format(self) -> int:
        """2 or 3."""

    def to_dict(self) -> Json:
        """Return the document."""

    def encode_chunk_key(self, chunk_coords: tuple[int, ...]) -> str:
        """Return the name of a chunk's object within the array."""


class ZarrArray(Protocol):
    """An opened array."""

    @property
    def metadata(self) -> ZarrMetadata:
        """The metadata document."""

    @property
    def attrs(self) -> Mapping[str, object]:
        """The attributes."""

    @property
    def shape(self) -> Shape:
        """The length of each axis."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    @property
    def chunks(self) -> Shape:
        """The shape of a chunk."""

    @property
    def shards(self) -> Shape | None:
        """The shape of a shard, None for an array without shards."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of the values."""

    @property
    def order(self) -> str:
        """The order of values in a chunk: C or F."""

    def __getitem__(self, selection: Region | Sequence[slice] | object) -> Array:
        """Read a region."""

    def __setitem__(self, selection: Region | Sequence[slice] | object, value: Array) -> None:
        """Write a region."""

    def get_basic_selection(self, selection: Region, *, out: object) -> object:
        """Read a region into a buffer of zarr's."""


class ZarrGroup(Protocol):
    """An opened group."""

    @property
    def attrs(self) -> Mapping[str, object]:
        """The attributes."""

    def __getitem__(self, path: str) -> Any:
        """Open an array or a group within; the caller knows which one it is."""


def open_zarr_array(store: Store, path: str) -> ZarrArray:
    """Open an array for reading."""
    import zarr

    with _without_unstable_types():
        opened: ZarrArray = zarr.open_array(store=store, path=path, mode="r")  # type: ignore[assignment]
    return opened


def metadata_of(array: ZarrArray) -> Json:
    """Return the metadata document of an array."""
    with _without_unstable_types():
        return array.metadata.to_dict()


@contextlib.contextmanager
def _without_unstable_types() -> Iterator[None]:
    """Keep zarr from warning of text of fixed length, which it and xarray write as Zarr v3, but
    which Zarr's specification does not have.
    """
    from zarr.errors import UnstableSpecificationWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnstableSpecificationWarning)
        yield

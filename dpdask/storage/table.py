"""A group of arrays of one entry per record, numbers or text, as a source of its own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.coordinates import dimension_names
from dpdask.storage.labelled import LabelledSource
from dpdask.storage.labels import LabelArray, open_labels
from dpdask.storage.opening import check_there
from dpdask.storage.regions import chunks_within
from dpdask.storage.zarr_types import open_zarr_array
from dpdask.types import Array, Region, Shape

__all__ = ["RecordTable", "open_table"]


@dataclass(frozen=True, repr=False)
class RecordTable(LabelledSource):
    """Arrays of one entry per record.

    Nothing is read but these arrays, by name. One of them says how many records there are, how
    they are chunked and what their dimension is called.
    """

    @property
    def working_dtype(self) -> np.dtype[np.generic]:
        """Doubles: what numbers are counted as."""
        return np.dtype(np.float64)

    @property
    def entry_bytes(self) -> int:
        """Nothing: what is read are labels."""
        return 0

    @property
    def may_miss_values(self) -> bool:
        """Whether an entry of some array may be missing."""
        return any(labels.may_miss_values for _, labels in self.labels)

    @property
    def stored_bytes(self) -> int:
        """The size of the arrays, uncompressed."""
        return self._labels_stored

    @property
    def piece_bytes(self) -> int:
        """Nothing is read in pieces."""
        return 0

    def decoding_bytes(self, extent: Shape) -> int:
        """Nothing: what is decoded are labels."""
        return 0

    def read(self, region: Region, scratch: object = None) -> Array:
        """Refuse: a table has no array of its own."""
        raise StoreError("a table is read array by array; plan again")

    def describe_decoding(self) -> str:
        """Return how every array is read, for the plan."""
        return "; ".join(f"{name}: {labels.describe()}" for name, labels in self.labels)

    def labelled(
        self, labels: tuple[tuple[str, LabelArray], ...], ids: LabelArray | None
    ) -> RecordTable:
        """Return the same table with these arrays, read in the longest of their chunks."""
        longest = max(array.chunk for _, array in labels)
        return dataclasses.replace(
            self, labels=labels, ids=ids, chunks=chunks_within((longest,), self.shape)
        )


def open_table(storage: Storage, path: str, *, key: str, decode: bool = True) -> RecordTable:
    """Read the schema of the array that a table's records are counted by; refuse what has more
    axes than records.

    Args:
        storage: where the group is.
        path: the array's path.
        key: where it is named in the spec, for error texts.
        decode: whether numbers are decoded by their attributes.

    Raises:
        StoreError: there is no such array, or it does not hold one entry per record.
    """
    check_there(storage)
    labels = open_labels(storage, path, length=None, key=key, decode=decode)
    array = open_zarr_array(storage.zarr_store(), labels.path)
    return RecordTable(
        storage=storage,
        path=labels.path,
        shape=tuple(array.shape),
        chunks=chunks_within(tuple(array.shards or array.chunks), tuple(array.shape)),
        dtype=labels.dtype,
        dimension_names=dimension_names(array),
        metadata_digest=labels.metadata_digest,
        plain=False,
    )

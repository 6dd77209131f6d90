"""The sensitive array: its schema, its identity, and regions of it.

Nothing here logs a value or raises with a value in the text.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpdask.errors import StorageFault, StoreError
from dpdask.storage.base import Storage
from dpdask.storage.cf import DECODING_ATTRIBUTES, Decoding, holds_times, read_decoding
from dpdask.storage.chunk_reader import ChunkReader
from dpdask.storage.coordinates import dimension_names
from dpdask.storage.decoding import (
    Scratch,
    check_real_numbers,
    codec_names,
    decoding_bytes,
    working_dtype,
)
from dpdask.storage.opened import (
    address_digest,
    content_identity,
    opened_array,
    schema_digest,
    window_objects,
)
from dpdask.storage.opening import check_there, open_or_explain
from dpdask.storage.record_blocks import record_blocks, thread_memory
from dpdask.storage.regions import chunks_within, regions_of, shifted
from dpdask.storage.stored import chunk_file, read_or_explain, read_stored
from dpdask.storage.unlabelled import Unlabelled
from dpdask.storage.zarr_types import ZarrArray
from dpdask.types import Array, Json, Region, Shape

__all__ = ["Region", "SourceArray", "open_source"]

_PIECE_BYTES = 8 * 2**20
# Readers decode values by these attributes, and the result's values are not stored that way.
_ENCODING_ATTRIBUTES = {*DECODING_ATTRIBUTES, "dtype", "_ARRAY_DIMENSIONS"}


@dataclass(frozen=True, repr=False)
class SourceArray(Unlabelled):
    """An opened source: its schema, and the way to its regions.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        shape: the length of each axis, of the window if there is one.
        chunks: what is read at once: a shard, else a chunk, no longer than the array.
        dtype: the type of stored values.
        dimension_names: a name for each axis, None if not all have one.
        metadata_digest: a digest of the schema.
        plain: whether every chunk is a file of its values as they are.
        window: axis, start and stop of the part that is released, None for all.
        decoding: how stored numbers become values, None where they are the values.
    """

    storage: Storage
    path: str
    shape: Shape
    chunks: Shape
    dtype: str
    dimension_names: tuple[str, ...] | None
    metadata_digest: str
    plain: bool
    window: tuple[int, int, int] | None = None
    decoding: Decoding | None = None

    def __repr__(self) -> str:
        return "<SourceArray>"

    @property
    def working_dtype(self) -> np.dtype[np.generic]:
        """The type of blocks that :meth:`read` returns."""
        if self.decoding is not None:
            return np.dtype(self.decoding.dtype)
        return working_dtype(np.dtype(self.dtype))

    @property
    def entry_bytes(self) -> int:
        """The bytes of one entry by which parts of the source are measured."""
        stored = np.dtype(self.dtype).itemsize
        return stored if self.decoding is None else max(stored, self.working_dtype.itemsize)

    @property
    def declares_missing(self) -> bool:
        """Whether attributes declare values missing, other than NaN."""
        return self.decoding is not None and self.decoding.declares_missing

    @property
    def may_miss_values(self) -> bool:
        """Whether a value may be missing: NaN, or declared so by attributes."""
        return self.declares_missing or self.working_dtype.kind == "f"

    def describe_decoding(self) -> str:
        """Return how stored numbers are read, for the plan.

        Never for what is published: packing numbers may be computed from the data.
        """
        if self.decoding is not None:
            text = self.decoding.describe()
        else:
            text = f"{np.dtype(self.dtype).name} as stored"
        # uint64 is stored without NaN, whatever it is read as
        stored_nan = np.dtype(self.dtype).kind == "f"
        return f"{text}; NaN is missing" if stored_nan else text

    def read(self, region: Region, scratch: Scratch | None = None) -> Array:
        """Return a region as a C-ordered array of decoded values, NaN where one is missing.

        Chunks that were never written count as Zarr's fill value.

        Args:
            region: which part of the source, or of its window.
            scratch: returns memory to read into; the block is then valid until it is called again.

        Raises:
            StoreError: the region cannot be read or decoded.
        """
        absolute = self._absolute(region)

        def read() -> Array:
            if self.decoding is not None and self.decoding.to_floats:
                return self._read_to_floats(self.decoding, absolute, scratch)
            block = self._read_stored(absolute, scratch)
            if self.decoding is not None:
                block = self.decoding.converted(block)
            return np.ascontiguousarray(block, dtype=self.working_dtype)

        return read_or_explain(read, absolute)

    def chunk_reader(self, region: Region) -> ChunkReader | None:
        """Open the file that holds a region's values as they are; None if there is none."""
        if not self.plain or self.decoding is not None or self.working_dtype != self.dtype:
            return None
        file = chunk_file(self.storage, self.path, self._array(), region)
        return None if file is None else ChunkReader.of(file, self._chunk_bytes, region)

    @property
    def _chunk_bytes(self) -> int:
        return math.prod(self.chunks) * np.dtype(self.dtype).itemsize

    def read_codes(self, region: Region, scratch: Scratch | None = None) -> Array:
        """Return a region of stored numbers as the type that their attributes say.

        ``scratch`` returns memory to read into, in which the block is valid until the next call.
        """
        absolute = self._absolute(region)

        def read() -> Array:
            stored = self._read_stored(absolute, scratch)
            native = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            return native if self.decoding is None else native.view(self.decoding.codes)

        return read_or_explain(read, absolute)

    def blocks(self, region: Region, axis: int) -> Iterator[tuple[slice, Array]]:
        """Yield records, and a region's values of them, which are valid until the next ones.

        Args:
            region: which part of the source, or of its window.
            axis: the axis along which records lie.

        Raises:
            StoreError: the region cannot be read or decoded.
        """
        return record_blocks(self, region, axis)

    def check(self, region: Region) -> None:
        """Decode a region, to memory that is used again, and forget it.

        Raises:
            StoreError: the region cannot be read or decoded.
        """
        for piece in self.pieces(region):
            self.read(piece, thread_memory)

    @property
    def address_digest(self) -> str | None:
        """A digest of where the array is, the same for all windows; None where it lies nowhere."""
        return address_digest(self.storage, self.path)

    def windowed(self, axis: int, start: int, stop: int) -> SourceArray:
        """Return the same source, restricted to part of one axis.

        Writes to chunks that hold nothing of the window do not change its identity.

        Args:
            axis: which axis.
            start: the first index along it.
            stop: the index after the last one.
        """
        if not 0 <= axis < len(self.shape) or not 0 <= start < stop <= self.shape[axis]:
            raise StoreError(
                f"source.window: {start} to {stop} of axis {axis} is not a valid part of the"
                " source; choose another"
            )
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        other_lengths = [*self.shape[:axis], *self.shape[axis + 1 :]]
        document = {
            **self._array().metadata.to_dict(),
            "shape": other_lengths,
            "attributes": {},
            "window": [axis, start, stop],
        }
        if self.decoding is not None:  # the only attributes that change what is read
            document["decoding"] = self.decoding.to_dict()
        return dataclasses.replace(
            self,
            shape=shape,
            chunks=chunks_within(self.chunks, shape),
            window=(axis, start, stop),
            metadata_digest=schema_digest(document),
            plain=False,
        )

    def _absolute(self, region: Region) -> Region:
        """Return a region of the window as a region of the stored array."""
        if self.window is None:
            return region
        axis, start, _ = self.window
        return shifted(region, axis, start)

    def _array(self) -> ZarrArray:
        return opened_array(self.storage, self.path, self.metadata_digest)

    def _read_to_floats(self, decoding: Decoding, region: Region, scratch: Scratch | None) -> Array:
        """Read codes to the end of the memory of the values, and decode them there."""
        extent = tuple(part.stop - part.start for part in region)
        out, codes = decoding.memory(extent, scratch)
        stored = self._read_stored(region, lambda _, dtype: codes.view(dtype))
        if not stored.dtype.isnative:
            stored = stored.byteswap(inplace=True).view(stored.dtype.newbyteorder())
        return decoding.apply(stored.view(codes.dtype), out)

    def _read_stored(self, region: Region, scratch: Scratch | None) -> Array:
        return read_stored(
            self.storage, self.path, self._array(), region, plain=self.plain, scratch=scratch
        )

    def identity(self) -> str:
        """Return a digest of the schema and of every object's size and stamp.

        It changes whenever something is written.
        """
        wanted = None
        if self.window is not None and not self.storage.is_archive:
            wanted = window_objects(self._array(), self.path, self.window)
        return content_identity(self.storage, self.path, self.metadata_digest, wanted, "the source")

    @property
    def stored_chunks(self) -> Shape:
        """What the stored array is read in at once: a shard, else a chunk."""
        array = self._array()
        return tuple(array.shards or array.chunks)

    @property
    def stored_shape(self) -> Shape:
        """The shape of the stored array, whatever the window."""
        return tuple(self._array().shape)

    @property
    def stored_bytes(self) -> int:
        """The size of what is read, uncompressed."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def coarse_cells(self) -> tuple[int, tuple[int | str, ...]] | None:
        """The axis along which entries are added up before all else, and what groups are called."""
        return None

    def regions(self, region: Region, size: int) -> Iterator[Region]:
        """Cut a region into parts of about ``size`` bytes that end where chunks end, in C order."""
        return regions_of(region, chunks=self.chunks, itemsize=self.entry_bytes, size=size)

    def pieces(self, region: Region) -> Iterator[Region]:
        """Cut a region chunk by chunk, small chunks together: for passes that need no more."""
        return self.regions(region, _PIECE_BYTES)

    @property
    def piece_bytes(self) -> int:
        """What reading one of the :meth:`pieces` takes at most."""
        entries = max(math.prod(self.chunks), _PIECE_BYTES // self.entry_bytes)
        decoding = max(self.decoding_bytes(self.chunks), 3 * _PIECE_BYTES)
        return entries * self.working_dtype.itemsize + decoding

    def decoding_bytes(self, extent: Shape) -> int:
        """Return what reading a region of that shape takes at most beyond the region itself."""
        converted = 0
        if self.decoding is not None:
            converted = math.prod(extent) * self.decoding.converted_itemsize
        if self.plain and extent == self.chunks:
            return converted
        return converted + decoding_bytes(
            extent,
            shape=self.shape,
            chunks=self.chunks,
            dtype=np.dtype(self.dtype),
            windowed=self.window is not None,
        )

    def check_sizes(self) -> None:
        """Refuse a source with a chunk of the wrong size, where all have the same size."""
        if not self.plain:
            return
        expected = self._chunk_bytes
        for name, size, _ in self.storage.listing(self.path):
            is_metadata = name.rpartition("/")[2].startswith((".z", "zarr.json"))
            if not is_metadata and size != expected:
                raise StorageFault(
                    f"source chunk {name!r} has {size} bytes, not {expected}; restore it from a"
                    " copy"
                )

    def has_attribute(self, name: str) -> bool:
        """Return whether the array has an attribute of this name."""
        return name in self._array().attrs

    def attributes(self, names: list[str]) -> Json:
        """Return the named attributes; a missing one is an error."""
        attributes = dict(self._array().attrs)
        for name in names:
            if name in _ENCODING_ATTRIBUTES:
                raise StoreError(
                    f"publish.attributes: {name!r} says how the source's values are stored, and"
                    " the result's are not stored that way; drop it from the list"
                )
            if name not in attributes:
                raise StoreError(
                    f"publish.attributes: the source has no attribute {name!r}; drop it from the"
                    " list"
                )
            try:
                json.dumps(attributes[name], allow_nan=False)
            except (TypeError, ValueError):
                raise StoreError(
                    f"publish.attributes: {name!r} is not a valid JSON value; drop it from the list"
                ) from None
        return {name: attributes[name] for name in names}

    def text_attribute(self, name: str) -> str | None:
        """Return an attribute of the source that is text, None where there is none."""
        value = dict(self._array().attrs).get(name)
        return value if isinstance(value, str) else None

    def path_beside(self, name: str) -> str:
        """Return the path of an array beside the source."""
        folder = self.path.rpartition("/")[0]
        return f"{folder}/{name}" if folder else name


def open_source(storage: Storage, path: str, decode: bool = True) -> SourceArray:
    """Read an array's schema, but no value of it; refuse what cannot be released.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        decode: whether values are decoded by their attributes, or released as they are stored.

    Raises:
        StoreError: there is no such array, or it cannot be released.
    """
    path = path.strip("/")
    check_there(storage)
    array = open_or_explain(storage, path)
    dtype = np.dtype(array.dtype)
    check_real_numbers(dtype)
    if decode and holds_times(dict(array.attrs)):
        raise StoreError(
            "the source holds times (see its units); store them as plain numbers, such as days"
            " since a public date without units, or set source.decode: false to release the"
            " numbers as they are stored"
        )
    if not array.shape:
        raise StoreError(
            "the source is a single number without an axis; a release needs at least one axis"
        )
    stored_chunks = tuple(array.shards or array.chunks)
    chunks = chunks_within(stored_chunks, array.shape)
    as_stored = not codec_names(array) and array.order == "C" and stored_chunks == chunks
    return SourceArray(
        storage=storage,
        path=path,
        shape=tuple(array.shape),
        chunks=chunks,
        dtype=dtype.str,
        dimension_names=dimension_names(array),
        metadata_digest=schema_digest(array.metadata.to_dict()),
        plain=as_stored and storage.file_path(path) is not None,
        decoding=read_decoding(array) if decode else None,
    )

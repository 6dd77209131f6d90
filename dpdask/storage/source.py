"""The sensitive array: its schema, its identity, and regions of it.

Nothing here logs a value or raises with a value in the text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.coordinates import dimension_names, read_coordinate, read_coordinate_schema
from dpdask.storage.decoding import (
    Scratch,
    check_real_numbers,
    codec_names,
    decoding_bytes,
    read_chunk_file,
    working_dtype,
)
from dpdask.storage.groups import array_names
from dpdask.storage.regions import chunks_within, regions_of, shifted
from dpdask.storage.zarr_types import ZarrArray, open_zarr_array
from dpdask.types import Array, Json, Region, Shape

__all__ = ["Region", "SourceArray", "open_source"]

_PIECE_BYTES = 8 * 2**20
_MOST_OPENED = 64
# Readers decode values by these attributes, and the result's values are not stored that way.
_ENCODING_ATTRIBUTES = {
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "dtype",
    "_ARRAY_DIMENSIONS",
}

_opened: dict[tuple[Storage, str, str], ZarrArray] = {}


@dataclass(frozen=True, repr=False)
class SourceArray:
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

    def __repr__(self) -> str:
        return "<SourceArray>"

    @property
    def working_dtype(self) -> np.dtype[np.generic]:
        """The type of blocks that :meth:`read` returns."""
        return working_dtype(np.dtype(self.dtype))

    def read(self, region: Region, scratch: Scratch | None = None) -> Array:
        """Return a region as a C-ordered array; missing chunks count as the fill value.

        Args:
            region: which part of the source, or of its window.
            scratch: returns memory to read into; the block is then valid until it is called again.

        Raises:
            StoreError: the region cannot be read or decoded.
        """
        region = self._absolute(region)
        try:
            block = self._read_plain(region, scratch) if self.plain else None
            if block is None:
                block = self._read_decoded(region, scratch)
            return np.ascontiguousarray(block, dtype=self.working_dtype)
        except MemoryError:
            raise
        except Exception:
            corner = ", ".join(str(part.start) for part in region)
        raise StoreError(
            f"the source cannot be read or decoded near index ({corner}); restore it from a copy"
        )

    @property
    def address_digest(self) -> str:
        """A digest of where the array is, the same for all windows of it."""
        address = f"{self.storage.address()}/{self.path}"
        one_spelling = re.sub(r"(?<!:)/+", "/", address).rstrip("/")
        return hashlib.sha256(one_spelling.encode()).hexdigest()

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
        return dataclasses.replace(
            self,
            shape=shape,
            chunks=chunks_within(self.chunks, shape),
            window=(axis, start, stop),
            metadata_digest=_schema_digest(document),
            plain=False,
        )

    def _absolute(self, region: Region) -> Region:
        """Return a region of the window as a region of the stored array."""
        if self.window is None:
            return region
        axis, start, _ = self.window
        return shifted(region, axis, start)

    def _window_objects(self) -> set[str] | None:
        """Return the names of the objects that hold the window, None for all."""
        if self.window is None:
            return None
        axis, start, stop = self.window
        array = self._array()
        sizes = array.shards or array.chunks
        spans = [range(-(-n // size)) for n, size in zip(array.shape, sizes, strict=True)]
        spans[axis] = range(start // sizes[axis], -(-stop // sizes[axis]))
        prefix = f"{self.path}/" if self.path else ""
        names = set()
        for offset in np.ndindex(*(len(span) for span in spans)):
            index = tuple(span[i] for span, i in zip(spans, offset, strict=True))
            names.add(prefix + array.metadata.encode_chunk_key(index))
        return names

    def _array(self) -> ZarrArray:
        """Return the zarr array, opened once per process and schema."""
        key = (self.storage, self.path, self.metadata_digest + self.storage.version())
        if key not in _opened:
            if len(_opened) > _MOST_OPENED:
                _opened.clear()
            _opened[key] = open_zarr_array(self.storage.zarr_store(), self.path)
        return _opened[key]

    def _read_plain(self, region: Region, scratch: Scratch | None) -> Array | None:
        """Read one whole uncompressed chunk from its file; None if the region is not one."""
        index = []
        for part, size, length in zip(region, self.chunks, self.shape, strict=True):
            if part.start % size or part.stop - part.start != size or part.stop > length:
                return None
            index.append(part.start // size)
        chunk_key = self._array().metadata.encode_chunk_key(tuple(index))
        file = self.storage.file_path(f"{self.path}/{chunk_key}")
        if file is None:
            return None
        return read_chunk_file(file, self.chunks, np.dtype(self.dtype), scratch)

    def _read_decoded(self, region: Region, scratch: Scratch | None) -> Array:
        """Read any region by zarr."""
        if scratch is None:
            return np.asarray(self._array()[region])
        from zarr.core.buffer import default_buffer_prototype

        extent = tuple(part.stop - part.start for part in region)
        block = scratch(extent, np.dtype(self.dtype))
        out = default_buffer_prototype().nd_buffer.from_numpy_array(block)
        self._array().get_basic_selection(region, out=out)
        return block

    def identity(self) -> str:
        """Return a digest of the schema and of every object's size and stamp.

        It changes whenever something is written.
        """
        if not self.storage.occupied():
            raise StoreError("the source is gone; restore it, then run the command again")
        digest = hashlib.sha256(self.metadata_digest.encode())
        wanted = None if self.storage.is_archive else self._window_objects()
        for name, size, stamp in sorted(self.storage.listing(self.path)):
            if wanted is None or name in wanted:
                digest.update(f"{len(name)} {name} {size} {stamp}\n".encode())
        return digest.hexdigest()

    def regions(self, region: Region, size: int) -> Iterator[Region]:
        """Cut a region into parts of about ``size`` bytes that end where chunks end, in C order."""
        itemsize = np.dtype(self.dtype).itemsize
        return regions_of(region, chunks=self.chunks, itemsize=itemsize, size=size)

    def pieces(self, region: Region) -> Iterator[Region]:
        """Cut a region chunk by chunk, small chunks together: for passes that need no more."""
        return self.regions(region, _PIECE_BYTES)

    @property
    def piece_bytes(self) -> int:
        """What reading one of the :meth:`pieces` takes at most."""
        entries = max(math.prod(self.chunks), _PIECE_BYTES // np.dtype(self.dtype).itemsize)
        decoding = max(self.decoding_bytes(self.chunks), 3 * _PIECE_BYTES)
        return entries * self.working_dtype.itemsize + decoding

    def decoding_bytes(self, extent: Shape) -> int:
        """Return what reading a region of that shape takes at most beyond the region itself."""
        if self.plain and extent == self.chunks:
            return 0
        return decoding_bytes(
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
        expected = math.prod(self.chunks) * np.dtype(self.dtype).itemsize
        for name, size, _ in self.storage.listing(self.path):
            is_metadata = name.rpartition("/")[2].startswith((".z", "zarr.json"))
            if not is_metadata and size != expected:
                raise StoreError(
                    f"source chunk {name!r} has {size} bytes, not {expected}; restore it from a"
                    " copy"
                )

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

    def coordinate_schema(self, name: str) -> tuple[Shape, tuple[str, ...], int]:
        """Return shape, dimension names and size in bytes of an array beside the source.

        Raises:
            StoreError: there is no such array, or it cannot be published.
        """
        return read_coordinate_schema(
            self.storage, name, path=self._beside(name), source_path=self.path
        )

    def coordinate(self, name: str) -> tuple[Array, tuple[str, ...], Json]:
        """Return values, dimension names and attributes of a public array beside the source."""
        return read_coordinate(self.storage, name, path=self._beside(name))

    def _beside(self, name: str) -> str:
        folder = self.path.rpartition("/")[0]
        return f"{folder}/{name}" if folder else name


def open_source(storage: Storage, path: str) -> SourceArray:
    """Read an array's schema, but no value of it; refuse what cannot be released."""
    path = path.strip("/")
    if not storage.occupied():
        raise StoreError(
            "the source does not exist; check source.url (a relative path is relative to the"
            " current folder)"
        )
    array = _open_or_explain(storage, path)
    dtype = np.dtype(array.dtype)
    check_real_numbers(dtype)
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
        metadata_digest=_schema_digest(array.metadata.to_dict()),
        plain=as_stored and storage.file_path(path) is not None,
    )


def _schema_digest(document: Json) -> str:
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _open_or_explain(storage: Storage, path: str) -> ZarrArray:
    try:
        return open_zarr_array(storage.zarr_store(), path)
    except Exception as error:
        kind = type(error).__name__
    missing = f"no array {path!r}" if path else "no array at the root"
    raise StoreError(
        f"the source has {missing} that zarr can open ({kind}){_known_arrays(storage)}"
    )


def _known_arrays(storage: Storage) -> str:
    """Return the end of an error text: which arrays there are."""
    try:
        names = array_names(storage)
    except StoreError:
        names = []
    if not names:
        return "; check source.url and source.array"
    more = ", ..." if len(names) > 6 else ""
    return f"; its arrays are {', '.join(names[:6])}{more}: give one as source.array"

"""Stored numbers of a region: whole chunks of a local array from their files, others by zarr.

zarr schedules every chunk on an event loop, decodes it to new memory and copies that: as much work
as a sum over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dpdask.errors import StorageFault
from dpdask.storage.base import Storage
from dpdask.storage.compression import compression_of
from dpdask.storage.decoding import Scratch, read_chunk_file
from dpdask.storage.object_faults import raise_if_unavailable
from dpdask.storage.zarr_types import ZarrArray
from dpdask.types import Array, Region

__all__ = ["chunk_file", "read_or_explain", "read_stored"]


def read_stored(
    storage: Storage,
    path: str,
    array: ZarrArray,
    region: Region,
    *,
    plain: bool,
    scratch: Scratch | None,
) -> Array:
    """Return the stored numbers of a region.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        array: the opened array.
        region: which part of the array.
        plain: whether every chunk is a file of its values as they are.
        scratch: returns memory to read into; None for new memory.

    Raises:
        Exception: a chunk cannot be read or decoded.
    """
    block = _read_plain(storage, path, array, region, scratch) if plain else None
    if block is None:
        block = _read_chunks(storage, path, array, region, scratch)
    return _read_by_zarr(array, region, scratch) if block is None else block


def _read_plain(
    storage: Storage, path: str, array: ZarrArray, region: Region, scratch: Scratch | None
) -> Array | None:
    """Read consecutive rows of one uncompressed chunk from its file; None for any other region."""
    chunk = region[0].start // array.chunks[0]
    index = [chunk]
    if not region[0].start < region[0].stop <= min((chunk + 1) * array.chunks[0], array.shape[0]):
        return None
    for part, size in zip(region[1:], array.chunks[1:], strict=True):
        if part.start % size or part.stop - part.start != size:
            return None
        index.append(part.start // size)
    file = storage.file_path(f"{path}/{array.metadata.encode_chunk_key(tuple(index))}")
    if file is None:
        return None
    above = chunk * array.chunks[0]
    rows = slice(region[0].start - above, region[0].stop - above)
    return read_chunk_file(file, tuple(array.chunks), rows, np.dtype(array.dtype), scratch)


def chunk_file(storage: Storage, path: str, array: ZarrArray, region: Region) -> str | None:
    """Return the file of the one whole chunk that a region is, None if it is not one.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        array: the opened array.
        region: which part of the array.
    """
    index = []
    for part, size, length in zip(region, array.chunks, array.shape, strict=True):
        if part.start % size or part.stop - part.start != size or part.stop > length:
            return None
        index.append(part.start // size)
    return storage.file_path(f"{path}/{array.metadata.encode_chunk_key(tuple(index))}")


def _read_by_zarr(array: ZarrArray, region: Region, scratch: Scratch | None) -> Array:
    """Read any region by zarr."""
    if scratch is None:
        return np.asarray(array[region])
    from zarr.core.buffer import default_buffer_prototype

    extent = tuple(part.stop - part.start for part in region)
    block = scratch(extent, np.dtype(array.dtype))
    out = default_buffer_prototype().nd_buffer.from_numpy_array(block)
    array.get_basic_selection(region, out=out)
    return block


def read_or_explain(read: Callable[[], Array], region: Region) -> Array:
    """Return what was read; an error names the place, and nothing of what lies there."""
    try:
        return read()
    except MemoryError:
        raise
    except Exception as error:
        raise_if_unavailable(error)
        corner = ", ".join(str(part.start) for part in region)
    raise StorageFault(
        f"the source cannot be read or decoded near index ({corner}); restore it from a copy"
    )


def _read_chunks(
    storage: Storage, path: str, array: ZarrArray, region: Region, scratch: Scratch | None
) -> Array | None:
    """Read a region of whole chunks from their files.

    None where the region cuts chunks, where one was never written, and where the array is stored
    in another way.
    """
    if storage.file_path(path) is None or not _is_aligned(region, array):
        return None
    compression = compression_of(array)
    if compression is None:
        return None
    extent = tuple(part.stop - part.start for part in region)
    block = np.empty(extent, array.dtype) if scratch is None else scratch(extent, array.dtype)
    for part in _chunks_in(region, array):
        index = tuple(own.start // size for own, size in zip(part, array.chunks, strict=True))
        stored = _object(storage, path, array.metadata.encode_chunk_key(index))
        if stored is None:
            return None
        inside = (
            slice(own.start - whole.start, own.stop - whole.start)
            for own, whole in zip(part, region, strict=True)
        )
        compression.decode_into(stored, tuple(array.chunks), block[tuple(inside)])
    return block


def _object(storage: Storage, path: str, key: str) -> bytes | None:
    """Return the bytes of a chunk's file, None if there is none."""
    file = storage.file_path(f"{path}/{key}" if path else key)
    assert file is not None
    try:
        with open(file, "rb", buffering=0) as opened:
            return opened.read()
    except FileNotFoundError:
        return None


def _is_aligned(region: Region, array: ZarrArray) -> bool:
    """Return whether a region ends where chunks end, or the array."""
    return all(
        part.start < part.stop
        and part.start % size == 0
        and (part.stop % size == 0 or part.stop == length)
        for part, size, length in zip(region, array.chunks, array.shape, strict=True)
    )


def _chunks_in(region: Region, array: ZarrArray) -> Iterator[Region]:
    """Yield the regions of the chunks within an aligned region."""
    starts = [
        range(part.start, part.stop, size) for part, size in zip(region, array.chunks, strict=True)
    ]
    for offset in np.ndindex(*(len(along) for along in starts)):
        corner = [along[i] for along, i in zip(starts, offset, strict=True)]
        yield tuple(
            slice(start, min(start + size, part.stop))
            for start, size, part in zip(corner, array.chunks, region, strict=True)
        )

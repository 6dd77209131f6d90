"""A region of a source block by block along its records: for sums, which need no more at once.

Chunks are read whole. Decoded values need up to eight times the memory, so they are computed in
parts that stay in the processor's cache.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dpdask.storage.cf import Decoding
from dpdask.types import Array, Region, Shape

if TYPE_CHECKING:
    from dpdask.storage.source import SourceArray

__all__ = ["record_blocks", "thread_memory"]

_READ_BYTES = 8 * 2**20
_ROWS_BYTES = 2**20
_DECODED_BYTES = 4 * 2**20
_MOST_KEPT = 16 * 2**20

_local = threading.local()


def record_blocks(source: SourceArray, region: Region, axis: int) -> Iterator[tuple[slice, Array]]:
    """Yield records, and a region's values of them, which are valid until the next are asked for.

    Args:
        source: the source.
        region: which part of the source, or of its window.
        axis: the axis along which records lie.

    Raises:
        StoreError: the region cannot be read or decoded.
    """
    decoding = source.decoding
    for records in _whole_chunks(source, region, axis):
        part = (*region[:axis], records, *region[axis + 1 :])
        if decoding is None or not decoding.to_floats:
            yield records, source.read(part, thread_memory)
            continue
        for first, block in _decoded(decoding, source.read_codes(part, thread_memory), axis):
            start = records.start + first
            yield slice(start, start + block.shape[axis]), block


def _whole_chunks(source: SourceArray, region: Region, axis: int) -> Iterator[slice]:
    """Yield ranges of records that end where chunks end, several small chunks together; of plain
    chunks, whose rows can be read alone, so many as stay in the processor's cache.
    """
    if axis == 0 and _in_rows(source, region):
        yield from _rows_of_chunks(source, region)
        return
    records, window = region[axis], source.window
    start = window[1] if window is not None and window[0] == axis else 0
    sizes = [part.stop - part.start for other, part in enumerate(region) if other != axis]
    chunk = source.stored_chunks[axis]
    chunk_bytes = max(1, math.prod(sizes) * chunk * source.entry_bytes)
    length = chunk * max(1, _READ_BYTES // chunk_bytes)
    first = records.start
    while first < records.stop:
        stop = min(records.stop, first + length - (first + start) % length)
        yield slice(first, stop)
        first = stop


def _in_rows(source: SourceArray, region: Region) -> bool:
    """Return whether a region is made of whole rows of plain chunks."""
    sides = zip(region[1:], source.chunks[1:], strict=True)
    one_wide = all(p.start % size == 0 and p.stop - p.start == size for p, size in sides)
    return source.plain and one_wide and math.prod(source.chunks) * source.entry_bytes > _ROWS_BYTES


def _rows_of_chunks(source: SourceArray, region: Region) -> Iterator[slice]:
    """Yield ranges of rows, each within one chunk."""
    row_bytes = math.prod(source.chunks[1:]) * source.entry_bytes
    many, chunk = max(1, _ROWS_BYTES // row_bytes), source.chunks[0]
    first, stop = region[0].start, region[0].stop
    while first < stop:
        end = min(first + many, (first // chunk + 1) * chunk, stop)
        yield slice(first, end)
        first = end


def _decoded(decoding: Decoding, codes: Array, axis: int) -> Iterator[tuple[int, Array]]:
    """Yield the first of some records and their decoded values, in memory that is used again."""
    dtype, count = np.dtype(decoding.dtype), codes.shape[axis]
    record_bytes = max(1, codes.size // max(1, count) * dtype.itemsize)
    many = max(1, min(count, _DECODED_BYTES // record_bytes))
    memory = np.empty(codes.size // max(1, count) * many, dtype)
    for first in range(0, count, many):
        part = codes[(slice(None),) * axis + (slice(first, first + many),)]
        out = memory[: part.size].reshape(part.shape)
        yield first, decoding.apply(part, out)


def thread_memory(shape: Shape, dtype: np.dtype[np.generic]) -> Array:
    """Return this thread's memory, kept for the next chunk unless it is large.

    New memory costs as much as the sum over it.
    """
    size = math.prod(shape) * dtype.itemsize
    kept: Array | None = getattr(_local, "memory", None)
    if kept is None or kept.size < size:
        kept = np.empty(size, np.uint8)
        _local.memory = kept if size <= _MOST_KEPT else None
    return kept[:size].view(dtype).reshape(shape)

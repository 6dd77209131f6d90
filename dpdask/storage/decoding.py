"""Between stored bytes and values: number types, codecs, whole chunk files, and what reading takes.

Any real number type is read as one that the kernels take: booleans as 0 and 1, unsigned 64-bit
integers as the nearest doubles.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.zarr_types import ZarrArray
from dpdask.types import Array, Shape

__all__ = [
    "Scratch",
    "check_real_numbers",
    "codec_names",
    "decoding_bytes",
    "read_chunk_file",
    "working_dtype",
]

Scratch: TypeAlias = Callable[[tuple[int, ...], np.dtype[np.generic]], Array]
"""Returns memory of a shape and a type to read into, valid until it is called again."""

_KINDS = {
    "c": "complex",
    "S": "byte string",
    "U": "string",
    "O": "object",
}
_WORKING_TYPES = {
    "b1": "i4", "f2": "f4", "f4": "f4", "f8": "f8", "i1": "i4", "i2": "i4", "i4": "i4", "i8": "i8",
    "u1": "i4", "u2": "i4", "u4": "i8", "u8": "f8",
}  # fmt: skip


def working_dtype(stored: np.dtype[np.generic]) -> np.dtype[np.generic]:
    """Return the type that stored values are read as."""
    return np.dtype(_WORKING_TYPES[stored.str[1:]])


def check_real_numbers(dtype: np.dtype[np.generic]) -> None:
    """Raise :class:`StoreError` unless values of this type are real numbers."""
    if dtype.kind in "Mm":
        raise StoreError(
            "the source holds times, and only real numbers can be released: store them as plain"
            " numbers, such as days since a public date"
        )
    if dtype.str[1:] not in _WORKING_TYPES:
        kind = "structured" if dtype.names else _KINDS.get(dtype.kind, str(dtype))
        raise StoreError(
            f"the source holds {kind} values ({dtype}); only real numbers can be released:"
            " convert them first"
        )


def codec_names(array: ZarrArray) -> list[str]:
    """Return the names of codecs between stored bytes and values, beyond plain bytes."""
    metadata = array.metadata
    if metadata.zarr_format == 2:
        filters = getattr(metadata, "filters", None) or ()
        codecs = (*filters, getattr(metadata, "compressor", None))
        return [str(codec) for codec in codecs if codec is not None]
    codecs = getattr(metadata, "codecs", ())
    endian = {getattr(getattr(codec, "endian", None), "value", "little") for codec in codecs}
    names = [type(codec).__name__ for codec in codecs]
    return [name for name in names if name != "BytesCodec" or endian != {"little"}]


def read_chunk_file(
    file: str,
    shape: Shape,
    rows: slice,
    dtype: np.dtype[np.generic],
    scratch: Scratch | None,
) -> Array | None:
    """Read rows of an uncompressed chunk straight from its file.

    Args:
        file: the chunk's file.
        shape: the shape of the chunk.
        rows: which indices of its first axis.
        dtype: the type of its stored values.
        scratch: returns memory to read into; None for new memory.

    Returns:
        The values, None if there is no such file.

    Raises:
        ValueError: the file does not have the size of a chunk.
    """
    extent = (rows.stop - rows.start, *shape[1:])
    row_bytes = math.prod(shape[1:]) * dtype.itemsize
    block = np.empty(extent, dtype) if scratch is None else scratch(extent, dtype)
    try:
        with open(file, "rb", buffering=0) as opened:
            if os.fstat(opened.fileno()).st_size != shape[0] * row_bytes:
                raise ValueError
            opened.seek(rows.start * row_bytes)
            view = memoryview(block.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            while view and (count := opened.readinto(view)):
                view = view[count:]
            if view:
                raise ValueError
    except FileNotFoundError:
        return None
    return block


def decoding_bytes(
    extent: Shape, *, shape: Shape, chunks: Shape, dtype: np.dtype[np.generic], windowed: bool
) -> int:
    """Return what reading a region by zarr takes at most beyond the region itself.

    These are the chunks that are read and decoded at once. A chunk counts twice, as stored and as
    decoded, and zarr works on several at a time; half as much again stays with the allocator.

    Args:
        extent: the shape of the region.
        shape: the shape of the array.
        chunks: the shape of a chunk.
        dtype: the type of stored values.
        windowed: whether the region may begin anywhere within a chunk.
    """
    import zarr

    same_type = working_dtype(dtype) == dtype
    converted = 0 if same_type else math.prod(extent) * dtype.itemsize
    touched = 1
    for length, chunk, whole in zip(extent, chunks, shape, strict=True):
        unaligned = windowed or (length % chunk and chunk % length)
        touched *= min(-(-whole // chunk), -(-length // chunk) + (1 if unaligned else 0))
    at_once = min(touched, int(zarr.config.get("async.concurrency")))
    return converted + 3 * at_once * math.prod(chunks) * dtype.itemsize

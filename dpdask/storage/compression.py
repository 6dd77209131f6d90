"""Chunks that are nothing but their values, compressed or not, decoded to memory that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dpdask.storage.zarr_types import ZarrArray
from dpdask.types import Array, Shape

__all__ = ["Compression", "compression_of"]

# by the name of zarr's class, or the id of numcodecs
_NUMCODECS = {
    "ZstdCodec": "zstd", "BloscCodec": "blosc", "GzipCodec": "gzip",
    "zstd": "zstd", "blosc": "blosc", "gzip": "gzip", "zlib": "zlib", "lz4": "lz4",
}  # fmt: skip
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOSC_HEADER = 16  # bytes


class Compression(NamedTuple):
    """How a chunk is decoded.

    Args:
        decode: decodes bytes, to memory that is given or to new memory.
        decoded_bytes: the length that a chunk has by its header, None where that is not known;
            raises on a header that is damaged.
    """

    decode: Callable[..., bytes]
    decoded_bytes: Callable[[bytes], int | None]

    def decode_into(self, stored: bytes, shape: Shape, out: Array) -> None:
        """Decode a chunk into ``out``, which may be cut where the array ends.

        Args:
            stored: the bytes of the chunk.
            shape: the shape of the whole chunk.
            out: where its values go.

        Raises:
            Exception: the chunk cannot be decoded, or does not have that shape.
        """
        # by its header, since a codec leaves what is too long for the chunk as it was
        known = self.decoded_bytes(stored)
        if known == out.nbytes and out.shape == shape and out.flags.c_contiguous:
            self.decode(stored, out.reshape(-1).view(np.uint8))
            return
        whole = np.frombuffer(self.decode(stored), out.dtype).reshape(shape)
        out[...] = whole[tuple(slice(0, size) for size in out.shape)]


def _copied(stored: bytes, out: Array | None = None) -> bytes:
    """Return bytes as they are, copied to memory that is given."""
    if out is not None:
        out[...] = np.frombuffer(stored, np.uint8)
    return stored


_AS_IT_IS = Compression(_copied, len)


def compression_of(array: ZarrArray) -> Compression | None:
    """Return how chunks become values in C order, None if that takes more than one codec."""
    if array.order != "C" or array.shards is not None:
        return None
    metadata = array.metadata
    if metadata.zarr_format == 2:
        compressor = getattr(metadata, "compressor", None)
        filters = getattr(metadata, "filters", None)
        if filters:
            return None
        return _AS_IT_IS if compressor is None else _by_name(getattr(compressor, "codec_id", None))
    codecs: Sequence[object] = getattr(metadata, "codecs", ())
    if not codecs or type(codecs[0]).__name__ != "BytesCodec":
        return None
    endian = getattr(getattr(codecs[0], "endian", None), "value", "little")
    if endian != "little" or len(codecs) > 2:
        return None
    return _AS_IT_IS if len(codecs) == 1 else _by_name(type(codecs[1]).__name__)


def _by_name(name: str | None) -> Compression | None:
    if name not in _NUMCODECS:
        return None
    import numcodecs  # type: ignore[import-untyped]

    codec = _NUMCODECS[name]
    lengths = {"zstd": _zstd_bytes, "blosc": _blosc_bytes}
    decode = numcodecs.get_codec({"id": codec}).decode
    return Compression(decode, lengths.get(codec, lambda _: None))


def _zstd_bytes(stored: bytes) -> int | None:
    """Return the size of the content that a zstd frame tells (RFC 8878, 3.1.1.1)."""
    if stored[:4] != _ZSTD_MAGIC or len(stored) < 14:
        return None  # the codec decides
    descriptor = stored[4]
    single_segment = bool(descriptor & 0x20)
    first = 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
    size = (int(single_segment), 2, 4, 8)[descriptor >> 6]
    if size == 0:
        return None
    return int.from_bytes(stored[first : first + size], "little") + (256 if size == 2 else 0)


def _blosc_bytes(stored: bytes) -> int:
    """Return the size of the content that a blosc chunk tells; its own length must be right.

    blosc itself does not compare that, and would read beyond a chunk that was cut.
    """
    if len(stored) < _BLOSC_HEADER or int.from_bytes(stored[12:16], "little") != len(stored):
        raise ValueError
    return int.from_bytes(stored[4:8], "little")

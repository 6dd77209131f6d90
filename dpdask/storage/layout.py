"""The layout of a released array: its write units, and how one becomes stored bytes with a checksum
inside.

A write unit is a shard, else a chunk: what one task owns. crc32c is always the last codec, inside
shards too, so that a damaged byte is found by whoever reads it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np

from dpdask.errors import InvalidSpec
from dpdask.storage.source import Region
from dpdask.types import Array, Json

__all__ = ["Layout"]

_local = threading.local()
_ONE_FOLDER = 100_000


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Shape, chunks, shards, dtype and codec of the released array."""

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    dtype: str
    codec: str
    dimension_names: tuple[str, ...]

    def __post_init__(self) -> None:
        for what, sizes in (("chunks", self.chunks), ("shards", self.shards)):
            if sizes is not None and len(sizes) != len(self.shape):
                raise InvalidSpec(
                    f"publish.{what}: {len(sizes)} lengths do not fit a result of shape"
                    f" {self.shape}; give {len(self.shape)}"
                )
        if self.shards is not None and any(
            s % c for s, c in zip(self.shards, self.chunks, strict=True)
        ):
            raise InvalidSpec(
                f"publish.shards: {list(self.shards)} is no multiple of chunks"
                f" {list(self.chunks)}; give whole chunks"
            )
        if len(self.dimension_names) != len(self.shape):
            raise InvalidSpec(
                f"publish.dimension_names: {len(self.dimension_names)} names do not fit shape"
                f" {self.shape}; give one each"
            )
        if len(set(self.dimension_names)) != len(self.dimension_names):
            raise InvalidSpec(
                "publish.dimension_names: a name is there twice; give every dimension its own"
            )

    @property
    def write_chunk(self) -> tuple[int, ...]:
        """The shape of a write unit."""
        return self.shards or self.chunks

    @property
    def write_chunk_counts(self) -> tuple[int, ...]:
        """How many write units lie along each axis."""
        return tuple(-(-n // u) for n, u in zip(self.shape, self.write_chunk, strict=True))

    @property
    def write_chunk_bytes(self) -> int:
        """The size of a write unit in memory."""
        return math.prod(self.write_chunk) * np.dtype(self.dtype).itemsize

    @property
    def total_bytes(self) -> int:
        """The size of the array, uncompressed, with every edge chunk whole."""
        return math.prod(self.write_chunk_counts) * (self.write_chunk_bytes + 4)

    def box(self, index: tuple[int, ...]) -> Region:
        """The region of one write unit."""
        return tuple(
            slice(i * u, min((i + 1) * u, n))
            for i, u, n in zip(index, self.write_chunk, self.shape, strict=True)
        )

    def indices(self) -> Iterator[tuple[int, ...]]:
        """All write units in C order."""
        return np.ndindex(*self.write_chunk_counts)

    @property
    def separator(self) -> str:
        """Chunks lie in one folder, unless they are very many."""
        return "." if math.prod(self.write_chunk_counts) <= _ONE_FOLDER else "/"

    def key(self, index: tuple[int, ...]) -> str:
        """The name of a unit's object within the group."""
        return f"{self.name}/{self._chunk_key(index)}"

    def _chunk_key(self, index: tuple[int, ...]) -> str:
        return self.separator.join(["c", *map(str, index)])

    def create(self, store: Any, name: str | None = None, attributes: Json | None = None) -> Any:
        """The empty array in a zarr store."""
        import zarr
        from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

        compressors: list[Any] = [ZstdCodec(level=3)] if self.codec == "zstd" else []
        return zarr.create_array(
            store,
            name=name,
            shape=self.shape,
            chunks=self.chunks,
            shards=self.shards,
            dtype=self.dtype,
            fill_value=0,
            filters=None,
            serializer=BytesCodec(endian="little"),
            compressors=[*compressors, Crc32cCodec()],
            chunk_key_encoding={"name": "default", "separator": self.separator},
            dimension_names=self.dimension_names,
            attributes=attributes,
            config={"order": "C", "write_empty_chunks": True},
        )

    def metadata(self, attributes: Json) -> Json:
        """What the array's metadata document says, with these attributes."""
        from zarr.storage import MemoryStore

        described: Json = self.create(MemoryStore(), self.name, attributes).metadata.to_dict()
        return described

    def encode(self, index: tuple[int, ...], block: Array) -> list[Any]:
        """A write unit as the buffers to store, one after the other."""
        if self.shards is None and self.codec == "none":
            whole = _padded(np.ascontiguousarray(block, dtype=np.dtype(self.dtype)), self.chunks)
            flat = whole.reshape(-1).view(np.uint8)
            return [flat, _crc32c(flat).to_bytes(4, "little")]
        array, kept = self._scratch()
        array[self.box(index)] = block
        stored = kept.pop(self._chunk_key(index))
        return [stored.to_bytes()]

    def check(self, index: tuple[int, ...], stored: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
        """Whether ``stored`` decodes to a write unit, its checksums in order."""
        if self.shards is None and self.codec == "none":
            trailer = int.from_bytes(stored[-4:].tobytes(), "little")
            return stored.size == self.write_chunk_bytes + 4 and _crc32c(stored[:-4]) == trailer
        from zarr.core.buffer import default_buffer_prototype

        array, kept = self._scratch()
        name = self._chunk_key(index)
        kept[name] = default_buffer_prototype().buffer.from_bytes(stored.tobytes())
        try:
            return bool(array[self.box(index)].size > 0)
        except Exception:
            return False
        finally:
            kept.pop(name, None)

    def _scratch(self) -> tuple[Any, Json]:
        """This thread's copy of the array in memory, where one unit at a time is encoded or decoded
        by zarr itself.
        """
        held = getattr(_local, "scratch", None)
        if held is None or held[0] != self:
            from zarr.storage import MemoryStore

            kept: Json = {}
            held = _local.scratch = (self, self.create(MemoryStore(kept)), kept)
        return held[1], held[2]


def _crc32c(content: np.ndarray[Any, np.dtype[np.uint8]]) -> int:
    content = content.view()
    content.flags.writeable = False
    return int(google_crc32c.value(content))


def _padded(block: Array, shape: tuple[int, ...]) -> Array:
    if block.shape == shape:
        return block
    whole = np.zeros(shape, block.dtype)
    whole[tuple(slice(0, n) for n in block.shape)] = block
    return whole

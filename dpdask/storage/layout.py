"""The layout of a released array: its write chunks, and how one is encoded with a checksum inside.

A write chunk is a shard, else a chunk: what one task owns. crc32c is always the last codec, inside
shards too, so that whoever reads a damaged byte notices it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpdask.errors import InvalidSpec
from dpdask.loading import when_used
from dpdask.storage.base import Buffer
from dpdask.types import Array, Json, Region, Shape

if TYPE_CHECKING:
    import zarr
    from zarr.abc.store import Store
    from zarr.core.buffer import Buffer as ZarrBuffer

    from dpdask.machine import crc32c as kernel
else:
    kernel = when_used("dpdask.machine.crc32c")

__all__ = ["PIECE_BYTES", "Layout"]

_local = threading.local()
_ONE_FOLDER = 100_000
PIECE_BYTES = 2**20
"""What is computed and written at once: it stays in the cache."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the released array is stored.

    Args:
        name: the array's name in the group.
        shape: the length of each axis.
        chunks: the shape of a chunk.
        shards: the shape of a shard, which is whole chunks; None for no shards.
        dtype: the type of its values.
        codec: ``zstd`` or ``none``.
        dimension_names: a name of its own for each axis.
    """

    name: str
    shape: Shape
    chunks: Shape
    shards: Shape | None
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
                f"publish.shards: {list(self.shards)} is not a multiple of chunks"
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
    def write_chunk(self) -> Shape:
        """The shape of a write chunk."""
        return self.shards or self.chunks

    @property
    def write_chunk_counts(self) -> Shape:
        """How many write chunks lie along each axis."""
        return tuple(-(-n // u) for n, u in zip(self.shape, self.write_chunk, strict=True))

    @property
    def write_chunk_bytes(self) -> int:
        """The size of a write chunk in memory."""
        return math.prod(self.write_chunk) * np.dtype(self.dtype).itemsize

    @property
    def total_bytes(self) -> int:
        """The size of the array, uncompressed, with every edge chunk whole."""
        return math.prod(self.write_chunk_counts) * (self.write_chunk_bytes + 4)

    def region(self, index: tuple[int, ...]) -> Region:
        """Return the region of one write chunk."""
        return tuple(
            slice(i * u, min((i + 1) * u, n))
            for i, u, n in zip(index, self.write_chunk, self.shape, strict=True)
        )

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Return the indices of all write chunks in C order."""
        return np.ndindex(*self.write_chunk_counts)

    @property
    def separator(self) -> Literal[".", "/"]:
        """What separates indices in names: chunks lie in one folder, unless they are very many."""
        return "." if math.prod(self.write_chunk_counts) <= _ONE_FOLDER else "/"

    def key(self, index: tuple[int, ...]) -> str:
        """Return the name of a write chunk's object within the group."""
        return f"{self.name}/{self._chunk_key(index)}"

    def _chunk_key(self, index: tuple[int, ...]) -> str:
        return self.separator.join(["c", *map(str, index)])

    def create(
        self, store: Store, name: str | None = None, attributes: Json | None = None
    ) -> zarr.Array[Any]:
        """Create the empty array in a zarr store.

        Args:
            store: where it is created.
            name: its name in the store; None for the root.
            attributes: its attributes.
        """
        import zarr
        from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

        compressors = [ZstdCodec(level=3)] if self.codec == "zstd" else []
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
        """Return the array's metadata document, with these attributes."""
        from zarr.storage import MemoryStore

        document: Json = self.create(MemoryStore(), self.name, attributes).metadata.to_dict()
        return document

    @property
    def raw(self) -> bool:
        """Whether a write chunk is its values as they are, then their crc32c."""
        return self.shards is None and self.codec == "none"

    def pieces(self, block: Array) -> Iterator[NDArray[np.uint8]]:
        """Yield the values of a raw write chunk as bytes, 1 MiB at most at once."""
        # not ascontiguousarray, which gives a single number an axis
        plain = np.asarray(block, dtype=np.dtype(self.dtype), order="C")
        flat = _padded(plain, self.chunks).reshape(-1).view(np.uint8)
        for first in range(0, flat.size, PIECE_BYTES):
            yield flat[first : first + PIECE_BYTES]

    def encode(self, index: tuple[int, ...], block: Array) -> list[Buffer]:
        """Return a write chunk that is not raw as the buffers to store, one after the other."""
        array, objects = self._scratch()
        array[self.region(index)] = block
        return [objects.pop(self._chunk_key(index)).to_bytes()]

    def check(self, index: tuple[int, ...], stored: NDArray[np.uint8]) -> bool:
        """Return whether ``stored`` decodes to a write chunk with the right checksums."""
        if self.raw:
            trailer = int.from_bytes(stored[-4:].tobytes(), "little")
            return (
                stored.size == self.write_chunk_bytes + 4 and kernel.crc32c(stored[:-4]) == trailer
            )
        try:
            return self.decode(index, stored).size > 0
        except Exception:
            return False

    def decode(self, index: tuple[int, ...], stored: NDArray[np.uint8]) -> Array:
        """Return the values of a write chunk, of the part of it that lies in the array."""
        from zarr.core.buffer import default_buffer_prototype

        array, objects = self._scratch()
        name = self._chunk_key(index)
        objects[name] = default_buffer_prototype().buffer.from_bytes(stored.tobytes())
        try:
            return np.asarray(array[self.region(index)])
        finally:
            objects.pop(name, None)

    def _scratch(self) -> tuple[zarr.Array[Any], dict[str, ZarrBuffer]]:
        """Return this thread's copy of the array in memory, and the objects of its store.

        zarr itself encodes or decodes one write chunk at a time there.
        """
        held: _Held | None = getattr(_local, "scratch", None)
        if held is None or held.layout != self:
            from zarr.storage import MemoryStore

            objects: dict[str, ZarrBuffer] = {}
            held = _local.scratch = _Held(self, self.create(MemoryStore(objects)), objects)
        return held.array, held.objects


class _Held(NamedTuple):
    """An array in memory that one thread holds on to."""

    layout: Layout
    array: zarr.Array[Any]
    objects: dict[str, ZarrBuffer]


def _padded(block: Array, shape: Shape) -> Array:
    if block.shape == shape:
        return block
    whole = np.zeros(shape, block.dtype)
    whole[tuple(slice(0, n) for n in block.shape)] = block
    return whole

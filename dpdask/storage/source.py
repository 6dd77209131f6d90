"""The sensitive array: its schema, its identity, and regions of it. Nothing here logs or raises
with a value in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.coordinates import (
    PLAIN_NAME,
    coordinate_dimensions,
    dimension_names,
    public_attributes,
)
from dpdask.storage.local import LocalStorage, ZipStorage
from dpdask.types import Array, Json, Region

__all__ = ["Region", "SourceArray", "array_names", "open_source", "write_example"]

Scratch = Callable[[tuple[int, ...], np.dtype[Any]], Array]

_KINDS = {
    "c": "complex",
    "b": "boolean",
    "S": "byte string",
    "U": "string",
    "O": "object",
    "M": "datetime",
    "m": "timedelta",
}
# any real dtype becomes one the kernels take; unsigned 64-bit integers as the nearest doubles
_WORKING = {
    "f2": "f4", "f4": "f4", "f8": "f8", "i1": "i4", "i2": "i4", "i4": "i4", "i8": "i8",
    "u1": "i4", "u2": "i4", "u4": "i8", "u8": "f8",
}  # fmt: skip


_PIECE = 8 * 2**20  # bytes
_ENCODING = {
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "dtype",
    "_ARRAY_DIMENSIONS",
}  # readers decode values by these


@dataclass(frozen=True, repr=False)
class SourceArray:
    """An opened source: facts of its schema, and the way to its regions."""

    storage: Storage
    path: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    dimension_names: tuple[str, ...] | None
    metadata_digest: str
    plain: bool
    window: tuple[int, int, int] | None = None  # axis, start, stop

    def __repr__(self) -> str:
        return "<SourceArray>"

    @property
    def working_dtype(self) -> np.dtype[Any]:
        """The dtype of blocks that :meth:`read` returns."""
        return np.dtype(_WORKING[np.dtype(self.dtype).str[1:]])

    def read(self, box: Region, scratch: Scratch | None = None) -> Array:
        """A region as a C-ordered array; missing chunks count as the fill value, as everywhere in
        zarr.

        ``scratch`` gives memory to read into; the block then is good until it is asked again.
        """
        box = self._absolute(box)
        try:
            block = self._read_plain(box, scratch) if self.plain else None
            if block is None:
                block = self._read_decoded(box, scratch)
            return np.ascontiguousarray(block, dtype=self.working_dtype)
        except MemoryError:
            raise
        except Exception:
            corner = ", ".join(str(part.start) for part in box)
        raise StoreError(
            f"the source cannot be read or decoded near index ({corner}); restore it from a copy"
        )

    @property
    def address_digest(self) -> str:
        """A digest of where the array is, the same for all windows of it."""
        whole = re.sub(r"(?<!:)/+", "/", f"{self.storage.address()}/{self.path}").rstrip(
            "/"
        )  # however it is spelled
        return hashlib.sha256(whole.encode()).hexdigest()

    def windowed(self, axis: int, start: int, stop: int) -> SourceArray:
        """The same source, restricted to part of one axis; what is written to chunks that hold none
        of it changes nothing.
        """
        if not 0 <= axis < len(self.shape) or not 0 <= start < stop <= self.shape[axis]:
            raise StoreError(
                f"source.window: {start} to {stop} of axis {axis} is no part of the source;"
                " choose another"
            )
        shape = tuple(stop - start if i == axis else n for i, n in enumerate(self.shape))
        facts = self._array().metadata.to_dict()
        sizes = [n for i, n in enumerate(self.shape) if i != axis]
        schema = json.dumps(
            {**facts, "shape": sizes, "attributes": {}, "window": [axis, start, stop]},
            sort_keys=True,
            default=str,
        )
        digest = hashlib.sha256(schema.encode()).hexdigest()
        return dataclasses.replace(
            self,
            shape=shape,
            chunks=_within(self.chunks, shape),
            window=(axis, start, stop),
            metadata_digest=digest,
            plain=False,
        )

    def _absolute(self, box: Region) -> Region:
        """A region of the window as a region of the stored array."""
        if self.window is None:
            return box
        axis, start, _ = self.window
        return tuple(
            slice(p.start + start, p.stop + start) if i == axis else p for i, p in enumerate(box)
        )

    def _names(self) -> set[str] | None:
        """The objects that hold the window, None for all."""
        if self.window is None:
            return None
        axis, start, stop = self.window
        array = self._array()
        sizes = tuple(array.shards or array.chunks)
        spans = [
            range(start // c, -(-stop // c)) if i == axis else range(-(-n // c))
            for i, (n, c) in enumerate(zip(array.shape, sizes, strict=True))
        ]
        prefix = f"{self.path}/" if self.path else ""
        offsets = np.ndindex(*(len(span) for span in spans))
        indices = (
            tuple(span[o] for span, o in zip(spans, offset, strict=True)) for offset in offsets
        )
        return {prefix + array.metadata.encode_chunk_key(index) for index in indices}

    def _array(self) -> Any:
        """The zarr array, opened once per process and schema."""
        key = (self.storage, self.path, self.metadata_digest + self.storage.version())
        if key not in _opened:
            if len(_opened) > 64:
                _opened.clear()
            _opened[key] = _open(self.storage, self.path)
        return _opened[key]

    def _read_plain(self, box: Region, scratch: Scratch | None) -> Array | None:
        """One whole uncompressed local chunk, straight from its file; None when that is not what is
        asked for.
        """
        index = []
        for part, size, length in zip(box, self.chunks, self.shape, strict=True):
            if part.start % size or part.stop - part.start != size or part.stop > length:
                return None
            index.append(part.start // size)
        array, stored = self._array(), np.dtype(self.dtype)
        assert isinstance(self.storage, LocalStorage)
        file = f"{self.storage.path}/{self.path}/{array.metadata.encode_chunk_key(tuple(index))}"
        block = np.empty(self.chunks, stored) if scratch is None else scratch(self.chunks, stored)
        try:
            with open(file, "rb", buffering=0) as opened:
                view = memoryview(block.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
                while view and (count := opened.readinto(view)):
                    view = view[count:]
                if view or opened.read(1):
                    raise ValueError
        except FileNotFoundError:
            return None
        return block

    def _read_decoded(self, box: Region, scratch: Scratch | None) -> Array:
        """Any region, by zarr."""
        if scratch is None:
            return np.asarray(self._array()[box])
        from zarr.core.buffer import default_buffer_prototype

        block = scratch(tuple(part.stop - part.start for part in box), np.dtype(self.dtype))
        self._array().get_basic_selection(
            box, out=default_buffer_prototype().nd_buffer.from_numpy_array(block)
        )
        return block

    def identity(self) -> str:
        """A digest of the schema and of every object's size and stamp: it changes whenever
        something is written.
        """
        if not self.storage.occupied():
            raise StoreError("the source is gone; restore it before going on")
        digest = hashlib.sha256(self.metadata_digest.encode())
        wanted = self._names()
        for name, size, stamp in sorted(self.storage.listing(self.path)):
            if (
                wanted is not None
                and name not in wanted
                and not isinstance(self.storage, ZipStorage)
            ):
                continue
            digest.update(f"{len(name)} {name} {size} {stamp}\n".encode())
        return digest.hexdigest()

    def boxes(self, region: Region, size: int) -> Iterator[Region]:
        """A region in pieces of about ``size`` bytes, cut where chunks end, in C order."""
        extent = [
            max(1, min(c, part.stop - part.start))
            for c, part in zip(self.chunks, region, strict=True)
        ]
        item = np.dtype(self.dtype).itemsize
        for axis in reversed(range(len(extent))):
            room = size // max(1, math.prod(extent) * item)
            wanted = -(-(region[axis].stop - region[axis].start) // self.chunks[axis])
            if room > 1 and extent[axis] == self.chunks[axis]:
                extent[axis] = self.chunks[axis] * max(1, min(wanted, room))
        cuts = [
            range(part.start - part.start % e, part.stop, e)
            for part, e in zip(region, extent, strict=True)
        ]
        for offset in np.ndindex(*(len(cut) for cut in cuts)):
            yield tuple(
                slice(max(cut[o], part.start), min(cut[o] + e, part.stop))
                for cut, o, e, part in zip(cuts, offset, extent, region, strict=True)
            )

    def pieces(self, box: Region) -> Iterator[Region]:
        """A region chunk by chunk, small chunks together: for passes that need no more than that at
        once.
        """
        return self.boxes(box, _PIECE)

    @property
    def piece_bytes(self) -> int:
        """What reading one of the :meth:`pieces` takes at most."""
        chunk = math.prod(self.chunks)
        entries = max(chunk, _PIECE // np.dtype(self.dtype).itemsize)
        return entries * self.working_dtype.itemsize + max(
            self.decoding_bytes(self.chunks), 3 * _PIECE
        )

    def decoding_bytes(self, extent: tuple[int, ...]) -> int:
        """What reading a region of that shape takes at most beyond the region: chunks that are read
        and decoded at once.

        A chunk counts twice, as stored and as decoded, and zarr works on several at a time; half as
        much again stays with the allocator.
        """
        import zarr

        if self.plain and extent == self.chunks:
            return 0
        item = np.dtype(self.dtype).itemsize
        converted = 0 if self.working_dtype == np.dtype(self.dtype) else math.prod(extent) * item
        touched = math.prod(
            min(-(-n // c), -(-e // c) + (1 if self.window or (e % c and c % e) else 0))
            for e, c, n in zip(extent, self.chunks, self.shape, strict=True)
        )
        at_once = min(touched, int(zarr.config.get("async.concurrency")))
        return converted + 3 * at_once * math.prod(self.chunks) * item

    def check_sizes(self) -> None:
        """Refuse a source with a chunk of the wrong size, where all have the same: before anything
        is charged.
        """
        if not self.plain:
            return
        expected = math.prod(self.chunks) * np.dtype(self.dtype).itemsize
        for name, size, _ in self.storage.listing(self.path):
            if not name.rpartition("/")[2].startswith((".z", "zarr.json")) and size != expected:
                raise StoreError(
                    f"source chunk {name!r} has {size} bytes, not {expected}; restore it from a"
                    " copy"
                )

    def attributes(self, names: list[str]) -> Json:
        """The named attributes; a missing one is an error."""
        found = dict(self._array().attrs)
        for name in names:
            if name in _ENCODING:
                raise StoreError(
                    f"publish.attributes: {name!r} says how the source's values are stored, and"
                    " the result's are not stored so;"
                    " drop it from the list"
                )
            if name not in found:
                raise StoreError(
                    f"publish.attributes: the source has no attribute {name!r}; drop it from the"
                    " list"
                )
            try:
                json.dumps(found[name], allow_nan=False)
            except (TypeError, ValueError):
                raise StoreError(
                    f"publish.attributes: {name!r} is no plain JSON value; drop it from the list"
                ) from None
        return {name: found[name] for name in names}

    def coordinate_schema(self, name: str) -> tuple[tuple[int, ...], tuple[str, ...], int]:
        """Shape, dimension names and size in bytes of an array beside the source; what cannot be
        published is an error.
        """
        where = f"publish.coordinates: {name!r}"
        if self._beside(name) == self.path:
            raise StoreError(
                f"{where} is the source itself, which would be published as it is; drop it from"
                " the list"
            )
        try:
            array = (
                None if not PLAIN_NAME.fullmatch(name) else _open(self.storage, self._beside(name))
            )
        except Exception:
            array = None
        if array is None:
            raise StoreError(
                f"publish.coordinates: no array {name!r} lies beside the source; drop it from"
                " the list"
            )
        dtype = np.dtype(array.dtype)
        if dtype.kind not in "biufSUTMm":
            raise StoreError(f"{where} is not a plain array of numbers, text or times; drop it")
        try:
            json.dumps(public_attributes(array), allow_nan=False)
        except (TypeError, ValueError):
            raise StoreError(
                f"{where} has units or another attribute that is no plain JSON value; correct it"
                " or drop it"
            ) from None
        return (
            tuple(array.shape),
            coordinate_dimensions(array, name),
            math.prod(array.shape) * dtype.itemsize,
        )

    def _beside(self, name: str) -> str:
        folder = self.path.rpartition("/")[0]
        return f"{folder}/{name}" if folder else name

    def coordinate(self, name: str) -> tuple[Array, tuple[str, ...], Json]:
        """A declared-public array beside the source: values, dimension names, attributes."""
        try:
            array = _open(self.storage, self._beside(name))
            values = np.asarray(array[...])
        except Exception:
            values = None
        if values is None:
            raise StoreError(
                f"publish.coordinates: {name!r} cannot be read; restore it or drop it from the list"
            )
        return values, coordinate_dimensions(array, name), public_attributes(array)


def open_source(storage: Storage, path: str) -> SourceArray:
    """Look at an array's schema, no value of it; refuse what cannot be released."""
    path = path.strip("/")
    if not storage.occupied():
        raise StoreError(
            "the source does not exist; check source.url (a relative path is relative to the"
            " current folder)"
        )
    try:
        array = _open(storage, path)
    except Exception as error:
        array, kind = None, type(error).__name__
    if array is None:
        named = f"no array {path!r}" if path else "no array at the root"
        raise StoreError(
            f"the source has {named} that zarr can open ({kind}){_what_is_there(storage)}"
        )
    dtype = np.dtype(array.dtype)
    if dtype.str[1:] not in _WORKING:
        what = "structured" if dtype.names else _KINDS.get(dtype.kind, str(dtype))
        raise StoreError(
            f"the source holds {what} values ({dtype}); only real numbers can be released:"
            " convert them first"
        )
    if not array.shape:
        raise StoreError(
            "the source is a single number without an axis; a release needs at least one axis"
        )
    chunks = tuple(array.shards or array.chunks)
    facts = json.dumps(array.metadata.to_dict(), sort_keys=True, default=str)
    codecs = _codec_names(array)
    return SourceArray(
        storage=storage,
        path=path,
        shape=tuple(array.shape),
        chunks=_within(chunks, array.shape),
        dtype=dtype.str,
        dimension_names=dimension_names(array),
        metadata_digest=hashlib.sha256(facts.encode()).hexdigest(),
        plain=not codecs
        and isinstance(storage, LocalStorage)
        and not isinstance(storage, ZipStorage)
        and array.order == "C"
        and chunks == _within(chunks, array.shape),
    )


def _within(chunks: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks no longer than the array; an axis without entries counts as one of a single entry,
    which nobody may tell apart.
    """
    return tuple(max(1, min(c, n)) for c, n in zip(chunks, shape, strict=True))


def _codec_names(array: Any) -> list[str]:
    """What stands between stored bytes and values, beyond plain bytes."""
    if array.metadata.zarr_format == 2:
        return [
            str(c)
            for c in (*(array.metadata.filters or ()), array.metadata.compressor)
            if c is not None
        ]
    endian = {
        getattr(getattr(codec, "endian", None), "value", "little")
        for codec in array.metadata.codecs
    }
    named = [type(codec).__name__ for codec in array.metadata.codecs]
    return [name for name in named if name != "BytesCodec" or endian != {"little"}]


def _what_is_there(storage: Storage) -> str:
    try:
        names = array_names(storage)
    except StoreError:
        names = []
    if not names:
        return "; check source.url and source.array"
    more = ", ..." if len(names) > 6 else ""
    return f"; its arrays are {', '.join(names[:6])}{more}: give one as source.array"


_opened: dict[tuple[Storage, str, str], Any] = {}


def _open(storage: Storage, path: str) -> Any:
    import zarr

    return zarr.open_array(store=storage.zarr_store(), path=path, mode="r")


def array_names(storage: Storage) -> list[str]:
    """The paths of all arrays of a group, sorted."""
    import zarr

    try:
        group = zarr.open_group(storage.zarr_store(), mode="r")
        return sorted(
            name for name, member in group.members(max_depth=None) if isinstance(member, zarr.Array)
        )
    except Exception as error:
        kind = type(error).__name__
    raise StoreError(f"the source is no group that zarr can open ({kind}); check its URL")


def write_example(
    folder: Path,
    *,
    name: str,
    values: Array,
    chunks: tuple[int, ...],
    dimension_names: tuple[str, ...],
    attributes: Json,
    coordinates: dict[str, Array],
) -> None:
    """A group with an array and coordinates, as a source for demos."""
    import zarr

    group = zarr.open_group(folder, mode="w-")
    group.create_array(
        name, data=values, chunks=chunks, dimension_names=dimension_names, attributes=attributes
    )
    for coordinate, along in coordinates.items():
        group.create_array(coordinate, data=along, dimension_names=(coordinate,))

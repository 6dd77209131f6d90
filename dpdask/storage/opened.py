"""Opened arrays of one process, where they are, and the identity of what they hold."""

from __future__ import annotations

import hashlib
import json
import re

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.base import Storage
from dpdask.storage.zarr_types import ZarrArray, open_zarr_array
from dpdask.types import Json

__all__ = [
    "address_digest",
    "content_identity",
    "opened_array",
    "schema_digest",
    "window_objects",
]

_MOST_OPENED = 64

_opened: dict[tuple[Storage, str, str], ZarrArray] = {}


def opened_array(storage: Storage, path: str, digest: str) -> ZarrArray:
    """Return the zarr array, opened once per process and schema.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        digest: a digest of the schema.
    """
    key = (storage, path, digest + storage.version())
    if key not in _opened:
        if len(_opened) > _MOST_OPENED:
            _opened.clear()
        _opened[key] = open_zarr_array(storage.zarr_store(), path)
    return _opened[key]


def schema_digest(document: Json) -> str:
    """Return a digest of a metadata document."""
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def address_digest(storage: Storage, path: str) -> str:
    """Return a digest of where an array is."""
    address = f"{storage.address()}/{path}"
    one_spelling = re.sub(r"(?<!:)/+", "/", address).rstrip("/")
    return hashlib.sha256(one_spelling.encode()).hexdigest()


def window_objects(array: ZarrArray, path: str, window: tuple[int, int, int]) -> set[str]:
    """Return the names of the objects that hold a window: axis, start and stop.

    Args:
        array: the opened array.
        path: its path.
        window: axis, start and stop.
    """
    sizes = array.shards or array.chunks
    spans = [range(-(-n // size)) for n, size in zip(array.shape, sizes, strict=True)]
    axis, start, stop = window
    spans[axis] = range(start // sizes[axis], -(-stop // sizes[axis]))
    prefix = f"{path}/" if path else ""
    names = set()
    for offset in np.ndindex(*(len(span) for span in spans)):
        index = tuple(span[i] for span, i in zip(spans, offset, strict=True))
        names.add(prefix + array.metadata.encode_chunk_key(index))
    return names


def content_identity(
    storage: Storage, path: str, digest: str, wanted: set[str] | None, subject: str
) -> str:
    """Return a digest of the schema and of every object's size and stamp.

    Args:
        storage: where the hierarchy is.
        path: the array's path in it.
        digest: a digest of the schema.
        wanted: the names of the objects that count, None for all.
        subject: what an error text calls the array.

    Raises:
        StoreError: nothing is there.
    """
    if not storage.occupied():
        raise StoreError(f"{subject} is gone; restore it, then run the command again")
    content = hashlib.sha256(digest.encode())
    for name, size, stamp in sorted(storage.listing(path)):
        if wanted is None or name in wanted:
            content.update(f"{len(name)} {name} {size} {stamp}\n".encode())
    return content.hexdigest()

"""The documents of a published group: everything but the released chunks, as bytes by name.

They are a function of the layout, the card and what was declared public, so they can be built
before anything is charged, and built again by whoever verifies a release.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dpdask.storage.layout import Layout
from dpdask.storage.manifest import ManifestEntry, digest_of, render_manifest, root_document_digest
from dpdask.types import Array, Json

__all__ = [
    "CARD_ARRAYS",
    "MANIFEST_ARRAY",
    "ROOT",
    "Coordinate",
    "canonical",
    "document_entries",
    "manifest_documents",
    "release_documents",
    "with_attributes",
]

ROOT = "zarr.json"
CARD_ARRAYS = "dp_release"  # the subgroup of arrays that the card refers to
MANIFEST_ARRAY = f"{CARD_ARRAYS}/manifest"

Coordinate = tuple[str, Array, tuple[str, ...], Json]


def release_documents(
    layout: Layout,
    *,
    group_attributes: Json,
    array_attributes: Json,
    coordinates: Iterable[Coordinate],
    card_arrays: Mapping[str, Array],
) -> dict[str, bytes]:
    """Every object of the group but the released chunks and the manifest: metadata, consolidated,
    and small arrays.

    Args: layout: The released array. group_attributes: The card and what else the group says of
        itself. array_attributes: The released array's attributes. coordinates: Arrays beside it
        that were declared public. card_arrays: Numbers of the noise that are too many for the card,
        by name; they go to a subgroup of their own.
    """
    import zarr
    from zarr.storage import MemoryStore

    kept: Json = {}
    store = MemoryStore(kept)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # consolidated metadata of v3 is an extension; xarray reads it
        zarr.create_group(store, attributes=group_attributes)
        zarr.create_group(store, path=CARD_ARRAYS)
        layout.create(store, layout.name, array_attributes)
        for name, values, dimensions, attributes in coordinates:
            _small_array(store, name, values, dimension_names=dimensions, attributes=attributes)
        for name, values in card_arrays.items():
            _small_array(store, f"{CARD_ARRAYS}/{name}", values)
        zarr.consolidate_metadata(store)
    return {name: buffer.to_bytes() for name, buffer in kept.items()}


def _small_array(store: Any, name: str, values: Array, **options: Any) -> None:
    """An array in one chunk, every chunk stored, whatever it holds."""
    import zarr

    config: Any = {"order": "C", "write_empty_chunks": True}
    stored = zarr.create_array(
        store,
        name=name,
        shape=values.shape,
        chunks=values.shape,
        dtype=values.dtype,
        compressors=None,
        config=config,
        **options,
    )
    stored[...] = values


def document_entries(documents: Mapping[str, bytes]) -> list[ManifestEntry]:
    """The manifest's entries of documents; the root, which will hold the manifest's root, by all
    else that it holds.
    """
    entries = [
        ManifestEntry(name, len(content), digest_of([content]))
        for name, content in documents.items()
        if name != ROOT
    ]
    return [*entries, ManifestEntry(ROOT, 0, root_document_digest(json.loads(documents[ROOT])))]


def manifest_documents(entries: Iterable[ManifestEntry]) -> dict[str, bytes]:
    """The manifest as an array of bytes, which any Zarr reader can read; consolidated metadata does
    not show it.
    """
    from zarr.storage import MemoryStore

    kept: Json = {}
    _small_array(
        MemoryStore(kept), MANIFEST_ARRAY, np.frombuffer(render_manifest(entries), np.uint8)
    )
    return {
        name: buffer.to_bytes()
        for name, buffer in kept.items()
        if name.startswith(f"{MANIFEST_ARRAY}/")
    }


def with_attributes(root: bytes, attributes: Json) -> bytes:
    """The root document with other attributes of the group; the same bytes in whatever order they
    come.
    """
    return canonical({**json.loads(root), "attributes": attributes})


def canonical(document: Json) -> bytes:
    """The one spelling of a root document: no two readers can take it for different things."""
    return json.dumps(document, indent=2, sort_keys=True).encode()

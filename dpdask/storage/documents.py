"""The documents of a published group: everything but the released chunks, as bytes by name.

They are a function of the layout, the card and what was declared public, so they can be built
before anything is charged, and rebuilt by whoever verifies a release.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

from dpdask.storage.layout import Layout
from dpdask.storage.manifest import ManifestEntry, digest_of, render_manifest, root_document_digest
from dpdask.types import Array, Json

if TYPE_CHECKING:
    from zarr.abc.store import Store
    from zarr.core.buffer import Buffer as ZarrBuffer

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
"""Name, values, dimension names and attributes of an array that was declared public."""


def release_documents(
    arrays: Iterable[tuple[Layout, Json, Array | None]],
    *,
    group_attributes: Json,
    coordinates: Iterable[Coordinate],
    card_arrays: Mapping[str, Array],
) -> dict[str, bytes]:
    """Return every object of the group except the released chunks and the manifest.

    These are metadata documents, consolidated, and small arrays.

    Args:
        arrays: the released arrays, each with its attributes, and its values where they are
            constants.
        group_attributes: the card, and the group's other attributes.
        coordinates: arrays beside them that were declared public.
        card_arrays: numbers of the noise that are too many for the card, by name; they are put
            into a subgroup of their own.
    """
    import zarr
    from zarr.storage import MemoryStore

    objects: dict[str, ZarrBuffer] = {}
    store = MemoryStore(objects)
    with warnings.catch_warnings():
        # consolidated metadata of v3 is an extension, which xarray reads
        warnings.simplefilter("ignore")
        zarr.create_group(store, attributes=group_attributes)
        zarr.create_group(store, path=CARD_ARRAYS)
        for layout, attributes, constant in arrays:
            created = layout.create(store, layout.name, attributes)
            if constant is not None:
                created[...] = constant
        for name, values, dimensions, attributes in coordinates:
            _small_array(store, name, values, dimension_names=dimensions, attributes=attributes)
        for name, values in card_arrays.items():
            _small_array(store, f"{CARD_ARRAYS}/{name}", values)
        zarr.consolidate_metadata(store)
    return {name: buffer.to_bytes() for name, buffer in objects.items()}


class _ArrayOptions(TypedDict, total=False):
    dimension_names: tuple[str, ...]
    attributes: Json


def _small_array(store: Store, name: str, values: Array, **options: Unpack[_ArrayOptions]) -> None:
    """Write an array in one chunk, which is stored even if it is empty."""
    import zarr

    stored = zarr.create_array(
        store,
        name=name,
        shape=values.shape,
        chunks=tuple(max(1, length) for length in values.shape),
        dtype=values.dtype,
        compressors=None,
        config={"order": "C", "write_empty_chunks": True},
        **options,
    )
    stored[...] = values


def document_entries(documents: Mapping[str, bytes]) -> list[ManifestEntry]:
    """Return the manifest's entries of documents.

    The root document will hold the manifest's root: its entry covers everything else in it.
    """
    entries = [
        ManifestEntry(name, len(content), digest_of([content]))
        for name, content in documents.items()
        if name != ROOT
    ]
    return [*entries, ManifestEntry(ROOT, 0, root_document_digest(json.loads(documents[ROOT])))]


def manifest_documents(entries: Iterable[ManifestEntry]) -> dict[str, bytes]:
    """Return the manifest as an array of bytes, which any Zarr reader can read.

    Consolidated metadata does not list it.
    """
    from zarr.storage import MemoryStore

    objects: dict[str, ZarrBuffer] = {}
    content = np.frombuffer(render_manifest(entries), np.uint8)
    _small_array(MemoryStore(objects), MANIFEST_ARRAY, content)
    return {
        name: buffer.to_bytes()
        for name, buffer in objects.items()
        if name.startswith(f"{MANIFEST_ARRAY}/")
    }


def with_attributes(root: bytes, attributes: Json) -> bytes:
    """Return the root document with other attributes, in canonical bytes."""
    return canonical({**json.loads(root), "attributes": attributes})


def canonical(document: Json) -> bytes:
    """Return the one spelling of a root document, so that all readers see the same content."""
    return json.dumps(document, indent=2, sort_keys=True).encode()

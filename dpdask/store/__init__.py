"""The only door to zarr: open a source, stage chunks, verify, publish, read back."""

from dpdask.store.documents import (
    CARD_ARRAYS,
    MANIFEST_ARRAY,
    ROOT,
    Coordinate,
    canonical,
    document_entries,
    manifest_documents,
    release_documents,
    with_attributes,
)
from dpdask.store.layout import Layout
from dpdask.store.local import LocalPlace
from dpdask.store.manifest import ManifestEntry, digest_of, merkle_root, parse_manifest, root_document_digest
from dpdask.store.place import NOT_A_FILE, Place
from dpdask.store.places import place_at
from dpdask.store.source import Box, SourceArray, array_names, open_source, write_example
from dpdask.store.staging import Staging, drop_claim, open_group, release_under_way

__all__ = [
    "CARD_ARRAYS",
    "MANIFEST_ARRAY",
    "NOT_A_FILE",
    "ROOT",
    "Box",
    "Coordinate",
    "Layout",
    "LocalPlace",
    "ManifestEntry",
    "Place",
    "SourceArray",
    "Staging",
    "array_names",
    "canonical",
    "digest_of",
    "document_entries",
    "drop_claim",
    "manifest_documents",
    "merkle_root",
    "open_group",
    "open_source",
    "parse_manifest",
    "place_at",
    "release_documents",
    "release_under_way",
    "root_document_digest",
    "with_attributes",
    "write_example",
]

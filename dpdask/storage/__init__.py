"""The only door to zarr: open a source, stage chunks, verify, publish, read back."""

from dpdask.storage.base import NOT_A_FILE, Place
from dpdask.storage.documents import (
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
from dpdask.storage.layout import Layout
from dpdask.storage.local import LocalPlace
from dpdask.storage.manifest import (
    ManifestEntry,
    digest_of,
    merkle_root,
    parse_manifest,
    root_document_digest,
)
from dpdask.storage.open import place_at
from dpdask.storage.source import Box, SourceArray, array_names, open_source, write_example
from dpdask.storage.staging import Staging, drop_claim, open_group, release_under_way

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

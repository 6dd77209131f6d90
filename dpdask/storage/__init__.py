"""The only package that imports zarr: open a source, stage chunks, verify, publish, read back."""

from dpdask.storage.base import NOT_A_FILE, Storage
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
from dpdask.storage.groups import array_names, open_group, write_example
from dpdask.storage.layout import Layout
from dpdask.storage.local import LocalStorage
from dpdask.storage.manifest import (
    ManifestEntry,
    digest_of,
    merkle_root,
    parse_manifest,
    root_document_digest,
)
from dpdask.storage.open import open_storage
from dpdask.storage.output_lock import OutputLock, read_output_lock, remove_output_lock
from dpdask.storage.publishers import Publisher
from dpdask.storage.source import Region, SourceArray, open_source

__all__ = [
    "CARD_ARRAYS",
    "MANIFEST_ARRAY",
    "NOT_A_FILE",
    "ROOT",
    "Coordinate",
    "Layout",
    "LocalStorage",
    "ManifestEntry",
    "OutputLock",
    "Publisher",
    "Region",
    "SourceArray",
    "Storage",
    "array_names",
    "canonical",
    "digest_of",
    "document_entries",
    "manifest_documents",
    "merkle_root",
    "open_group",
    "open_source",
    "open_storage",
    "parse_manifest",
    "read_output_lock",
    "release_documents",
    "remove_output_lock",
    "root_document_digest",
    "with_attributes",
    "write_example",
]

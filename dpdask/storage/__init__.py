"""The only package that imports zarr: open a source, stage chunks, verify, publish, read back."""

from dpdask.storage.base import NOT_A_FILE, Storage
from dpdask.storage.beside import coordinate_beside, coordinate_schema, has_beside
from dpdask.storage.cf import Decoding
from dpdask.storage.chunk_reader import ChunkReader
from dpdask.storage.coarsened import coarsened_by, grouped_by
from dpdask.storage.coordinates import CoordinateSchema, plain_name
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
from dpdask.storage.given import GivenArray
from dpdask.storage.groups import array_names, open_group, write_example
from dpdask.storage.labelled import LabelledSource, with_labels
from dpdask.storage.labels import LabelArray, open_labels
from dpdask.storage.layout import PIECE_BYTES, Layout
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
from dpdask.storage.stack import STEPS_WRITTEN, one_of_stack, steps_written
from dpdask.storage.staged_chunks import StagedChunk
from dpdask.storage.table import open_table

__all__ = [
    "CARD_ARRAYS",
    "MANIFEST_ARRAY",
    "NOT_A_FILE",
    "PIECE_BYTES",
    "ROOT",
    "STEPS_WRITTEN",
    "ChunkReader",
    "Coordinate",
    "CoordinateSchema",
    "Decoding",
    "GivenArray",
    "LabelArray",
    "LabelledSource",
    "Layout",
    "LocalStorage",
    "ManifestEntry",
    "OutputLock",
    "Publisher",
    "Region",
    "SourceArray",
    "StagedChunk",
    "Storage",
    "array_names",
    "canonical",
    "coarsened_by",
    "coordinate_beside",
    "coordinate_schema",
    "digest_of",
    "document_entries",
    "grouped_by",
    "has_beside",
    "manifest_documents",
    "merkle_root",
    "one_of_stack",
    "open_group",
    "open_labels",
    "open_source",
    "open_storage",
    "open_table",
    "parse_manifest",
    "plain_name",
    "read_output_lock",
    "release_documents",
    "remove_output_lock",
    "root_document_digest",
    "steps_written",
    "with_attributes",
    "with_labels",
    "write_example",
]

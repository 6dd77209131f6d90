"""The only door to zarr: open a source, stage chunks, verify, publish, read back."""

from dpdask.store.layout import ChunkRecord, Layout, digest_of_bytes
from dpdask.store.local import LocalPlace
from dpdask.store.place import Place
from dpdask.store.places import place_at
from dpdask.store.source import Box, SourceArray, array_names, open_source, write_example
from dpdask.store.staging import (
    Coordinate,
    Staging,
    digest_of,
    drop_claim,
    open_group,
    read_chunk_records,
    release_documents,
    release_under_way,
)

__all__ = [
    "Box",
    "ChunkRecord",
    "Coordinate",
    "Layout",
    "LocalPlace",
    "Place",
    "SourceArray",
    "Staging",
    "array_names",
    "digest_of",
    "digest_of_bytes",
    "drop_claim",
    "open_group",
    "open_source",
    "place_at",
    "read_chunk_records",
    "release_documents",
    "release_under_way",
    "write_example",
]

"""From staged chunks to a published group: all or nothing, and never over something that exists.

Control documents (the name of the release, the list of finished chunks) lie beside the output. On a local filesystem chunks are
staged there too and the finished group is renamed into place; on an object store they go straight to their keys, invisible to
readers until the root metadata, put last and only if absent.
"""

from __future__ import annotations

import errno
import hashlib
import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdask.errors import StoreError, VerificationFailed
from dpdask.store.layout import ChunkRecord, Layout, digest_of_bytes
from dpdask.store.local import LocalPlace
from dpdask.store.place import Place

__all__ = ["Coordinate", "Staging", "digest_of", "open_group", "read_chunk_records", "release_documents"]

SUFFIX = ".dpdask-staging"
_PLAN = "release.json"
_ROOT = "zarr.json"

Coordinate = tuple[str, np.ndarray[Any, Any], tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True, repr=False)
class Staging:
    """The unfinished release of one output."""

    output: Place
    control: Place
    data: Place

    @classmethod
    def of(cls, output: Place) -> Staging:
        """The staging of an output, whether there is one yet or not."""
        control = output.beside(SUFFIX)
        return cls(output, control, control.inside("release") if isinstance(control, LocalPlace) else output)

    def __repr__(self) -> str:
        return "<Staging>"

    def under_way(self) -> str | None:
        """The public name of the release under way, None when there is none."""
        content = self.control.read(_PLAN)
        return None if content is None else str(json.loads(content)["release"])

    def begin(self, release: str) -> bool:
        """Claim the output for a release; whether this call did. Another release under way is an error."""
        try:
            if self.control.create(_PLAN, json.dumps({"release": release}).encode()):
                return True
        except OSError as error:
            raise StoreError(f"cannot stage beside the output: {error.strerror}; choose another output.url") from None
        if self.under_way() != release:
            raise StoreError("another release to this output is under way; `dpdask resume` or `dpdask abort` it first")
        return False

    def note(self, name: str, document: dict[str, Any]) -> None:
        """Keep a document beside the plan."""
        _write(self.control, name, json.dumps(document, allow_nan=False).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """A document kept by :meth:`note`."""
        content = self.control.read(name)
        return None if content is None else json.loads(content)

    def put(self, layout: Layout, index: tuple[int, ...], block: np.ndarray[Any, Any]) -> ChunkRecord:
        """Encode and store one write unit."""
        key, buffers = layout.key(index), layout.encode(index, block)
        digest = digest_of_bytes(buffers)
        _write(self.data, key, buffers)
        return key, sum(len(buffer) for buffer in buffers), digest

    def check(self, layout: Layout, index: tuple[int, ...], record: ChunkRecord) -> bool:
        """Whether a staged unit is there, decodes, and is the one that was recorded."""
        with self.data.viewed(record[0]) as stored:
            if stored is None or stored.size != record[1]:
                return False
            try:
                return layout.check(index, stored) == record[2]
            except VerificationFailed:
                return False

    def record(self, segment: int, records: Iterable[ChunkRecord]) -> None:
        """Keep the records of finished units, as one more segment of the manifest."""
        _write(self.control, f"manifest-{segment:06d}.json", json.dumps(list(records)).encode())

    def recorded(self) -> tuple[int, list[ChunkRecord]]:
        """How many segments there are and the records they hold."""
        names = sorted(name for name, _, _ in self.control.listing() if name.startswith("manifest-") and name.endswith(".json"))
        records: list[ChunkRecord] = []
        for name in names:
            content = self.control.read(name)
            if content:
                records += [(key, size, digest) for key, size, digest in json.loads(content)]
        last = int(names[-1][9:-5]) + 1 if names else 0
        return last, records

    def publish(self, documents: dict[str, bytes]) -> bool:
        """Put the documents, the root metadata last, and make the release visible at once; False if something is there."""
        try:
            for name, content in sorted(documents.items(), key=lambda item: (item[0].endswith(_ROOT), -item[0].count("/"))):
                if name != _ROOT:
                    self.data.write(name, content)
            if isinstance(self.data, LocalPlace):
                assert isinstance(self.output, LocalPlace)
                self.data.write(_ROOT, documents[_ROOT])
                self.data.flush()
                return self.data.move_to(self.output)
            return self.data.create(_ROOT, documents[_ROOT])
        except OSError as error:
            raise StoreError(f"the release cannot be published: {error.strerror}; mend that and `dpdask resume`") from None

    def discard(self) -> None:
        """Remove the control documents and whatever is staged; what is published stays."""
        if self.data is self.output and self.output.read(_ROOT) is None:
            self.output.delete()
        self.control.delete()


def _write(place: Place, name: str, content: Any) -> None:
    """Put a file, or say what is wrong with the place by a text of ours alone."""
    try:
        place.write(name, content)
        return
    except OSError as error:
        code = error.errno
    if code == errno.ENOENT:
        raise StoreError("the staging beside the output is gone: the release was finished or aborted elsewhere")
    if code == errno.ENOSPC or code == errno.EDQUOT:
        raise StoreError("the output's disk is full; free some space and `dpdask resume`, or `dpdask abort`")
    raise StoreError("the output cannot be written; mend that and `dpdask resume`, or `dpdask abort`")


def release_documents(
    layout: Layout,
    *,
    group_attributes: dict[str, Any],
    array_attributes: dict[str, Any],
    coordinates: Iterable[Coordinate],
) -> dict[str, bytes]:
    """Every object of the group but the released chunks, by name: metadata, consolidated, and coordinate arrays."""
    import zarr
    from zarr.storage import MemoryStore

    kept: dict[str, Any] = {}
    store = MemoryStore(kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # consolidated metadata of v3 is an extension; xarray reads it
        zarr.create_group(store, attributes=group_attributes)
        layout.create(store, layout.name, array_attributes)
        for name, values, dimensions, attributes in coordinates:
            stored = zarr.create_array(
                store,
                name=name,
                shape=values.shape,
                chunks=values.shape,
                dtype=values.dtype,
                compressors=None,
                dimension_names=dimensions,
                attributes=attributes,
                config={"order": "C", "write_empty_chunks": True},
            )
            stored[...] = values
        zarr.consolidate_metadata(store)
    return {name: buffer.to_bytes() for name, buffer in kept.items()}


def digest_of(records: Iterable[ChunkRecord]) -> str:
    """The manifest digest: SHA-256 over every stored chunk's key, size and digest, sorted by key."""
    manifest = hashlib.sha256()
    for key, size, digest in sorted(records):
        manifest.update(f"{key} {size} {digest}\n".encode())
    return manifest.hexdigest()


def read_chunk_records(place: Place) -> list[ChunkRecord]:
    """The records of every stored chunk of a published group, read afresh."""
    found = []
    for name, _, _ in place.listing():
        if not name.endswith(_ROOT):
            with place.viewed(name) as content:
                if content is not None:
                    found.append((name, content.size, digest_of_bytes([content])))
    return found


def open_group(place: Place) -> Any:
    """A published group for reading."""
    import zarr

    if place.read(_ROOT) is None:
        raise StoreError("there is no published release; check the path or URL")
    return zarr.open_group(place.zarr_store(), mode="r")

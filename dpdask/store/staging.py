"""From staged chunks to a published group: all or nothing, and never over something that exists.

A claim beside the output says which release is under way to it; everything else that a release stages (finished chunks, their
list, noise directions) lies under its own name, so that no release ever takes up what another one left. On a local filesystem
chunks are staged there too and the finished group is renamed into place; on an object store they go straight to their keys,
each only if absent, and stay invisible to readers until the root metadata, put last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdask.errors import ClaimDamaged, StoreError, VerificationFailed
from dpdask.store.layout import ChunkRecord, Layout, digest_of_bytes
from dpdask.store.local import LocalPlace
from dpdask.store.place import Place

__all__ = [
    "Coordinate",
    "Staging",
    "digest_of",
    "drop_claim",
    "open_group",
    "read_chunk_records",
    "release_documents",
    "release_under_way",
]

SUFFIX = ".dpdask-staging"
_CLAIM = "release.json"
_ROOT = "zarr.json"
_FOREIGN = (
    "the output holds something that is not of this release: something else writes to it, or it was damaged; stop that, `dpdask"
    " abort`, and publish elsewhere"
)

Coordinate = tuple[str, np.ndarray[Any, Any], tuple[str, ...], dict[str, Any]]


def release_under_way(output: Place) -> str | None:
    """The public name of the release under way to an output, None when there is none."""
    content = output.beside(SUFFIX).read(_CLAIM)
    if content is None:
        return None
    try:
        return str(json.loads(content)["release"])
    except (ValueError, KeyError, TypeError):
        raise ClaimDamaged(
            "the note beside the output that a release is under way is damaged; `dpdask abort` removes it, and `dpdask run`"
            " goes on with what was charged"
        ) from None


def drop_claim(output: Place) -> None:
    """Remove a damaged claim."""
    output.beside(SUFFIX).remove(_CLAIM)


@dataclass(frozen=True, repr=False)
class Staging:
    """The unfinished release ``name`` of one output."""

    output: Place
    name: str
    control: Place
    work: Place
    data: Place

    @classmethod
    def of(cls, output: Place, name: str) -> Staging:
        """The staging of a release, whether it has begun or not."""
        control = output.beside(SUFFIX)
        work = control.inside(name)
        data = LocalPlace(work.path / "release", scratch=work.path) if isinstance(work, LocalPlace) else output
        return cls(output, name, control, work, data)

    def __repr__(self) -> str:
        return "<Staging>"

    def begin(self) -> bool:
        """Claim the output; whether this call did. Another release under way is an error."""
        try:
            self.control.make()
            claimed = self.control.create(_CLAIM, self._claim())
            if not claimed and not self.claimed():
                raise StoreError("another release to this output is under way; `dpdask resume` or `dpdask abort` it first")
            self.work.make()
        except OSError as error:
            raise StoreError(f"cannot stage beside the output: {error.strerror}; choose another output.url") from None
        for name in self.control.names() - {_CLAIM, self.name}:  # of releases that were given up
            self.control.inside(name).delete()
        return claimed

    def _claim(self) -> bytes:
        return json.dumps({"release": self.name}).encode()

    def claimed(self) -> bool:
        """Whether the output is claimed for this release."""
        return release_under_way(self.output) == self.name

    def settle(self, name: str, document: dict[str, Any]) -> dict[str, Any]:
        """Keep a document, unless there is one: what is kept, which is the same for everyone who asks."""
        content = json.dumps(document).encode()
        try:
            if self.work.create(name, content):
                return document
        except OSError as error:
            raise _plain(error) from None
        return self.settled(name) or document

    def settled(self, name: str) -> dict[str, Any] | None:
        """A document kept by :meth:`settle`."""
        content = self.work.read(name)
        return None if content is None else json.loads(content)

    def put(self, layout: Layout, index: tuple[int, ...], block: np.ndarray[Any, Any]) -> ChunkRecord:
        """Encode and store one write unit."""
        key, buffers = layout.key(index), layout.encode(index, block)
        record = key, sum(len(buffer) for buffer in buffers), digest_of_bytes(buffers)
        if isinstance(self.data, LocalPlace):
            _write(self.data, key, buffers)
        elif not self.data.create(key, b"".join(buffers)):  # a retry finds its own bytes; a release never writes over another's
            with self.data.viewed(key) as stored:
                if stored is None or (stored.size, digest_of_bytes([stored])) != record[1:]:
                    raise StoreError(_FOREIGN)
        return record

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
        _write(self.work, f"manifest-{segment:06d}.json", json.dumps(list(records)).encode())

    def recorded(self) -> tuple[int, list[ChunkRecord]]:
        """How many segments there are and the records they hold."""
        listed = (name for name, _, _ in self.work.listing())
        names = sorted(name for name in listed if name.startswith("manifest-") and name.endswith(".json"))
        records: list[ChunkRecord] = []
        for name in names:
            with contextlib.suppress(ValueError, TypeError):  # what a power cut left of a segment counts for nothing
                records += [(key, size, digest) for key, size, digest in json.loads(self.work.read(name) or b"[]")]
        last = int(names[-1][9:-5]) + 1 if names else 0
        return last, records

    def check_alone(self, chunks: Iterable[ChunkRecord]) -> None:
        """Nothing but the release's own chunks and metadata is where they are: on an object store others can write there."""
        stored = {name for name, _, _ in self.data.listing()} if self.data is self.output else set()
        if {name for name in stored if not name.endswith(_ROOT)} - {record[0] for record in chunks}:
            raise StoreError(_FOREIGN)

    def make_ready(self, documents: dict[str, bytes]) -> None:
        """Put all documents where :meth:`publish` needs them, safe from a power cut; nobody sees the release yet."""
        local = isinstance(self.data, LocalPlace)
        for name, content in documents.items():
            if name == _ROOT:
                _write(self.data if local else self.work, name, content)
            elif local:
                _write(self.data, name, content)
            elif not self.data.create(name, content) and self.data.read(name) != content:
                raise StoreError(_FOREIGN)
        try:
            self.data.flush()
        except OSError as error:
            raise _plain(error) from None

    def ready(self) -> dict[str, Any] | None:
        """The attributes of the root that :meth:`make_ready` put, as long as :meth:`publish` has not made it visible."""
        root = self.data if isinstance(self.data, LocalPlace) else self.work
        try:
            return dict(json.loads(root.read(_ROOT) or b"{}")["attributes"])
        except (ValueError, KeyError, TypeError):
            return None

    def publish(self) -> bool:
        """Make a ready release visible at once; False if something is there already."""
        try:
            if isinstance(self.data, LocalPlace):
                assert isinstance(self.output, LocalPlace)
                return self.data.move_to(self.output)
            root = self.work.read(_ROOT)
            return root is not None and self.output.create(_ROOT, root)
        except OSError as error:
            raise StoreError(f"the release cannot be published: {error.strerror}; mend that and `dpdask resume`") from None

    def discard(self, *, charged: bool = True) -> None:
        """Remove what this release staged, and its claim; what is published stays, and so does what others staged.

        On an object store the chunks of a charged release go too: its prefix was empty when it was charged.
        """
        if charged and self.data is self.output and self.output.read(_ROOT) is None:
            try:
                ours = release_under_way(self.output) in (self.name, None)
            except ClaimDamaged:
                ours = False
            if ours:
                self.output.delete()
        for name in self.control.names():  # a deletion that was cut off left another name
            if name.startswith(self.name):
                self.control.inside(name).delete()
        if isinstance(self.control, LocalPlace):
            self.control.remove_if(_CLAIM, self._claim())
            self.control.remove_empty()
        elif self.control.read(_CLAIM) == self._claim():
            self.control.remove(_CLAIM)


def _write(place: Place, name: str, content: Any) -> None:
    try:
        place.write(name, content)
    except OSError as error:
        plain = _plain(error)
    else:
        return
    raise plain


def _plain(error: OSError) -> StoreError:
    """What is wrong with a place, by a text of ours alone."""
    if error.errno == errno.ENOENT:
        return StoreError("the staging beside the output is gone: the release was finished or aborted elsewhere")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError("the output's disk is full; free some space and `dpdask resume`, or `dpdask abort`")
    return StoreError("the output cannot be written; mend that and `dpdask resume`, or `dpdask abort`")


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


def open_group(place: Place, *, consolidated: bool | None = None) -> Any:
    """A published group for reading; ``consolidated`` says whether to trust its copy of all metadata, if there is one."""
    import zarr

    if place.read(_ROOT) is None:
        raise StoreError("there is no published release; check the path or URL")
    try:
        return zarr.open_group(place.zarr_store(), mode="r", use_consolidated=consolidated)
    except Exception as error:
        kind = type(error).__name__
    raise StoreError(f"the group's metadata cannot be read ({kind}); restore it from a copy")

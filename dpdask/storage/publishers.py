"""From staged chunks to a published group: all or nothing, and never over something that exists.

A lock beside the output names the release that is under way to it. Everything else that a release
stages (finished chunks, their manifest) lies under its own id, so that no release ever resumes from
what another one left.

On a filesystem chunks are staged beside the output and the finished group is renamed into place. On
an object store they are put straight to their keys, each only if absent, and stay invisible to
readers until the root document, put last.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpdask.errors import StorageFault, StoreError
from dpdask.keystream import Seal
from dpdask.storage.base import NOT_A_FILE, Storage
from dpdask.storage.documents import ROOT
from dpdask.storage.layout import Layout
from dpdask.storage.local import LocalStorage
from dpdask.storage.manifest import ManifestEntry, digest_of
from dpdask.storage.output_lock import LOCK_FILE, STAGING_SUFFIX, OutputLock
from dpdask.storage.staged_chunks import StagedChunk, stage_pieces, staged_or_none
from dpdask.types import Array

__all__ = ["Publisher", "PutIfAbsentPublisher", "RenamePublisher"]

# The staging of a release, also one that is half removed, and a file that is half written.
_OWN_NAMES = re.compile(r"[0-9a-f]{32}(\..*)?|[0-9a-f]{24}\.part")
_SEGMENT_NAMES = re.compile(r"manifest-[0-9]{6}\.json")


@dataclass(frozen=True, repr=False)
class Publisher(abc.ABC):
    """The unfinished release of one output: chunks are put, made ready, then published at once.

    Args:
        output: where the group will be visible.
        release_id: the release's public random name.
        lock: the lock on the output.
        work: what the release stages beside the output.
        data: where chunks and documents are put.
    """

    output: Storage
    release_id: str
    lock: OutputLock
    work: Storage
    data: Storage

    @staticmethod
    def of(output: Storage, release_id: str) -> Publisher:
        """Return the publisher of a release to an output, whether the release has begun or not."""
        if isinstance(output, LocalStorage):
            return RenamePublisher.beside(output, release_id)
        return PutIfAbsentPublisher.beside(output, release_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    @property
    def control(self) -> Storage:
        """The staging folder beside the output: the lock, and what releases stage."""
        return self.lock.folder

    def lock_output(self) -> bool:
        """Lock the output for this release, and return whether this call did.

        Raises:
            StoreError: another release is under way, or nothing can be staged there.
        """
        self._check_no_links()
        try:
            self.control.make()
            locked = self.lock.acquire()
            self.work.make()
        except OSError as error:
            raise StorageFault(
                f"cannot stage beside the output: {error.strerror}; choose another output.url"
            ) from None
        for name in self.control.names() - {LOCK_FILE, self.release_id}:
            if _OWN_NAMES.fullmatch(name):  # left by aborted releases; other files are not ours
                self.control.inside(name).delete()
        return locked

    def _check_no_links(self) -> None:
        """Refuse a staging folder that leads elsewhere: files of others would be removed there."""
        if any(storage.is_link() for storage in (self.control, self.work, self.data)):
            raise StoreError(
                "the staging beside the output is a link to somewhere else; remove it, or choose"
                " another output.url"
            )

    def holds_lock(self) -> bool:
        """Return whether the output is locked for this release."""
        return self.lock.held()

    def put(self, layout: Layout, index: tuple[int, ...], block: Array) -> ManifestEntry | None:
        """Encode and store one write chunk; return its entry, None if other bytes are there.

        A retry finds its own bytes. Nothing is ever replaced: bytes that differ were damaged or
        planted, or their writer saw another source, and only the driver may :meth:`remove` them.

        Args:
            layout: the released array.
            index: which write chunk.
            block: its values.
        """
        staged = self.stage(layout, index, block)
        return None if staged is None else staged.entry

    def stage(self, layout: Layout, index: tuple[int, ...], block: Array) -> StagedChunk | None:
        """Store one write chunk as :meth:`put` does; a raw one is read back too."""
        if layout.raw:
            return self.stage_pieces(layout, index, layout.pieces(block))
        key, buffers = layout.key(index), layout.encode(index, block)
        entry = ManifestEntry(key, sum(len(buffer) for buffer in buffers), digest_of(buffers))
        with _storage_errors():
            if self.data.create(key, buffers, durable=False):
                return StagedChunk(entry)
        return staged_or_none(self.data, entry)

    def stage_pieces(
        self, layout: Layout, index: tuple[int, ...], pieces: Iterable[NDArray[np.uint8]]
    ) -> StagedChunk | None:
        """Store one raw write chunk piece by piece, as :meth:`stage` does.

        Args:
            layout: the released array.
            index: which write chunk.
            pieces: its bytes in order, computed as they are asked for.
        """
        with _storage_errors():
            return stage_pieces(self.data, layout, index, pieces)

    def changed(self, stamps: dict[str, str]) -> set[str]:
        """Return the staged chunks that do not have the stamps with which they were read back."""
        return {key for key, stamp in stamps.items() if self.data.stamp(key) != stamp}

    def remove(self, keys: Iterable[str]) -> None:
        """Remove staged objects that must not be published, while the output is locked for us."""
        if not self.holds_lock():
            raise StoreError(_STAGING_GONE)
        for key in keys:
            self.data.remove(key)

    def check(
        self, layout: Layout, index: tuple[int, ...], entry: ManifestEntry, *, digest: bool
    ) -> bool:
        """Return whether a staged write chunk exists and decodes with the right checksums.

        Args:
            layout: the released array.
            index: which write chunk.
            entry: its entry in the manifest.
            digest: whether its digest must be the recorded one too. What this run wrote needs no
                such check; what an earlier run left was outside the trust boundary since.
        """
        with self.data.viewed(entry.key) as stored:
            if stored is None or stored.size != entry.size or not layout.check(index, stored):
                return False
            return not digest or digest_of([stored]) == entry.digest

    def append_manifest(self, entries: Iterable[ManifestEntry], seal: Seal) -> None:
        """Append the entries of finished write chunks, as one more sealed segment."""
        content = json.dumps(list(entries)).encode()
        with _storage_errors():
            for segment in itertools.count(len(self._segments())):
                name = f"manifest-{segment:06d}.json"
                if self.work.create(name, seal.close(name, content), durable=False):
                    return

    def read_manifest(self, seal: Seal) -> list[ManifestEntry]:
        """Return the entries of all segments; one that this release did not seal is ignored."""
        entries: list[ManifestEntry] = []
        for name in self._segments():
            content = seal.open(name, self.work.read(name) or b"")
            entries += [ManifestEntry(*entry) for entry in json.loads(content or b"[]")]
        return entries

    def _segments(self) -> list[str]:
        return sorted(name for name in self.work.names() if _SEGMENT_NAMES.fullmatch(name))

    def check_no_foreign_objects(self, keys: set[str]) -> None:
        """Raise :class:`StoreError` if others wrote objects that would be published with ours."""
        _refuse(self._foreign_objects(keys))

    def ready(self, documents: dict[str, bytes], keys: set[str]) -> None:
        """Put all documents where :meth:`publish` needs them; the release is not visible yet.

        Guarantee: what is ready survives a power cut, and nothing but the objects of the release
        will be published.

        Args:
            documents: every document by name.
            keys: the names of all objects of the release, documents and chunks.
        """
        with _storage_errors():
            for name, content in documents.items():
                self._put_document(name, content)
            sizes = {name: size for name, size, _ in self.data.listing()}
            _refuse({name for name in keys if sizes.get(name) == NOT_A_FILE})
            self._keep_only(keys, set(sizes) - keys)
            self.data.flush()

    def ready_root(self) -> bytes | None:
        """Return the root document that :meth:`ready` put, None once it is published."""
        return self._root_folder.read(ROOT)

    def publish(self, root: bytes) -> bool:
        """Make a ready release visible at once; return False if something is at the output.

        Guarantee: readers see all of the release or nothing, and nothing is replaced.
        """
        try:
            return self._make_visible(root)
        except OSError as error:
            raise StorageFault(
                f"the release cannot be published: {error.strerror}; correct that and `dpdask"
                " resume`"
            ) from None

    def discard(self, *, charged: bool = True) -> None:
        """Remove what this release staged, and its lock; published objects stay. Idempotent.

        Args:
            charged: whether the release was charged, so that unpublished objects at the output
                are its own: the output was empty when it was charged.
        """
        if charged:
            self._discard_output()
        for name in self.control.names():  # an interrupted deletion leaves a longer name
            if name.startswith(self.release_id):
                self.control.inside(name).delete()
        self.lock.release()

    @property
    @abc.abstractmethod
    def _root_folder(self) -> Storage:
        """Where the root document waits for publication."""

    @abc.abstractmethod
    def withdraw(self) -> bool:
        """Take away what could still be published; return whether nothing can become visible.

        What was published before this call stays visible: look at the output afterwards.
        """

    @abc.abstractmethod
    def _foreign_objects(self, keys: set[str]) -> set[str]:
        """Return objects of others that this publisher may not remove and would publish."""

    @abc.abstractmethod
    def _put_document(self, name: str, content: bytes) -> None:
        """Put one document where publication needs it."""

    @abc.abstractmethod
    def _keep_only(self, keys: set[str], foreign: set[str]) -> None:
        """Remove or refuse foreign objects; the output must still be locked for this release."""

    @abc.abstractmethod
    def _make_visible(self, root: bytes) -> bool:
        """Publish; return False if something is at the output already."""

    @abc.abstractmethod
    def _discard_output(self) -> None:
        """Remove unpublished objects of a charged release from the output."""


@dataclass(frozen=True, repr=False)
class RenamePublisher(Publisher):
    """A release to a filesystem: staged beside the output, then renamed into place."""

    output: LocalStorage
    work: LocalStorage
    data: LocalStorage

    @classmethod
    def beside(cls, output: LocalStorage, release_id: str) -> RenamePublisher:
        """Return the publisher that stages in a folder beside ``output``."""
        control = output.beside(STAGING_SUFFIX)
        work = control.inside(release_id)
        data = LocalStorage(work.path / "release", scratch=work.path, links=False)
        return cls(output, release_id, OutputLock(control, release_id), work, data)

    @property
    def _root_folder(self) -> Storage:
        return self.data

    def withdraw(self) -> bool:
        """Remove the staged folder: what is gone cannot be renamed into place any more."""
        if not self.holds_lock():
            return False
        self.work.delete()
        return True

    def _foreign_objects(self, keys: set[str]) -> set[str]:
        """Return nothing: foreign files in our own folder are removed when it is made ready."""
        return set()

    def _put_document(self, name: str, content: bytes) -> None:
        self.data.write(name, content)

    def _keep_only(self, keys: set[str], foreign: set[str]) -> None:
        self.remove(foreign)

    def _make_visible(self, root: bytes) -> bool:
        return self.data.move_to(self.output)

    def _discard_output(self) -> None:
        """Do nothing: an unpublished release has nothing at the output."""


@dataclass(frozen=True, repr=False)
class PutIfAbsentPublisher(Publisher):
    """A release to an object store or to memory: put to its keys, its root document last."""

    @classmethod
    def beside(cls, output: Storage, release_id: str) -> PutIfAbsentPublisher:
        """Return the publisher that puts chunks to ``output`` itself."""
        control = output.beside(STAGING_SUFFIX)
        lock = OutputLock(control, release_id)
        return cls(output, release_id, lock, control.inside(release_id), output)

    @property
    def _root_folder(self) -> Storage:
        return self.work

    def withdraw(self) -> bool:
        """Return False: another run may hold the root document and put it at any moment."""
        return False

    def _foreign_objects(self, keys: set[str]) -> set[str]:
        """Return all other objects: others can write under the prefix too."""
        return {name for name, _, _ in self.data.listing()} - keys

    def _put_document(self, name: str, content: bytes) -> None:
        if name == ROOT:
            self.work.write(name, content)
        elif not self.data.create(name, content) and self.data.read(name) != content:
            _refuse({name})

    def _keep_only(self, keys: set[str], foreign: set[str]) -> None:
        _refuse(foreign)
        self.remove(())  # nothing to remove, but the lock must be ours

    def _make_visible(self, root: bytes) -> bool:
        return self.output.create(ROOT, root)

    def _discard_output(self) -> None:
        if self.output.read(ROOT) is None and self.lock.held_or_free():
            self.output.delete()


_STAGING_GONE = (
    "the staging beside the output is gone: the release was finished or aborted elsewhere"
)


def _refuse(foreign: set[str]) -> None:
    if foreign:
        raise StoreError(
            f"the output holds {min(foreign)!r}, which is not of this release: something else"
            " writes to it, or it was damaged; stop that and remove it, then `dpdask resume`, or"
            " `dpdask abort` and publish elsewhere"
        )


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    """Turn errors of the filesystem into a text of ours that names no path."""
    try:
        yield
    except OSError as error:
        raise StorageFault(_reason(error)) from None


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return _STAGING_GONE
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the output's disk is full; free some space and `dpdask resume`, or `dpdask abort`"
    return "the output cannot be written; correct that and `dpdask resume`, or `dpdask abort`"

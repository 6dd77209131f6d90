"""From staged chunks to a published group: all or nothing, and never over something that exists.

A claim beside the output says which release is under way to it; everything else that a release
stages (finished chunks, their list) lies under its own name, so that no release ever takes up what
another one left. On a local filesystem chunks are staged there too and the finished group is
renamed into place; on an object store they go straight to their keys, each only if absent, and stay
invisible to readers until the root metadata, put last.
"""

from __future__ import annotations

import errno
import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dpdask.errors import OutputLockDamaged, StoreError
from dpdask.keystream import Seal
from dpdask.storage.base import NOT_A_FILE, Storage
from dpdask.storage.documents import ROOT
from dpdask.storage.layout import Layout
from dpdask.storage.local import LocalStorage
from dpdask.storage.manifest import ManifestEntry, digest_of
from dpdask.types import Array

__all__ = ["Publisher", "open_group", "read_output_lock", "remove_output_lock"]

SUFFIX = ".dpdask-staging"
_NAME = re.compile(r"[0-9a-f]{32}")
_OURS = re.compile(
    r"[0-9a-f]{32}(\..*)?|[0-9a-f]{24}\.part"
)  # of a release, also half removed; a file half written
_LOCK = "release.json"
_FOREIGN = (
    "the output holds {what!r}, which is not of this release: something else writes to it, or it"
    " was damaged; stop that and"
    " remove it, then `dpdask resume`, or `dpdask abort` and publish elsewhere"
)


def read_output_lock(output: Storage) -> str | None:
    """The public name of the release under way to an output, None when there is none."""
    content = output.beside(SUFFIX).read(_LOCK)
    if content is None:
        return None
    try:
        name = str(json.loads(content)["release"])
    except (ValueError, KeyError, TypeError):
        name = ""
    if not _NAME.fullmatch(name):  # a planted one could lead anywhere
        raise OutputLockDamaged(
            "the note beside the output that a release is under way is damaged; `dpdask abort`"
            " removes it, and `dpdask run`"
            " goes on with what was charged"
        )
    return name


def remove_output_lock(output: Storage) -> None:
    """Remove a damaged claim."""
    output.beside(SUFFIX).remove(_LOCK)


@dataclass(frozen=True, repr=False)
class Publisher:
    """The unfinished release ``name`` of one output."""

    output: Storage
    name: str
    control: Storage
    work: Storage
    data: Storage

    @classmethod
    def of(cls, output: Storage, name: str) -> Publisher:
        """The staging of a release, whether it has begun or not."""
        control = output.beside(SUFFIX)
        work = control.inside(name)
        data = (
            LocalStorage(work.path / "release", scratch=work.path, links=False)
            if isinstance(work, LocalStorage)
            else output
        )
        return cls(output, name, control, work, data)

    def __repr__(self) -> str:
        return "<Publisher>"

    def lock_output(self) -> bool:
        """Claim the output; whether this call did. Another release under way is an error."""
        self._check_no_links()
        try:
            self.control.make()
            locked = self.control.create(_LOCK, self._lock())
            if not locked and not self.holds_lock():
                raise StoreError(
                    "another release to this output is under way; `dpdask resume` or `dpdask"
                    " abort` it first"
                )
            self.work.make()
        except OSError as error:
            raise StoreError(
                f"cannot stage beside the output: {error.strerror}; choose another output.url"
            ) from None
        for name in self.control.names() - {_LOCK, self.name}:
            if _OURS.fullmatch(
                name
            ):  # of releases that were given up; nothing else is ours to remove
                self.control.inside(name).delete()
        return locked

    def _check_no_links(self) -> None:
        """Refuse a staging folder that leads elsewhere: what is written and removed there would be
        somebody else's.
        """
        for storage in (self.control, self.work, self.data):
            if isinstance(storage, LocalStorage) and storage.path.is_symlink():
                raise StoreError(
                    "the staging beside the output is a link to somewhere else; remove it, or"
                    " choose another output.url"
                )

    def _lock(self) -> bytes:
        return json.dumps({"release": self.name}).encode()

    def holds_lock(self) -> bool:
        """Whether the output is claimed for this release."""
        return read_output_lock(self.output) == self.name

    def put(self, layout: Layout, index: tuple[int, ...], block: Array) -> ManifestEntry | None:
        """Encode and store one write unit where there is none; None where other bytes than these
        are there already.

        A retry finds its own bytes. Nothing is ever replaced: what differs was damaged or planted,
        or its writer saw another source, and only the driver may decide to :meth:`remove` it.
        """
        key, buffers = layout.key(index), layout.encode(index, block)
        entry = ManifestEntry(key, sum(len(buffer) for buffer in buffers), digest_of(buffers))
        try:
            if self.data.create(key, buffers, durable=False):
                return entry
        except OSError as error:
            raise _plain(error) from None
        with self.data.viewed(key) as stored:
            same = stored is not None and (stored.size, digest_of([stored])) == (
                entry.size,
                entry.digest,
            )
        return entry if same else None

    def remove(self, keys: Iterable[str]) -> None:
        """Remove staged units that are not what they should be, as long as the output is claimed
        for this release.
        """
        if not self.holds_lock():
            raise StoreError(
                "the staging beside the output is gone: the release was finished or aborted"
                " elsewhere"
            )
        for key in keys:
            self.data.remove(key)

    def check(
        self, layout: Layout, index: tuple[int, ...], entry: ManifestEntry, *, digest: bool
    ) -> bool:
        """Whether a staged unit is there and decodes, its checksums in order; with ``digest``, that
        it is the one recorded.

        What this very run wrote needs no digest; what an earlier one left lay outside the trust
        boundary meanwhile.
        """
        with self.data.viewed(entry.key) as stored:
            if stored is None or stored.size != entry.size or not layout.check(index, stored):
                return False
            return not digest or digest_of([stored]) == entry.digest

    def append_manifest(self, entries: Iterable[ManifestEntry], seal: Seal) -> None:
        """Keep the entries of finished units, as one more sealed segment of the manifest."""
        content = json.dumps(list(entries)).encode()
        try:
            for segment in itertools.count(len(self._segments())):
                name = f"manifest-{segment:06d}.json"
                if self.work.create(name, seal.close(name, content), durable=False):
                    return
        except OSError as error:
            raise _plain(error) from None

    def read_manifest(self, seal: Seal) -> list[ManifestEntry]:
        """The entries of all segments; one that this release did not seal counts for nothing."""
        entries: list[ManifestEntry] = []
        for name in self._segments():
            content = seal.open(name, self.work.read(name) or b"")
            entries += [ManifestEntry(*entry) for entry in json.loads(content or b"[]")]
        return entries

    def _segments(self) -> list[str]:
        return sorted(
            name for name in self.work.names() if re.fullmatch(r"manifest-[0-9]{6}\.json", name)
        )

    def check_no_foreign_objects(self, keys: set[str]) -> None:
        """Nothing but the release's own objects is where they are: on an object store others can
        write there.
        """
        foreign = (
            {name for name, _, _ in self.data.listing()} - keys
            if self.data is self.output
            else set()
        )
        if foreign:
            raise StoreError(_FOREIGN.format(what=min(foreign)))

    def ready(self, documents: dict[str, bytes], keys: set[str]) -> None:
        """Put all documents where :meth:`publish` needs them, safe from a power cut; nobody sees
        the release yet.

        Besides ``keys``, the objects of the release, nothing may be there: the rest is removed from
        a folder, which is published whole; on an object store, where others can write too, it is an
        error.
        """
        local = isinstance(self.data, LocalStorage)
        for name, content in documents.items():
            if name == ROOT:
                _write(self.data if local else self.work, name, content)
            elif local:
                _write(self.data, name, content)
            elif not self.data.create(name, content) and self.data.read(name) != content:
                raise StoreError(_FOREIGN.format(what=name))
        sizes = {name: size for name, size, _ in self.data.listing()}
        foreign = set(sizes) - keys
        wrong = {name for name in keys if sizes.get(name) == NOT_A_FILE} | (
            set() if local else foreign
        )
        if wrong:
            raise StoreError(_FOREIGN.format(what=min(wrong)))
        try:
            self.remove(foreign)
            self.data.flush()
        except OSError as error:
            raise _plain(error) from None

    def ready_root(self) -> bytes | None:
        """The root document that :meth:`ready` put, as long as :meth:`publish` has not made it
        visible.
        """
        return (self.data if isinstance(self.data, LocalStorage) else self.work).read(ROOT)

    def publish(self, root: bytes) -> bool:
        """Make a ready release with this root document visible at once; False if something is there
        already.
        """
        try:
            if isinstance(self.data, LocalStorage):
                assert isinstance(self.output, LocalStorage)
                return self.data.move_to(self.output)
            return self.output.create(ROOT, root)
        except OSError as error:
            raise StoreError(
                f"the release cannot be published: {error.strerror}; correct that and `dpdask"
                " resume`"
            ) from None

    def discard(self, *, charged: bool = True) -> None:
        """Remove what this release staged, and its claim; what is published stays, and so does what
        others staged.

        On an object store the chunks of a charged release go too: its prefix was empty when it was
        charged.
        """
        if charged and self.data is self.output and self.output.read(ROOT) is None:
            try:
                ours = read_output_lock(self.output) in (self.name, None)
            except OutputLockDamaged:
                ours = False
            if ours:
                self.output.delete()
        for name in self.control.names():  # a deletion that was cut off left another name
            if name.startswith(self.name):
                self.control.inside(name).delete()
        if isinstance(self.control, LocalStorage):
            self.control.remove_if(_LOCK, self._lock())
            self.control.remove_empty()
        elif self.control.read(_LOCK) == self._lock():
            self.control.remove(_LOCK)


def _write(storage: Storage, name: str, content: Any) -> None:
    try:
        storage.write(name, content)
    except OSError as error:
        plain = _plain(error)
    else:
        return
    raise plain


def _plain(error: OSError) -> StoreError:
    """What is wrong with a place, by a text of ours alone."""
    if error.errno == errno.ENOENT:
        return StoreError(
            "the staging beside the output is gone: the release was finished or aborted elsewhere"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError(
            "the output's disk is full; free some space and `dpdask resume`, or `dpdask abort`"
        )
    return StoreError(
        "the output cannot be written; mend that and `dpdask resume`, or `dpdask abort`"
    )


def open_group(storage: Storage, *, consolidated: bool | None = None) -> Any:
    """A published group for reading; ``consolidated`` says whether to trust its copy of all
    metadata, if there is one.
    """
    import zarr

    if storage.read(ROOT) is None:
        raise StoreError("there is no published release; check the path or URL")
    try:
        return zarr.open_group(storage.zarr_store(), mode="r", use_consolidated=consolidated)
    except Exception as error:
        kind = type(error).__name__
    raise StoreError(f"the group's metadata cannot be read ({kind}); restore it from a copy")

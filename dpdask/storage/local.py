"""Storage in the filesystem: a folder of this machine or of a shared filesystem."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdask.errors import StorageFault, StoreError
from dpdask.storage.base import NOT_A_FILE, Buffer, Content, ListedObject, Storage
from dpdask.storage.filesystem import (
    allocate,
    begin_writeback,
    flush_filesystem,
    rename_into_folder,
    rename_new_file,
    renamed_if_absent,
    stamp_of,
    sync_folder,
    temporary_name,
)

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["LocalStorage"]

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LARGE_FILE = 2**20
_PIECE = 2**20  # bytes per call: a larger write takes fresh pages of memory all at once
_LONGEST_NAME = 255  # bytes, on every filesystem in use


@dataclass(frozen=True, repr=False)
class LocalStorage(Storage):
    """A folder of files.

    Args:
        path: the folder.
        scratch: where a file is written under another name first; the folder itself by default. A
            killed process may leave such a file, so a folder that is published as a whole has its
            scratch outside.
        links: whether symbolic links are followed in a listing. If not, they, and whatever else is
            not a plain file, are listed with a size of
            :data:`~dpdask.storage.base.NOT_A_FILE` bytes.
    """

    path: Path
    scratch: Path | None = None
    links: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.abspath(self.path)))

    def address(self) -> str:
        """Return the path without links."""
        return os.path.realpath(self.path)

    def read(self, name: str) -> bytes | None:
        """Return the file's bytes, None if there is no such file."""
        try:
            with open(f"{self.path}/{name}", "rb", buffering=0) as opened:
                return opened.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            reason = error.strerror
        raise StorageFault(f"{name!r} cannot be read: {reason}; check the path and its permissions")

    @contextlib.contextmanager
    def viewed(self, name: str) -> Iterator[NDArray[np.uint8] | None]:
        """Map a large file: for files that are never truncated, such as our own in staging."""
        try:
            with open(f"{self.path}/{name}", "rb", buffering=0) as opened:
                size = os.fstat(opened.fileno()).st_size
                content: bytes | mmap.mmap | None
                if size >= _LARGE_FILE:
                    content = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
                else:
                    content = opened.read()
        except (FileNotFoundError, NotADirectoryError):
            content = None
        yield None if content is None else np.frombuffer(content, np.uint8)

    def write(self, name: str, content: Content) -> None:
        """Write a file of the scratch folder and rename it."""
        buffers, size = _buffers(content), _size_of(content)
        with self._temporary(buffers, size, durable=False) as temporary:
            rename_into_folder(os.replace, temporary, f"{self.path}/{name}")

    def create(self, name: str, content: Content, *, durable: bool = True) -> bool:
        """Write a file of the scratch folder and rename it, by a call that fails if one exists.

        A ``durable`` file survives a power cut; :meth:`flush` makes all others durable at once.
        """
        created = self._create(name, _buffers(content), _size_of(content), durable=durable)
        if created and durable:
            sync_folder(self.path)
        return created

    def create_from(self, name: str, pieces: Iterable[Buffer], size: int) -> bool:
        """Write pieces to a file of the scratch folder as they come, then rename it."""
        return self._create(name, pieces, size, durable=False)

    def stamp(self, name: str) -> str | None:
        """Return times and inode number of a plain file, None for anything else."""
        try:
            status = os.stat(f"{self.path}/{name}", follow_symlinks=False)
        except OSError:
            return None
        return stamp_of(status) if stat.S_ISREG(status.st_mode) else None

    def _create(self, name: str, pieces: Iterable[Buffer], size: int, *, durable: bool) -> bool:
        with self._temporary(pieces, size, durable=durable) as temporary:
            try:
                rename_into_folder(rename_new_file, temporary, f"{self.path}/{name}")
            except FileExistsError:
                return False
        return True

    @contextlib.contextmanager
    def _temporary(self, pieces: Iterable[Buffer], size: int, *, durable: bool) -> Iterator[str]:
        """Write a file in the scratch folder; it is removed at the end unless it was renamed."""
        temporary = f"{self.scratch or self.path}/{temporary_name()}"
        try:
            descriptor = os.open(temporary, _NEW_FILE, 0o644)
            try:
                if size >= _LARGE_FILE:
                    allocate(descriptor, size)
                for piece in pieces:
                    _write_all(descriptor, piece)
                if durable:
                    os.fsync(descriptor)
                elif size >= _LARGE_FILE:
                    begin_writeback(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)

    def listing(self, folder: str = "") -> Iterator[ListedObject]:
        """List all files with their sizes; stamps are times and inode numbers."""
        pending = [folder.strip("/")]
        while pending:
            inside = pending.pop()
            try:
                entries = list(os.scandir(f"{self.path}/{inside}"))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise StorageFault(
                    f"a folder cannot be listed: {error.strerror}; check its permissions"
                ) from None
            for entry in entries:
                name = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_dir(follow_symlinks=self.links):
                    pending.append(name)
                    continue
                try:
                    status = entry.stat(follow_symlinks=self.links)
                except FileNotFoundError:  # a link to nothing
                    continue
                size = status.st_size if stat.S_ISREG(status.st_mode) else NOT_A_FILE
                yield name, size, stamp_of(status)

    def file_path(self, name: str) -> str | None:
        """Return the path of an object's file, whether it exists or not."""
        return f"{self.path}/{name}"

    def is_link(self) -> bool:
        """Return whether the folder itself is a symbolic link."""
        return self.path.is_symlink()

    def without_links(self) -> LocalStorage:
        """Return the same folder, its links not followed."""
        return dataclasses.replace(self, links=False)

    def delete(self) -> None:
        """Rename the folder, then remove it: whoever still writes into it cannot keep it alive."""
        gone = self.path.with_name(f"{self.path.name}.{temporary_name()}")
        try:
            os.rename(self.path, gone)
        except OSError:
            gone = self.path
        if gone.is_dir() and not gone.is_symlink():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Unlink a file. Idempotent."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(f"{self.path}/{name}")

    def names(self) -> set[str]:
        """Return the names of files and folders here."""
        try:
            return set(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def remove_if(self, name: str, content: bytes) -> bool:
        """Remove a file if it holds ``content``, whoever else writes to it at the same time."""
        taken = f"{self.path}/{temporary_name()}"
        try:
            os.rename(f"{self.path}/{name}", taken)
        except OSError:
            return False
        with open(taken, "rb") as opened:
            unchanged = opened.read() == content
        if not unchanged:
            with contextlib.suppress(FileExistsError):
                os.link(taken, f"{self.path}/{name}")
        os.unlink(taken)
        return unchanged

    def remove_empty(self) -> None:
        """Remove the folder unless something is in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def make(self) -> None:
        """Make the folder and its parents."""
        self.path.mkdir(parents=True, exist_ok=True)

    def occupied(self) -> bool:
        """Return whether the path exists."""
        return os.path.lexists(self.path)

    def beside(self, suffix: str) -> LocalStorage:
        """Return the folder whose name is this one's with ``suffix`` appended."""
        if not self.path.name:
            raise StoreError(
                "the root of the filesystem is not a valid output; choose another output.url"
            )
        if len(os.fsencode(self.path.name + suffix)) > _LONGEST_NAME:
            raise StoreError(
                f"the name of the output is too long for {suffix!r} beside it; choose a shorter"
                " output.url"
            )
        return LocalStorage(self.path.with_name(self.path.name + suffix))

    def inside(self, name: str) -> LocalStorage:
        """Return a folder within."""
        return LocalStorage(self.path / name)

    def zarr_store(self) -> Store:
        """Return a local store."""
        from zarr.storage import LocalStore

        return LocalStore(self.path, read_only=True)

    def free_bytes(self) -> int | None:
        """Return the free space of the filesystem of the nearest existing parent."""
        return shutil.disk_usage(self._existing_parent()).free

    def _existing_parent(self) -> Path:
        folder = self.path.parent
        while not folder.exists():
            folder = folder.parent
        return folder

    def check_writable(self) -> None:
        """Make and remove a folder beside the target."""
        probe = self._existing_parent() / f".dpdask-probe-{temporary_name()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise StorageFault(
                f"cannot write to {str(probe.parent)!r}: {error.strerror}; choose another"
                " output.url or correct its permissions"
            ) from None

    def flush(self) -> None:
        """Make everything written so far survive a power cut."""
        flush_filesystem(self.path)

    def move_to(self, target: LocalStorage) -> bool:
        """Rename this folder to ``target`` unless something is there; return whether it was.

        Guarantee: atomic. Readers see all of the folder at ``target``, or nothing.
        """
        try:
            if not renamed_if_absent(str(self.path), str(target.path)):
                # A new, empty folder is ours alone: renaming onto it replaces nothing of others.
                os.mkdir(target.path)
                os.rename(self.path, target.path)
        except FileExistsError:
            return False
        sync_folder(target.path.parent)
        return True


def _buffers(content: Content) -> list[Buffer]:
    return content if isinstance(content, list) else [content]


def _size_of(content: Content) -> int:
    """Return the number of bytes of content."""
    return sum(len(buffer) for buffer in _buffers(content))


def _write_all(descriptor: int, piece: Buffer) -> None:
    """Write bytes to a file."""
    view = memoryview(piece).cast("B")  # type: ignore[arg-type]  # arrays are buffers
    while view:
        view = view[os.write(descriptor, view[:_PIECE]) :]

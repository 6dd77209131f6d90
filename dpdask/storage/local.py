"""Places of the filesystem: a folder, or a zip file to read from."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import functools
import mmap
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpdask.errors import StoreError
from dpdask.storage.base import NOT_A_FILE, Storage

__all__ = ["LocalStorage", "ZipStorage"]

_AT_FDCWD, _NOREPLACE = -100, 1
_SYNC_FILE_RANGE_WRITE = 2
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_LARGE_FILE = 2**20
_LONGEST_NAME = 255  # bytes, on every filesystem in use


@dataclass(frozen=True, repr=False)
class LocalStorage(Storage):
    """A folder of this machine or of a shared filesystem.

    A file is written under another name first, in ``scratch`` (the folder itself unless given). A
    killed process may leave it there, so a folder that is published whole has its scratch outside.
    Without ``links``, symbolic links are not followed in a listing: they, and whatever else is not
    a plain file, are listed as objects of :data:`~dpdask.storage.base.NOT_A_FILE` bytes.
    """

    path: Path
    scratch: Path | None = None
    links: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.abspath(self.path)))

    def address(self) -> str:
        """The path without links."""
        return os.path.realpath(self.path)

    def read(self, name: str) -> bytes | None:
        """The file's bytes."""
        try:
            with open(f"{self.path}/{name}", "rb", buffering=0) as opened:
                return opened.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            reason = error.strerror
        raise StoreError(f"{name!r} cannot be read: {reason}; check the path and its permissions")

    @contextlib.contextmanager
    def viewed(self, name: str) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]] | None]:
        """A large file is mapped: for files that nobody cuts short, such as our own in staging."""
        try:
            with open(f"{self.path}/{name}", "rb", buffering=0) as opened:
                size = os.fstat(opened.fileno()).st_size
                large = size >= _LARGE_FILE
                content = (
                    mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ)
                    if large
                    else opened.read()
                )
        except (FileNotFoundError, NotADirectoryError):
            content = None
        yield None if content is None else np.frombuffer(content, np.uint8)

    def write(self, name: str, content: Any) -> None:
        """A file of the scratch folder, renamed; ``content`` may be bytes or a list of buffers."""
        with self._temporary(content, durable=False) as temporary:
            _in_folder(os.replace, temporary, f"{self.path}/{name}")

    def create(self, name: str, content: Any, *, durable: bool = True) -> bool:
        """A file of the scratch folder, renamed by a call that fails if there is one already.

        A ``durable`` one survives a power cut; others are made so all at once, by :meth:`flush`.
        """
        with self._temporary(content, durable=durable) as temporary:
            try:
                _in_folder(_rename_new, temporary, f"{self.path}/{name}")
            except FileExistsError:
                return False
        if durable:
            _sync_folder(self.path)
        return True

    @contextlib.contextmanager
    def _temporary(self, content: Any, *, durable: bool) -> Iterator[str]:
        """A new file in the scratch folder, gone at the end unless it was renamed."""
        temporary = f"{self.scratch or self.path}/{_temporary_name()}"
        try:
            descriptor = os.open(temporary, _NEW_FILE, 0o644)
            try:
                size = 0
                for buffer in content if isinstance(content, list) else [content]:
                    view = memoryview(buffer).cast("B")
                    size += len(view)
                    while view:
                        view = view[os.write(descriptor, view) :]
                if durable:
                    os.fsync(descriptor)
                elif size >= _LARGE_FILE:
                    _begin_writeback(descriptor)
            finally:
                os.close(descriptor)
            yield temporary
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)

    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Sizes, modification times and inode numbers of all files."""
        pending = [folder.strip("/")]
        while pending:
            inside = pending.pop()
            try:
                entries = list(os.scandir(f"{self.path}/{inside}"))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise StoreError(
                    f"a folder cannot be listed: {error.strerror}; check its permissions"
                ) from None
            for entry in entries:
                name = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_dir(follow_symlinks=self.links):
                    pending.append(name)
                    continue
                try:
                    facts = entry.stat(follow_symlinks=self.links)
                except FileNotFoundError:  # a link to nothing
                    continue
                yield (
                    name,
                    facts.st_size if stat.S_ISREG(facts.st_mode) else NOT_A_FILE,
                    _stamp(facts),
                )

    def without_links(self) -> LocalStorage:
        """The same folder, its links not followed."""
        return dataclasses.replace(self, links=False)

    def delete(self) -> None:
        """Remove the folder, out of the way at once: whoever still writes into it does not keep it
        alive.
        """
        gone = self.path.with_name(f"{self.path.name}.{_temporary_name()}")
        try:
            os.rename(self.path, gone)
        except OSError:
            gone = self.path
        if gone.is_dir() and not gone.is_symlink():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Unlink a file."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(f"{self.path}/{name}")

    def names(self) -> set[str]:
        """Files and folders."""
        try:
            return set(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def remove_if(self, name: str, content: bytes) -> bool:
        """Remove a file if it still holds ``content``, whoever else writes to it meanwhile; whether
        it did.
        """
        taken = f"{self.path}/{_temporary_name()}"
        try:
            os.rename(f"{self.path}/{name}", taken)
        except OSError:
            return False
        with open(taken, "rb") as opened:
            mine = opened.read() == content
        if not mine:
            with contextlib.suppress(FileExistsError):
                os.link(taken, f"{self.path}/{name}")
        os.unlink(taken)
        return mine

    def remove_empty(self) -> None:
        """Remove the folder unless something is in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def make(self) -> None:
        """The folder and its parents."""
        self.path.mkdir(parents=True, exist_ok=True)

    def occupied(self) -> bool:
        """Whether the path exists."""
        return os.path.lexists(self.path)

    def beside(self, suffix: str) -> LocalStorage:
        """A sibling path."""
        if not self.path.name:
            raise StoreError(
                "the root of the filesystem is not a place for a release; choose another output.url"
            )
        if len(os.fsencode(self.path.name + suffix)) > _LONGEST_NAME:
            raise StoreError(
                f"the name of the output is too long for {suffix!r} beside it; choose a shorter"
                " output.url"
            )
        return LocalStorage(self.path.with_name(self.path.name + suffix))

    def inside(self, name: str) -> LocalStorage:
        """A folder within."""
        return LocalStorage(self.path / name)

    def zarr_store(self) -> Any:
        """A local store."""
        from zarr.storage import LocalStore

        return LocalStore(self.path, read_only=True)

    def free_bytes(self) -> int | None:
        """Free space of the filesystem of the nearest existing parent."""
        return shutil.disk_usage(self._existing_parent()).free

    def _existing_parent(self) -> Path:
        folder = self.path.parent
        while not folder.exists():
            folder = folder.parent
        return folder

    def check_writable(self) -> None:
        """Make and remove a folder beside the target."""
        probe = self._existing_parent() / f".dpdask-probe-{_temporary_name()}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise StoreError(
                f"cannot write to {str(probe.parent)!r}: {error.strerror}; choose another"
                " output.url or mend its permissions"
            ) from None

    def flush(self) -> None:
        """Write back the whole filesystem at once, which is cheaper than file by file."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if hasattr(_libc(), "syncfs"):
                if _libc().syncfs(descriptor) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            else:
                os.sync()
        finally:
            os.close(descriptor)

    def move_to(self, target: LocalStorage) -> bool:
        """Rename this folder to ``target``, atomically and only if nothing is there; whether it
        did.
        """
        try:
            if not _renamed(str(self.path), str(target.path)):
                os.mkdir(
                    target.path
                )  # ours alone; renaming onto an empty folder of our own replaces nobody's
                os.rename(self.path, target.path)
        except FileExistsError:
            return False
        _sync_folder(target.path.parent)
        return True


@dataclass(frozen=True, repr=False)
class ZipStorage(LocalStorage):
    """A zip file holding a zarr hierarchy, for reading."""

    def version(self) -> str:
        """An opened zip file stays the one that was opened, whatever takes its place."""
        return _stamp(self.path.stat())

    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """The file itself."""
        facts = self.path.stat()
        yield "", facts.st_size, _stamp(facts)

    def zarr_store(self) -> Any:
        """A read-only zip store."""
        from zarr.storage import ZipStore

        return ZipStore(self.path, mode="r")

    def check_writable(self) -> None:
        """Never."""
        raise StoreError(
            "output.url ends in .zip, which is for reading only; publish to a folder and zip it"
            " afterwards"
        )


def _temporary_name() -> str:
    """One that no other process, host or container takes; process numbers repeat in containers."""
    return f"{secrets.token_hex(12)}.part"


def _stamp(facts: os.stat_result) -> str:
    """Changes with every write, one that puts the old modification time back included."""
    return f"{facts.st_mtime_ns}-{facts.st_ctime_ns}-{facts.st_ino}"


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _in_folder(rename: Callable[[str, str], None], temporary: str, target: str) -> None:
    """Rename a file to a name whose folder may not be there yet."""
    try:
        rename(temporary, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        rename(temporary, target)


def _rename_new(temporary: str, target: str) -> None:
    """Rename a file; :class:`FileExistsError` if there is one of that name."""
    if not _renamed(temporary, target):
        os.link(temporary, target)


def _renamed(old: str, new: str) -> bool:
    """Rename unless ``new`` exists (:class:`FileExistsError`); False where the system has no such
    call.
    """
    libc = _libc()
    if not hasattr(libc, "renameat2"):
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), _NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(errno.EEXIST if code == errno.ENOTEMPTY else code, os.strerror(code))


def _begin_writeback(descriptor: int) -> None:
    """Let the disk begin while tiles are still computed, so that flushing at the end is short."""
    start = getattr(_libc(), "sync_file_range", None)
    if start is not None:
        start(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

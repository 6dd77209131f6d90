"""Places: where bytes lie. A local folder, an object store, this process' memory, or a zip file to read from.

A place reads, writes, creates-if-absent, lists and deletes whole objects by name, and opens as a zarr store. Its printed form
says nothing of where it is, so that task names and logs do not either.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import errno
import functools
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from dpdask.errors import StoreError

__all__ = ["LocalPlace", "Place", "place_at"]

Options = Mapping[str, Any]
_OBJECT_SCHEMES = ("s3", "s3a", "gs", "az", "abfs")


def place_at(url: str, options: Options | None = None) -> Place:
    """The place that a URL or a path names."""
    scheme = urlsplit(url).scheme if "://" in url else ""
    given = dict(options or {})
    if scheme in ("", "file"):
        if given:
            raise StoreError(f"a local path takes no storage options, got {', '.join(sorted(given))}; drop them")
        path = Path(unquote(urlsplit(url).path) if scheme else url).expanduser()
        return ZipPlace(path) if path.suffix == ".zip" else LocalPlace(path)
    if scheme == "memory":
        return MemoryPlace(url.rstrip("/"))
    if scheme in _OBJECT_SCHEMES:
        return ObjectPlace(url.rstrip("/"), tuple(sorted(given.items())))
    raise StoreError(f"{scheme}:// is no store dpdask knows; use a path, file://, s3://, gs:// or memory://")


@dataclass(frozen=True, repr=False)
class Place(abc.ABC):
    """A folder of objects."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes | None:
        """The object's bytes, None where there is none."""

    @contextlib.contextmanager
    def viewed(self, name: str) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]] | None]:
        """The object's bytes for a while, without a copy where the place can."""
        content = self.read(name)
        yield None if content is None else np.frombuffer(content, np.uint8)

    @abc.abstractmethod
    def write(self, name: str, content: Any) -> None:
        """Put an object, whole or not at all; an older one is replaced."""

    @abc.abstractmethod
    def create(self, name: str, content: bytes) -> bool:
        """Put an object only if there is none; whether it did."""

    @abc.abstractmethod
    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Every object under ``folder``: name, size, and a stamp that changes when it is written."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Remove every object; nothing there is fine."""

    @abc.abstractmethod
    def occupied(self) -> bool:
        """Whether anything is there, an empty folder included."""

    @abc.abstractmethod
    def beside(self, suffix: str) -> Place:
        """The place with ``suffix`` appended to its name."""

    @abc.abstractmethod
    def zarr_store(self) -> Any:
        """A zarr store for reading."""

    @property
    def shared(self) -> bool:
        """Whether other processes reach it."""
        return True

    def version(self) -> str:
        """What an opened handle must be opened anew for."""
        return ""

    def holds(self, other: Place) -> bool:
        """Whether ``other`` is this place or lies within it."""
        return f"{other._address()}/".startswith(f"{self._address()}/")

    @abc.abstractmethod
    def _address(self) -> str:
        """Where it is; for comparison alone."""

    def free_bytes(self) -> int | None:
        """How much may still be written, None where that is unknown."""
        return None

    def check_writable(self) -> None:  # noqa: B027  # most places need no check
        """Raise :class:`StoreError` unless objects can be written here; leaves nothing behind."""

    def flush(self) -> None:  # noqa: B027  # object stores are durable as they are
        """Make everything written so far survive a power cut."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


@dataclass(frozen=True, repr=False)
class LocalPlace(Place):
    """A folder of this machine or of a shared filesystem."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(os.path.abspath(self.path)))

    def _address(self) -> str:
        return os.path.realpath(self.path)

    def read(self, name: str) -> bytes | None:
        """The file's bytes."""
        try:
            with open(f"{self.path}/{name}", "rb", buffering=0) as opened:
                return opened.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextlib.contextmanager
    def viewed(self, name: str) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]] | None]:
        """A large file is mapped: for files that nobody cuts short, such as our own in staging."""
        try:
            with open(f"{self.path}/{name}", "rb", buffering=0) as opened:
                size = os.fstat(opened.fileno()).st_size
                large = size >= _LARGE_FILE
                content = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) if large else opened.read()
        except (FileNotFoundError, NotADirectoryError):
            content = None
        yield None if content is None else np.frombuffer(content, np.uint8)

    def write(self, name: str, content: Any) -> None:
        """A temporary file, renamed; ``content`` may be bytes or a list of buffers."""
        target = f"{self.path}/{name}"
        temporary = f"{target}.{os.getpid()}-{next(_counter)}.part"
        try:
            try:
                descriptor = os.open(temporary, _NEW_FILE, 0o644)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                descriptor = os.open(temporary, _NEW_FILE, 0o644)
            try:
                size = 0
                for buffer in content if isinstance(content, list) else [content]:
                    view = memoryview(buffer).cast("B")
                    size += len(view)
                    while view:
                        view = view[os.write(descriptor, view) :]
                if size >= _LARGE_FILE:
                    _begin_writeback(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, target)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def create(self, name: str, content: bytes) -> bool:
        """A temporary file, hard-linked into place, which fails if there is one already."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}-{next(_counter)}.part")
        temporary.write_bytes(content)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Sizes, modification times and inode numbers of all files."""
        pending = [folder.strip("/")]
        while pending:
            inside = pending.pop()
            try:
                entries = list(os.scandir(f"{self.path}/{inside}"))
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                name = f"{inside}/{entry.name}" if inside else entry.name
                if entry.is_dir():
                    pending.append(name)
                else:
                    facts = entry.stat()
                    yield name, facts.st_size, _stamp(facts)

    def delete(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def occupied(self) -> bool:
        """Whether the path exists."""
        return os.path.lexists(self.path)

    def beside(self, suffix: str) -> LocalPlace:
        """A sibling path."""
        return LocalPlace(self.path.with_name(self.path.name + suffix))

    def inside(self, name: str) -> LocalPlace:
        """A folder within."""
        return LocalPlace(self.path / name)

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
        probe = self._existing_parent() / f".dpdask-probe-{os.getpid()}-{next(_counter)}"
        try:
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise StoreError(
                f"cannot write to {str(probe.parent)!r}: {error.strerror}; choose another output.url or mend its permissions"
            ) from None

    def flush(self) -> None:
        """Write back the whole filesystem at once, which is cheaper than file by file."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if hasattr(_libc(), "syncfs"):
                _libc().syncfs(descriptor)
            else:
                os.sync()
        finally:
            os.close(descriptor)

    def move_to(self, target: LocalPlace) -> bool:
        """Rename this folder to ``target``, atomically and only if nothing is there; whether it did."""
        libc = _libc()
        if hasattr(libc, "renameat2"):
            done = libc.renameat2(_AT_FDCWD, os.fsencode(self.path), _AT_FDCWD, os.fsencode(target.path), _NOREPLACE)
            if done == 0:
                _sync_folder(target.path.parent)
                return True
            code = ctypes.get_errno()
            if code in (errno.EEXIST, errno.ENOTEMPTY):
                return False
            if code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
                raise OSError(code, os.strerror(code))
        try:
            os.mkdir(target.path)  # ours alone; renaming onto an empty folder of our own replaces nobody's
        except FileExistsError:
            return False
        os.rename(self.path, target.path)
        _sync_folder(target.path.parent)
        return True


@dataclass(frozen=True, repr=False)
class ZipPlace(LocalPlace):
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
        raise StoreError("output.url ends in .zip, which is for reading only; publish to a folder and zip it afterwards")


@dataclass(frozen=True, repr=False)
class ObjectPlace(Place):
    """A prefix of an object store, reached through obstore."""

    url: str
    options: tuple[tuple[str, Any], ...] = field(default=())

    def _store(self) -> Any:
        if "_opened" not in self.__dict__:
            object.__setattr__(self, "_opened", _open_object_store(self.url, dict(self.options)))
        return self.__dict__["_opened"]

    def _address(self) -> str:
        return self.url

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def read(self, name: str) -> bytes | None:
        """The object's bytes."""
        import obstore

        with _plain_errors():
            try:
                return bytes(obstore.get(self._store(), name).bytes())
            except FileNotFoundError:
                return None

    def write(self, name: str, content: Any) -> None:
        """One put."""
        import obstore

        with _plain_errors():
            obstore.put(self._store(), name, b"".join(content) if isinstance(content, list) else bytes(content))

    def create(self, name: str, content: bytes) -> bool:
        """A conditional put."""
        import obstore

        with _plain_errors():
            try:
                obstore.put(self._store(), name, content, mode="create")
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                return False
            return True

    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Sizes and entity tags."""
        import obstore

        with _plain_errors():
            for batch in obstore.list(self._store(), prefix=folder or None):
                for entry in batch:
                    yield entry["path"], entry["size"], str(entry["e_tag"] or entry["last_modified"])

    def delete(self) -> None:
        """Every object under the prefix."""
        import obstore

        names = [name for name, _, _ in self.listing()]
        with _plain_errors():
            for first in range(0, len(names), 1000):
                obstore.delete(self._store(), names[first : first + 1000])

    def occupied(self) -> bool:
        """Whether any object has the prefix."""
        return next(self.listing(), None) is not None

    def beside(self, suffix: str) -> ObjectPlace:
        """Another prefix."""
        return ObjectPlace(self.url + suffix, self.options)

    def zarr_store(self) -> Any:
        """An object store."""
        from zarr.storage import ObjectStore

        return ObjectStore(self._store(), read_only=True)

    def check_writable(self) -> None:
        """Put and delete an empty object beside the prefix."""
        probe = self.beside(".dpdask-probe")
        probe.write("probe", b"")
        probe.delete()


@dataclass(frozen=True, repr=False)
class MemoryPlace(Place):
    """``memory://name``: fsspec's filesystem in this process' memory, for tests and notebooks."""

    url: str

    @property
    def shared(self) -> bool:
        """Only this process reaches it."""
        return False

    def _address(self) -> str:
        return self.url

    def _paths(self) -> tuple[Any, str]:
        import fsspec

        return fsspec.filesystem("memory"), "/" + self.url.removeprefix("memory://").strip("/")

    def read(self, name: str) -> bytes | None:
        """The bytes."""
        files, root = self._paths()
        try:
            return bytes(files.cat_file(f"{root}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: Any) -> None:
        """Put the bytes."""
        files, root = self._paths()
        files.pipe_file(f"{root}/{name}", b"".join(content) if isinstance(content, list) else bytes(content))

    def create(self, name: str, content: bytes) -> bool:
        """Put the bytes if there are none."""
        if self.read(name) is not None:
            return False
        self.write(name, content)
        return True

    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Sizes and times."""
        files, root = self._paths()
        for name, facts in files.find(f"{root}/{folder}".rstrip("/"), detail=True).items():
            yield name.removeprefix(root + "/"), facts["size"], str(files.modified(name))

    def delete(self) -> None:
        """Forget everything under the name."""
        files, root = self._paths()
        if files.exists(root):
            files.rm(root, recursive=True)

    def occupied(self) -> bool:
        """Whether anything has the name."""
        files, root = self._paths()
        return bool(files.exists(root))

    def beside(self, suffix: str) -> MemoryPlace:
        """Another name."""
        return MemoryPlace(self.url + suffix)

    def zarr_store(self) -> Any:
        """fsspec's store."""
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(self.url, read_only=True)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors of an object store as one line, without addresses or answers of the server."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise StoreError(
            f"the object store cannot be read or written ({kind}); check the bucket, its options and your credentials"
        ) from None


def _open_object_store(url: str, options: dict[str, Any]) -> Any:
    try:
        import obstore.store
    except ModuleNotFoundError:
        raise StoreError("object stores need obstore; pip install 'dpdask[cloud]'") from None
    resolved = {}
    for name, value in options.items():
        variable = getattr(value, "env", None)
        if variable is not None and variable not in os.environ:
            raise StoreError(f"storage option {name} wants the environment variable {variable}, which is not set; set it")
        resolved[name] = value if variable is None else os.environ[variable]
    client = {"allow_http": True} if resolved.pop("allow_http", False) else {}
    try:
        opened: Any = obstore.store.from_url
        return opened(url, config=resolved, client_options=client)
    except Exception as error:
        kind = type(error).__name__
        raise StoreError(f"the object store refuses its URL or options ({kind}); check them") from None


_AT_FDCWD, _NOREPLACE = -100, 1
_SYNC_FILE_RANGE_WRITE = 2
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_LARGE_FILE = 2**20
_counter = iter(range(1 << 62))


def _stamp(facts: os.stat_result) -> str:
    """Changes with every write, one that puts the old modification time back included."""
    return f"{facts.st_mtime_ns}-{facts.st_ctime_ns}-{facts.st_ino}"


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


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

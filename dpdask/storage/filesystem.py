"""Calls of the filesystem that Python does not offer: rename if absent, write back, flush."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

from dpdask.keystream import random_bytes

__all__ = [
    "allocate",
    "begin_writeback",
    "flush_filesystem",
    "rename_into_folder",
    "rename_new_file",
    "renamed_if_absent",
    "stamp_of",
    "sync_folder",
    "temporary_name",
]

_AT_FDCWD, _NOREPLACE = -100, 1
_SYNC_FILE_RANGE_WRITE = 2


def temporary_name() -> str:
    """Return a file name that no other process, host or container takes.

    Process numbers would not do: they repeat in containers.
    """
    return f"{random_bytes(12).hex()}.part"


def stamp_of(status: os.stat_result) -> str:
    """Return a text that changes with every write, even if the old modification time is set."""
    return f"{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}"


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def rename_into_folder(rename: Callable[[str, str], None], temporary: str, target: str) -> None:
    """Rename a file to a name whose folder may not exist yet."""
    try:
        rename(temporary, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        rename(temporary, target)


def rename_new_file(temporary: str, target: str) -> None:
    """Rename a file; raise :class:`FileExistsError` if there is one of that name."""
    if not renamed_if_absent(temporary, target):
        os.link(temporary, target)


def renamed_if_absent(old: str, new: str) -> bool:
    """Rename unless ``new`` exists; return False where the system has no such call.

    Raises:
        FileExistsError: ``new`` exists.
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


def allocate(descriptor: int, size: int) -> None:
    """Reserve the blocks of a file of known size, where the filesystem can; others do it later.

    Raises:
        OSError: The disk is full.
    """
    call = getattr(_libc(), "fallocate", None)
    if call is None:
        return
    if call(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(code, os.strerror(code))


def begin_writeback(descriptor: int) -> None:
    """Let the disk begin while tiles are still computed, so that flushing at the end is short."""
    start = getattr(_libc(), "sync_file_range", None)
    if start is not None:
        start(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_filesystem(folder: Path) -> None:
    """Write back the whole filesystem of a folder at once, which is cheaper than file by file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if hasattr(_libc(), "syncfs"):
            if _libc().syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        else:
            os.sync()
    finally:
        os.close(descriptor)

"""The decorator of compiled kernels, and the folder that keeps their machine code.

Compiling takes seconds, which is most of a small release. Machine code is kept in a folder of the
user's own, by the digest of dpdask's sources, the versions of the compilers, the processor and the
types of the arguments, so that no kernel is ever taken for another one.

Whoever can write to that folder can run code in our process. So it must belong to this user and
let nobody else in; otherwise kernels are compiled in memory, and nothing is read or written.
"""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from dpdask.machine.features import compiled_for

__all__ = ["FOLDER_VARIABLE", "compiled", "kernel_folder"]

FOLDER_VARIABLE = "DPDASK_KERNELS"
"""Names the folder of compiled kernels; empty for none."""

_PACKAGE = Path(__file__).parents[1]
_DIGEST_SIZE = 32
_MOST_FILES = 1000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def compiled(*, name: str = "", **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return the decorator of a kernel that runs without the interpreter's lock.

    Args:
        name: What tells functions of the same qualified name apart: what is built into them.
        options: Further options of numba's compiler.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(nogil=True, error_model="numpy", **options)(function)
        if "inline" not in options:
            qualified = f"{function.__module__}.{function.__qualname__}"
            dispatcher._cache = _KernelCache(f"{qualified}/{name}")
        return dispatcher

    return decorate


@functools.cache
def kernel_folder() -> Path | None:
    """Return the folder of compiled kernels, None where there is none that is safe.

    Guarantee: it is a folder of this user that nobody else can read or write.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen == "":
        return None
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(chosen or f"{cache}/dpdask/kernels").expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = os.lstat(folder)
    except (OSError, RuntimeError):  # there may be no home
        return None
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return folder if private and status.st_uid == os.geteuid() else None


@functools.cache
def _origin() -> bytes:
    """Return a digest of everything that machine code depends on but for its own arguments."""
    digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
    versions = (numba.__version__, llvmlite.__version__, sys.version, *compiled_for())
    digest.update("\0".join(versions).encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)}\0{len(content)}\0".encode() + content)
    return digest.digest()


class _KernelCache(NullCache):
    """The machine code of one kernel, a file for every signature.

    A file that cannot be read, or is not what was written, counts as missing.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def load_overload(self, sig: object, target_context: object) -> Any:
        """Return the kernel for a signature, None if it is not kept."""
        folder = kernel_folder()
        if folder is None:
            return None
        target_context.refresh()  # type: ignore[attr-defined]
        content = _read_private(folder / self._file(sig))
        if content is None:
            return None
        with contextlib.suppress(Exception):  # compile it again, whatever is wrong with the file
            return CompileResult._rebuild(target_context, *pickle.loads(content))
        return None

    def save_overload(self, sig: object, cres: Any) -> None:
        """Keep a kernel, unless its code holds an address of this process."""
        folder = kernel_folder()
        if folder is None or cres.library.has_dynamic_globals:
            return
        content = dumps(cres._reduce())
        with contextlib.suppress(OSError):
            descriptor, temporary = tempfile.mkstemp(dir=folder)  # for this user alone
            try:
                with open(descriptor, "wb") as file:
                    file.write(_digest(content) + content)
                os.replace(temporary, folder / self._file(sig))
                _remove_oldest(folder)
            except BaseException:
                os.unlink(temporary)
                raise

    def _file(self, sig: object) -> str:
        named = f"{self._name}\0{sig}".encode()
        return f"{hashlib.blake2b(named, key=_origin(), digest_size=20).hexdigest()}.kernel"


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).digest()


def _remove_oldest(folder: Path) -> None:
    """Keep the folder small: every version and processor leaves its own kernels there."""
    kept = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    if len(kept) > _MOST_FILES:
        kept.sort(key=lambda entry: entry.stat(follow_symlinks=False).st_mtime_ns)
        for entry in kept[: _MOST_FILES // 2]:
            os.unlink(entry.path)


def _read_private(path: Path) -> bytes | None:
    """Return the content of a file that this user alone can write, None if there is none."""
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o022
        ):
            return None
        content = file.read()
    digest, rest = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    return rest if digest == _digest(rest) else None

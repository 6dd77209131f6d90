"""Storage: whole objects by name, in a folder, in memory or under a prefix of an object store.

A storage reads, writes, creates if absent, lists and deletes objects, and opens as a zarr store.
Its printed form does not say where it is, so that task names and logs do not either.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["NOT_A_FILE", "Buffer", "Content", "ListedObject", "Storage", "joined"]

NOT_A_FILE = -1
"""The listed size of what is not a plain file."""

Buffer: TypeAlias = bytes | NDArray[np.uint8]

Content: TypeAlias = bytes | list[Buffer]
"""What is stored as one object: bytes, or buffers to be stored one after the other."""

ListedObject: TypeAlias = tuple[str, int, str]
"""Name, size in bytes, and a stamp that changes with every write."""


def joined(content: Content) -> bytes:
    """Return content as bytes."""
    if isinstance(content, list):
        return b"".join(content)  # type: ignore[arg-type]  # numpy's arrays are buffers
    return bytes(content)


@dataclass(frozen=True, repr=False)
class Storage(abc.ABC):
    """A folder of objects."""

    @abc.abstractmethod
    def read(self, name: str) -> bytes | None:
        """Return the object's bytes, None if there is no such object."""

    @contextlib.contextmanager
    def viewed(self, name: str) -> Iterator[NDArray[np.uint8] | None]:
        """Show the object's bytes within the context, without a copy where that is possible."""
        content = self.read(name)
        yield None if content is None else np.frombuffer(content, np.uint8)

    @abc.abstractmethod
    def write(self, name: str, content: Content) -> None:
        """Put an object, whole or not at all; an older one is replaced."""

    @abc.abstractmethod
    def create(self, name: str, content: Content, *, durable: bool = True) -> bool:
        """Put an object only if there is none, and return whether this call did.

        Args:
            name: the object's name.
            content: its bytes, or buffers to be stored one after the other.
            durable: whether the object must survive a power cut on return; otherwise it may wait
                for :meth:`flush`.
        """

    def create_from(self, name: str, pieces: Iterable[Buffer], size: int) -> bool:
        """Put an object only if there is none, as :meth:`create` does, not durable at once.

        Args:
            name: the object's name.
            pieces: its bytes in order, each valid until the next is asked for.
            size: how many bytes they are.
        """
        return self.create(name, b"".join(bytes(piece) for piece in pieces), durable=False)

    def stamp(self, name: str) -> str | None:
        """Return a stamp of an object that changes with every write; None if that is unknown."""
        return None

    @abc.abstractmethod
    def listing(self, folder: str = "") -> Iterator[ListedObject]:
        """List every object under ``folder``: name, size, and a stamp that changes with writes."""

    @property
    def is_archive(self) -> bool:
        """Whether all objects lie in one file, which a listing names instead of them."""
        return False

    def file_path(self, name: str) -> str | None:
        """Return the path of the file that holds an object as it is, None if there are no files."""
        return None

    def is_link(self) -> bool:
        """Return whether this storage is a link to somewhere else."""
        return False

    def without_links(self) -> Storage:
        """Return the same storage with its links not followed; only filesystems have links."""
        return self

    @abc.abstractmethod
    def delete(self) -> None:
        """Remove every object. Idempotent."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Remove one object. Idempotent."""

    def remove_if(self, name: str, content: bytes) -> bool:
        """Remove an object if it holds ``content``, and return whether this call did."""
        if self.read(name) != content:
            return False
        self.remove(name)
        return True

    def remove_empty(self) -> None:  # noqa: B027  # only filesystems have folders
        """Remove the folder unless something is in it."""

    def names(self) -> set[str]:
        """Return the names of objects here, and the first parts of longer names."""
        return {name.partition("/")[0] for name, _, _ in self.listing()}

    @abc.abstractmethod
    def occupied(self) -> bool:
        """Return whether anything is there, an empty folder included."""

    def make(self) -> None:  # noqa: B027  # only filesystems have folders
        """Make the folder that objects are put into."""

    @abc.abstractmethod
    def inside(self, name: str) -> Storage:
        """Return the storage of the objects under ``name``."""

    @abc.abstractmethod
    def beside(self, suffix: str) -> Storage:
        """Return the storage whose name is this one's with ``suffix`` appended."""

    @abc.abstractmethod
    def zarr_store(self) -> Store:
        """Return a zarr store for reading."""

    @property
    def shared(self) -> bool:
        """Whether other processes reach it."""
        return True

    def version(self) -> str:
        """Return a text that changes when an opened handle must be opened again."""
        return ""

    def holds(self, other: Storage) -> bool:
        """Return whether ``other`` is this storage or lies within it."""
        return f"{other.address()}/".startswith(f"{self.address()}/")

    @abc.abstractmethod
    def address(self) -> str:
        """Return where it is, independently of the current folder; not for logs."""

    def free_bytes(self) -> int | None:
        """Return how many bytes may still be written, None if that is unknown."""
        return None

    def check_writable(self) -> None:  # noqa: B027  # memory needs no check
        """Raise :class:`StoreError` unless objects can be written here; nothing is left behind."""

    def flush(self) -> None:  # noqa: B027  # object stores are durable as they are
        """Make everything written so far survive a power cut."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

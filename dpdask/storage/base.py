"""A place: where bytes lie, as whole objects by name.

It reads, writes, creates-if-absent, lists and deletes, and opens as a zarr store. Its printed form
says nothing of where it is, so that task names and logs do not either.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["NOT_A_FILE", "Storage", "joined"]

NOT_A_FILE = -1


def joined(content: Any) -> bytes:
    """Bytes, or a list of buffers, as bytes."""
    return b"".join(content) if isinstance(content, list) else bytes(content)


@dataclass(frozen=True, repr=False)
class Storage(abc.ABC):
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
        """Put an object, bytes or a list of buffers, whole or not at all; replace an older one."""

    @abc.abstractmethod
    def create(self, name: str, content: Any, *, durable: bool = True) -> bool:
        """Put an object, bytes or a list of buffers, only if there is none; whether it did.

        Where writing survives a power cut only at a price, one that is not ``durable`` waits for
        :meth:`flush`.
        """

    @abc.abstractmethod
    def listing(self, folder: str = "") -> Iterator[tuple[str, int, str]]:
        """Every object under ``folder``: name, size, and a stamp that changes with writes."""

    def without_links(self) -> Storage:
        """The same place, where nothing leads elsewhere; only filesystems have links."""
        return self

    @abc.abstractmethod
    def delete(self) -> None:
        """Remove every object; nothing there is fine."""

    @abc.abstractmethod
    def remove(self, name: str) -> None:
        """Remove one object; nothing there is fine."""

    def names(self) -> set[str]:
        """What lies here: objects, and the first parts of longer names."""
        return {name.partition("/")[0] for name, _, _ in self.listing()}

    @abc.abstractmethod
    def occupied(self) -> bool:
        """Whether anything is there, an empty folder included."""

    def make(self) -> None:  # noqa: B027  # only filesystems have folders
        """Make the folder that objects are put into."""

    @abc.abstractmethod
    def inside(self, name: str) -> Storage:
        """The place of the objects under ``name``."""

    @abc.abstractmethod
    def beside(self, suffix: str) -> Storage:
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

    def holds(self, other: Storage) -> bool:
        """Whether ``other`` is this place or lies within it."""
        return f"{other.address()}/".startswith(f"{self.address()}/")

    @abc.abstractmethod
    def address(self) -> str:
        """Where it is, whatever the current folder; not for logs."""

    def free_bytes(self) -> int | None:
        """How much may still be written, None where that is unknown."""
        return None

    def check_writable(self) -> None:  # noqa: B027  # most places need no check
        """Raise :class:`StoreError` unless objects can be written here; leaves nothing behind."""

    def flush(self) -> None:  # noqa: B027  # object stores are durable as they are
        """Make everything written so far survive a power cut."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

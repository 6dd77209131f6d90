"""Storage in this process' memory, for tests and notebooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpdask.storage.base import Content, ListedObject, Storage, joined

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem
    from zarr.abc.store import Store

__all__ = ["MemoryStorage"]


@dataclass(frozen=True, repr=False)
class MemoryStorage(Storage):
    """``memory://name``: fsspec's filesystem in this process' memory."""

    url: str

    @property
    def shared(self) -> bool:
        """Only this process reaches it."""
        return False

    def address(self) -> str:
        """Return the URL."""
        return self.url

    def _paths(self) -> tuple[AbstractFileSystem, str]:
        import fsspec

        return fsspec.filesystem("memory"), "/" + self.url.removeprefix("memory://").strip("/")

    def read(self, name: str) -> bytes | None:
        """Return the object's bytes, None if there is no such object."""
        files, root = self._paths()
        try:
            return bytes(files.cat_file(f"{root}/{name}"))
        except FileNotFoundError:
            return None

    def write(self, name: str, content: Content) -> None:
        """Put an object; an older one is replaced."""
        files, root = self._paths()
        files.pipe_file(f"{root}/{name}", joined(content))

    def create(self, name: str, content: Content, *, durable: bool = True) -> bool:
        """Put an object only if there is none, and return whether this call did."""
        if self.read(name) is not None:
            return False
        self.write(name, content)
        return True

    def listing(self, folder: str = "") -> Iterator[ListedObject]:
        """List all objects with their sizes; stamps are times."""
        files, root = self._paths()
        objects = files.find(f"{root}/{folder}".rstrip("/"), detail=True)
        for name, details in objects.items():
            yield name.removeprefix(root + "/"), details["size"], str(files.modified(name))

    def delete(self) -> None:
        """Remove every object. Idempotent."""
        files, root = self._paths()
        if files.exists(root):
            files.rm(root, recursive=True)

    def remove(self, name: str) -> None:
        """Remove one object. Idempotent."""
        files, root = self._paths()
        with contextlib.suppress(FileNotFoundError):
            files.rm_file(f"{root}/{name}")

    def occupied(self) -> bool:
        """Return whether any object is there."""
        files, root = self._paths()
        return bool(files.exists(root))

    def inside(self, name: str) -> MemoryStorage:
        """Return the storage of a longer name."""
        return MemoryStorage(f"{self.url}/{name}")

    def beside(self, suffix: str) -> MemoryStorage:
        """Return the storage whose name is this one's with ``suffix`` appended."""
        return MemoryStorage(self.url + suffix)

    def zarr_store(self) -> Store:
        """Return fsspec's store."""
        from zarr.storage import FsspecStore

        return FsspecStore.from_url(self.url, read_only=True)

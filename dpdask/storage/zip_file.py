"""Storage in a zip file that holds a zarr hierarchy, for reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpdask.errors import StoreError
from dpdask.storage.base import ListedObject
from dpdask.storage.filesystem import stamp_of
from dpdask.storage.local import LocalStorage

if TYPE_CHECKING:
    from zarr.abc.store import Store

__all__ = ["ZipStorage"]


@dataclass(frozen=True, repr=False)
class ZipStorage(LocalStorage):
    """A zip file."""

    @property
    def is_archive(self) -> bool:
        """All objects lie in the zip file."""
        return True

    def file_path(self, name: str) -> str | None:
        """Return None: objects are not files of their own."""
        return None

    def version(self) -> str:
        """Return the file's stamp: an opened zip file stays the one that was opened."""
        return stamp_of(self.path.stat())

    def listing(self, folder: str = "") -> Iterator[ListedObject]:
        """List the zip file itself, under the empty name."""
        status = self.path.stat()
        yield "", status.st_size, stamp_of(status)

    def zarr_store(self) -> Store:
        """Return a read-only zip store."""
        from zarr.storage import ZipStore

        return ZipStore(self.path, mode="r")

    def check_writable(self) -> None:
        """Raise :class:`StoreError`: a zip file is for reading only."""
        raise StoreError(
            "output.url ends in .zip, which is for reading only; publish to a folder and zip it"
            " afterwards"
        )

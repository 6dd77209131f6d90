"""The file of one plain chunk, read piece by piece."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from dpdask.errors import StorageFault
from dpdask.types import Region

__all__ = ["ChunkReader"]


class ChunkReader:
    """An open file that holds the values of a region as they are.

    Its errors name the place, and nothing of what lies there.
    """

    def __init__(self, descriptor: int, region: Region) -> None:
        self._descriptor, self._region = descriptor, region

    @classmethod
    def of(cls, file: str, size: int, region: Region) -> ChunkReader | None:
        """Open a file of ``size`` bytes; None if there is no such file.

        Raises:
            StorageFault: it has another size, or cannot be opened.
        """
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            raise _fault(region) from None
        reader = cls(descriptor, region)
        if os.fstat(descriptor).st_size != size:
            reader.close()
            raise _fault(region)
        return reader

    def read(self, into: NDArray[np.uint8]) -> None:
        """Fill memory with the bytes that follow.

        Raises:
            StorageFault: there are not so many.
        """
        view = memoryview(into)  # type: ignore[arg-type]  # arrays are buffers
        try:
            while view:
                count = os.readv(self._descriptor, [view])
                if not count:
                    raise _fault(self._region)
                view = view[count:]
        except OSError:
            raise _fault(self._region) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _fault(region: Region) -> StorageFault:
    corner = ", ".join(str(part.start) for part in region)
    return StorageFault(
        f"the source cannot be read or decoded near index ({corner}); restore it from a copy"
    )

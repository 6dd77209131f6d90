"""Write chunks that are staged piece by piece: checksum, digest and write while a piece is in the
cache, and the whole is read back before the task ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import blake3
import numpy as np
from numpy.typing import NDArray

from dpdask.loading import when_used
from dpdask.storage.base import Buffer, Storage
from dpdask.storage.layout import Layout
from dpdask.storage.manifest import ManifestEntry, digest_of

if TYPE_CHECKING:
    from dpdask.machine import crc32c as kernel
else:
    kernel = when_used("dpdask.machine.crc32c")

__all__ = ["StagedChunk", "stage_pieces", "staged_or_none"]


class StagedChunk(NamedTuple):
    """A write chunk in staging.

    Args:
        entry: its entry in the manifest.
        stamp: the stamp of the object when it was read back and found intact, empty if it was not:
            as long as the stamp is the same nobody has written to it since.
    """

    entry: ManifestEntry
    stamp: str = ""


def stage_pieces(
    data: Storage, layout: Layout, index: tuple[int, ...], pieces: Iterable[NDArray[np.uint8]]
) -> StagedChunk | None:
    """Store one raw write chunk, read it back, and return it; None if other bytes are there.

    Args:
        data: where it is staged.
        layout: the released array, raw.
        index: which write chunk.
        pieces: its bytes in order, computed as they are asked for. Memory may be used again.
    """
    key, size = layout.key(index), layout.write_chunk_bytes + 4
    digest = blake3.blake3()

    def checked() -> Iterator[Buffer]:
        crc = 0
        for piece in pieces:
            crc = kernel.crc32c(piece, crc)
            digest.update(piece)  # type: ignore[arg-type]  # numpy's arrays are buffers
            yield piece
        trailer = crc.to_bytes(4, "little")
        digest.update(trailer)
        yield trailer

    created = data.create_from(key, checked(), size)
    entry = ManifestEntry(key, size, str(digest.hexdigest()))
    if not created:
        return staged_or_none(data, entry)
    # A change after this stamp shows in the next one, whether the check below sees it or not.
    stamp = data.stamp(key)
    with data.viewed(key) as stored:
        intact = stamp is not None and stored is not None and layout.check(index, stored)
    return StagedChunk(entry, stamp or "" if intact else "")


def staged_or_none(data: Storage, entry: ManifestEntry) -> StagedChunk | None:
    """Return an object that is there already, None unless it has the digest of its entry."""
    with data.viewed(entry.key) as stored:
        if stored is None or stored.size != entry.size:
            return None
        return StagedChunk(entry) if digest_of([stored]) == entry.digest else None

"""What runs inside a task after the charge: tiles are released, and staged chunks read again.

The rules of :mod:`dpdask.execution.exact_tasks` hold here too: nothing may show a raw value.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpdask.execution.exact_tasks import Opaque, Sums, redacted
from dpdask.execution.jobs import TileJob, Written
from dpdask.execution.kept import Kept
from dpdask.execution.radii import tile_radii
from dpdask.execution.streaming import released_pieces
from dpdask.execution.tiles import (
    noisy_sum,
    put_tile,
    released_tile,
    tile_digest,
)
from dpdask.planning.tiling import Index
from dpdask.storage import Layout, ManifestEntry, Publisher
from dpdask.types import Array, Floats

__all__ = ["check_chunks", "digest_tile", "noisy_answer", "write_tiles"]


@redacted
def write_tiles(
    job: TileJob,
    indices: Sequence[Index],
    first_record: int = 0,
    factors: Opaque[Floats] | None = None,
    answer: Opaque[Sums] | None = None,
    kept: Opaque[Kept] | None = None,
) -> Written:
    """Release some tiles into staging.

    Args:
        job: What all tile tasks share.
        indices: The tiles.
        first_record: The record that ``factors`` begin with.
        factors: Clip factors from the pass over norms, None where there was none.
        answer: The exact answer, None where the tile itself is read.
        kept: The records of a tile that count, others lie at the centre; None for all.
    """
    key = job.key.from_transferable()
    radii = tile_radii(job, key)
    clips = None if factors is None else (first_record, factors.value)
    sums = None if answer is None else answer.value
    bits = None if kept is None else kept.value
    written = Written([], [], {})
    for index in indices:
        if sums is None:
            pieces = released_pieces(job, key, index, factors=clips, kept=bits)
            if pieces is not None:
                staged = job.staging.stage_pieces(job.layout, index, pieces)
                written.add(job.layout.key(index), staged)
                continue
        tile = released_tile(job, key, index, sums=sums, factors=clips, radii=radii, kept=bits)
        put_tile(job, index, tile, written)
    return written


@redacted
def digest_tile(job: TileJob, index: Index, answer: Opaque[Sums] | None) -> tuple[Index, str]:
    """Return a tile of one step with a keyed digest of what noise will be added to.

    Args:
        job: What all tile tasks share.
        index: The tile.
        answer: The exact answer, None where the tile itself is read.
    """
    sums = None if answer is None else answer.value
    return index, tile_digest(job, job.key.from_transferable(), index, sums)


@redacted
def noisy_answer(job: TileJob, answer: Opaque[Sums]) -> Array:
    """Return a small answer with its noise: differentially private, so the driver may keep it."""
    released = noisy_sum(job, job.key.from_transferable(), answer.value)
    if job.query.symmetric:
        return (released + released.T) / 2
    return released.copy()  # tiles are written into the same memory


@redacted
def check_chunks(
    staging: Publisher, layout: Layout, chunks: Sequence[tuple[Index, ManifestEntry, bool]]
) -> list[str]:
    """Return the keys of staged write chunks that are not what their manifest entries say.

    Args:
        staging: Where they are.
        layout: How they are encoded.
        chunks: Index, manifest entry, and whether the digest is computed again too.
    """
    return [
        entry.key
        for index, entry, digest in chunks
        if not staging.check(layout, index, entry, digest=digest)
    ]

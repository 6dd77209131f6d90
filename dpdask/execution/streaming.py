"""A tile that is one file on both sides, in pieces that stay in the cache.

Read, norms, clip, noise: each piece goes through all of them, without the interpreter's lock,
before the next one is read. The publisher adds checksum and digest, and writes. All other tiles are
computed whole, to the same bytes (:mod:`dpdask.execution.tiles`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpdask.execution.jobs import TileJob
from dpdask.execution.kept import Kept
from dpdask.execution.scratch import scratch
from dpdask.keystream import ReleaseKey
from dpdask.loading import when_used
from dpdask.planning.tiling import Index
from dpdask.privatizers.base import AddNoise
from dpdask.privatizers.clipping import rows_of
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.samplers import BLOCK
from dpdask.queries import Clip, Query
from dpdask.storage import PIECE_BYTES, ChunkReader, Region
from dpdask.types import Floats, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import squares
else:
    squares = when_used("dpdask.privatizers.squares")

__all__ = ["released_pieces"]

_LONGEST_RECORD = 8 * PIECE_BYTES  # a record is never cut where its norm comes from its own tile


@dataclass(frozen=True, slots=True)
class _Clipping:
    """How the records of a tile are clipped.

    Args:
        factors: What every record is multiplied by.
        grid: The grid of norms that are still to be computed, piece by piece; None where the
            factors are known.
        inner: How many entries of a record follow each other.
    """

    factors: Floats | None = None
    grid: Grid | None = None
    inner: int = 1


def released_pieces(
    job: TileJob,
    key: ReleaseKey,
    index: Index,
    *,
    factors: tuple[int, Floats] | None,
    kept: Kept | None,
) -> Iterator[NDArray[np.uint8]] | None:
    """Return the bytes of a released tile, computed as they are asked for; None if it must be
    computed whole.

    Args:
        job: What all tile tasks share.
        key: The release key.
        index: The tile.
        factors: Clip factors from the pass over norms with the first one's record, if any.
        kept: The records that count, None for all.
    """
    box = job.tiling.box(index)
    shape = tuple(part.stop - part.start for part in box)
    if kept is not None or not _is_plain(job, box, shape):
        return None
    clipping = _clipping(job, box, shape, factors)
    if clipping is None:
        return None
    stream = key.tile(fingerprint=bytes.fromhex(job.binding), component=job.component, index=index)
    add = job.privatizer.adder(shape=shape, box=box, stream=stream, factors=clipping.factors)
    entries = _piece_entries(job, clipping)
    if add is None or entries is None:
        return None
    reader = job.source.chunk_reader(box)
    if reader is None:
        return None
    return _pieces(job, box, reader, clipping, add, entries)


def _is_plain(job: TileJob, box: Region, shape: Shape) -> bool:
    """Return whether a tile is read, bounded and written entry by entry, as one raw write chunk."""
    query, layout = job.query, job.layout
    # a step of a session is compared with what was noted of it first, all at once
    whole = job.step is None and layout.raw and not job.tiling.spanned and shape == layout.chunks
    alone = not (job.parts or job.beside or job.layers or query.arrays_beside or query.symmetric)
    shifted = query.divisor != 1 or query.offset(box) is not None
    return whole and alone and not shifted and _by_entry(query)


def _by_entry(query: Query) -> bool:
    """Return whether an entry is bounded by itself, or with its record, wherever it lies."""
    bound = query.bound
    if bound is None:
        return True
    return bound.center.zero if isinstance(bound, Clip) else bound.center.common


def _clipping(
    job: TileJob, box: Region, shape: Shape, factors: tuple[int, Floats] | None
) -> _Clipping | None:
    """Return how records are clipped; None where their norms need more than one piece."""
    bound, grid = job.query.bound, job.privatizer.clip_grid
    if not isinstance(bound, Clip) or grid is None:
        return _Clipping()
    outer, records, inner = rows_of(shape, bound.record_axis)
    if factors is not None:
        first, values = factors
        part = box[bound.record_axis]
        return _Clipping(np.ascontiguousarray(values[part.start - first : part.stop - first]))
    return _Clipping(np.ones(records), grid, inner) if outer == 1 else None


def _piece_entries(job: TileJob, clipping: _Clipping) -> int | None:
    """Return how many entries a piece has: whole records, whole blocks of noise where possible."""
    item = max(job.source.working_dtype.itemsize, np.dtype(job.layout.dtype).itemsize)
    most = PIECE_BYTES // item
    if clipping.inner * item > _LONGEST_RECORD:
        return None
    both = math.lcm(clipping.inner, BLOCK)
    unit = both if both <= most else clipping.inner
    return max(1, most // unit) * unit


def _pieces(
    job: TileJob,
    box: Region,
    reader: ChunkReader,
    clipping: _Clipping,
    add: AddNoise,
    at_once: int,
) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a tile, valid until the next ones are asked for."""
    dtype, bound = np.dtype(job.layout.dtype), job.query.bound
    entries = math.prod(part.stop - part.start for part in box)
    try:
        for start in range(0, entries, at_once):
            count = min(at_once, entries - start)
            values = scratch("in", (count,), job.source.working_dtype)
            reader.read(values.view(np.uint8))
            if bound is not None and not isinstance(bound, Clip):
                values = bound.center.fill(values, box)
            if clipping.grid is not None and clipping.factors is not None:
                records = slice(start // clipping.inner, (start + count) // clipping.inner)
                clipping.factors[records] = squares.clip_factors(
                    values.reshape(1, -1, clipping.inner),
                    1 / clipping.grid.step,
                    clipping.grid.high,
                )
            out = scratch("out", (count,), dtype)
            add(values, out, start)
            yield out.view(np.uint8)
    finally:
        reader.close()

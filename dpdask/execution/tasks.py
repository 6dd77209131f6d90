"""What runs inside a task after the charge: read, bound, add noise, write, return manifest entries.

The rules of :mod:`dpdask.execution.exact_tasks` hold here too: nothing may show a raw value.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpdask.execution.exact_tasks import Opaque, Sums, redacted
from dpdask.keystream import ReleaseKey, TransferableKey
from dpdask.noise import SphericalNoise
from dpdask.planning.tiling import Index, Tiling
from dpdask.privatizers.base import Privatizer, Tile
from dpdask.privatizers.chunk_radii import chunk_radii
from dpdask.privatizers.clipping import clip_factors, record_norms
from dpdask.queries import Clip, ExactSum, Query
from dpdask.queries.base import DATA
from dpdask.storage import Layout, ManifestEntry, Publisher, Region, SourceArray
from dpdask.types import Array, Floats, Integers

__all__ = [
    "TileJob",
    "Written",
    "check_chunks",
    "noisy_answer",
    "write_tiles",
]

_local = threading.local()


def _scratch(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Return this thread's buffer, kept between tiles: fresh memory costs more than the noise."""
    size = math.prod(shape) * dtype.itemsize
    kept = getattr(_local, name, None)
    if kept is None or kept.size < size:
        kept = np.empty(size, np.uint8)
        setattr(_local, name, kept)
    return kept[:size].view(dtype).reshape(shape)


class Written(NamedTuple):
    """What a task wrote: the entries of its write chunks, and the keys where other bytes lay."""

    entries: list[ManifestEntry]
    conflicts: list[str]


class PartJob(NamedTuple):
    """A further noisy sum: how its noise is added, under which name it is drawn, and its tiles."""

    name: str
    privatizer: Privatizer
    exact_sum: ExactSum
    component: str
    tiling: Tiling
    aligned: bool


class BesideJob(NamedTuple):
    """An array that is published beside the main one: what of the answer it is, and its layout."""

    suffix: str
    layout: Layout
    aligned: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class TileJob:
    """What all tile tasks of a component share.

    Args:
        source: The array to read.
        staging: Where write chunks go.
        layout: How they are encoded, and their keys.
        tiling: The tiles of the answer.
        query: The query that is answered.
        privatizer: How a tile is bounded, discretized and given noise.
        exact_sum: How records are summed exactly, None for a query that is not a sum.
        key: The release key, in its transferable form.
        binding: The digest of the recipe that the noise is drawn for.
        component: The name of the component, which its noise depends on too.
        parts: Further noisy sums of the answer.
        beside: The arrays that are published beside the main one.
    """

    source: SourceArray
    staging: Publisher
    layout: Layout
    tiling: Tiling
    query: Query
    privatizer: Privatizer
    exact_sum: ExactSum | None
    key: TransferableKey
    binding: str
    component: str
    parts: tuple[PartJob, ...] = ()
    beside: tuple[BesideJob, ...] = ()

    def __repr__(self) -> str:
        return "<TileJob>"

    def stds(self) -> dict[str, float]:
        """Return the standard deviation of the noise of every part."""
        return {DATA: self.privatizer.noise.entry_std} | {
            part.name: part.privatizer.noise.entry_std for part in self.parts
        }


@redacted
def write_tiles(
    job: TileJob,
    indices: Sequence[Index],
    first_record: int = 0,
    factors: Opaque[Floats] | None = None,
    answer: Opaque[Sums] | None = None,
) -> Written:
    """Release some tiles into staging.

    Args:
        job: What all tile tasks share.
        indices: The tiles.
        first_record: The record that ``factors`` begin with.
        factors: Clip factors from the pass over norms, None where there was none.
        answer: The exact answer, None where the tile itself is read.
    """
    key = job.key.from_transferable()
    radii = _radii(job, key)
    written = Written([], [])
    for index in indices:
        box = job.tiling.box(index)
        block: Array
        shrink: Floats | None = None
        if answer is not None and job.beside:
            _write_joint(job, key, index, answer.value, written)
            continue
        if answer is None:
            block = _bounded_from(job, box)
            shrink = _factors(job, box, block, first_record, factors)
        else:
            block = _on_grid(job, _tile_of(answer.value[DATA], box))
        released = _released(job, key, index, box, block, shrink, radii.get(index))
        if job.query.symmetric:
            released = _symmetrised(job, key, index, block, released, radii)
        for chunk_index, inner in job.tiling.write_chunks(index):
            _put(job, job.layout, chunk_index, released[inner], written)
            if job.query.symmetric and index[0] != index[1]:
                transposed = np.ascontiguousarray(released[inner].T)
                _put(job, job.layout, chunk_index[::-1], transposed, written)
    return written


def _bounded_from(job: TileJob, box: Region) -> Array:
    """Return a tile of the source as it is bounded: missing entries at the centre, or everything
    measured from the centre where records are clipped around one.
    """
    block = job.source.read(box, functools.partial(_scratch, "in"))
    bound = job.query.bound
    if isinstance(bound, Clip):
        return bound.center.shifted(block, box)
    return block if bound is None else bound.center.fill(block, box)


def _write_joint(job: TileJob, key: ReleaseKey, index: Index, sums: Sums, written: Written) -> None:
    """Release one tile of an answer of several parts, and what is published beside it.

    What is not aligned with the tiles is written with the first one.
    """
    box = job.tiling.box(index)
    main = _noisy(
        job,
        key,
        job.privatizer,
        job.component,
        index,
        box,
        _on_grid(job, _tile_of(sums[DATA], box)),
    )
    noisy = {DATA: main}
    for part in job.parts:
        at = index if part.aligned else (0,) * len(part.tiling.shape)
        region = part.tiling.box(at)
        block = part.exact_sum.answer(_tile_of(sums[part.name], region))
        noisy[part.name] = _noisy(job, key, part.privatizer, part.component, at, region, block)
    released = job.query.release(noisy, job.stds(), box)
    _put_chunks(job, job.layout, index, released[DATA], written)
    for array in job.beside:
        if array.aligned:
            _put_chunks(job, array.layout, index, released[array.suffix], written)
        elif not any(index):
            shape = array.layout.shape
            whole = released[array.suffix].reshape(shape)
            _put(job, array.layout, (0,) * len(shape), whole, written)


def _noisy(
    job: TileJob,
    key: ReleaseKey,
    privatizer: Privatizer,
    component: str,
    index: Index,
    box: Region,
    block: Array,
) -> Floats:
    """Return a tile of one part with its noise."""
    out = np.empty(block.shape, np.float64)
    stream = key.tile(fingerprint=bytes.fromhex(job.binding), component=component, index=index)
    privatizer.apply(Tile(values=block, box=box, stream=stream), out)
    return out


def _put_chunks(
    job: TileJob, layout: Layout, index: Index, values: Array, written: Written
) -> None:
    for chunk_index, inner in job.tiling.write_chunks(index):
        _put(job, layout, chunk_index, values[inner].astype(layout.dtype), written)


def _on_grid(job: TileJob, total: Integers) -> Array:
    """Return an exact sum as values on the grid of the answer."""
    assert job.exact_sum is not None
    return job.exact_sum.answer(total)


def _tile_of(answer: Integers, box: Region) -> Integers:
    """Return the part of an exact answer that a tile is; it may be of that tile alone already."""
    shape = tuple(part.stop - part.start for part in box)
    return answer if answer.shape[-len(shape) :] == shape else answer[box]


def _put(job: TileJob, layout: Layout, chunk_index: Index, block: Array, written: Written) -> None:
    entry = job.staging.put(layout, chunk_index, block)
    if entry is None:
        written.conflicts.append(layout.key(chunk_index))
    else:
        written.entries.append(entry)


def _factors(
    job: TileJob, box: Region, block: Array, first: int, factors: Opaque[Floats] | None
) -> Floats | None:
    """Return the clip factors of a tile's records.

    They come from the pass over norms, or from the tile itself where it holds whole records.
    """
    bound, grid = job.query.bound, job.privatizer.clip_grid
    if not isinstance(bound, Clip) or grid is None:
        return None
    if factors is not None:
        part = box[bound.record_axis]
        return factors.value[part.start - first : part.stop - first]
    return clip_factors(
        record_norms(block, record_axis=bound.record_axis, step=grid.step), grid=grid
    )


def _released(
    job: TileJob,
    key: ReleaseKey,
    index: Index,
    box: Region,
    block: Array,
    factors: Floats | None,
    radius: float | None,
) -> Array:
    """Return a tile with its noise, in the type that it is written in or as it is averaged."""
    dtype = np.dtype(job.layout.dtype)
    offset = job.query.offset(box)
    untouched = job.query.divisor == 1 and not job.query.symmetric and offset is None
    plain = dtype.kind == "i" or untouched
    kind = dtype if plain else np.dtype(np.float64)
    out = np.empty(block.shape, kind) if job.query.symmetric else _scratch("out", block.shape, kind)
    stream = key.tile(fingerprint=bytes.fromhex(job.binding), component=job.component, index=index)
    job.privatizer.apply(
        Tile(values=block, box=box, stream=stream, factors=factors, radius=radius), out
    )
    if not plain:
        out /= job.query.divisor
        if offset is not None:
            out += offset
    return out if job.query.symmetric else out.astype(dtype, copy=False)


def _symmetrised(
    job: TileJob,
    key: ReleaseKey,
    index: Index,
    block: Array,
    released: Array,
    radii: dict[Index, float],
) -> Array:
    """Return (Y + Y')/2: a tile's own noise averaged with that of its mirror image."""
    mirror = index[::-1]
    other = released
    if mirror != index:
        across = tuple(job.tiling.box(mirror))
        transposed = np.ascontiguousarray(block.T)
        other = _released(job, key, mirror, across, transposed, None, radii.get(mirror))
    average: Array = ((released + other.T) / 2).astype(job.layout.dtype)
    return average


def _radii(job: TileJob, key: ReleaseKey) -> dict[Index, float]:
    """Return the norm of every tile's noise where all share one direction, equal in every task."""
    noise = job.privatizer.noise
    if not isinstance(noise, SphericalNoise):
        return {}
    indices = list(np.ndindex(*job.tiling.counts))
    sizes = [
        math.prod(part.stop - part.start for part in job.tiling.box(index)) for index in indices
    ]
    drawn = chunk_radii(
        key,
        fingerprint=bytes.fromhex(job.binding),
        component=job.component,
        law=noise.law,
        chunk_sizes=sizes,
    )
    return dict(zip(indices, drawn.tolist(), strict=True))


@redacted
def noisy_answer(job: TileJob, answer: Opaque[Sums]) -> Array:
    """Return a small answer with its noise: differentially private, so the driver may keep it."""
    key = job.key.from_transferable()
    index = (0,) * len(job.tiling.shape)
    box = job.tiling.box(index)
    block = _on_grid(job, answer.value[DATA])
    released = _released(job, key, index, box, block, None, None)
    return (released + released.T) / 2 if job.query.symmetric else released


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

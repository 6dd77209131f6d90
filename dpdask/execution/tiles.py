"""One tile of an answer: its noise, what is published of it, and the layers computed from that.

The rules of :mod:`dpdask.execution.exact_tasks` hold here too: nothing may show a raw value.
Layers see what is published alone, as whoever reads the release sees it: they are post-processing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from dpdask.errors import SourceChanged
from dpdask.execution.exact_tasks import Sums
from dpdask.execution.jobs import TileJob, Written
from dpdask.execution.kept import Kept, at_center
from dpdask.execution.scratch import scratch
from dpdask.keystream import ReleaseKey
from dpdask.planning.tiling import Index
from dpdask.privatizers.base import Privatizer, Tile
from dpdask.privatizers.clipping import clip_factors, record_norms
from dpdask.queries import Clip
from dpdask.queries.base import DATA, NOISE_STD
from dpdask.storage import Layout, Region
from dpdask.types import Array, Floats, Integers

__all__ = [
    "Released",
    "noisy_sum",
    "put_tile",
    "released_tile",
    "tile_digest",
]

Released = Mapping[str, Array]
"""What is published of a tile: the main array as ``data``, others by their suffixes."""


def released_tile(
    job: TileJob,
    key: ReleaseKey,
    index: Index,
    *,
    sums: Sums | None,
    factors: tuple[int, Floats] | None,
    radii: Mapping[Index, float],
    kept: Kept | None = None,
) -> Released:
    """Return a tile with its noise as it is published, and what the query publishes beside it.

    Args:
        job: What all tile tasks share.
        key: The release key.
        index: The tile.
        sums: The exact answer, None where the tile itself is read.
        factors: Clip factors from the pass over norms with the first one's record, if any.
        radii: The norms of all tiles' spherical noise.
        kept: The records that count, None for all.
    """
    box = job.tiling.box(index)
    if sums is not None and job.query.arrays_beside:
        return _joint_tile(job, key, index, sums)
    shrink: Floats | None = None
    if sums is None:
        block = at_center(job.query, box, _bounded_from(job, box), kept)
        shrink = _factors(job, box, block, factors)
    else:
        block = _on_grid(job, _tile_of(sums[DATA], box))
    if job.step is not None and job.step.digests[index] != _digest(job, key, index, block):
        raise SourceChanged("a step changed while it was read; nothing of it was released")
    released = _released(job, key, index, box, block, shrink, radii.get(index))
    if job.query.symmetric:
        released = _symmetrised(job, key, index, block, released, radii)
    return {DATA: released}


def tile_digest(job: TileJob, key: ReleaseKey, index: Index, sums: Sums | None) -> str:
    """Return a keyed digest of what noise is added to in a tile of one step.

    Args:
        job: What all tile tasks share.
        key: The release key.
        index: The tile.
        sums: The exact answer, None where the tile itself is read.
    """
    box = job.tiling.box(index)
    block = _bounded_from(job, box) if sums is None else _on_grid(job, _tile_of(sums[DATA], box))
    return _digest(job, key, index, block)


def _digest(job: TileJob, key: ReleaseKey, index: Index, block: Array) -> str:
    name = f"{job.binding} {job.component} {index} {block.dtype.str} {block.shape}"
    return key.seal("steps").digest(name, np.ascontiguousarray(block).tobytes())


def put_tile(job: TileJob, index: Index, released: Released, written: Written) -> None:
    """Stage a released tile with its layers, and its mirror image where the answer is symmetric.

    What is not aligned with the tiles is written with the first one.
    """
    _put_arrays(job, index, released, written)
    if job.query.symmetric and index[0] != index[1]:
        mirrored = {name: np.ascontiguousarray(values.T) for name, values in released.items()}
        _put_arrays(job, index[::-1], mirrored, written)


def _put_arrays(job: TileJob, index: Index, released: Released, written: Written) -> None:
    _put_chunks(job, job.layout, index, released[DATA], written)
    if not job.beside:
        return
    box = job.tiling.box(index)
    known = {**_noise_std(job, box), **released}
    arrays = {**known, **_layers(job, known, box)}
    shape = tuple(part.stop - part.start for part in box)
    for array in job.beside:
        if array.aligned:
            values = np.broadcast_to(arrays[array.suffix], shape)
            _put_chunks(job, array.layout, index, values, written)
        elif not any(index):
            whole = arrays[array.suffix].reshape(array.layout.shape)
            _put(job, array.layout, (0,) * len(array.layout.shape), whole, written)


def _noise_std(job: TileJob, box: Region) -> dict[str, Array]:
    """Return the noise of a tile's entries, where it is written or a layer needs it."""
    wanted = any(array.suffix == NOISE_STD for array in job.beside)
    if job.query.noise_varies or not (wanted or any(layer.needs_noise for layer in job.layers)):
        return {}
    return {NOISE_STD: job.query.noise_level(job.privatizer.noise).of(box)}


def _layers(job: TileJob, released: Released, box: Region) -> dict[str, Array]:
    """Return the layers of a tile, computed from what is published of it."""
    if not job.layers:
        return {}
    published = {name: _as_published(job, name, values) for name, values in released.items()}
    layers: dict[str, Array] = {}
    with np.errstate(all="ignore"):  # no value may be told from another by a warning
        for layer in job.layers:
            layers |= layer.apply(published, box)
    return layers


def _as_published(job: TileJob, name: str, values: Array) -> Floats:
    """Return numbers as a reader decodes them, which no layer may change."""
    numbers: Floats = values.astype(np.float64)
    if name == DATA and values.dtype.kind == "i":
        numbers *= (job.privatizer.step or 1.0) / job.query.divisor
    numbers.flags.writeable = False
    return numbers


def _bounded_from(job: TileJob, box: Region) -> Array:
    """Return a tile of the source as it is bounded: missing entries at the centre, or everything
    measured from the centre where records are clipped around one.
    """
    block = job.source.read(box, functools.partial(scratch, "in"))
    bound = job.query.bound
    if isinstance(bound, Clip):
        return bound.center.shifted(block, box)
    return block if bound is None else bound.center.fill(block, box)


def _joint_tile(job: TileJob, key: ReleaseKey, index: Index, sums: Sums) -> Released:
    """Return one tile of an answer of several parts, and what is published beside it."""
    box = job.tiling.box(index)
    total = _on_grid(job, _tile_of(sums[DATA], box))
    noisy = {DATA: _noisy(job, key, job.privatizer, job.component, index, box, total)}
    if job.query.symmetric:
        noisy[DATA] = _averaged(job, key, index, total, noisy[DATA])
    for part in job.parts:
        at = index if part.aligned else (0,) * len(part.tiling.shape)
        region = part.tiling.box(at)
        block = part.exact_sum.answer(_tile_of(sums[part.name], region))
        noisy[part.name] = _noisy(job, key, part.privatizer, part.component, at, region, block)
    released = job.query.release(noisy, job.stds(), box)
    return {**released, DATA: released[DATA].astype(job.layout.dtype, copy=False)}


def _averaged(job: TileJob, key: ReleaseKey, index: Index, total: Array, noisy: Floats) -> Floats:
    """Return (Y + Y')/2 of the main part: its noise averaged with that of its mirror image."""
    mirror = index[::-1]
    other = noisy
    if mirror != index:
        across, transposed = job.tiling.box(mirror), np.ascontiguousarray(total.T)
        other = _noisy(job, key, job.privatizer, job.component, mirror, across, transposed)
    return (noisy + other.T) / 2


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
        _put(job, layout, chunk_index, values[inner].astype(layout.dtype, copy=False), written)


def _on_grid(job: TileJob, total: Integers) -> Array:
    """Return an exact sum as values on the grid of the answer."""
    assert job.exact_sum is not None
    return job.exact_sum.answer(total)


def _tile_of(answer: Integers, box: Region) -> Integers:
    """Return the part of an exact answer that a tile is; it may be of that tile alone already."""
    shape = tuple(part.stop - part.start for part in box)
    return answer if answer.shape[-len(shape) :] == shape else answer[box]


def _put(job: TileJob, layout: Layout, chunk_index: Index, block: Array, written: Written) -> None:
    if job.step is not None:
        chunk_index, block = (job.step.number, *chunk_index), block[np.newaxis]
    written.add(layout.key(chunk_index), job.staging.stage(layout, chunk_index, block))


def _factors(
    job: TileJob, box: Region, block: Array, factors: tuple[int, Floats] | None
) -> Floats | None:
    """Return the clip factors of a tile's records.

    They come from the pass over norms, or from the tile itself where it holds whole records.
    """
    bound, grid = job.query.bound, job.privatizer.clip_grid
    if not isinstance(bound, Clip) or grid is None:
        return None
    if factors is not None:
        first, values = factors
        part = box[bound.record_axis]
        return values[part.start - first : part.stop - first]
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
    out = np.empty(block.shape, kind) if job.query.symmetric else scratch("out", block.shape, kind)
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
    radii: Mapping[Index, float],
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


def noisy_sum(job: TileJob, key: ReleaseKey, sums: Sums) -> Array:
    """Return an answer of one tile with its noise, not yet averaged with its transpose."""
    index = (0,) * len(job.tiling.shape)
    block = _on_grid(job, sums[DATA])
    return _released(job, key, index, job.tiling.box(index), block, None, None)

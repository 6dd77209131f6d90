"""What runs inside a Dask task: read, bound, add noise, write, return a tiny record.

Everything here may hold raw values, so nothing here may show one: arguments that carry data print
redacted, and an exception leaves a task only as one of ours, with a constant text and no trace of
what it came from.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np

from dpdask.errors import ClusterError, DpdaskError, ReleaseError
from dpdask.keystream import ReleaseKey, TransferableKey
from dpdask.noise import SphericalNoise
from dpdask.planning.tiling import Index, Tiling
from dpdask.privatizers.base import Privatizer, Tile
from dpdask.privatizers.chunk_radii import chunk_radii
from dpdask.privatizers.clipping import clip_factors, no_norms, record_norms
from dpdask.privatizers.grid import Grid
from dpdask.queries import Clip, ExactSum, Query, SummedQuery
from dpdask.storage import Layout, ManifestEntry, Publisher, Region, SourceArray
from dpdask.types import Array

__all__ = [
    "Opaque",
    "TileJob",
    "Written",
    "add_up",
    "check_chunks",
    "check_source",
    "clip_part",
    "noisy_answer",
    "norms_part",
    "run_on_trusted_worker",
    "sum_part",
    "trust_violation",
    "write_tiles",
]

P = ParamSpec("P")
R = TypeVar("R")


_local = threading.local()


def _scratch(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """This thread's buffer, kept between tiles: fresh memory costs more than the noise."""
    size = math.prod(shape) * dtype.itemsize
    kept = getattr(_local, name, None)
    if kept is None or kept.size < size:
        kept = np.empty(size, np.uint8)
        setattr(_local, name, kept)
    return kept[:size].view(dtype).reshape(shape)


class Opaque:
    """A value on its way between tasks: its printed form says nothing of it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<Sealed>"

    def __sizeof__(self) -> int:
        return 64 + int(getattr(self.value, "nbytes", 0))


def redact_exceptions(function: Callable[P, R]) -> Callable[P, R]:
    """Let no exception out that could carry a value: ours by their constant texts, others by their
    kind alone.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        kind: type[Exception]
        try:
            return function(*args, **kwargs)
        except DpdaskError as error:
            kind, text = type(error), str(error)
        except MemoryError:
            kind, text = (
                ReleaseError,
                "a worker ran out of memory; use smaller publish.chunks or compute.task_size",
            )
        except Exception as error:
            kind, text = (
                ReleaseError,
                f"a task failed ({type(error).__name__}); `dpdask resume` tries again",
            )
        raise kind(text)

    return run


class Written(NamedTuple):
    """What a task wrote: the entries of its write units, and the keys of those where other bytes
    lay already.
    """

    entries: list[ManifestEntry]
    conflicts: list[str]


@dataclass(frozen=True, kw_only=True, repr=False)
class TileJob:
    """What all tile tasks of a component share. ``binding`` is the digest of the recipe that their
    noise is drawn for.
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

    def __repr__(self) -> str:
        return "<TileJob>"


def trust_violation(version: str, dask_worker: Any) -> str | None:
    """Why a worker must not see data, None if it may: another dpdask, or memory that goes to disk.
    Dask passes the worker.
    """
    found = importlib.metadata.version("dpdask")
    if found != version:
        return (
            f"a worker runs dpdask {found}, this is {version}; install the same version everywhere"
        )
    memory = dask_worker.memory_manager
    fractions = [getattr(memory, f"memory_{name}_fraction", True) for name in ("target", "spill")]
    if getattr(memory, "memory_limit", True) and any(
        fractions
    ):  # without a limit there is nothing to spill at
        return (
            "a worker may spill to disk, where raw values would stay; set"
            " distributed.worker.memory.target and .spill to"
            " false in its Dask configuration"
        )
    return None


def run_on_trusted_worker(version: str, function: Callable[..., R], *args: Any) -> R:
    """Run a task of ours, unless the worker, which may have joined after the release began, must
    not see data.
    """
    from distributed import get_worker

    worker: Any = get_worker()
    if getattr(worker, "dpdask_sound", None) != version:
        fault = trust_violation(version, worker)
        if fault is not None:
            raise ClusterError(fault)
        worker.dpdask_sound = version
    return function(*args)


@redact_exceptions
def check_source(source: SourceArray, box: Region) -> None:
    """Decode a region, so that a damaged source is found before anything is charged."""
    for piece in source.pieces(box):
        source.read(piece)


@redact_exceptions
def norms_part(source: SourceArray, box: Region, record_axis: int, grid: Grid) -> Opaque:
    """The squared norms of the parts of records that lie in a region, with the first record's
    index.
    """
    records = box[record_axis]
    total = no_norms(records.stop - records.start)
    for piece in source.pieces(box):
        part = piece[record_axis]
        norms = record_norms(source.read(piece), record_axis=record_axis, step=grid.step)
        total[part.start - records.start : part.stop - records.start] += norms
    return Opaque((records.start, total))


@redact_exceptions
def clip_part(grid: Grid, records: slice, *parts: Opaque) -> Opaque:
    """Clip factors from all parts of some records' norms."""
    total = no_norms(records.stop - records.start)
    for part in parts:
        start, norms = part.value
        total[start - records.start : start - records.start + len(norms)] += norms
    return Opaque(clip_factors(total, grid=grid))


@redact_exceptions
def sum_part(
    query: SummedQuery,
    exact_sum: ExactSum,
    source: SourceArray,
    answer_box: Region,
    records: slice,
    factors: Opaque | None,
) -> Opaque:
    """A partial sum of an answer."""
    return Opaque(
        query.partial(
            source, exact_sum, answer_box, records, None if factors is None else factors.value
        )
    )


@redact_exceptions
def add_up(*parts: Opaque) -> Opaque:
    """Partial sums added; in integers, so their order does not matter."""
    return Opaque(functools.reduce(np.add, (part.value for part in parts)))


@redact_exceptions
def write_tiles(
    job: TileJob,
    indices: Sequence[Index],
    first_record: int = 0,
    factors: Opaque | None = None,
    answer: Opaque | None = None,
) -> Written:
    """Release some tiles into staging."""
    key = job.key.from_transferable()
    radii = _radii(job, key)
    written = Written([], [])
    for index in indices:
        box = job.tiling.box(index)
        shape = tuple(part.stop - part.start for part in box)
        if answer is None:
            block = job.source.read(box, functools.partial(_scratch, "in"))
            shrink = _factors(job, box, block, first_record, factors)
        else:
            whole = answer.value
            block = _answer(job, whole if whole.shape[-len(shape) :] == shape else whole[box])
            shrink = None
        released = _released(job, key, index, box, block, shrink, radii.get(index))
        if job.query.symmetric:
            released = _symmetrised(job, key, index, block, released, radii)
        for chunk_index, inner in job.tiling.write_chunks(index):
            _put(job, chunk_index, released[inner], written)
            if job.query.symmetric and index[0] != index[1]:
                _put(job, chunk_index[::-1], np.ascontiguousarray(released[inner].T), written)
    return written


def _answer(job: TileJob, total: Array) -> Array:
    """Return an exact sum as values on the grid of the answer."""
    assert job.exact_sum is not None
    return job.exact_sum.answer(total)


def _put(job: TileJob, chunk_index: Index, block: Array, written: Written) -> None:
    entry = job.staging.put(job.layout, chunk_index, block)
    if entry is None:
        written.conflicts.append(job.layout.key(chunk_index))
    else:
        written.entries.append(entry)


def _factors(job: TileJob, box: Region, block: Array, first: int, factors: Opaque | None) -> Any:
    """The clip factors of a tile's records: from the pass over norms, or from the tile itself where
    it holds them whole.
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
    factors: Any,
    radius: float | None,
) -> Array:
    dtype = np.dtype(job.layout.dtype)
    plain = dtype.kind == "i" or (job.query.divisor == 1 and not job.query.symmetric)
    kind = dtype if plain else np.dtype(np.float64)
    out = np.empty(block.shape, kind) if job.query.symmetric else _scratch("out", block.shape, kind)
    stream = key.tile(fingerprint=bytes.fromhex(job.binding), component=job.component, index=index)
    job.privatizer.apply(
        Tile(values=block, box=box, stream=stream, factors=factors, radius=radius), out
    )
    if not plain:
        out /= job.query.divisor
    return out if job.query.symmetric else out.astype(dtype, copy=False)


def _symmetrised(
    job: TileJob,
    key: ReleaseKey,
    index: Index,
    block: Any,
    released: Any,
    radii: dict[Index, float],
) -> Array:
    """(Y + Y')/2: a tile's own noise averaged with that of its mirror image."""
    mirror = index[::-1]
    other = released
    if mirror != index:
        across = tuple(job.tiling.box(mirror))
        other = _released(
            job, key, mirror, across, np.ascontiguousarray(block.T), None, radii.get(mirror)
        )
    average: Array = ((released + other.T) / 2).astype(job.layout.dtype)
    return average


def _radii(job: TileJob, key: ReleaseKey) -> dict[Index, float]:
    """The norm of every tile's noise, where all share one direction; the same in every task."""
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


@redact_exceptions
def noisy_answer(job: TileJob, answer: Opaque) -> Array:
    """A small answer with its noise, for the driver: differentially private, so it may travel and
    be kept.
    """
    key = job.key.from_transferable()
    index = (0,) * len(job.tiling.shape)
    box = job.tiling.box(index)
    block = _answer(job, answer.value)
    released = _released(job, key, index, box, block, None, None)
    return (released + released.T) / 2 if job.query.symmetric else released


@redact_exceptions
def check_chunks(
    staging: Publisher, layout: Layout, units: Sequence[tuple[Index, ManifestEntry, bool]]
) -> list[str]:
    """The keys of staged units that are missing or damaged or, where their digest is asked for, not
    the ones recorded.
    """
    return [
        entry.key
        for index, entry, digest in units
        if not staging.check(layout, index, entry, digest=digest)
    ]

"""Kernels run over the blocks of a tile's random words, undecided draws settled exactly.

``x`` is a C-ordered float32, float64, int32 or int64 array, ``out`` an array of the same shape and
one of the same dtypes; integer outputs hold the grid integers themselves. Entry-wise noise gives
element i of a tile, in C order, the i-th integer of the tile's stream, so parts of a tile can be
computed alone; mixing noise takes them panel by panel. Beyond ``x`` and ``out`` a call needs well
under 4 MB.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.keystream import TileStream, Words
from dpdask.loading import when_used
from dpdask.privatizers.grid import check_steps_per_sigma
from dpdask.privatizers.samplers import BLOCK, GAUSSIAN, Sampler
from dpdask.types import Array, Floats

if TYPE_CHECKING:
    from dpdask.privatizers import kernels, loops
    from dpdask.privatizers.loops import Combine
else:
    kernels = when_used("dpdask.privatizers.kernels")
    loops = when_used("dpdask.privatizers.loops")

__all__ = [
    "TILE_DTYPES",
    "draw_and_combine",
    "drawn_integers",
    "flattened",
    "gaussian_integers",
    "output_scale",
]

TILE_DTYPES = tuple(np.dtype(name) for name in ("float32", "float64", "int32", "int64"))
_CHUNK = 32 * BLOCK

_local = threading.local()


def _words() -> Words:
    """Return this thread's buffer, kept because fresh memory costs more than the cipher."""
    if not hasattr(_local, "words"):
        _local.words = np.empty(_CHUNK, np.uint64)
    buffer: Words = _local.words
    return buffer


def draw_and_combine(
    combine: Combine,
    stream: TileStream,
    steps_per_sigma: float,
    x: Array,
    out: Array,
    params: tuple[object, ...],
    *,
    start: int = 0,
    sampler: Sampler = GAUSSIAN,
) -> None:
    """Draw the integers of elements ``start`` to ``start + x.size`` and combine them with ``x``.

    Args:
        combine: The kernel that writes ``out``.
        stream: The random bytes of the tile.
        steps_per_sigma: The standard deviation of the integers, or the scale of Laplace's.
        x: The data, flat.
        out: The output, flat.
        params: What the kernel needs beside the data.
        start: The number of the first element within the tile.
        sampler: What draws the integers.
    """
    inner, outer = sampler.thresholds(check_steps_per_sigma(steps_per_sigma))
    if x.size == 0:
        return
    first, stop = start - start % BLOCK, start + x.size
    flagged = np.empty(-(-(stop - first) // BLOCK), np.int64)
    quick = sampler.quick_limit(steps_per_sigma)
    limits = (outer if quick is None else quick, inner, outer)
    common = (x, out), (start, stop, steps_per_sigma, limits, flagged, params)
    loop = _by_kernel if stream.has_round_keys else _by_library
    for at in loop(combine, sampler, stream, first, *common):
        words, z = np.empty(BLOCK, np.uint64), np.empty(BLOCK)
        stream.filler(at, words)()
        sampler.fill_block(words, z, steps_per_sigma, outer)
        sampler.settle_block(stream, at // BLOCK, words, z, steps_per_sigma)
        combine(z, at, max(at, start), min(at + BLOCK, stop), x, out, start, params)


def _by_kernel(
    combine: Combine,
    sampler: Sampler,
    stream: TileStream,
    first: int,
    data: tuple[Array, Array],
    rest: tuple[Any, ...],
) -> list[int]:
    """Run the loop whose words come from the kernel; return the blocks that are left out."""
    _, _, steps_per_sigma, _, flagged, _ = rest
    run = loops.over_keystream(combine, sampler, sampler.quick_limit(steps_per_sigma) is not None)
    count = run(stream.round_keys(), *data, first, *rest)
    undecided: list[int] = flagged[:count].tolist()
    return undecided


def _by_library(
    combine: Combine,
    sampler: Sampler,
    stream: TileStream,
    first: int,
    data: tuple[Array, Array],
    rest: tuple[Any, ...],
) -> list[int]:
    """Run the loop whose words come from a library; return the blocks that are left out."""
    _, stop, *_, flagged, _ = rest
    words = _words()[: _whole_blocks(stop - first)]
    refill = stream.filler(first, words)
    run = loops.over_words(combine, sampler)
    undecided: list[int] = []
    for at in range(first, stop, words.size):
        refill()
        part = words[: _whole_blocks(stop - at)]
        undecided += flagged[: run(part, *data, at, *rest)].tolist()
    return undecided


def _whole_blocks(elements: int) -> int:
    """Return how many elements the blocks hold that cover so many."""
    return -(-elements // BLOCK) * BLOCK


def flattened(x: Array, out: Array) -> tuple[Array, Array]:
    """Return input and output as flat views.

    Raises:
        InvalidNoise: A dtype, memory order or shape does not allow it, or the two share memory.
    """
    for name, array in (("input", x), ("output", out)):
        if array.dtype not in TILE_DTYPES:
            raise InvalidNoise(
                f"{name} dtype {array.dtype} is not float32, float64, int32 or int64; convert it"
                " first"
            )
        if not array.flags.c_contiguous:
            raise InvalidNoise(
                f"the {name} block is not C-contiguous; pass numpy.ascontiguousarray(block)"
            )
    if x.shape != out.shape:
        raise InvalidNoise(
            f"output shape {out.shape} is not the input's {x.shape}; allocate it alike"
        )
    if np.may_share_memory(x, out):
        raise InvalidNoise("input and output share memory; noise is never added in place")
    return x.reshape(-1), out.reshape(-1)


def output_scale(out: Array, grid_limit: int, step: float) -> tuple[float, float]:
    """Return the limit and the step of an output: integers keep grid steps and saturate."""
    if out.dtype.kind == "f":
        return float(grid_limit), step
    return float(min(grid_limit, np.iinfo(out.dtype).max)), 1.0


def gaussian_integers(
    stream: TileStream, steps_per_sigma: float, out: Floats, start: int = 0
) -> None:
    """Fill ``out`` with the tile's exact integers round(N(0, S^2)), S = ``steps_per_sigma``.

    Args:
        stream: The random bytes of the tile.
        steps_per_sigma: The standard deviation of the integers.
        out: Where they go.
        start: The number of the first element within the tile.
    """
    drawn_integers(GAUSSIAN, stream, steps_per_sigma, out, start)


def drawn_integers(
    sampler: Sampler, stream: TileStream, steps_per_sigma: float, out: Floats, start: int = 0
) -> None:
    """Fill ``out`` with the tile's exact integers of a sampler.

    Args:
        sampler: What draws them.
        stream: The random bytes of the tile.
        steps_per_sigma: The standard deviation of the integers, or the scale of Laplace's.
        out: Where they go.
        start: The number of the first element within the tile.
    """
    if not out.flags.c_contiguous:
        raise InvalidNoise("the output of integers is not C-contiguous; pass a contiguous array")
    flat = out.reshape(-1)
    draw_and_combine(
        kernels.keep, stream, steps_per_sigma, flat, flat, (0.0,), start=start, sampler=sampler
    )

"""Sums, means, histograms and covariances against Dask, and releases of compressed and to sharded
arrays against a copy by Dask: both sides in turns in one run, warm cache, two threads.

``python -m tests.bench.queries [--quick]``; part of ``make bench``. Needs about 4 GiB of disk.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from dpdask.releases.api import release
from tests.bench.table import THREADS, Row, in_turns, is_quick, record, release_spec, workplace

EDGES = np.linspace(-4, 4, 65)
CHUNK = 16 * 2**20
CLIP = {"record_dim": 0, "l2_clip_norm": 50.0}


class Case(NamedTuple):
    """A release, and what Dask computes of the same data."""

    name: str
    data: str
    query: Any
    unit: dict[str, Any]
    peer: Callable[[da.Array], da.Array]
    aim: float
    goal: float


def by_hand(x: da.Array) -> da.Array:
    """A covariance in two products, faster than ``dask.array.cov``."""
    mean = x.mean(axis=0)
    return x.T @ x / x.shape[0] - mean[:, None] * mean[None, :]


MEAN = {**CLIP, "missing": "center"}
NARROW = {**MEAN, "l2_clip_norm": 10.0}
HISTOGRAM = {"name": "histogram", "edges": [EDGES.tolist()]}
CASES = [
    Case("mean with clip / dask mean", "wide", "mean", MEAN, lambda x: x.mean(axis=0), 1.0, 1.3),
    Case("sum with clip / dask sum", "wide", "sum", MEAN, lambda x: x.sum(axis=0), 1.0, 1.3),
    Case(
        "mean with ranges / dask mean",
        "wide",
        "mean",
        {"record_dim": 0, "ranges": [-4.0, 4.0], "missing": "center"},
        lambda x: x.mean(axis=0),
        1.0,
        1.3,
    ),
    Case(
        "histogram of 64 bins / dask histogram",
        "long",
        HISTOGRAM,
        {"record_dim": 0},
        lambda x: da.histogram(x, bins=EDGES)[0],
        0.3,
        0.6,
    ),
    Case(
        "covariance of 64 features / dask cov",
        "narrow",
        "covariance",
        NARROW,
        lambda x: da.cov(x, rowvar=False),
        1.0,
        1.3,
    ),
    Case(
        "covariance of 64 features / two products in dask",
        "narrow",
        "covariance",
        NARROW,
        by_hand,
        1.0,
        1.3,
    ),
]


def source(root: Path, name: str, shape: tuple[int, ...], size: int, **options: Any) -> Path:
    """Normal numbers, of two digits where they are compressed, in chunks of 16 MiB or less."""
    row_bytes = 8 * int(np.prod(shape))
    rows = max(1, min(CHUNK, size // 4) // row_bytes)
    count = size // row_bytes
    options = {"compressors": None, **options}
    array = zarr.create_array(
        root / name, name="x", shape=(count, *shape), chunks=(rows, *shape), dtype="f8", **options
    )
    generator = np.random.default_rng(0)
    for first in range(0, count, rows):
        block = generator.standard_normal((min(rows, count - first), *shape))
        array[first : first + rows] = block if options["compressors"] is None else block.round(2)
    return root / name


def on_threads(work: Callable[[], object]) -> object:
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        return work()


def bench_queries(root: Path, size: int, rounds: int) -> list[Row]:
    shapes = {"wide": ((2048,), size), "long": ((), size // 2), "narrow": ((64,), size // 2)}
    data = {name: source(root, name, *shape) for name, shape in shapes.items()}
    rows = []
    for case in CASES:
        x = da.from_zarr(str(data[case.data]), component="x")
        sections = {"query": case.query, "privacy_unit": case.unit}

        def ours(out: Path, case: Case = case, sections: dict[str, Any] = sections) -> None:
            release(release_spec(root, data[case.data], out, **sections))

        def theirs(_: Path, case: Case = case, x: da.Array = x) -> None:
            on_threads(case.peer(x).compute)

        mine, other = in_turns(ours, theirs, rounds=rounds, root=root)
        rows.append(mine.over(other, case.name, goal=case.goal, aim=case.aim))
    for folder in data.values():
        shutil.rmtree(folder)
    return rows


def bench_stored(root: Path, size: int, rounds: int) -> list[Row]:
    """Releases of a whole array against copies of it, from zstd and to shards."""
    zstd = source(root, "zstd", (2048,), size, compressors=ZstdCodec(level=3))
    raw = source(root, "raw", (2048,), size)
    whole = zarr.open_array(raw, path="x", mode="r").chunks
    parts = (max(1, whole[0] // 4), 512)
    sharded = {"chunks": [*parts], "shards": [parts[0] * 4, 2048]}
    cases: list[tuple[str, Path, dict[str, Any]]] = [
        ("zstd to raw / dask copy", zstd, {"chunks": [*whole]}),
        ("raw to sharded / dask copy", raw, sharded),
    ]
    rows = []
    for name, data, publish in cases:

        def ours(out: Path, data: Path = data, publish: dict[str, Any] = publish) -> None:
            sections = {"query": "identity", "privacy_unit": CLIP, "publish": publish}
            release(release_spec(root, data, out, **sections))

        def theirs(out: Path, data: Path = data, publish: dict[str, Any] = publish) -> None:
            x = da.from_zarr(str(data), component="x")
            options = {key: tuple(value) for key, value in publish.items()}
            copy = zarr.create_array(
                out, name="x", shape=x.shape, dtype=x.dtype, compressors=None, **options
            )
            aligned = x.rechunk(options.get("shards", options["chunks"]))
            on_threads(functools.partial(aligned.store, copy, lock=False))

        mine, other = in_turns(ours, theirs, rounds=rounds, root=root)
        rows.append(mine.over(other, name, goal=1.5, aim=1.2))
    return rows


def main() -> None:
    quick = is_quick()
    size, rounds = (2**24, 1) if quick else (2**30, 7)
    with workplace("queries") as root:
        record("queries", bench_queries(root, size, rounds))
        record("compressed and sharded arrays", bench_stored(root, size // 4, rounds))


if __name__ == "__main__":
    main()

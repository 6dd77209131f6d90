"""The release against a plain copy and against the Dask one-liner: all sides in turns in one run,
warm cache, two threads.

``python -m tests.bench.release [--quick]``; part of ``make bench``. Needs about 13 GiB of disk (1
GiB with --quick).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr

from dpdask.releases.api import release
from tests.bench.table import (
    THREADS,
    Row,
    in_turns,
    is_quick,
    record,
    release_spec,
    row,
    workplace,
)

UNIT = 16 * 2**20
COLUMNS = 2048

MEMORY = """
import json, sys
from dpdask.releases.api import release
release(json.loads(sys.argv[1]))
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak[0].split()[1]) * 1024)
"""


def source(root: Path, name: str, dtype: str, size: int) -> Path:
    """An uncompressed array in chunks of 16 MiB."""
    rows = UNIT // np.dtype(dtype).itemsize // COLUMNS
    count = size // UNIT
    array = zarr.create_array(
        root / name,
        name="x",
        shape=(rows * count, COLUMNS),
        chunks=(rows, COLUMNS),
        dtype=dtype,
        compressors=None,
    )
    block = np.random.default_rng(0).standard_normal((rows, COLUMNS)).astype(dtype)
    for first in range(0, rows * count, rows):
        array[first : first + rows] = block
    return root / name


def spec(data: Path, output: Path) -> dict[str, Any]:
    unit = {"record_dim": 0, "l2_clip_norm": 40.0}
    sections = {"query": "identity", "privacy_unit": unit, "mechanism": "analytic-gaussian"}
    return release_spec(data.parent, data, output, **sections)


def copied(data: Path, output: Path) -> None:
    subprocess.run(["cp", "-r", str(data), str(output)], check=True)


def copied_for_good(data: Path, output: Path) -> None:
    copied(data, output)
    os.sync()


def one_liner(data: Path, output: Path, dtype: str) -> None:
    """What one would write without dpdask: noise that is neither exact, nor bounded, nor accounted
    for.
    """
    x = da.from_zarr(str(data), component="x")
    noise = da.random.normal(0, 100, size=x.shape, chunks=x.chunks).astype(dtype)
    with dask.config.set(scheduler="threads", num_workers=THREADS):
        da.to_zarr(x + noise, str(output), component="x", compressors=None)


def bench_copy(root: Path, dtype: str, size: int, rounds: int) -> list[Row]:
    data = source(root, f"{dtype}-{size}.zarr", dtype, size)
    gib = f"{size / 2**30:g} GiB {dtype}"
    ours, copy, durable, theirs = in_turns(
        lambda out: release(spec(data, out)),
        lambda out: copied(data, out),
        lambda out: copied_for_good(data, out),
        lambda out: one_liner(data, out, dtype),
        rounds=rounds,
        root=root,
    )
    shutil.rmtree(data)
    what = f"identity release with clip, {gib}"
    return [
        ours.over(copy, f"{what} / cp -r", goal=2.0, aim=1.6, inside=False),
        ours.over(durable, f"{what} / cp -r and sync, as safe from a power cut", inside=False),
        ours.over(theirs, f"{what} / dask one-liner", goal=0.3, aim=0.2),
    ]


def bench_growth(root: Path, small: int) -> list[Row]:
    """Sixteen times the array: time and peak memory of a process that runs a release with its
    worker inside.
    """
    times, peaks = [], []
    for size in (small, 16 * small):
        data = source(root, f"growth-{size}.zarr", "float32", size)
        [ours] = in_turns(lambda out, data=data: release(spec(data, out)), rounds=2, root=root)  # type: ignore[misc]
        times.append(min(ours.wall))
        asked = json.dumps(spec(data, root / "memory.zarr"))
        command = [sys.executable, "-c", MEMORY, asked]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout))
        shutil.rmtree(root / "memory.zarr")
        shutil.rmtree(data)
    name = f"16 times the array / 16 times the time, from {small / 2**20:g} MiB"
    detail = f"{times[1]:.2f} s : 16 times {times[0]:.2f} s"
    rows = [row(name, times[1] / times[0] / 16, goal=1.1, aim=1.05, detail=detail)]
    allowed = 6 * UNIT * THREADS + 300e6
    for times_larger, peak in zip((1, 16), peaks, strict=True):
        detail = f"{peak / 1e6:.0f} MB of {allowed / 1e6:.0f} MB"
        name = f"peak memory / (6 write chunks per thread + 300 MB), {times_larger}x"
        rows.append(row(name, peak / allowed, goal=1.0, detail=detail))
    return rows


def bench_small_chunks(root: Path, count: int) -> Row:
    """Many chunks of 32 KiB."""
    data = root / "small.zarr"
    array = zarr.create_array(
        data, name="x", shape=(count * 8, 1024), chunks=(8, 1024), dtype="f4", compressors=None
    )
    block = np.random.default_rng(0).standard_normal((8, 1024)).astype("f4").tobytes()
    for index in range(count):
        file = data / "x" / array.metadata.encode_chunk_key((index, 0))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(block)
    ours, copy = in_turns(
        lambda out: release(spec(data, out)), lambda out: copied(data, out), rounds=2, root=root
    )
    shutil.rmtree(data)
    took, theirs = (min(side.wall) / count * 1000 for side in (ours, copy))
    detail = f"{took:.3f} ms : {theirs:.3f} ms per chunk of cp -r"
    return row(f"{count} chunks of 32 KiB, ms per chunk", took, goal=0.3, aim=0.2, detail=detail)


def main() -> None:
    quick = is_quick()
    with workplace("release") as root:
        rows = bench_copy(root, "float64", 2**26 if quick else 2**30, 1 if quick else 5)
        rows += bench_copy(root, "float32", 2**26 if quick else 2**32, 1 if quick else 3)
        rows += bench_growth(root, 2**24 if quick else 2**28)
        rows.append(bench_small_chunks(root, 200 if quick else 50_000))
        record("releases", rows)


if __name__ == "__main__":
    main()

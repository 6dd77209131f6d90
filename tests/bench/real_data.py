"""Means and sums of decoded sources against plain xarray, grouped means against flox: both sides
in turns in one run, warm cache, two threads.

``python -m tests.bench.real_data [--quick]``; part of ``make bench``. Needs about 1 GiB of disk.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import flox  # noqa: F401  (xarray takes it for groupby where it is installed)
import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table
from zarr.codecs import ZstdCodec

from dpdask import PrivacyBudget
from dpdask.ledger import Ledger
from dpdask.releases.api import release

THREADS = 2
ROOT = Path("build/bench-real-data")
LAT, LON = 128, 256
DAYS_PER_CHUNK = 128  # 8 MiB of int16
GROUPS = list(range(12))
RANGES = [220.0, 340.0]


def source(name: str, days: int, encoding: dict[str, Any]) -> Path:
    """Temperatures that compress about as real ones do, with a label for each day."""
    generator = np.random.default_rng(0)
    climate = 280 + 30 * np.cos(np.linspace(-1.5, 1.5, LAT))[:, None] * np.ones(LON)
    weather = generator.normal(0, 3, (DAYS_PER_CHUNK, LAT // 8, LON // 8))
    block = (climate + weather.repeat(8, axis=1).repeat(8, axis=2)).astype(np.float32)
    block += generator.normal(0, 0.1, block.shape).astype(np.float32)
    block[:, ::7, ::5] = np.nan
    values = np.concatenate([block] * (days // DAYS_PER_CHUNK))
    coords = {"day": np.arange(days), "month": ("day", np.arange(days) // 30 % 12)}
    dataset = xr.Dataset({"t2m": (("day", "lat", "lon"), values)}, coords=coords)
    chunks = {"chunks": (DAYS_PER_CHUNK, LAT, LON), "compressors": ZstdCodec(level=3)}
    dataset.reset_coords("month").to_zarr(ROOT / name, encoding={"t2m": {**encoding, **chunks}})
    return ROOT / name


def spec(case: Case, output: Path) -> dict[str, Any]:
    return {
        "source": {"url": str(case.data), "array": "t2m"},
        "output": {"url": str(output)},
        "privacy_unit": {"record_dim": "day", **case.unit},
        "query": case.query,
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {"ledger": f"sqlite:///{ROOT}/ledger.db", "dataset": "bench"},
        "compute": {"threads": THREADS},
        "publish": {"edition": time.time_ns()},
    }


def by_xarray(case: Case) -> xr.DataArray:
    threads = dask.config.set(scheduler="threads", num_workers=THREADS)
    with threads, xr.open_zarr(case.data) as opened:
        return case.compute(opened).compute()


class Times(NamedTuple):
    """Seconds of single runs, by the clock and of the processor."""

    wall: list[float]
    processor: list[float]

    def run(self, work: Callable[[], object]) -> None:
        start, used = time.perf_counter(), time.process_time()
        work()
        self.wall.append(time.perf_counter() - start)
        self.processor.append(time.process_time() - used)


def compare(
    ours: Callable[[Path], object], theirs: Callable[[], object], rounds: int
) -> tuple[Times, Times]:
    """Times of both sides, in turns; the first round warms caches, memory and compilers."""
    times = Times([], []), Times([], [])
    for number in range(rounds + 1):
        target = ROOT / f"out-{number}.zarr"
        times[0].run(functools.partial(ours, target))
        times[1].run(theirs)
        shutil.rmtree(target)
    for side in times:
        del side.wall[0], side.processor[0]
    return times


def row(name: str, goal: float, times: tuple[Times, Times]) -> dict[str, Any]:
    ours, theirs = times
    return {
        "name": name,
        "ratio": min(ours.wall) / min(theirs.wall),
        "median": statistics.median(ours.wall) / statistics.median(theirs.wall),
        "processor": min(ours.processor) / min(theirs.processor),
        "goal": f"<= {goal:g}",
        "detail": f"{min(ours.wall):.2f} s : {min(theirs.wall):.2f} s",
    }


class Case(NamedTuple):
    """A release, and what xarray computes of the same data."""

    name: str
    goal: float
    data: Path
    query: Any
    unit: dict[str, Any]
    compute: Callable[[xr.Dataset], xr.DataArray]


def mean(dataset: xr.Dataset) -> xr.DataArray:
    return dataset.t2m.mean("day")


def total(dataset: xr.Dataset) -> xr.DataArray:
    return dataset.t2m.sum("day")


def months(dataset: xr.Dataset) -> xr.DataArray:
    grouper = xr.groupers.UniqueGrouper(GROUPS)
    return dataset.set_coords("month").t2m.groupby(month=grouper).mean()


def cases(days: int) -> list[Case]:
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    packed = source("packed.zarr", days, packing)
    floats = source("floats.zarr", days, {"dtype": "f4"})
    by = {"name": "mean", "by": {"array": "month", "groups": GROUPS}}
    count: dict[str, Any] = {"ranges": RANGES, "missing": "count"}
    center = {**count, "missing": "center"}
    clip = {"l2_clip_norm": 1e5, "center": 280.0, "missing": "center"}
    return [
        Case("mean, packed int16, missing: count", 1.3, packed, "mean", count, mean),
        Case("mean, packed int16, missing: center", 1.3, packed, "mean", center, mean),
        Case("sum, packed int16, missing: count", 1.3, packed, "sum", count, total),
        Case("mean, packed int16, clip norm", 1.3, packed, "mean", clip, mean),
        Case("mean, float32 with NaN, missing: count", 1.3, floats, "mean", count, mean),
        Case("mean, float32 with NaN, missing: center", 1.3, floats, "mean", center, mean),
        Case("mean of 12 groups, packed int16, missing: count", 1.5, packed, by, count, months),
        Case("mean of 12 groups, float32, missing: count", 1.5, floats, by, count, months),
    ]


def bench(days: int, rounds: int, only: str) -> Iterator[dict[str, Any]]:
    for case in cases(days):
        if only in case.name:
            times = compare(
                lambda out, case=case: release(spec(case, out)),  # type: ignore[misc]
                functools.partial(by_xarray, case),
                rounds,
            )
            yield row(case.name, case.goal, times)


def main() -> None:
    quick = "--quick" in sys.argv
    only = next((word for word in sys.argv[1:] if not word.startswith("--")), "")
    warnings.simplefilter("ignore")
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    os.environ["XDG_CONFIG_HOME"] = str((ROOT / "configuration").absolute())
    Ledger(f"sqlite:///{ROOT}/ledger.db").open_dataset(
        "bench", PrivacyBudget(epsilon=1e4, delta=1e-3)
    )
    days = 1024 if quick else 4096
    try:
        rows = list(bench(days, 3 if quick else 7, only))
    finally:
        shutil.rmtree(ROOT)
    Path("build/bench-real-data.json").write_text(json.dumps(rows, indent=1) + "\n")
    size = days * LAT * LON / 2**20
    title = f"{size:g} Mi entries, zstd: releases / xarray, two threads"
    table = Table(title=title, title_justify="left")
    for heading in ("what", "ratio", "of medians", "of processor time", "goal", "ours : theirs"):
        number = heading.startswith(("ratio", "of "))
        table.add_column(heading, justify="right" if number else "left")
    for each in rows:
        ratios = [f"{each[key]:.3g}" for key in ("ratio", "median", "processor")]
        table.add_row(each["name"], *ratios, each["goal"], each["detail"])
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()

"""Means and sums of decoded sources against plain xarray, grouped means against flox: both sides
in turns in one run, warm cache, two threads.

``python -m tests.bench.real_data [--quick]``; part of ``make bench``. Needs about 1 GiB of disk.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def source(name: str, days: int, encoding: dict[str, Any], *, nan: bool) -> Path:
    """Temperatures that compress about as real ones do, with a label for each day."""
    generator = np.random.default_rng(0)
    climate = 280 + 30 * np.cos(np.linspace(-1.5, 1.5, LAT))[:, None] * np.ones(LON)
    weather = generator.normal(0, 3, (DAYS_PER_CHUNK, LAT // 8, LON // 8))
    block = (climate + weather.repeat(8, axis=1).repeat(8, axis=2)).astype(np.float32)
    block += generator.normal(0, 0.1, block.shape).astype(np.float32)
    block[:, ::7, ::5] = np.nan if nan else 280
    values = np.concatenate([block] * (days // DAYS_PER_CHUNK))
    coords = {"day": np.arange(days), "month": ("day", np.arange(days) // 30 % 12)}
    dataset = xr.Dataset({"t2m": (("day", "lat", "lon"), values)}, coords=coords)
    chunks = {"chunks": (DAYS_PER_CHUNK, LAT, LON), "compressors": ZstdCodec(level=3)}
    dataset.reset_coords("month").to_zarr(ROOT / name, encoding={"t2m": {**encoding, **chunks}})
    return ROOT / name


def spec(data: Path, output: Path, query: Any, missing: str) -> dict[str, Any]:
    return {
        "source": {"url": str(data), "array": "t2m"},
        "output": {"url": str(output)},
        "privacy_unit": {"record_dim": "day", "ranges": RANGES, "missing": missing},
        "query": query,
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {"ledger": f"sqlite:///{ROOT}/ledger.db", "dataset": "bench"},
        "compute": {"threads": THREADS},
        "publish": {"edition": time.time_ns()},
    }


def by_xarray(data: Path, compute: Callable[[xr.Dataset], xr.DataArray]) -> xr.DataArray:
    with dask.config.set(scheduler="threads", num_workers=THREADS), xr.open_zarr(data) as opened:
        return compute(opened).compute()


def compare(
    ours: Callable[[Path], object], theirs: Callable[[], object], rounds: int
) -> tuple[list[float], list[float]]:
    """Times of both sides, in turns; the first round warms caches, memory and compilers."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        target = ROOT / f"out-{number}.zarr"
        start = time.perf_counter()
        ours(target)
        middle = time.perf_counter()
        theirs()
        end = time.perf_counter()
        shutil.rmtree(target)
        if number:
            times[0].append(middle - start)
            times[1].append(end - middle)
    return times


def row(name: str, goal: float, times: tuple[list[float], list[float]]) -> dict[str, Any]:
    ours, theirs = times
    return {
        "name": name,
        "ratio": min(ours) / min(theirs),
        "median": statistics.median(ours) / statistics.median(theirs),
        "goal": f"<= {goal:g}",
        "detail": f"{min(ours):.2f} s : {min(theirs):.2f} s",
    }


def bench(rows: list[dict[str, Any]], days: int, rounds: int, only: str = "") -> None:
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    packed = source("packed.zarr", days, packing, nan=True)
    floats = source("floats.zarr", days // 2, {"dtype": "f4"}, nan=True)
    grouped = {"name": "mean", "by": {"array": "month", "groups": GROUPS}}
    mean: Callable[[xr.Dataset], xr.DataArray] = lambda x: x.t2m.mean("day")  # noqa: E731
    total: Callable[[xr.Dataset], xr.DataArray] = lambda x: x.t2m.sum("day")  # noqa: E731
    months: Callable[[xr.Dataset], xr.DataArray] = lambda x: (  # noqa: E731
        x.set_coords("month").t2m.groupby(month=xr.groupers.UniqueGrouper(GROUPS)).mean()
    )
    size = f"{days * LAT * LON / 2**20:g} Mi"
    half = f"{days // 2 * LAT * LON / 2**20:g} Mi"
    cases: list[tuple[str, float, Path, Any, str, Callable[[xr.Dataset], xr.DataArray]]] = [
        (f"mean, packed int16, zstd, missing: count, {size}", 1.3, packed, "mean", "count", mean),
        (f"mean, packed int16, zstd, missing: center, {size}", 1.3, packed, "mean", "center", mean),
        (f"sum, packed int16, zstd, missing: count, {size}", 1.3, packed, "sum", "count", total),
        (
            f"mean, float32 with NaN, zstd, missing: count, {half}",
            1.3,
            floats,
            "mean",
            "count",
            mean,
        ),
        (f"mean of 12 groups, packed, count, {size} / flox", 1.5, packed, grouped, "count", months),
        (
            f"mean of 12 groups, float32, count, {half} / flox",
            1.5,
            floats,
            grouped,
            "count",
            months,
        ),
    ]
    for name, goal, data, query, missing, compute in cases:
        if only not in name:
            continue
        times = compare(
            lambda out, data=data, query=query, missing=missing: release(  # type: ignore[misc]
                spec(data, out, query, missing)
            ),
            lambda data=data, compute=compute: by_xarray(data, compute),  # type: ignore[misc]
            rounds,
        )
        rows.append(row(name, goal, times))


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
    rows: list[dict[str, Any]] = []
    try:
        bench(rows, 1024 if quick else 4096, 3 if quick else 7, only)
    finally:
        shutil.rmtree(ROOT)
    Path("build/bench-real-data.json").write_text(json.dumps(rows, indent=1) + "\n")
    table = Table(title="decoded sources / xarray, two threads", title_justify="left")
    for heading in ("what", "minima", "medians", "goal", "ours : theirs"):
        table.add_column(heading, justify="right" if heading in ("minima", "medians") else "left")
    for each in rows:
        ratios = [f"{each[key]:.3g}" for key in ("ratio", "median")]
        table.add_row(each["name"], *ratios, each["goal"], each["detail"])
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()

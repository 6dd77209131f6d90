"""Means and sums of decoded sources against plain xarray, grouped means against flox: both sides
in turns in one run, warm cache, two threads.

``python -m tests.bench.real_data [--quick]``; part of ``make bench``. Needs about 1 GiB of disk.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import dask
import flox  # noqa: F401  (xarray takes it for groupby where it is installed)
import numpy as np
import xarray as xr
from zarr.codecs import ZstdCodec

from dpdask.releases.api import release
from tests.bench.table import THREADS, Row, in_turns, is_quick, record, release_spec, workplace

LAT, LON = 128, 256
DAYS_PER_CHUNK = 128  # 8 MiB of int16
GROUPS = list(range(12))
RANGES = [220.0, 340.0]


def source(root: Path, name: str, days: int, encoding: dict[str, Any]) -> Path:
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
    dataset.reset_coords("month").to_zarr(root / name, encoding={"t2m": {**encoding, **chunks}})
    return root / name


def spec(root: Path, case: Case, output: Path) -> dict[str, Any]:
    content = release_spec(
        root, case.data, output, query=case.query, privacy_unit={"record_dim": "day", **case.unit}
    )
    return {**content, "source": {"url": str(case.data), "array": "t2m"}}


def by_xarray(case: Case) -> xr.DataArray:
    threads = dask.config.set(scheduler="threads", num_workers=THREADS)
    with threads, xr.open_zarr(case.data) as opened:
        return case.compute(opened).compute()


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


def cases(root: Path, days: int) -> list[Case]:
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
    packed = source(root, "packed.zarr", days, packing)
    floats = source(root, "floats.zarr", days, {"dtype": "f4"})
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


def bench(root: Path, days: int, rounds: int, only: str) -> Iterator[Row]:
    for case in cases(root, days):
        if only in case.name:
            times = in_turns(
                lambda out, case=case: release(spec(root, case, out)),  # type: ignore[misc]
                lambda _, case=case: by_xarray(case),  # type: ignore[misc]
                rounds=rounds,
                root=root,
            )
            yield times[0].over(times[1], f"{case.name} / xarray", goal=case.goal, aim=1.0)


def main() -> None:
    quick = is_quick()
    only = next((word for word in sys.argv[1:] if not word.startswith("--")), "")
    warnings.simplefilter("ignore")
    with workplace("real-data") as root:
        days = 256 if quick else 4096
        record("decoded sources", list(bench(root, days, 1 if quick else 7, only)))


if __name__ == "__main__":
    main()

"""Means of the records that ids keep, against group-bys of pandas and polars that keep as many rows
of every id; then ten times as many records by themselves, for time per record and memory.

``python -m tests.bench.people [--quick]``; part of ``make bench``. Needs about 1.5 GiB of disk and
4 GiB of memory (a tenth with --quick).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import zarr

from dpdask import PrivacyBudget
from dpdask.ledger import Ledger
from tests.bench.table import Row, is_quick, record, row

THREADS = 2
ROOT = Path("build/bench-people")
CHUNK = 2**21
RECORDS_PER_ID = 10
MOST = 5  # of one id that are kept

# The release alone is timed: imports, and compiled kernels that are loaded, are not.
RELEASE = """
import json, sys, time
from dpdask.releases.api import release
warm, spec = map(json.loads, sys.argv[1:])
release(warm)
start = time.perf_counter()
release(spec)
seconds = time.perf_counter() - start
[peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(json.dumps([seconds, int(peak.split()[1]) * 1024]))
"""


def source(name: str, records: int) -> Path:
    """Values with ids in a random order, each of about ten of them, uncompressed."""
    generator = np.random.default_rng(0)
    group = zarr.create_group(ROOT / name)
    options: dict[str, Any] = {"shape": (records,), "chunks": (CHUNK,), "compressors": None}
    ids = group.create_array("who", dtype="int64", **options)
    values = group.create_array("x", dtype="float32", **options)
    for first in range(0, records, CHUNK):
        here = slice(first, min(first + CHUNK, records))
        count = here.stop - here.start
        ids[here] = generator.integers(0, records // RECORDS_PER_ID, count)
        values[here] = generator.random(count, dtype=np.float32)
    return ROOT / name


def spec(data: Path, unit: dict[str, Any]) -> dict[str, Any]:
    return {
        "source": {"url": str(data), "array": "x"},
        "output": {"url": f"{ROOT}/out-{time.time_ns()}.zarr"},
        "privacy_unit": {"record_dim": 0, "missing": "center", **unit},
        "query": "mean",
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "budget": {
            "ledger": f"sqlite:///{ROOT}/ledger.db",
            "dataset": f"{data.stem}-{'ids' in unit}",
            "array_in_other_dataset": True,
        },
        "compute": {"cluster": "local", "threads": THREADS},
        "publish": {"edition": time.time_ns() % 10**9},
    }


UNITS: dict[str, dict[str, Any]] = {
    "without ids": {"ranges": [0.0, 1.0]},
    f"ids, {MOST} records each": {"ranges": [0.0, 1.0], "ids": "who", "max_contributions": MOST},
    f"ids, {MOST} records each, clip: person": {
        "l2_clip_norm": 3.0, "clip": "person", "ids": "who", "max_contributions": MOST,
    },
}  # fmt: skip


def released(data: Path, tiny: Path, unit: dict[str, Any]) -> tuple[float, int]:
    """Seconds of a release, and the most memory that its process held."""
    arguments = [json.dumps(spec(path, unit)) for path in (tiny, data)]
    command = [sys.executable, "-c", RELEASE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, peak


def by_pandas(data: Path) -> float:
    group = zarr.open_group(data, mode="r")
    frame = pd.DataFrame({"who": group["who"][...], "x": group["x"][...]})
    return float(frame.groupby("who", sort=False).head(MOST)["x"].mean())


def by_polars(data: Path) -> float:
    group = zarr.open_group(data, mode="r")
    frame = pl.DataFrame({"who": group["who"][...], "x": group["x"][...]})
    return float(frame.group_by("who").head(MOST)["x"].mean())  # type: ignore[arg-type]


def least(work: Callable[[], float], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def bench(records: int, rounds: int) -> list[dict[str, Any]]:
    """Both sides in turns at ``records``, then the release alone at ten times as many."""
    tiny, data = source("tiny.zarr", 10**5), source("data.zarr", records)
    ours: dict[str, list[tuple[float, int]]] = {name: [] for name in UNITS}
    rivals: dict[str, list[float]] = {"pandas": [], "polars": []}
    for _ in range(rounds):
        for name, unit in UNITS.items():
            ours[name].append(released(data, tiny, unit))
        rivals["pandas"].append(least(lambda: by_pandas(data), 1))
        rivals["polars"].append(least(lambda: by_polars(data), 1))
    least_of = {name: min(times) for name, times in rivals.items()}
    rows = [_row(name, records, min(times), least_of) for name, times in ours.items()]
    for name, seconds in least_of.items():
        what = f"{name}: group-by that keeps the first {MOST}"
        rows.append(_row(what, records, (seconds, 0), {}))
    large = source("large.zarr", 10 * records)
    for name, unit in UNITS.items():
        rows.append(_row(name, 10 * records, released(large, tiny, unit), {}))
    return rows


def _row(
    name: str, records: int, measured: tuple[float, int], rivals: dict[str, float]
) -> dict[str, Any]:
    seconds, peak = measured
    return {
        "name": name,
        "records": records,
        "seconds": seconds,
        "ns_per_record": 1e9 * seconds / records,
        "peak_mib": peak / 2**20,
        **{f"over_{rival}": seconds / other for rival, other in rivals.items()},
    }


def _told(each: dict[str, Any]) -> Row:
    """A row of the table: over pandas where it was measured, else seconds by themselves."""
    peak = f", {each['peak_mib']:.0f} MiB" if each["peak_mib"] else ""
    detail = f"{each['seconds']:.2f} s, {each['ns_per_record']:.0f} ns per record{peak}"
    what = f"{each['name']}, {each['records']:.0e} records"
    if "over_pandas" not in each:
        return row(f"{what}, seconds", each["seconds"], detail=detail)
    detail += f"; / polars {each['over_polars']:.2f}"
    return row(f"{what} / pandas", each["over_pandas"], detail=detail)


def main() -> None:
    quick = is_quick()
    shutil.rmtree(ROOT, ignore_errors=True)
    ROOT.mkdir(parents=True)
    os.environ["XDG_CONFIG_HOME"] = str((ROOT / "configuration").absolute())
    ledger = Ledger(f"sqlite:///{ROOT}/ledger.db")
    for name in ("tiny", "data", "large"):
        for ids in (True, False):
            ledger.open_dataset(f"{name}-{ids}", PrivacyBudget(epsilon=1e4, delta=1e-3))
    try:
        rows = bench(10**6 if quick else 10**7, 1 if quick else 3)
    finally:
        shutil.rmtree(ROOT)
    record("means by person", [_told(each) for each in rows])


if __name__ == "__main__":
    main()

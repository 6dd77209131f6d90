"""How long commands take from the shell to their end, each in a process of its own.

``python -m tests.bench.start [--quick]``; part of ``make bench``.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml
import zarr

from tests.bench.table import Row, Times, is_quick, record, release_spec, row, workplace

CALL = "import sys; from dpdask.cli import main; sys.argv[0] = 'dpdask'; main()"
SECONDS = {"--help": 0.3, "plan": 1.0, "run": 2.0}  # that a command may take


def spec(root: Path) -> str:
    """A tiny release to a new place, which says nothing of where it is computed."""
    unit = {"record_dim": 0, "l2_clip_norm": 3.0, "missing": "center"}
    output = root / f"out-{time.time_ns()}.zarr"
    content = release_spec(root, root / "tiny", output, query="mean", privacy_unit=unit)
    del content["compute"]
    file = root / "release.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


def bench(root: Path, rounds: int) -> list[Row]:
    zarr.create_array(root / "tiny", name="x", data=np.ones((1000, 10)), chunks=(500, 10))
    times = {command: Times([], []) for command in SECONDS}
    for _ in range(rounds + 1):  # the first one compiles, and reads libraries from the disk
        for command, taken in times.items():
            arguments = [command] if command == "--help" else [command, spec(root)]
            start, used = time.perf_counter(), _used()
            process = [sys.executable, "-c", CALL, *arguments]
            subprocess.run(process, capture_output=True, check=True)
            taken.wall.append(time.perf_counter() - start)
            taken.processor.append(_used() - used)
    rows = []
    for command, taken in times.items():
        allowed, wall, processor = SECONDS[command], taken.wall[1:], min(taken.processor[1:])
        what = command if command == "--help" else f"{command}, a tiny release"
        rows.append(
            row(
                f"dpdask {what} / {allowed:g} s",
                min(wall) / allowed,
                median=statistics.median(wall) / allowed,
                processor=processor / allowed,
                goal=1.0,
                detail=f"{min(wall):.2f} s, {processor:.2f} s of the processor",
            )
        )
    return rows


def _used() -> float:
    """Processor time of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with workplace("start") as root:
        record("start of commands", bench(root, 1 if is_quick() else 9))


if __name__ == "__main__":
    main()

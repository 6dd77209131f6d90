"""`make bench` runs, on small arrays: every row has its ratio, and the page gets its tables."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = "# Speed\n\n<!-- bench -->\nold\n<!-- end of bench -->\n\nThe rest.\n"


def run(folder: Path, module: str, *arguments: str) -> None:
    command = [sys.executable, "-m", f"tests.bench.{module}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("module", "sections", "rows"),
    [
        ("start", {"start of commands"}, {"dpdask --help / 0.3 s"}),
        (
            "queries",
            {"queries", "compressed and sharded arrays"},
            {"mean with clip / dask mean", "zstd to raw / dask copy", "raw to sharded / dask copy"},
        ),
        ("release", {"releases"}, {"200 chunks of 32 KiB, ms per chunk"}),
    ],
)
def test_a_benchmark_runs_and_fills_the_table(
    tmp_path: Path, module: str, sections: set[str], rows: set[str]
) -> None:
    run(tmp_path, module, "--quick")
    measured = json.loads((tmp_path / "build" / "bench.json").read_text())["sections"]
    assert set(measured) == sections
    found = {row["name"]: row for section in measured.values() for row in section["rows"]}
    assert rows <= set(found)
    for row in found.values():
        assert row["ratio"] > 0
        assert math.isfinite(row["ratio"])
        assert {"goal", "aim", "median", "detail"} <= set(row)
    assert [p.name for p in (tmp_path / "build").iterdir()] == ["bench.json"]  # nothing is left
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    run(tmp_path, "table", str(page))
    text = page.read_text()
    assert text.startswith("# Speed\n\n<!-- bench -->")
    assert text.endswith("<!-- end of bench -->\n\nThe rest.\n")
    assert "old" not in text
    assert all(f"| {name} |" in text for name in rows)
    assert "Small sizes: not for numbers." in text

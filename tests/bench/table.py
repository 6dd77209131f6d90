"""The one table of `make bench`: how two sides are timed, what a row says, where rows go.

Every module of this folder measures a section and calls :func:`record`, which prints it and puts it
into ``build/bench.json``. ``python -m tests.bench.table docs/performance.md`` writes all sections
into a page, between its lines ``<!-- bench -->`` and ``<!-- end of bench -->``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
from rich.console import Console
from rich.table import Table

from dpdask import PrivacyBudget
from dpdask.ledger import Ledger

THREADS = 2
TARGET = Path("build/bench.json")
BEGIN, END = "<!-- bench -->", "<!-- end of bench -->"

Task = Callable[[], object]


class Row(TypedDict):
    """A ratio of two sides: of minima, of medians, of processor time where it is known.

    ``goal`` is what the ratio must be at least as good as, ``aim`` what we would like; a ratio is
    good when it is small, unless ``larger_is_better``.
    """

    name: str
    ratio: float
    median: float | None
    processor: float | None
    goal: float | None
    aim: float | None
    larger_is_better: bool
    detail: str


def row(
    name: str,
    ratio: float,
    *,
    median: float | None = None,
    processor: float | None = None,
    goal: float | None = None,
    aim: float | None = None,
    larger_is_better: bool = False,
    detail: str = "",
) -> Row:
    def rounded(number: float) -> float:
        return float(f"{number:.4g}")

    return Row(
        name=name,
        ratio=rounded(ratio),
        median=None if median is None else rounded(median),
        processor=None if processor is None else rounded(processor),
        goal=goal,
        aim=aim,
        larger_is_better=larger_is_better,
        detail=detail,
    )


class Times(NamedTuple):
    """Seconds of single runs, by the clock and of this process's processor time."""

    wall: list[float]
    processor: list[float]

    def run(self, work: Task) -> None:
        start, used = time.perf_counter(), time.process_time()
        work()
        self.wall.append(time.perf_counter() - start)
        self.processor.append(time.process_time() - used)

    def over(
        self,
        other: Times,
        name: str,
        *,
        goal: float | None = None,
        aim: float | None = None,
        inside: bool = True,
    ) -> Row:
        """The row of this side over another one, which may run in other processes."""
        return row(
            name,
            min(self.wall) / min(other.wall),
            median=statistics.median(self.wall) / statistics.median(other.wall),
            processor=min(self.processor) / min(other.processor) if inside else None,
            goal=goal,
            aim=aim,
            detail=f"{_seconds(min(self.wall))} : {_seconds(min(other.wall))}",
        )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


def in_turns(*sides: Callable[[Path], object], rounds: int, root: Path) -> list[Times]:
    """Time sides in turns, each to a fresh folder. The first round warms up and does not count;
    nor does deleting what was written, nor writing it back.
    """
    times = [Times([], []) for _ in sides]
    for _ in range(rounds + 1):
        for side, taken in zip(sides, times, strict=True):
            output = root / f"out-{time.time_ns()}.zarr"
            os.sync()
            taken.run(functools.partial(side, output))
            shutil.rmtree(output, ignore_errors=True)
    for taken in times:
        del taken.wall[0], taken.processor[0]
    return times


@contextlib.contextmanager
def workplace(name: str) -> Iterator[Path]:
    """A folder with a ledger for the dataset ``bench``, removed at the end."""
    root = Path(f"build/bench-{name}")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    os.environ["XDG_CONFIG_HOME"] = str((root / "configuration").absolute())
    ledger = Ledger(f"sqlite:///{root}/ledger.db")
    ledger.open_dataset("bench", PrivacyBudget(epsilon=1e5, delta=1e-2))
    ledger.close()
    try:
        yield root
    finally:
        shutil.rmtree(root)


def release_spec(root: Path, data: Path, output: Path, **sections: Any) -> dict[str, Any]:
    """A release of the array ``x``; sections are added or replaced."""
    sections = {"publish": {}, **sections}
    sections["publish"] = {"edition": time.time_ns(), **sections["publish"]}
    return {
        "source": {"url": str(data), "array": "x"},
        "output": {"url": str(output)},
        "privacy": {"epsilon": 0.1, "delta": 1e-6},
        "budget": {"ledger": f"sqlite:///{root}/ledger.db", "dataset": "bench"},
        "compute": {"threads": THREADS},
        **sections,
    }


def is_quick() -> bool:
    """Whether sizes are small: to see that everything runs, not for numbers."""
    return "--quick" in sys.argv


def record(section: str, rows: list[Row]) -> None:
    """Print a section and put it into the file, in place of the one that was there."""
    TARGET.parent.mkdir(exist_ok=True)
    content = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    sections = content.get("sections", {})
    sections[section] = {
        "date": datetime.now(UTC).date().isoformat(),
        "quick": is_quick(),
        "machine": machine(),
        "load": os.getloadavg()[1],  # of five minutes: ours is about 2
        "rows": rows,
    }
    TARGET.write_text(json.dumps({"sections": sections}, indent=1) + "\n")
    table = Table(title=section, title_justify="left")
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading in _TEXTS else "right")
    for each in rows:
        table.add_row(*_cells(each))
    Console(width=None if sys.stdout.isatty() else 150).print(table)


_HEADINGS = ("what", "ratio", "of medians", "of processor time", "aim", "goal", "ours : theirs")
_TEXTS = ("what", "ours : theirs")


def _cells(each: Row) -> list[str]:
    sign = "≥" if each["larger_is_better"] else "≤"
    ratios = [each["ratio"], each["median"], each["processor"]]
    bounds = [each["aim"], each["goal"]]
    return [
        each["name"],
        *("" if number is None else f"{number:.3g}" for number in ratios),
        *("" if number is None else f"{sign} {number:g}" for number in bounds),
        each["detail"],
    ]


def machine() -> str:
    """The processor, its vector units, and what runs on it."""
    lines = _lines("/proc/cpuinfo")
    named = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    units = [name for name in ("avx2", "avx512f", "aes", "vaes") if name in flags]
    model = named[0] if named else platform.processor()
    software = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"{model}, {os.cpu_count()} cores ({', '.join(units)}), {software}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def markdown(sections: dict[str, Any]) -> str:
    """All sections as tables, each with its day and its machine."""
    parts = []
    for name, section in sections.items():
        quick = " Small sizes: not for numbers." if section["quick"] else ""
        load = f"load average {section['load']:.1f}"
        parts.append(f"### {name.capitalize()}\n")
        parts.append(f"{section['date']}, {section['machine']}, {load}.{quick}\n")
        parts.append(f"| {' | '.join(_HEADINGS)} |\n|{'---|' * len(_HEADINGS)}")
        parts += [f"| {' | '.join(_cells(each))} |" for each in section["rows"]]
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    page = Path(sys.argv[1])
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = markdown(json.loads(TARGET.read_text())["sections"])
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")


if __name__ == "__main__":
    main()

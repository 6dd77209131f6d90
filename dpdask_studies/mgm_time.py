"""Running time as ratios (MGM, Table 5)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dpdask.types import Floats, Json
from dpdask_studies.study import Chart, Line, Outcome, Series, Study, Verdict
from dpdask_studies.workbench import Workbench, calibrated, workbench

__all__ = ["STUDY"]

_ROWS, _COLUMNS, _BOUND = 120, 400, 0.01
_PRIVACY = {"epsilon": 1.0, "delta": 1e-5}
_PRINTED = {"Gaussian": 0.00164, "MVG": 0.51146, "UDN": 0.00248, "IDN": 0.00224}


def _mechanisms(values: Floats) -> dict[str, Callable[[], Json]]:
    """Return what builds the mechanisms; MVG takes directions from an SVD, as the paper does."""

    def mvg() -> Json:
        left, _, _ = np.linalg.svd(values, full_matrices=True)
        chosen = list(range(10))
        return {
            "name": "mvg",
            "allocation": "binary",
            "tau": 0.9,
            "chosen": chosen,
            "directions": left.T.tolist(),
            "gamma": _BOUND * (_ROWS * _COLUMNS) ** 0.5,
        }

    return {
        "Gaussian": lambda: {"name": "analytic-gaussian"},
        "MVG": mvg,
        "UDN": lambda: {"name": "udn"},
        "IDN": lambda: {"name": "idn"},
    }


def _calibration_seconds(build: Callable[[], Json]) -> float:
    start = time.perf_counter()
    calibrated(
        shape=[_ROWS, _COLUMNS],
        privacy=_PRIVACY,
        sensitivity={"ranges": [-_BOUND, _BOUND]},
        mechanism=build(),
    )
    return time.perf_counter() - start


def _release_seconds(bench: Workbench, source: str, build: Callable[[], Json]) -> float:
    start = time.perf_counter()
    bench.release(
        source,
        privacy_unit={"ranges": [-_BOUND, _BOUND]},
        query="identity",
        privacy=_PRIVACY,
        mechanism=build(),
    )
    return time.perf_counter() - start


def _run(quick: bool, data: Path | None) -> Outcome:
    repeats = 2 if quick else 15
    values = np.random.default_rng(0).uniform(-_BOUND, _BOUND, (_ROWS, _COLUMNS))
    seconds: dict[str, dict[str, float]] = {"calibration": {}, "release": {}}
    with workbench() as bench:
        source = bench.source(values)
        for name, build in _mechanisms(values).items():
            _release_seconds(bench, source, build)  # compiles what runs
            release = [_release_seconds(bench, source, build) for _ in range(repeats)]
            calibration = [_calibration_seconds(build) for _ in range(repeats)]
            seconds["release"][name], seconds["calibration"][name] = min(release), min(calibration)
    lines = [
        Line(
            label=f"{name}: {kind} in units of the Gaussian's",
            paper=_PRINTED[name] / _PRINTED["Gaussian"],
            measured=taken[name] / taken["Gaussian"],
            verdict=Verdict.CONTEXT,
            why=f"{1000 * taken[name]:.3g} ms here",
        )
        for kind, taken in seconds.items()
        for name in _PRINTED
    ]
    places = range(len(_PRINTED))
    ratios = {
        kind: [taken[name] / taken["Gaussian"] for name in _PRINTED]
        for kind, taken in seconds.items()
    }
    chart = Chart(
        title=f"{_ROWS} x {_COLUMNS} entries",
        x_label="",
        y_label="time / that of the Gaussian",
        series=(
            Series("printed", places, [_PRINTED[n] / _PRINTED["Gaussian"] for n in _PRINTED]),
            *(Series(f"{kind}, here", places, values) for kind, values in ratios.items()),
        ),
        x_names=tuple(_PRINTED),
        log_y=True,
    )
    notes = (
        "Times are the least of several runs. The paper does not state its shape; here it is that"
        " of its MNIST gradient. Its matrix mechanism (MM) is not run: it solves another problem.",
        "A release reads, charges, writes and verifies as well, which takes longer than any noise.",
    )
    return Outcome(data="generated matrix", lines=tuple(lines), notes=notes, charts=(chart,))


STUDY = Study(
    name="mgm-time",
    title="Running time of matrix mechanisms, as ratios",
    paper="MGM, Table 5",
    data="generated",
    file=None,
    run=_run,
)

"""Expected loss against the number of entries (R1SMG, appendix B, Fig. 9)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from dpdask.mechanisms import Calibration
from dpdask_studies.study import Chart, Line, Measured, Outcome, Series, Study, Verdict
from dpdask_studies.workbench import calibrated, workbench

__all__ = ["STUDY"]

_DELTA = 1e-10
_EPSILONS = (1e-7, 1e-8, 1e-9)
_SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
_RELEASED = 1_000


_PUBLISHED = "R1SMG as published"
_MECHANISMS: dict[str, object] = {
    _PUBLISHED: {"name": "rank-one", "calibration": "paper"},
    "classic Gaussian": {"name": "classic-gaussian"},
    "analytic Gaussian": {"name": "analytic-gaussian"},
    "rank-one, exact": {"name": "rank-one"},
}


def _calibrations(entries: int, epsilon: float) -> dict[str, Calibration]:
    return {
        label: calibrated(
            shape=[entries],
            privacy={"epsilon": epsilon, "delta": _DELTA},
            sensitivity={"l2": 1.0},
            mechanism=mechanism,
        )
        for label, mechanism in _MECHANISMS.items()
    }


def _measured(trials: int) -> dict[str, Measured]:
    """Return the loss of releases of one record of zeros, at the first epsilon."""
    with workbench() as bench:
        source = bench.source(np.zeros((1, _RELEASED)))
        losses = {
            label: [
                float(
                    np.square(
                        bench.release(
                            source,
                            query="identity",
                            privacy_unit={"record_dim": 0, "l2_clip_norm": 0.5},
                            privacy={"epsilon": _EPSILONS[0], "delta": _DELTA},
                            mechanism=mechanism,
                        ).values
                    ).sum()
                )
                for _ in range(trials)
            ]
            for label, mechanism in _MECHANISMS.items()
        }
    return {label: Measured.of(values) for label, values in losses.items()}


def _line(label: str, entries: int, epsilon: float, noise: Calibration) -> Line:
    delta = noise.guarantee.verified.delta(epsilon)
    published = label == _PUBLISHED
    return Line(
        label=f"{label}, epsilon {epsilon:g}, M = {entries:,}",
        paper=f"tends to {2 / epsilon:g}" if published else None,
        formula=noise.noise.expected_squared_loss,
        verdict=Verdict.NOT_PRIVATE if delta > _DELTA else Verdict.HOLDS,
        why=f"verified delta {delta:.3g}, claimed {_DELTA:g}",
    )


def _run(quick: bool, data: Path | None) -> Outcome:
    measured = _measured(4 if quick else 20)
    sizes = _SIZES[::2] if quick else _SIZES
    epsilon = _EPSILONS[0]
    by_size = {entries: _calibrations(entries, epsilon) for entries in sizes}
    lines = [
        _line(label, entries, epsilon, by_size[entries][label])
        for label in _MECHANISMS
        for entries in (sizes if label == _PUBLISHED else sizes[-1:])
        if entries != _RELEASED
    ]
    lines += [
        _line(_PUBLISHED, _RELEASED, smaller, _calibrations(_RELEASED, smaller)[_PUBLISHED])
        for smaller in _EPSILONS[1:]
    ]
    lines += [
        dataclasses.replace(_line(label, _RELEASED, epsilon, noise), measured=measured[label])
        for label, noise in _calibrations(_RELEASED, epsilon).items()
    ]
    chart = Chart(
        title=f"epsilon {epsilon:g}, delta {_DELTA:g}, sensitivity 1",
        x_label="entries M",
        y_label="expected loss E||noise||²",
        series=tuple(
            Series(label, sizes, [by_size[n][label].noise.expected_squared_loss for n in sizes])
            for label in _MECHANISMS
        ),
        log_x=True,
        log_y=True,
    )
    notes = (
        "The only curve that does not grow with M belongs to the noise that is not private.",
        "The paper plots the curves and prints their limit 2/epsilon only.",
    )
    return Outcome(data="none needed", lines=tuple(lines), notes=notes, charts=(chart,))


STUDY = Study(
    name="r1-loss",
    title="Expected loss against the number of entries",
    paper="R1SMG, appendix B, Fig. 9",
    data="none",
    file=None,
    run=_run,
)

"""Methods that a study compares: each is tried several times and becomes one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpdask.figures import number_text
from dpdask_studies.study import Chart, Line, Measured, Series, Verdict
from dpdask_studies.workbench import Release

__all__ = ["Method", "Trial", "compare_chart", "guarantee_text", "printed_verdict", "tried"]


@dataclass(frozen=True, slots=True)
class Trial:
    """The error of one trial, and the release that it came from where there was one."""

    error: float
    release: Release | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A mechanism, a baseline or a reference.

    Args:
        label: What the line is called.
        attempt: Returns the trial of a number, its randomness from that number or new.
        paper: The printed error.
        formula: What a formula says of it; the standard deviation of an entry's noise where left
            out.
        verdict: Of methods without a release.
        why: Said after the verdict.
    """

    label: str
    attempt: Callable[[int], Trial]
    paper: float | None = None
    formula: float | str | None = None
    verdict: Verdict = Verdict.CONTEXT
    why: str = ""


def tried(methods: Sequence[Method], trials: int) -> list[Line]:
    """Return one line for each method, from so many trials."""
    return [
        _line(method, [method.attempt(number) for number in range(trials)]) for method in methods
    ]


def _line(method: Method, trials: list[Trial]) -> Line:
    measured = Measured.of([trial.error for trial in trials])
    release = trials[-1].release
    verdict, why, formula = method.verdict, method.why, method.formula
    if release is not None:
        verdict = _guarantee_verdict(release)
        why = "; ".join(filter(None, [guarantee_text(release), method.why]))
        formula = formula or f"std {number_text(release.card.released.noise_std or math.nan)}"
    if method.paper is not None and verdict is not Verdict.NOT_PRIVATE:
        verdict = printed_verdict(method.paper, measured)
    return Line(
        label=method.label,
        paper=method.paper,
        formula=formula,
        measured=measured,
        verdict=verdict,
        why=why,
    )


def printed_verdict(printed: float, measured: Measured) -> Verdict:
    """Return whether a printed value was measured, within a tenth or twice the interval."""
    if abs(printed - measured.mean) > max(0.1 * abs(printed), 2 * measured.half_width):
        return Verdict.DIFFERS
    return Verdict.UNDECIDED if measured.half_width > abs(printed) / 4 else Verdict.REPRODUCED


def _guarantee_verdict(release: Release) -> Verdict:
    guarantee = release.card.guarantee
    if release.verified_delta > guarantee.claimed.delta:
        return Verdict.NOT_PRIVATE
    return Verdict.CERTIFIED if guarantee.certified else Verdict.HOLDS


def guarantee_text(release: Release) -> str:
    """Return what is verified of a release, in words."""
    delta = release.card.guarantee.claimed.delta
    return f"verified epsilon {release.verified_epsilon:.3g} at delta {delta:.3g}"


def compare_chart(lines: Sequence[Line], *, title: str, y_label: str, log_y: bool = False) -> Chart:
    """Return the measured and printed values of all lines that were measured."""
    shown = [line for line in lines if isinstance(line.measured, Measured)]
    means = [line.measured for line in shown if isinstance(line.measured, Measured)]
    series = [
        Series(
            "measured here",
            range(len(shown)),
            [each.mean for each in means],
            [each.half_width for each in means],
        )
    ]
    printed = [
        (place, line.paper) for place, line in enumerate(shown) if isinstance(line.paper, float)
    ]
    if printed:
        series.append(Series("printed", [at for at, _ in printed], [value for _, value in printed]))
    return Chart(
        title=title,
        x_label="",
        y_label=y_label,
        series=tuple(series),
        x_names=tuple(line.label for line in shown),
        log_y=log_y,
    )

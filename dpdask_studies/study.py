"""What a study is, and what it returns: lines of a table, notes and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from dpdask.figures import number_text
from dpdask.types import Floats, Json
from dpdask.views.rows import Emphasis, Record, Row

__all__ = ["Chart", "Line", "Maps", "Measured", "Outcome", "Series", "Study", "Verdict"]


class Verdict(StrEnum):
    """What a line of a study shows."""

    REPRODUCED = "reproduced"
    DIFFERS = "not reproduced"
    UNDECIDED = "undecided"
    NOT_PRIVATE = "not private as claimed"
    CERTIFIED = "certified"
    HOLDS = "guarantee holds"
    BASELINE = "baseline"
    NOT_CHECKED = "guarantee not checked"
    CONTEXT = "for scale"


_EMPHASIS = {
    Verdict.REPRODUCED: Emphasis.GOOD,
    Verdict.CERTIFIED: Emphasis.GOOD,
    Verdict.HOLDS: Emphasis.GOOD,
    Verdict.DIFFERS: Emphasis.BAD,
    Verdict.NOT_PRIVATE: Emphasis.BAD,
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A mean over trials, with the half width of its 95 % interval; NaN for a single trial."""

    mean: float
    half_width: float = math.nan
    trials: int = 1

    @classmethod
    def of(cls, values: Sequence[float] | Floats) -> Measured:
        """Return the mean of independent trials and its normal interval."""
        numbers = np.asarray(values, float)
        count = len(numbers)
        spread = float(numbers.std(ddof=1)) if count > 1 else math.nan
        return cls(float(numbers.mean()), 1.96 * spread / math.sqrt(count), count)

    def __str__(self) -> str:
        if math.isnan(self.half_width):
            return number_text(self.mean)
        return f"{number_text(self.mean)} ± {number_text(self.half_width)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: what the paper prints, what its formula gives, what was measured here.

    Args:
        label: The mechanism or quantity.
        paper: The printed value, as text where it is more than a number; None if none is printed.
        formula: What the formula or theorem gives.
        measured: What releases gave here.
        verdict: What follows.
        why: The verdict in a few more words.
    """

    label: str
    paper: float | str | None = None
    formula: float | str | None = None
    measured: Measured | float | str | None = None
    verdict: Verdict
    why: str = ""

    def record(self) -> Record:
        """Return the line for a table."""
        words = f"{self.verdict}: {self.why}" if self.why else str(self.verdict)
        return [
            Row("", self.label),
            Row("paper", _text(self.paper)),
            Row("formula", _text(self.formula)),
            Row("measured", _text(self.measured)),
            Row("verdict", words, _EMPHASIS.get(self.verdict, Emphasis.PLAIN)),
        ]

    def to_dict(self) -> Json:
        """Return the line as JSON-ready values."""
        content: Json = {"label": self.label, "paper": self.paper, "formula": self.formula}
        if isinstance(self.measured, Measured):
            content["measured"] = self.measured.mean
            content["half_width_95"] = self.measured.half_width
            content["trials"] = self.measured.trials
        else:
            content["measured"] = self.measured
        return content | {"verdict": str(self.verdict), "why": self.why}


def _text(value: Measured | float | str | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, (str, Measured)) else number_text(value)


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a chart; ``band`` is a half width around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    band: Sequence[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Curves over a common axis; where ``x_names`` are, points over these names."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_names: tuple[str, ...] | None = None
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """Matrices side by side in one colour scale from 0 to ``highest``."""

    title: str
    images: tuple[tuple[str, Floats], ...]
    scale_label: str
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a study found.

    Args:
        data: Which data it ran on, in one line.
        lines: The table.
        notes: What a reader has to know beside it.
        charts: What ``--plot`` draws, from left to right.
    """

    data: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    charts: tuple[Chart | Maps, ...] = ()


Run = Callable[[bool, Path | None], Outcome]
"""What computes a study: whether it is to be quick, and a file of the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """An experiment of a paper that can be run.

    Args:
        name: What ``dpdask study`` calls it.
        title: What it is about.
        paper: Which paper, section and figures.
        data: Which data it uses.
        file: What ``--data`` takes; None where the study needs no data.
        run: Computes it.
    """

    name: str
    title: str
    paper: str
    data: str
    file: str | None
    run: Run

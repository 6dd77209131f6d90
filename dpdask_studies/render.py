"""Studies as tables of the terminal, JSON and markdown."""

from __future__ import annotations

from collections.abc import Sequence

from dpdask.types import Json
from dpdask.views.markdown import records_markdown
from dpdask.views.rows import Record, Row
from dpdask_studies.study import Outcome, Study

__all__ = ["list_records", "outcome_dict", "outcome_markdown", "outcome_records"]


def list_records(studies: Sequence[Study]) -> list[Record]:
    """Return one record per study."""
    return [
        [
            Row("study", each.name),
            Row("what", each.title),
            Row("paper", each.paper),
            Row("data", each.data),
            Row("--data", each.file or "-"),
        ]
        for each in studies
    ]


def outcome_records(outcome: Outcome) -> list[Record]:
    """Return the table of a study."""
    return [line.record() for line in outcome.lines]


def outcome_dict(study: Study, outcome: Outcome, *, quick: bool) -> Json:
    """Return a study with what it found as JSON-ready values."""
    return {
        "study": study.name,
        "title": study.title,
        "paper": study.paper,
        "data": outcome.data,
        "quick": quick,
        "lines": [line.to_dict() for line in outcome.lines],
        "notes": list(outcome.notes),
    }


def outcome_markdown(study: Study, outcome: Outcome) -> str:
    """Return a study with what it found as a section of a page."""
    notes = [f"- {note}" for note in outcome.notes]
    parts = [
        f"## {study.name}",
        f"{study.title}. {study.paper}. Data: {outcome.data}.",
        f"    dpdask study {study.name}",
        records_markdown(outcome_records(outcome)),
        *(["\n".join(notes)] if notes else []),
    ]
    return "\n\n".join(parts)

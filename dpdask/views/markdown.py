"""Rows as markdown, and as the lists of objects that table artifacts are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpdask.views.card_rows import card_rows
from dpdask.views.rows import Emphasis, Record, Row

if TYPE_CHECKING:
    from dpdask.releases.card import ReleaseCard

__all__ = [
    "card_markdown",
    "records_markdown",
    "records_to_objects",
    "rows_markdown",
    "rows_to_objects",
]

_SPECIAL = "\\|`*_[]<>#~&"


def rows_markdown(rows: Sequence[Row]) -> str:
    """Return a table of labels and values."""
    lines = [f"| {_escaped(row.label)} | {_value(row)} |" for row in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def records_markdown(records: Sequence[Record]) -> str:
    """Return a table with a line per record; its columns are the labels of the first one."""
    if not records:
        return "none"
    headings = [_escaped(row.label) for row in records[0]]
    lines = [headings, ["---"] * len(headings), *([_value(row) for row in r] for r in records)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def rows_to_objects(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return each row as an object with its label and its value."""
    return [{"label": row.label, "value": row.value} for row in rows]


def records_to_objects(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return each record as an object with its values by label."""
    return [{row.label: row.value for row in record} for record in records]


def card_markdown(card: ReleaseCard) -> str:
    """Return a release card as a page."""
    return f"# Release {card.release_id[:12]}\n\n{rows_markdown(card_rows(card))}"


def _value(row: Row) -> str:
    text = _escaped(row.value)
    return f"**{text}**" if row.emphasis is Emphasis.BAD else text


def _escaped(text: str) -> str:
    """Return the text as one cell that shows it literally: a description is text, not markup."""
    escaped = "".join(f"\\{letter}" if letter in _SPECIAL else letter for letter in text)
    return " ".join(escaped.splitlines())

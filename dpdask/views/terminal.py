"""Rows as tables and lines of a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dpdask.mechanisms import Calibration
from dpdask.mechanisms.compare import Comparison
from dpdask.types import Json
from dpdask.views.accuracy_rows import epsilon_rows
from dpdask.views.card_rows import card_rows
from dpdask.views.ledger_rows import axis_rows, ledger_rows, release_rows
from dpdask.views.mechanism_rows import calibration_rows, comparison_notes, comparison_rows
from dpdask.views.plan_rows import plan_rows
from dpdask.views.rows import Emphasis, Record, Row

if TYPE_CHECKING:  # the other tables need neither a database nor a release
    from dpdask.ledger import DatasetState
    from dpdask.releases.card import ReleaseCard

__all__ = [
    "axis_table",
    "calibration_table",
    "card_table",
    "comparison_table",
    "epsilon_table",
    "ledger_table",
    "notes",
    "plan_table",
    "records_table",
    "release_table",
    "rows_table",
]

_STYLES = {Emphasis.PLAIN: "", Emphasis.GOOD: "green", Emphasis.BAD: "bold red"}


def rows_table(title: str, rows: Sequence[Row]) -> Table:
    """Return a table of labels and values."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for row in rows:
        table.add_row(Text(row.label), _value(row))
    return table


def records_table(records: Sequence[Record], title: str | None = None) -> Table:
    """Return a table with a line per record; its columns are the labels of the first one."""
    table = Table(title=title, title_justify="left")
    if not records:
        table.add_column("none")
        return table
    for column, row in enumerate(records[0]):
        numeric = all(_is_number(record[column].value) for record in records)
        table.add_column(Text(row.label), justify="right" if numeric else "left")
    for record in records:
        table.add_row(*map(_value, record))
    return table


def _value(row: Row) -> Text:
    """Return the value as it is: text of a card is never read as markup."""
    return Text(row.value, style=_STYLES[row.emphasis])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def calibration_table(name: str, calibration: Calibration) -> Table:
    """Return one mechanism's noise and guarantee as a table."""
    return rows_table(name, calibration_rows(calibration))


def comparison_table(comparison: Comparison) -> Table:
    """Return all mechanisms as a table, the best certified one first."""
    budget = comparison.budget
    title = f"epsilon {budget.epsilon:g}, delta {budget.delta:g}"
    return records_table(comparison_rows(comparison), title)


def notes(comparison: Comparison) -> Text:
    """Return one line for each mechanism that is missing, not certified or has a note."""
    lines = [
        Text(f"{note.label}: {note.value}", style="red" if note.emphasis is Emphasis.BAD else "")
        for note in comparison_notes(comparison)
    ]
    return Text("\n").join(lines)


def ledger_table(states: Sequence[DatasetState]) -> Table:
    """Return datasets with their totals and what is spent of them as a table."""
    return records_table(ledger_rows(states))


def axis_table(state: DatasetState) -> Table:
    """Return the axes of a dataset along which disjoint windows were charged as a table."""
    return records_table(axis_rows(state))


def release_table(state: DatasetState) -> Table:
    """Return the releases of one dataset as a table."""
    return records_table(release_rows(state))


def plan_table(plan: Json) -> Table:
    """Return a plan as a table, for people who may see the source."""
    return rows_table("plan", plan_rows(plan))


def epsilon_table(choices: Sequence[Json]) -> Table:
    """Return a release at several epsilons as a table."""
    return records_table(epsilon_rows(choices))


def card_table(card: ReleaseCard) -> Table:
    """Return a release card as a table."""
    return rows_table("release card", card_rows(card))

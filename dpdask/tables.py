"""Tables for people: what the commands print when nobody asked for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dpdask.compare import Comparison
from dpdask.mechanisms import Calibrated

if TYPE_CHECKING:  # the other tables do not need a database
    from dpdask.ledger import DatasetState

__all__ = ["calibration_table", "comparison_table", "ledger_table", "notes", "release_table"]


def calibration_table(name: str, calibrated: Calibrated) -> Table:
    """One mechanism's noise and guarantee."""
    table = Table(title=f"{name}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    noise, guarantee = calibrated.noise, calibrated.guarantee
    claimed, verified = guarantee.claimed, guarantee.verified
    table.add_row("noise", f"{noise.describe()['name']} on {' x '.join(map(str, noise.tensor_shape))}")
    table.add_row("std of an entry", f"{noise.entry_std:.6g}")
    table.add_row("expected squared loss", f"{noise.expected_squared_loss:.6g}")
    table.add_row("loss kurtosis, skewness", f"{noise.kurtosis:.6g}, {noise.skewness:.6g}")
    for key, value in calibrated.calibration.items():
        table.add_row(key, f"{value:.12g}")
    table.add_row("claimed", f"epsilon {claimed.epsilon:.6g}, delta {claimed.delta:.6g}: {guarantee.theorem}")
    table.add_row(
        "verified",
        f"epsilon {verified.epsilon(claimed.delta):.6g} at delta {claimed.delta:.6g};"
        f" delta {verified.delta(claimed.epsilon):.6g} at epsilon {claimed.epsilon:.6g}",
    )
    table.add_row("certified", _verdict(guarantee.certified))
    table.add_row("reason", guarantee.reason)
    return table


def _verdict(certified: bool) -> Text:
    return Text("yes", style="green") if certified else Text("NO", style="bold red")


def comparison_table(comparison: Comparison) -> Table:
    """All mechanisms, best certified one first."""
    budget = comparison.budget
    weighted = "" if comparison.weights is None else "weighted "
    table = Table(title=f"epsilon {budget.epsilon:g}, delta {budget.delta:g}", title_justify="left")
    for heading in ("mechanism", "std of an entry", f"{weighted}squared loss", "relative"):
        table.add_column(heading, justify="left" if heading == "mechanism" else "right")
    table.add_column("claimed by")
    table.add_column(f"verified epsilon at {budget.delta:g}", justify="right")
    table.add_column(f"verified delta at {budget.epsilon:g}", justify="right")
    table.add_column("certified")
    best = comparison.best()
    for row in comparison.rows:
        if row.calibrated is None:
            continue
        guarantee = row.calibrated.guarantee
        table.add_row(
            row.mechanism,
            f"{row.calibrated.noise.entry_std:.4g}",
            f"{comparison.loss(row):.4g}",
            f"{comparison.loss(row) / best:.4g}",
            guarantee.theorem,
            f"{guarantee.verified.epsilon(budget.delta):.4g}",
            f"{guarantee.verified.delta(budget.epsilon):.4g}",
            _verdict(guarantee.certified),
        )
    return table


def notes(comparison: Comparison) -> Text:
    """Why a mechanism is missing or not certified, one line each."""
    lines = Text()
    for row in comparison.rows:
        if row.calibrated is None:
            lines.append(f"{row.mechanism}: not shown: {row.unavailable}\n")
            continue
        if not row.calibrated.guarantee.certified:
            lines.append(f"{row.mechanism}: not certified: {row.calibrated.guarantee.reason}\n", style="red")
        if row.note:
            lines.append(f"{row.mechanism}: {row.note}\n")
    lines.rstrip()
    return lines


def ledger_table(states: Sequence[DatasetState]) -> Table:
    """Datasets with their totals and what is spent of them."""
    table = Table()
    for heading in ("dataset", "total epsilon", "delta", "spent epsilon", "releases"):
        table.add_column(heading, justify="left" if heading == "dataset" else "right")
    for state in states:
        table.add_row(
            state.name,
            f"{state.total.epsilon:g}",
            f"{state.total.delta:g}",
            f"{state.spent_epsilon:.6g}",
            str(len(state.releases)),
        )
    return table


def release_table(state: DatasetState) -> Table:
    """The releases of one dataset with their last step."""
    table = Table("release", "last step")
    for release, step in state.releases.items():
        table.add_row(release, step)
    return table

"""Ledgers as rows: one record per dataset, one per release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpdask.views.rows import Emphasis, Record, Row

if TYPE_CHECKING:  # describing needs no database
    from dpdask.ledger import DatasetState

__all__ = ["axis_rows", "ledger_rows", "release_rows"]


def ledger_rows(states: Sequence[DatasetState]) -> list[Record]:
    """Return one record per dataset: its total and what is spent of it."""
    return [_dataset(state) for state in states]


def _dataset(state: DatasetState) -> Record:
    spent_emphasis = Emphasis.BAD if state.overspent else Emphasis.PLAIN
    return [
        Row("dataset", state.name),
        Row("total epsilon", f"{state.total.epsilon:g}"),
        Row("delta", f"{state.total.delta:g}"),
        Row("policy", state.policy),
        Row("protects", state.unit or ""),
        Row("spent epsilon", f"{state.spent_epsilon:.6g}", spent_emphasis),
        Row("releases", str(len(state.releases))),
    ]


def axis_rows(state: DatasetState) -> list[Record]:
    """Return one record per axis along which disjoint windows were charged."""
    return [
        [
            Row("windows along axis", str(axis.axis)),
            Row("of array", axis.array[:12]),
            Row("from", str(axis.start)),
            Row("to", str(axis.stop)),
            Row("parts", str(axis.segments)),
            Row("largest epsilon", f"{axis.largest_epsilon:.6g}"),
        ]
        for axis in state.axes
    ]


def release_rows(state: DatasetState) -> list[Record]:
    """Return one record per release of a dataset: its public name, when it was charged, what it
    would have cost alone, where it went, its last step.
    """
    return [_release(state, key, last_step) for key, last_step in state.releases.items()]


def _release(state: DatasetState, key: str, last_step: str) -> Record:
    details = state.details[key]
    return [
        Row("release", details["release_id"] or key),
        Row("charged at", details["at"]),
        Row(f"epsilon at {state.total.delta:g}", f"{details['epsilon']:.4g}"),
        Row("output", details["output"] or ""),
        Row("last step", last_step),
    ]

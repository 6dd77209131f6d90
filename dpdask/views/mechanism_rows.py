"""Calibrations and comparisons of mechanisms as rows."""

from __future__ import annotations

from dpdask.mechanisms import Calibration
from dpdask.mechanisms.compare import Comparison
from dpdask.views.rows import Emphasis, Record, Row, shape_text, verdict

__all__ = ["calibration_rows", "comparison_notes", "comparison_rows"]


def calibration_rows(calibration: Calibration) -> list[Row]:
    """Return one mechanism's noise and guarantee."""
    noise, guarantee = calibration.noise, calibration.guarantee
    claimed, verified = guarantee.claimed, guarantee.verified
    quantities = calibration.quantities.items()
    return [
        Row("noise", f"{noise.to_dict()['name']} on {shape_text(noise.tensor_shape)}"),
        Row("std of an entry", f"{noise.entry_std:.6g}"),
        Row("expected squared loss", f"{noise.expected_squared_loss:.6g}"),
        Row("loss kurtosis, skewness", f"{noise.kurtosis:.6g}, {noise.skewness:.6g}"),
        *(Row(name, f"{value:.12g}") for name, value in quantities),
        Row(
            "claimed",
            f"epsilon {claimed.epsilon:.6g}, delta {claimed.delta:.6g}: {guarantee.theorem}",
        ),
        Row(
            "verified",
            f"epsilon {verified.epsilon(claimed.delta):.6g} at delta {claimed.delta:.6g};"
            f" delta {verified.delta(claimed.epsilon):.6g} at epsilon {claimed.epsilon:.6g}",
        ),
        verdict(guarantee.certified),
        Row("reason", guarantee.reason),
    ]


def comparison_rows(comparison: Comparison) -> list[Record]:
    """Return one record per mechanism that applies, the best certified one first."""
    budget, best = comparison.budget, comparison.best()
    loss_label = "squared loss" if comparison.weights is None else "weighted squared loss"
    records: list[Record] = []
    for row in comparison.rows:
        if row.calibration is None:
            continue
        guarantee, loss = row.calibration.guarantee, comparison.loss(row)
        verified = guarantee.verified
        records.append(
            [
                Row("mechanism", row.mechanism),
                Row("std of an entry", f"{row.calibration.noise.entry_std:.4g}"),
                Row(loss_label, f"{loss:.4g}"),
                Row("relative", f"{loss / best:.4g}"),
                Row("kurtosis", f"{row.calibration.noise.kurtosis:.5g}"),
                Row("skewness", f"{row.calibration.noise.skewness:.5g}"),
                *_pnr(comparison.log_pnr(row)),
                Row("claimed by", guarantee.theorem),
                Row(
                    f"verified epsilon at {budget.delta:g}", f"{verified.epsilon(budget.delta):.4g}"
                ),
                Row(
                    f"verified delta at {budget.epsilon:g}", f"{verified.delta(budget.epsilon):.4g}"
                ),
                verdict(guarantee.certified),
            ]
        )
    return records


def _pnr(log_pnr: float | None) -> list[Row]:
    """Return MVG's power-to-noise ratio, which may be far from a double: its logarithm."""
    return [] if log_pnr is None else [Row("ln PNR", f"{log_pnr:.4g}")]


def comparison_notes(comparison: Comparison) -> list[Row]:
    """Return why a mechanism is missing or not certified, and what to know of the others."""
    notes = []
    for row in comparison.rows:
        if row.calibration is None:
            notes.append(Row(row.mechanism, f"not shown: {row.unavailable}"))
            continue
        if not row.calibration.guarantee.certified:
            reason = row.calibration.guarantee.reason
            notes.append(Row(row.mechanism, f"not certified: {reason}", Emphasis.BAD))
        if row.note:
            notes.append(Row(row.mechanism, row.note))
    if comparison.constants:
        constants = [f"{name} {value:.6g}" for name, value in comparison.constants.items()]
        about = "squared loss over s^2, as R1SMG Thms 4 and 7 print it"
        notes.append(Row("constants", f"{', '.join(constants)} ({about})"))
    return notes

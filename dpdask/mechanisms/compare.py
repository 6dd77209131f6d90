"""Every mechanism side by side on one budget, one body and one shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpdask.errors import DpdaskError, InvalidMechanism
from dpdask.mechanisms import (
    Calibration,
    analytic_gaussian,
    classic_gaussian,
    directional,
    idn,
    k_norm,
    mgm,
    mvg,
    rank_one,
    udn,
)
from dpdask.mechanisms.mgm import check_weights
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, RecordBox, SensitivitySet
from dpdask.types import Json

__all__ = ["Comparison", "Row", "compare_mechanisms"]


@dataclass(frozen=True, slots=True)
class Row:
    """One mechanism: either what it would add, or why it cannot."""

    mechanism: str
    calibrated: Calibration | None
    unavailable: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, with the weights in which their losses are counted."""

    budget: PrivacyBudget
    rows: tuple[Row, ...]
    axis: int
    weights: tuple[float, ...] | None

    def loss(self, row: Row) -> float:
        """The expected squared loss of a row, weighted along the axis when weights are given."""
        if row.calibrated is None:
            return math.nan
        noise = row.calibrated.noise
        if self.weights is None:
            return noise.expected_squared_loss
        size = noise.tensor_shape[self.axis]
        return float(
            np.dot(np.broadcast_to(noise.variances_along(self.axis), size), self.weights)
        ) * (noise.entries // size)

    def best(self) -> float:
        """The least loss among certified mechanisms."""
        losses = [
            self.loss(row)
            for row in self.rows
            if row.calibrated and row.calibrated.guarantee.certified
        ]
        return min(losses, default=math.nan)

    def to_dict(self) -> Json:
        """Everything as JSON-ready facts."""
        best = self.best()
        rows = []
        for row in self.rows:
            facts: Json = {"mechanism": row.mechanism}
            if row.calibrated is None:
                facts["unavailable"] = row.unavailable
            else:
                facts |= row.calibrated.to_dict() | {
                    "entry_std": row.calibrated.noise.entry_std,
                    "expected_squared_loss": row.calibrated.noise.expected_squared_loss,
                    "relative_loss": self.loss(row) / best,
                }
                if self.weights is not None:
                    facts["weighted_squared_loss"] = self.loss(row)
            if row.note:
                facts["note"] = row.note
            rows.append(facts)
        return {"epsilon": self.budget.epsilon, "delta": self.budget.delta, "mechanisms": rows}


def compare_mechanisms(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    gamma: float | None = None,
    weights: Sequence[float] | None = None,
) -> Comparison:
    """Calibrate every mechanism that applies, the best certified one first.

    Without ``gamma`` MVG is shown at the smallest bound on ||f|| that the sensitivity allows, which
    flatters it.
    """
    axis = sensitivity.feature_axis if isinstance(sensitivity, (EntrywiseBox, RecordBox)) else 0
    if gamma is not None and not gamma > 0:
        raise InvalidMechanism(f"gamma={gamma:g} is no bound on ||f||; give a finite number > 0")
    if weights is not None:
        check_weights(weights, shape[axis])
    asked: Json = {"budget": budget, "sensitivity": sensitivity, "shape": shape}
    per_axis = (
        None if weights is None else [weights if i == axis else None for i in range(len(shape))]
    )
    note = (
        ""
        if gamma is not None
        else "at the smallest gamma the sensitivity allows; a real one needs more noise"
    )
    general = sensitivity.radius / 2 if gamma is None else gamma
    psd = sensitivity.radius / math.sqrt(2) if gamma is None else gamma
    recipes: list[tuple[str, Callable[[], Calibration], str]] = [
        ("analytic-gaussian (= imgm)", lambda: analytic_gaussian(**asked), ""),
        ("classic-gaussian", lambda: classic_gaussian(**asked), ""),
        ("directional", lambda: directional(**asked, weights=weights), ""),
        ("mvg general", lambda: mvg(**asked, gamma=general, axis=axis), note),
        ("mvg psd", lambda: mvg(**asked, gamma=psd, theorem="psd"), note),
        ("mgm", lambda: mgm(**asked, weights=per_axis), ""),
        ("udn", lambda: udn(**asked, axis=axis, weights=weights), ""),
        ("idn", lambda: idn(**asked, axis=axis, weights=weights), ""),
        ("rank-one exact", lambda: rank_one(**asked), ""),
        ("rank-one paper", lambda: rank_one(**asked, calibration="paper"), ""),
        ("k-norm", lambda: k_norm(**asked), "pure epsilon, delta unused"),
    ]
    rows = [_row(name, recipe, remark) for name, recipe, remark in recipes]
    made = Comparison(
        budget, tuple(rows), axis, None if weights is None else tuple(float(w) for w in weights)
    )

    def order(row: Row) -> tuple[bool, bool, float]:
        uncertified = row.calibrated is not None and not row.calibrated.guarantee.certified
        return row.calibrated is None, uncertified, made.loss(row) if row.calibrated else 0.0

    return Comparison(budget, tuple(sorted(rows, key=order)), axis, made.weights)


def _row(name: str, recipe: Callable[[], Calibration], note: str) -> Row:
    try:
        calibrated = recipe()
    except DpdaskError as error:
        return Row(name, None, unavailable=str(error))
    return Row(name, calibrated, note="; ".join(filter(None, (note, *calibrated.warnings))))

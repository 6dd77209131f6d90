"""Every mechanism side by side, on one budget, one sensitivity and one shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from dpdask.errors import DpdaskError, InvalidMechanism
from dpdask.mechanisms import (
    Calibration,
    analytic_gaussian,
    classic_gaussian,
    directional,
    idn,
    k_norm,
    laplace,
    mgm,
    mvg,
    rank_one,
    udn,
)
from dpdask.mechanisms.mgm import check_weights
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, RecordBox, SensitivitySet
from dpdask.types import Json, Shape

__all__ = ["Comparison", "Row", "compare_mechanisms"]


@dataclass(frozen=True, slots=True)
class Row:
    """One mechanism: either what it would add, or why it cannot.

    Args:
        mechanism: The name of the mechanism, with its variant.
        calibration: The noise and its guarantee, None where the mechanism does not apply.
        unavailable: Why it does not apply.
        note: What a reader should know.
    """

    mechanism: str
    calibration: Calibration | None
    unavailable: str = ""
    note: str = ""

    @property
    def rank(self) -> int:
        """Return 0 for a certified mechanism, 1 for an uncertified one, 2 if unavailable."""
        if self.calibration is None:
            return 2
        return 0 if self.calibration.guarantee.certified else 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """All mechanisms, with the weights by which their losses are compared.

    Args:
        budget: The budget that every mechanism is calibrated to.
        rows: The mechanisms.
        axis: The axis of the weights.
        weights: The importance of each index's error, None where all are equal.
    """

    budget: PrivacyBudget
    rows: tuple[Row, ...]
    axis: int
    weights: tuple[float, ...] | None

    def loss(self, row: Row) -> float:
        """Return the expected squared loss of a row, weighted along the axis if there are weights.

        NaN where the mechanism is unavailable.
        """
        if row.calibration is None:
            return math.nan
        noise = row.calibration.noise
        if self.weights is None:
            return noise.expected_squared_loss
        size = noise.tensor_shape[self.axis]
        variances = np.broadcast_to(noise.variances_along(self.axis), size)
        return float(np.dot(variances, self.weights)) * (noise.entries // size)

    def best(self) -> float:
        """Return the least loss among certified mechanisms."""
        return min((self.loss(row) for row in self.rows if row.rank == 0), default=math.nan)

    def sorted(self) -> Comparison:
        """Return the same rows, the best certified mechanism first, unavailable ones last."""

        def order(row: Row) -> tuple[int, float]:
            return row.rank, 0.0 if row.calibration is None else self.loss(row)

        return dataclasses.replace(self, rows=tuple(sorted(self.rows, key=order)))

    def to_dict(self) -> Json:
        """Return the comparison as JSON-ready values."""
        best = self.best()
        return {
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "mechanisms": [self._row_to_dict(row, best) for row in self.rows],
        }

    def _row_to_dict(self, row: Row, best: float) -> Json:
        content: Json = {"mechanism": row.mechanism}
        if row.calibration is None:
            content["unavailable"] = row.unavailable
        else:
            noise = row.calibration.noise
            content |= row.calibration.to_dict() | {
                "entry_std": noise.entry_std,
                "expected_squared_loss": noise.expected_squared_loss,
                "relative_loss": self.loss(row) / best,
            }
            if self.weights is not None:
                content["weighted_squared_loss"] = self.loss(row)
        if row.note:
            content["note"] = row.note
        return content


class _Common(TypedDict):
    budget: PrivacyBudget
    sensitivity: SensitivitySet
    shape: Shape


def compare_mechanisms(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    gamma: float | None = None,
    weights: Sequence[float] | None = None,
) -> Comparison:
    """Calibrate every mechanism that applies, and sort them, the best certified one first.

    Args:
        budget: (epsilon, delta).
        sensitivity: What one privacy unit can change.
        shape: The shape of the tensor.
        gamma: A public bound on ||f||, for MVG; the smallest one that the sensitivity allows where
            left out, which understates MVG's noise.
        weights: The importance of each feature's error; equal where left out.
    """
    axis = sensitivity.feature_axis if isinstance(sensitivity, (EntrywiseBox, RecordBox)) else 0
    if gamma is not None and not gamma > 0:
        raise InvalidMechanism(
            f"gamma={gamma:g} is not a valid bound on ||f||; give a finite number > 0"
        )
    if weights is not None:
        check_weights(weights, shape[axis])
    common: _Common = {"budget": budget, "sensitivity": sensitivity, "shape": shape}
    weights_of_axes = None
    if weights is not None:
        weights_of_axes = [weights if i == axis else None for i in range(len(shape))]
    mvg_note = ""
    if gamma is None:
        mvg_note = "at the smallest gamma the sensitivity allows; a real one needs more noise"
    gamma_general = sensitivity.radius / 2 if gamma is None else gamma
    gamma_psd = sensitivity.radius / math.sqrt(2) if gamma is None else gamma
    rows = (
        _row("analytic-gaussian (= imgm)", lambda: analytic_gaussian(**common)),
        _row("classic-gaussian", lambda: classic_gaussian(**common)),
        _row("directional", lambda: directional(**common, weights=weights)),
        _row("laplace", lambda: laplace(**common), "pure epsilon, delta unused"),
        _row("mvg general", lambda: mvg(**common, gamma=gamma_general, axis=axis), mvg_note),
        _row("mvg psd", lambda: mvg(**common, gamma=gamma_psd, theorem="psd"), mvg_note),
        _row("mgm", lambda: mgm(**common, weights=weights_of_axes)),
        _row("udn", lambda: udn(**common, axis=axis, weights=weights)),
        _row("idn", lambda: idn(**common, axis=axis, weights=weights)),
        _row("rank-one exact", lambda: rank_one(**common)),
        _row("rank-one paper", lambda: rank_one(**common, calibration="paper")),
        _row("k-norm", lambda: k_norm(**common), "pure epsilon, delta unused"),
    )
    numbers = None if weights is None else tuple(float(weight) for weight in weights)
    return Comparison(budget, rows, axis, numbers).sorted()


def _row(name: str, calibrate: Callable[[], Calibration], note: str = "") -> Row:
    try:
        calibration = calibrate()
    except DpdaskError as error:
        return Row(name, None, unavailable=str(error))
    return Row(name, calibration, note="; ".join(filter(None, (note, *calibration.warnings))))

"""Every mechanism side by side, on one budget, one sensitivity and one shape."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypedDict, TypeVar

import numpy as np

from dpdask.errors import DpdaskError, InvalidMechanism
from dpdask.mechanisms import (
    Allocation,
    Calibration,
    FixedShares,
    MaxPnr,
    Steps,
    Uniform,
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
from dpdask.mechanisms.reproductions.constants import loss_constants
from dpdask.noise import KroneckerNoise, Noise
from dpdask.noise.factors import check_orthonormal
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, RecordBox, SensitivitySet
from dpdask.types import Floats, Json, Shape

__all__ = ["Colours", "Comparison", "Row", "compare_mechanisms"]

_T = TypeVar("_T")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All mechanisms, with the weights by which their losses are compared.

    Args:
        budget: The budget that every mechanism is calibrated to.
        rows: The mechanisms.
        axis: The axis of weights, directions and eigenvalues.
        weights: The importance of the error along each direction, None where all are equal.
        directions: Orthonormal rows; None for the standard basis.
        eigenvalues: Those of f f' along the directions, from which the power-to-noise ratio
            follows; None where they are not known.
        constants: C_C, C_A, C_M and C_R of the R1SMG paper; empty for several steps.
    """

    budget: PrivacyBudget
    rows: tuple[Row, ...]
    axis: int
    weights: tuple[float, ...] | None = None
    directions: Floats | None = None
    eigenvalues: tuple[float, ...] | None = None
    constants: Mapping[str, float] = field(default_factory=dict)

    def variances(self, noise: Noise) -> Floats:
        """Return the mean variance of an entry of the noise along every direction."""
        size = noise.tensor_shape[self.axis]
        variances = noise.variances_along(self.axis)
        if self.directions is not None and isinstance(noise, KroneckerNoise):
            own = noise.factors[self.axis]
            others = float(np.mean(variances)) / (own.power_sum(2) / size)
            variances = np.sum((self.directions @ own.to_dense()) ** 2, axis=1) * others
        return np.broadcast_to(variances, size)

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
        return float(np.dot(self.variances(noise), self.weights)) * (noise.entries // size)

    def log_pnr(self, row: Row) -> float | None:
        """Return the logarithm of MVG's power-to-noise ratio |K + N| / |N| (eq. 24), N the
        covariance of a column of the noise and K the query's.

        None where there is no mechanism, or no eigenvalues.
        """
        if row.calibration is None or self.eigenvalues is None:
            return None
        variances = self.variances(row.calibration.noise)
        return math.fsum(np.log1p(np.asarray(self.eigenvalues) / variances))

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
            "constants": dict(self.constants),
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
                "kurtosis": noise.kurtosis,
                "skewness": noise.skewness,
            }
            if self.weights is not None:
                content["weighted_squared_loss"] = self.loss(row)
            if self.eigenvalues is not None:
                content["log_pnr"] = self.log_pnr(row)
        if row.note:
            content["note"] = row.note
        return content


class _Common(TypedDict):
    budget: PrivacyBudget
    sensitivity: SensitivitySet
    shape: Shape
    steps: Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """What directional mechanisms are told of one axis: that of the features, or the first.

    Args:
        weights: The importance of the error along each direction; equal where left out.
        directions: Orthonormal rows; the standard basis where left out.
        eigenvalues: The public eigenvalues of f f' along the directions, for max-PNR.
        floor: The share of the precision that is spread evenly, so that weights may be 0.
    """

    weights: Sequence[float] | None = None
    directions: Sequence[Sequence[float]] | None = None
    eigenvalues: Sequence[float] | None = None
    floor: float = 0.0

    def check(self, size: int) -> None:
        """Refuse what does not fit an axis of length ``size``."""
        if self.weights is not None:
            check_weights(self.weights, size, self.floor)
        if self.directions is not None:
            rows = np.asarray(self.directions, dtype=np.float64)
            if rows.shape != (size, size):
                raise InvalidMechanism(
                    f"directions of shape {rows.shape} are not a basis of an axis of length"
                    f" {size}; give {size} rows of {size} numbers"
                )
            check_orthonormal(rows.T)
        if self.eigenvalues is not None:
            positive = all(1e-100 <= value <= 1e100 for value in self.eigenvalues)
            if len(self.eigenvalues) != size or not positive:
                raise InvalidMechanism(
                    f"{len(self.eigenvalues)} eigenvalues do not fit an axis of length {size};"
                    " give one from 1e-100 to 1e100 per direction"
                )

    def shares(self) -> Allocation:
        """Return MVG's precisions for these weights: sum P_i / sqrt(theta_i) is least for theta_i
        proportional to P_i^(2/3).
        """
        if self.weights is None:
            return Uniform()
        theta = np.asarray(self.weights, dtype=np.float64) ** (2 / 3)
        theta = (1 - self.floor) * theta / math.fsum(theta) + self.floor / theta.size
        return FixedShares(shares=theta.tolist(), directions=self.directions)

    def max_pnr(self) -> Allocation:
        """Return MVG's precisions for these eigenvalues."""
        if self.eigenvalues is None:
            raise InvalidMechanism("max-pnr needs the eigenvalues of the query's covariance")
        return MaxPnr(eigenvalues=self.eigenvalues, directions=self.directions)


def compare_mechanisms(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    gamma: float | None = None,
    colours: Colours = Colours(),
    steps: Steps = Steps(),
) -> Comparison:
    """Calibrate every mechanism that applies, and sort them, the best certified one first.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step.
        shape: The shape of the tensor.
        gamma: A public bound on ||f||, for MVG; the smallest one that the sensitivity allows where
            left out, which understates MVG's noise.
        colours: Weights, directions and eigenvalues of one axis, for directional mechanisms.
        steps: How many steps share the budget, and who takes part in each.
    """
    axis = sensitivity.feature_axis if isinstance(sensitivity, (EntrywiseBox, RecordBox)) else 0
    if gamma is not None and not gamma > 0:
        raise InvalidMechanism(
            f"gamma={gamma:g} is not a valid bound on ||f||; give a finite number > 0"
        )
    colours.check(shape[axis])
    common: _Common = {
        "budget": budget,
        "sensitivity": sensitivity,
        "shape": shape,
        "steps": steps,
    }
    rows = (*_plain_rows(common), *_coloured_rows(common, axis, gamma, colours))
    directions = None
    if colours.directions is not None:
        directions = np.asarray(colours.directions, dtype=np.float64)
    return Comparison(
        budget=budget,
        rows=rows,
        axis=axis,
        weights=_numbers(colours.weights),
        directions=directions,
        eigenvalues=_numbers(colours.eigenvalues),
        constants=loss_constants(budget=budget, shape=shape, axis=axis) if steps.single else {},
    ).sorted()


def _numbers(values: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(float(value) for value in values)


def _plain_rows(common: _Common) -> tuple[Row, ...]:
    """Return the mechanisms that treat all directions alike."""
    unused = "pure epsilon, delta unused"
    return (
        _row("analytic-gaussian (= imgm)", lambda: analytic_gaussian(**common)),
        _row("classic-gaussian", lambda: classic_gaussian(**common)),
        _row("laplace", lambda: laplace(**common), unused),
        _row("rank-one exact", lambda: rank_one(**common)),
        _row("rank-one paper", lambda: rank_one(**common, calibration="paper")),
        _row("k-norm", lambda: k_norm(**common), unused),
    )


def _coloured_rows(
    common: _Common, axis: int, gamma: float | None, colours: Colours
) -> tuple[Row, ...]:
    """Return the directional mechanisms; those of a diagonal take the standard basis."""
    radius = common["sensitivity"].radius
    note = ""
    if gamma is None:
        note = "at the smallest gamma the sensitivity allows; a real one needs more noise"
    general = radius / 2 if gamma is None else gamma
    psd = radius / math.sqrt(2) if gamma is None else gamma
    weights, directions, floor = colours.weights, colours.directions, colours.floor
    basis = "" if directions is None else "along the standard basis"
    along_mvg = partial(mvg, **common, axis=axis)
    weighted = partial(along_mvg, allocation=colours.shares())
    order = len(common["shape"])
    rows = (
        _row("directional", partial(directional, **common, weights=weights, floor=floor), basis),
        _row("mvg general", partial(weighted, gamma=general), note),
        _row("mvg improved", partial(weighted, theorem="general-improved", zeta="sqrt")),
        _row("mvg psd", partial(weighted, gamma=psd, theorem="psd"), note),
        _row(
            "mgm",
            lambda: mgm(
                **common,
                weights=_alone(weights, axis, order),
                directions=_alone(directions, axis, order),
                floor=floor,
            ),
        ),
        _row(
            "udn",
            lambda: udn(**common, axis=axis, weights=weights, directions=directions, floor=floor),
        ),
        _row("idn", lambda: idn(**common, axis=axis, weights=weights, floor=floor), basis),
    )
    if colours.eigenvalues is None:
        return rows
    return (
        *rows,
        _row("mvg max-pnr", partial(along_mvg, gamma=general, allocation=colours.max_pnr()), note),
    )


def _alone(value: _T | None, axis: int, order: int) -> list[_T | None] | None:
    """Return one value for each of ``order`` axes, that of ``axis`` alone."""
    return None if value is None else [value if i == axis else None for i in range(order)]


def _row(name: str, calibrate: Callable[[], Calibration], note: str = "") -> Row:
    try:
        calibration = calibrate()
    except DpdaskError as error:
        return Row(name, None, unavailable=str(error))
    return Row(name, calibration, note="; ".join(filter(None, (note, *calibration.warnings))))

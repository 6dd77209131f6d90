"""How each mechanism of dpdask is calibrated from its section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from dpdask.errors import InvalidMechanism, InvalidSpec
from dpdask.mechanisms.auto import auto
from dpdask.mechanisms.base import Calibration, Steps
from dpdask.mechanisms.directional import directional
from dpdask.mechanisms.gaussian import analytic_gaussian, classic_gaussian, imgm
from dpdask.mechanisms.laplace import laplace
from dpdask.mechanisms.mgm import idn, mgm, udn, utility_weights
from dpdask.mechanisms.reproductions.mvg import mvg
from dpdask.mechanisms.reproductions.mvg_allocation import (
    Allocation,
    Binary,
    FixedShares,
    MaxPnr,
    Uniform,
)
from dpdask.mechanisms.spherical import k_norm, rank_one
from dpdask.noise import DenseFactor, DiagonalFactor, Factor, LowRankFactor, ScaledIdentity
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import SensitivitySet
from dpdask.spec.mechanism import (
    AnalyticGaussianSection,
    AutoSection,
    ClassicGaussianSection,
    DirectionalSection,
    EstimatedDirections,
    Factors,
    FactorSection,
    IdnSection,
    ImgmSection,
    KNormSection,
    LaplaceSection,
    MgmSection,
    MvgSection,
    RankOneSection,
    UdnSection,
)
from dpdask.types import Shape

__all__ = [
    "MechanismInputs",
    "build_analytic_gaussian",
    "build_auto",
    "build_classic_gaussian",
    "build_directional",
    "build_idn",
    "build_imgm",
    "build_k_norm",
    "build_laplace",
    "build_mgm",
    "build_mvg",
    "build_rank_one",
    "build_udn",
]

_Rows = Sequence[Sequence[float]]


class _Common(TypedDict):
    budget: PrivacyBudget
    sensitivity: SensitivitySet
    shape: Shape
    steps: Steps


@dataclass(frozen=True, kw_only=True)
class MechanismInputs:
    """What every mechanism is calibrated to.

    Args:
        budget: The privacy budget of all steps together.
        sensitivity: What one privacy unit can change in one step.
        shape: The shape of the tensor that noise is added to.
        steps: How many steps share the budget.
        norm_bound: sup ||f||, where it is known.
    """

    budget: PrivacyBudget
    sensitivity: SensitivitySet
    shape: Shape
    steps: Steps
    norm_bound: float | None

    def common(self) -> _Common:
        """Return the keyword arguments that every mechanism takes."""
        return {
            "budget": self.budget,
            "sensitivity": self.sensitivity,
            "shape": self.shape,
            "steps": self.steps,
        }


def build_auto(section: AutoSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate what ``auto`` chooses."""
    return auto(**inputs.common(), with_laplace=section.laplace)


def build_laplace(section: LaplaceSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``laplace``."""
    return laplace(**inputs.common())


def build_classic_gaussian(section: ClassicGaussianSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``classic-gaussian``."""
    return classic_gaussian(**inputs.common())


def build_analytic_gaussian(
    section: AnalyticGaussianSection, inputs: MechanismInputs
) -> Calibration:
    """Calibrate ``analytic-gaussian``."""
    return analytic_gaussian(**inputs.common())


def build_imgm(section: ImgmSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``imgm``."""
    return imgm(**inputs.common(), factors=_factors(section.factors, inputs.shape))


def build_mvg(section: MvgSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``mvg``; gamma is the norm bound of the ranges where the section gives none."""
    gamma = section.gamma if section.gamma is not None else inputs.norm_bound
    if section.theorem == "general-improved":
        if section.gamma is not None:
            raise InvalidMechanism(
                "theorem general-improved does not depend on ||f||; drop mechanism.gamma"
            )
        gamma = None
    return mvg(
        **inputs.common(),
        gamma=gamma,
        theorem=section.theorem,
        zeta=section.zeta,
        axis=section.axis,
        modality=section.modality,
        allocation=_allocation(section),
        factors=_factors(section.factors, inputs.shape),
    )


def build_mgm(section: MgmSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``mgm``."""
    return mgm(
        **inputs.common(),
        weights=_weights_of_axes(section),
        directions=section.directions,
        factors=_factors(section.factors, inputs.shape),
        floor=section.floor,
    )


def build_udn(section: UdnSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``udn``."""
    directions = _public_directions(section.directions)
    weights = _weights(section.weights, section.utility, directions)
    return udn(
        **inputs.common(),
        axis=section.axis,
        weights=weights,
        directions=directions,
        floor=section.floor,
    )


def build_idn(section: IdnSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``idn``."""
    weights = _weights(section.weights, section.utility, None)
    return idn(**inputs.common(), axis=section.axis, weights=weights, floor=section.floor)


def build_directional(section: DirectionalSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``directional``."""
    return directional(**inputs.common(), weights=section.weights, floor=section.floor)


def build_rank_one(section: RankOneSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``rank-one``."""
    return rank_one(**inputs.common(), calibration=section.calibration)


def build_k_norm(section: KNormSection, inputs: MechanismInputs) -> Calibration:
    """Calibrate ``k-norm``."""
    return k_norm(**inputs.common())


def _factors(factors: Factors | None, shape: Shape) -> list[Factor] | None:
    if factors is None:
        return None
    if len(factors) != len(shape):
        raise InvalidMechanism(
            f"{len(factors)} factors do not fit shape {shape}; give one factor per axis"
        )
    return [
        ScaledIdentity(size) if isinstance(section, str) else _factor(section, size)
        for section, size in zip(factors, shape, strict=True)
    ]


def _factor(section: FactorSection, size: int) -> Factor:
    """Return the factor of an axis of length ``size``."""
    if len(section.model_fields_set) != 1:
        raise InvalidSpec(
            "a factor needs exactly one of scaled, diagonal, dense, covariance and low_rank, or"
            " `identity`"
        )
    if section.scaled is not None:
        return ScaledIdentity(size, section.scaled)
    if section.diagonal is not None:
        return DiagonalFactor(np.asarray(section.diagonal, dtype=np.float64))
    if section.dense is not None:
        return DenseFactor(np.asarray(section.dense, dtype=np.float64))
    if section.covariance is not None:
        return DenseFactor.from_covariance(section.covariance)
    if section.low_rank is not None:
        rows = np.asarray(section.low_rank.directions, dtype=np.float64)
        columns = np.ascontiguousarray(rows.T)
        scales = np.asarray(section.low_rank.scales, dtype=np.float64)
        return LowRankFactor(section.low_rank.base, columns, scales)
    raise InvalidSpec("a factor is null; give it a value or write `identity`")


def _binary(section: MvgSection) -> Allocation:
    if section.tau is None:
        raise InvalidMechanism(
            "allocation binary has no tau; give 0 < tau < 1, the share of the chosen directions"
        )
    return Binary(
        tau=section.tau,
        chosen=section.chosen,
        directions=_public_directions(section.directions),
    )


def _given(section: MvgSection) -> Allocation:
    if section.shares is None:
        raise InvalidMechanism(
            "allocation given has no shares; give one share per direction, summing to at most 1"
        )
    return FixedShares(shares=section.shares, directions=_public_directions(section.directions))


def _max_pnr(section: MvgSection) -> Allocation:
    if section.eigenvalues is None:
        raise InvalidMechanism(
            "allocation max-pnr has no eigenvalues; give those of the query's public covariance, or"
            " in a release directions: {from: dp-covariance}"
        )
    return MaxPnr(
        eigenvalues=section.eigenvalues,
        directions=_public_directions(section.directions),
        floor=section.floor,
    )


_ALLOCATIONS: dict[str, Callable[[MvgSection], Allocation]] = {
    "uniform": lambda _section: Uniform(),
    "binary": _binary,
    "given": _given,
    "max-pnr": _max_pnr,
}
_ALLOCATIONS_OF_KEY = {
    "tau": ("binary",),
    "chosen": ("binary",),
    "shares": ("given",),
    "eigenvalues": ("max-pnr",),
    "floor": ("max-pnr",),
    "directions": ("binary", "given", "max-pnr"),
}


def _allocation(section: MvgSection) -> Allocation:
    for key, allocations in _ALLOCATIONS_OF_KEY.items():
        if key in section.model_fields_set and section.allocation not in allocations:
            raise InvalidMechanism(
                f"mechanism.{key} goes with allocation: {' or '.join(allocations)}, not"
                f" {section.allocation}; add that or drop {key}"
            )
    return _ALLOCATIONS[section.allocation](section)


def _public_directions(directions: list[list[float]] | EstimatedDirections | None) -> _Rows | None:
    """Return directions that are numbers; estimated ones are replaced before calibration."""
    assert not isinstance(directions, EstimatedDirections)
    return directions


def _weights(
    weights: Sequence[float] | None, utility: _Rows | None, directions: _Rows | None
) -> Sequence[float] | None:
    if weights is not None and utility is not None:
        raise InvalidMechanism("both weights and utility are given; give one of them")
    if utility is None:
        return weights
    if not utility or not utility[0]:
        raise InvalidMechanism("utility is not a matrix; give rows of equal length")
    basis = None if directions is None else np.asarray(directions, dtype=np.float64).T
    return [float(weight) for weight in utility_weights(utility, basis)]


def _weights_of_axes(section: MgmSection) -> Sequence[Sequence[float] | None] | None:
    """Return the weights of every axis, from those of the section or from its utility subspaces."""
    if section.utility is None:
        return section.weights
    if section.weights is not None:
        raise InvalidMechanism("both weights and utility are given; give one of them")
    directions = section.directions or [None] * len(section.utility)
    if len(directions) != len(section.utility):
        raise InvalidMechanism(
            f"{len(section.utility)} utility matrices do not fit {len(directions)} directions;"
            " give one (or null) of each per axis"
        )
    pairs = zip(section.utility, directions, strict=True)
    return [_weights(None, utility, basis) for utility, basis in pairs]

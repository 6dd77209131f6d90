"""From the sections of a spec to a calibrated mechanism: the one place that knows mechanisms by
name.
"""

from __future__ import annotations

import math
from typing import Any

from dpdask.errors import InvalidMechanism, InvalidSensitivity
from dpdask.mechanisms.base import Calibration, Steps, amplified_rate
from dpdask.mechanisms.directional import directional
from dpdask.mechanisms.gaussian import analytic_gaussian, classic_gaussian, imgm
from dpdask.mechanisms.mgm import idn, mgm, udn, utility_weights
from dpdask.mechanisms.reproductions.mvg import mvg
from dpdask.mechanisms.reproductions.mvg_allocation import (
    Allocation,
    Binary,
    Given,
    MaxPnr,
    Uniform,
)
from dpdask.mechanisms.spherical import k_norm, rank_one
from dpdask.noise import Factor, ScaledIdentity
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import SensitivitySet
from dpdask.spec import calibration as s
from dpdask.types import Json

__all__ = ["calibrate", "calibrate_mechanism", "steps_of"]


def calibrate(spec: s.CalibrationSpec) -> Calibration:
    """The noise and the guarantee that ``spec`` asks for."""
    shape = tuple(spec.shape)
    sampling, contributions = spec.composition.sampling, spec.sensitivity.max_contributions
    if sampling is not None and sampling.of == "records" and contributions is None:
        raise InvalidSensitivity(
            "composition.sampling of records needs sensitivity.max_contributions, how many"
            " records a privacy unit has at most;"
            " give it"
        )
    return calibrate_mechanism(
        spec.mechanism,
        budget=spec.privacy.budget(),
        sensitivity=spec.sensitivity.sensitivity(shape),
        shape=shape,
        steps=steps_of(spec.composition, contributions or 1),
        norm_bound=spec.sensitivity.norm_bound(shape),
    )


def steps_of(composition: s.CompositionSection, contributions: int) -> Steps:
    """The steps of a spec, for privacy units of at most ``contributions`` records."""
    sampling = composition.sampling
    rate = None
    if sampling is not None:
        rate = amplified_rate(rate=sampling.rate, of=sampling.of, contributions=contributions)
    return Steps(count=composition.steps, sampling_rate=rate, slack=composition.slack)


def calibrate_mechanism(
    section: s.MechanismSection,
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: tuple[int, ...],
    steps: Steps,
    norm_bound: float | None,
) -> Calibration:
    """The noise and the guarantee of one mechanism; ``norm_bound`` is sup ||f||, where known."""
    asked: Json = {
        "budget": budget,
        "sensitivity": sensitivity,
        "shape": shape,
        "steps": steps,
    }
    if isinstance(getattr(section, "directions", None), s.EstimatedDirections):
        raise InvalidMechanism(
            "directions from dp-covariance need the data; give them in a release, or give public"
            " directions"
        )
    match section:
        case s.ClassicGaussianSection():
            return classic_gaussian(**asked)
        case s.AnalyticGaussianSection():
            return analytic_gaussian(**asked)
        case s.ImgmSection() as chosen:
            return imgm(**asked, factors=_factors(chosen.factors, shape))
        case s.MvgSection() as chosen:
            gamma = chosen.gamma if chosen.gamma is not None else norm_bound
            if gamma is None:
                raise InvalidMechanism(
                    "mvg has no gamma; give mechanism.gamma, a public bound on ||f||, or ranges"
                )
            return mvg(
                **asked,
                gamma=gamma,
                theorem=chosen.theorem,
                axis=chosen.axis,
                modality=chosen.modality,
                allocation=_allocation(chosen),
                factors=_factors(chosen.factors, shape),
            )
        case s.MgmSection() as chosen:
            return mgm(
                **asked,
                weights=chosen.weights,
                directions=chosen.directions,
                factors=_factors(chosen.factors, shape),
            )
        case s.UdnSection() as chosen:
            directions: Any = chosen.directions
            weights = _weights(chosen.weights, chosen.utility, directions)
            return udn(**asked, axis=chosen.axis, weights=weights, directions=directions)
        case s.IdnSection() as chosen:
            return idn(
                **asked, axis=chosen.axis, weights=_weights(chosen.weights, chosen.utility, None)
            )
        case s.DirectionalSection() as chosen:
            return directional(**asked, weights=chosen.weights)
        case s.RankOneSection() as chosen:
            return rank_one(**asked, calibration=chosen.calibration)
        case s.KNormSection():
            return k_norm(**asked)


def _factors(given: s.Factors | None, shape: tuple[int, ...]) -> list[Factor] | None:
    if given is None:
        return None
    if len(given) != len(shape):
        raise InvalidMechanism(
            f"{len(given)} factors do not fit shape {shape}; give one factor per axis"
        )
    return [
        ScaledIdentity(size) if isinstance(section, str) else section.factor(size)
        for section, size in zip(given, shape, strict=True)
    ]


_USED_BY = {
    "tau": ("binary",),
    "chosen": ("binary",),
    "shares": ("given",),
    "eigenvalues": ("max-pnr",),
    "floor": ("max-pnr",),
    "directions": ("binary", "given", "max-pnr"),
}


def _allocation(section: s.MvgSection) -> Allocation:
    for key, users in _USED_BY.items():
        if key in section.model_fields_set and section.allocation not in users:
            raise InvalidMechanism(
                f"mechanism.{key} goes with allocation: {' or '.join(users)}, not"
                f" {section.allocation}; add that or drop {key}"
            )
    if section.allocation == "binary":
        if section.tau is None:
            raise InvalidMechanism(
                "allocation binary has no tau; give 0 < tau < 1, the share of the chosen directions"
            )
        return Binary(tau=section.tau, chosen=section.chosen, directions=section.directions)
    if section.allocation == "given":
        if section.shares is None:
            raise InvalidMechanism(
                "allocation given has no shares; give one share per direction, summing to at most 1"
            )
        return Given(shares=section.shares, directions=section.directions)
    if section.allocation == "max-pnr":
        if section.eigenvalues is None:
            raise InvalidMechanism(
                "allocation max-pnr has no eigenvalues; give those of the query's public covariance"
            )
        return MaxPnr(
            eigenvalues=section.eigenvalues, directions=section.directions, floor=section.floor
        )
    return Uniform()


def _weights(weights: list[float] | None, utility: Any, directions: Any) -> Any:
    if weights is not None and utility is not None:
        raise InvalidMechanism("both weights and utility are given; give one of them")
    if utility is None:
        return weights
    import numpy as np

    rows = {len(row) for row in utility}
    if len(rows) != 1 or not math.prod(rows):
        raise InvalidMechanism("utility is no matrix; give rows of equal length")
    return utility_weights(utility, None if directions is None else np.asarray(directions).T)

"""The profile of what is really released, from the public facts of a release: one function for
planning and for verifying.

Nothing here looks at how a recipe was chosen. All that counts is on the card: the query, the bound,
the grid, the noise and the body of differences. So a plan and a reader of the card compute the same
number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpdask.accounting import GaussianProfile, SphericalProfile
from dpdask.errors import InvalidMechanism
from dpdask.mechanisms import Steps
from dpdask.mechanisms.gaussian import gaussian_mu
from dpdask.noise import IidNoise, KroneckerNoise, Noise, SphericalNoise
from dpdask.noise.rounding import gamma, moved_entries, moved_records, whitened_rounding
from dpdask.privacy import PrivacyProfile
from dpdask.privatizers.recipes import mixing_axes
from dpdask.queries import Fitted, Query
from dpdask.sensitivity import SensitivitySet

__all__ = ["Answer", "verified_profile", "verified_step"]

_UP = 1 + 1e-14


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One noisy answer as a card describes it."""

    noise: Noise
    sensitivity: SensitivitySet
    query: Mapping[str, Any]
    bound: Mapping[str, Any]
    grid: Mapping[str, Any]
    record_axis: int | None
    contributions: int
    steps: int = 1

    @classmethod
    def of(cls, query: Query, fitted: Fitted, steps: int = 1) -> Answer:
        """The answer to a query by a fitted recipe."""
        return cls(
            noise=fitted.recipe.noise,
            sensitivity=query.sensitivity,
            query=query.to_dict(),
            bound=query.bound_to_dict(fitted),
            grid=fitted.recipe.to_dict() | fitted.records_to_dict(),
            record_axis=query.units_axis,
            contributions=query.max_contributions,
            steps=steps,
        )

    @property
    def entries(self) -> int:
        """How many numbers one step of it holds."""
        return int(math.prod(self.query["answer_shape"]) // self.steps)


def verified_profile(answer: Answer, steps: Steps) -> PrivacyProfile:
    """The profile of all steps of an answer, the rounding of each included."""
    return steps.compose(verified_step(answer), answer.sensitivity.adjacency)


def verified_step(answer: Answer) -> GaussianProfile | SphericalProfile:
    """The profile of one step: sensitivity and everything that rounding adds to it, in terms of the
    noise that is added.
    """
    noise, sensitivity = answer.noise, answer.sensitivity
    if isinstance(noise, IidNoise):
        return GaussianProfile(
            gaussian_mu(noise, sensitivity) + _rounding_l2(answer) / noise.sigma * _UP
        )
    if isinstance(noise, KroneckerNoise):
        return GaussianProfile(
            (gaussian_mu(noise, sensitivity) + _whitened_rounding(answer, noise)) * (1 + 4e-16)
        )
    if isinstance(noise, SphericalNoise):
        return SphericalProfile(
            dimension=noise.entries, law=noise.law, sensitivity=sensitivity.radius * _UP
        )
    raise InvalidMechanism(
        f"noise {type(noise).__name__} has no profile; use i.i.d., Kronecker or spherical noise"
    )


def _rounding_l2(answer: Answer) -> float:
    """By how much rounding the answer to the grid of i.i.d. noise moves two neighbours apart, in l2
    norm.

    Nothing where records are bounded on that very grid. A finished result, or counts, are
    multiplied by 1/step and rounded: one step and twice three roundings of the product, in every
    entry that one unit can move; at least sqrt(2) steps are charged.
    """
    name, step = answer.query["name"], float(answer.grid["step"])
    if name == "identity":
        return 0.0
    if name in ("precomputed", "histogram"):
        moved = answer.entries if name == "precomputed" else 2 * answer.contributions
        most = max(abs(answer.grid["low"]), abs(answer.grid["high"]))
        return math.sqrt(moved) * step * max(math.sqrt(2), 1 + 2 * gamma(3) * float(most))
    if name in ("sum", "mean", "covariance"):
        fine = float(answer.grid["record_step"]) ** (2 if name == "covariance" else 1)
        return math.sqrt(answer.entries) * step if fine < step * (1 - 1e-9) else 0.0
    raise InvalidMechanism(
        f"query {name!r} is unknown: the rounding of its answer cannot be computed"
    )


def _whitened_rounding(answer: Answer, noise: KroneckerNoise) -> float:
    """By how much rounding and whitening in floating point move two neighbours apart, in standard
    deviations.
    """
    name = answer.query["name"]
    sizes, mixing = noise.tensor_shape, mixing_axes(noise.factors)
    if name not in ("identity", "precomputed", "histogram", "sum", "mean", "covariance"):
        raise InvalidMechanism(
            f"query {name!r} is unknown: the rounding of its answer cannot be computed"
        )
    units = (answer.record_axis if name == "identity" else None, answer.contributions)
    moved = moved_entries(sizes, mixing, *units)
    if name == "identity" and answer.bound["kind"] == "l2-clip":
        norm = answer.bound["norm"] * math.sqrt(moved_records(sizes, mixing, *units))
    elif "low" in answer.grid:
        norm = max(abs(answer.grid["low"]), abs(answer.grid["high"])) * math.sqrt(moved)
    elif answer.bound["kind"] == "ranges":
        norm = max(abs(end) for pair in answer.bound["ranges"] for end in pair) * math.sqrt(moved)
    else:
        raise InvalidMechanism(
            "an answer without a bound cannot be whitened in floating point; give bounds"
        )
    parted = math.sqrt(answer.entries) * answer.grid.get("answer_step", 0.0)
    extra, _ = whitened_rounding(
        noise.factors, ratio=answer.grid["steps_per_sigma"], moved=moved, norm=norm, parted=parted
    )
    return extra

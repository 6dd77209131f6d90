"""The calibration spec: privacy, sensitivity, mechanism and composition, without a data source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpdask.privacy import Adjacency, PrivacyBudget
from dpdask.spec.fields import Number, Positive, Ranges, Section, Whole
from dpdask.spec.mechanism import Mechanism

__all__ = [
    "CalibrationSpec",
    "CompositionSection",
    "PrivacySection",
    "SamplingSection",
    "SensitivitySection",
]


class PrivacySection(Section):
    """``privacy``: the budget of the release."""

    epsilon: Number
    delta: Number

    def budget(self) -> PrivacyBudget:
        """Return the budget as a value."""
        return PrivacyBudget(epsilon=self.epsilon, delta=self.delta)


class SensitivitySection(Section):
    """``sensitivity``: what one privacy unit can change, by norm bounds or by public ranges.

    Args:
        l1: A bound on the l1 norm of what one privacy unit changes; also its l2 bound, unless
            ``l2`` gives a smaller one.
        l2: A bound on the l2 norm of what one privacy unit changes.
        ranges: Public ranges that the pipeline enforces: one for all features, or one per feature.
        record_dim: The axis along which records lie.
        feature_dim: The axis along which the ranges lie.
        adjacency: Which data sets are neighbours.
        max_contributions: How many records a privacy unit has; needed where records are sampled.
        origin: Where the bound comes from; a bound measured on the data is refused.
    """

    l1: Number | None = None
    l2: Number | None = None
    ranges: Ranges | None = None
    record_dim: Whole | None = None
    feature_dim: Whole | None = None
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    max_contributions: Positive | None = None
    origin: Literal["declared", "clipped", "public-range", "measured"] | None = None


class SamplingSection(Section):
    """``sampling``: each step works on a Poisson sample, to which each of ``of`` belongs
    independently with probability ``rate``.
    """

    rate: Number
    of: Literal["privacy-units", "records"]

    @field_validator("rate")
    @classmethod
    def _check_probability(cls, rate: float) -> float:
        if not 0 < rate <= 1:
            raise ValueError(f"{rate:g} is not a probability; choose 0 < rate <= 1")
        return rate


class CompositionSection(Section):
    """``composition``: T steps that share the budget, optionally on Poisson samples."""

    steps: Whole = 1
    sampling: SamplingSection | None = None
    slack: Number = 1e-5

    @model_validator(mode="before")
    @classmethod
    def _refuse_bare_sampling_rate(cls, content: object) -> object:
        if isinstance(content, dict) and "sampling_rate" in content:
            raise ValueError(
                "sampling_rate does not say who is sampled; write sampling: {rate: ..., of:"
                " privacy-units}, or of: records where the records of one privacy unit are drawn"
                " independently"
            )
        return content


class CalibrationSpec(Section):
    """The sections that determine the noise of a release.

    Args:
        shape: The shape of the tensor that noise is added to.
        privacy: The budget.
        sensitivity: What one privacy unit can change.
        mechanism: The mechanism and its options.
        composition: How many steps share the budget.
    """

    shape: Annotated[list[Positive], Field(min_length=1)]
    privacy: PrivacySection
    sensitivity: SensitivitySection
    mechanism: Mechanism
    composition: CompositionSection = CompositionSection()

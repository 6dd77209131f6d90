"""The sections of a spec that fix the noise: privacy, sensitivity, mechanism and steps.

Parsing is the only job: every section turns itself into the value the engine works with.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.noise import DenseFactor, DiagonalFactor, Factor, LowRankFactor, ScaledIdentity
from dpdask.privacy import Adjacency, PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, L2Ball, Origin, RecordBall, RecordBox, SensitivitySet

__all__ = [
    "MECHANISMS",
    "AnalyticGaussianSection",
    "CalibrationSpec",
    "ClassicGaussianSection",
    "CompositionSection",
    "DirectionalSection",
    "EstimatedDirections",
    "Factors",
    "IdnSection",
    "ImgmSection",
    "KNormSection",
    "MechanismSection",
    "MgmSection",
    "MvgSection",
    "Number",
    "PrivacySection",
    "Ranges",
    "RankOneSection",
    "SamplingSection",
    "Section",
    "SensitivitySection",
    "UdnSection",
    "Vector",
    "Whole",
    "range_pairs",
]


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a yes/no value where a number belongs")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]
Whole = Annotated[int, BeforeValidator(_no_bool)]
Vector = list[Number]


def _rectangular(value: Any) -> Any:
    if (
        isinstance(value, list)
        and all(isinstance(row, list) for row in value)
        and len({len(row) for row in value}) > 1
    ):
        raise ValueError("rows of different lengths where a matrix belongs")
    return value


def _as_ranges(value: Any) -> Any:
    """One [low, high] as a list of one."""
    return (
        [value]
        if isinstance(value, list) and value and not any(isinstance(row, list) for row in value)
        else value
    )


Matrix = Annotated[list[Vector], BeforeValidator(_rectangular)]
Ranges = Annotated[
    list[Vector], BeforeValidator(_as_ranges, json_schema_input_type=list[Vector] | Vector)
]


class Section(BaseModel):
    """A part of a spec: frozen, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=True)


def range_pairs(ranges: list[Vector]) -> list[tuple[float, float]]:
    """The intervals as pairs, each finite and not empty."""
    pairs = []
    for row in ranges:
        if len(row) != 2:
            raise InvalidSensitivity(f"range {row!r} is no interval; give [low, high]")
        low, high = row
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidSensitivity(
                f"range [{low:g}, {high:g}] is empty or unbounded; give finite low < high"
            )
        pairs.append((low, high))
    return pairs


class PrivacySection(Section):
    """``privacy``: the budget of the release."""

    epsilon: Number
    delta: Number

    def budget(self) -> PrivacyBudget:
        """The budget as a value."""
        return PrivacyBudget(epsilon=self.epsilon, delta=self.delta)


class SensitivitySection(Section):
    """``sensitivity``: an l2 bound of a whole privacy unit, or public ranges that the pipeline
    enforces.

    ``max_contributions`` is how many records a unit has; it matters where records are sampled.
    """

    l2: Number | None = None
    ranges: Ranges | None = None
    record_dim: Whole | None = None
    feature_dim: Whole | None = None
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    max_contributions: Annotated[Whole, Field(ge=1)] | None = None
    origin: Literal["declared", "clipped", "public-range", "measured"] | None = None

    def sensitivity(self, shape: tuple[int, ...]) -> SensitivitySet:
        """The sensitivity body for a tensor of ``shape``."""
        if self.origin == "measured":
            raise InvalidSensitivity(
                "a bound measured on the data is not a sensitivity; clip the records, or give"
                " public ranges or a declared bound"
            )
        if (self.l2 is None) == (self.ranges is None):
            raise InvalidSensitivity(
                "sensitivity needs exactly one of l2 and ranges; give one of them"
            )
        if self.l2 is not None:
            if self.origin == "public-range":
                raise InvalidSensitivity(
                    "an l2 bound is clipped or declared, not a public range; give ranges for that"
                )
            origin = Origin(self.origin or "declared")
            if self.feature_dim is not None:
                raise InvalidSensitivity(
                    "feature_dim goes with ranges; an l2 bound takes record_dim at most"
                )
            if self.record_dim is None:
                return L2Ball(l2=self.l2, adjacency=self.adjacency, origin=origin)
            if self.adjacency is Adjacency.ADD_REMOVE_ONE:
                raise InvalidSensitivity(
                    "add-remove-one changes how many records a released tensor has, so it has no"
                    " sensitivity along record_dim;"
                    " use replace-one, or release a sum with its l2 bound"
                )
            if not -len(shape) <= self.record_dim < len(shape):
                raise InvalidSensitivity(
                    f"record_dim={self.record_dim} is not an axis of shape {shape}; choose one"
                    f" from 0 to {len(shape) - 1}"
                )
            return RecordBall(
                l2=self.l2,
                record_axis=self.record_dim % len(shape),
                adjacency=self.adjacency,
                origin=origin,
            )
        if self.origin not in (None, "public-range"):
            raise InvalidSensitivity(
                f"origin: {self.origin} does not go with ranges, which are public; leave origin out"
            )
        if self.adjacency is Adjacency.ADD_REMOVE_ONE:
            raise InvalidSensitivity(
                "add-remove-one changes the shape of a released tensor, so ranges have no"
                " sensitivity under it;"
                " use replace-one, or release a sum with its l2 bound"
            )
        widths = tuple(high - low for low, high in self._pairs())
        if self.record_dim is None:
            return EntrywiseBox(
                shape=shape,
                feature_axis=self._feature_axis(
                    shape, default=0 if len(shape) == 1 or len(widths) == 1 else None
                ),
                widths=widths,
                adjacency=self.adjacency,
                origin=Origin.PUBLIC_RANGE,
            )
        if len(shape) < 2:
            raise InvalidSensitivity(
                f"shape={shape} has no axis besides the records'; give l2 or ranges without"
                " record_dim"
            )
        others = [axis for axis in range(len(shape)) if axis != self.record_dim % len(shape)]
        return RecordBox(
            shape=shape,
            record_axis=self.record_dim,
            feature_axis=self._feature_axis(
                shape, default=others[0] if len(others) == 1 or len(widths) == 1 else None
            ),
            widths=widths,
            adjacency=self.adjacency,
            origin=Origin.PUBLIC_RANGE,
        )

    def norm_bound(self, shape: tuple[int, ...]) -> float | None:
        """sup ||f|| from the ranges, None for an l2 bound: MVG's gamma."""
        if self.ranges is None:
            return None
        largest = [max(abs(low), abs(high)) ** 2 for low, high in self._pairs()]
        return math.sqrt(math.fsum(largest) / len(largest) * math.prod(shape)) * (1 + 1e-14)

    def _feature_axis(self, shape: tuple[int, ...], default: int | None) -> int:
        if self.feature_dim is not None:
            return self.feature_dim
        if default is None:
            raise InvalidSensitivity(
                f"ranges per feature on shape {shape} could lie along several axes; name one"
                " with feature_dim"
            )
        return default

    def _pairs(self) -> list[tuple[float, float]]:
        return range_pairs(self.ranges or [])


class LowRankSection(Section):
    """``scales`` along each row of ``directions``, ``base`` elsewhere."""

    base: Number
    directions: Matrix
    scales: Vector


class FactorSection(Section):
    """One mode's factor: exactly one of these."""

    scaled: Number | None = None
    diagonal: Vector | None = None
    dense: Matrix | None = None
    covariance: Matrix | None = None
    low_rank: LowRankSection | None = None

    def factor(self, size: int) -> Factor:
        """The factor for a mode of length ``size``."""
        if len(self.model_fields_set) != 1:
            raise InvalidSpec(
                "a factor needs exactly one of scaled, diagonal, dense, covariance and low_rank,"
                " or `identity`"
            )
        if self.scaled is not None:
            return ScaledIdentity(size, self.scaled)
        if self.diagonal is not None:
            return DiagonalFactor(self.diagonal)  # type: ignore[arg-type]
        if self.dense is not None:
            return DenseFactor(self.dense)  # type: ignore[arg-type]
        if self.covariance is not None:
            return DenseFactor.from_covariance(self.covariance)
        if self.low_rank is None:
            raise InvalidSpec("a factor is null; give it a value or write `identity`")
        columns = [list(column) for column in zip(*self.low_rank.directions, strict=True)]
        return LowRankFactor(self.low_rank.base, columns, self.low_rank.scales)  # type: ignore[arg-type]


Factors = list[FactorSection | Literal["identity"]]


class ClassicGaussianSection(Section):
    """``classic-gaussian``: the textbook formula, epsilon < 1."""

    name: Literal["classic-gaussian"]


class AnalyticGaussianSection(Section):
    """``analytic-gaussian``: the least i.i.d. noise."""

    name: Literal["analytic-gaussian"]


class ImgmSection(Section):
    """``imgm``: the analytic Gaussian, with optional factors."""

    name: Literal["imgm"]
    factors: Factors | None = None


class EstimatedDirections(Section):
    """Noise directions from a DP covariance of the records, which spends ``share`` of the budget
    first (MVG Exp. I).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    source: Annotated[Literal["dp-covariance"], Field(alias="from")]
    share: Annotated[Number, Field(gt=0, lt=1)] = 0.2


class MvgSection(Section):
    """``mvg``: matrix-variate Gaussian noise."""

    name: Literal["mvg"]
    theorem: Literal["general", "psd"] = "general"
    gamma: Number | None = None
    axis: Whole = 0
    modality: Literal["unimodal", "equi-modal"] | None = None
    allocation: Literal["uniform", "binary", "given", "max-pnr"] = "uniform"
    tau: Number | None = None
    chosen: list[Whole] | None = None
    directions: Matrix | EstimatedDirections | None = None
    shares: Vector | None = None
    eigenvalues: Vector | None = None
    floor: Number = 0.05
    factors: Factors | None = None


class MgmSection(Section):
    """``mgm``: Kronecker noise with weights or factors per mode."""

    name: Literal["mgm"]
    weights: list[Vector | None] | None = None
    directions: list[Matrix | None] | None = None
    factors: Factors | None = None


class UdnSection(Section):
    """``udn``: one coloured mode."""

    name: Literal["udn"]
    axis: Whole = 0
    weights: Vector | None = None
    utility: Matrix | None = None
    directions: Matrix | EstimatedDirections | None = None


class IdnSection(Section):
    """``idn``: one diagonal mode, entries in a public range."""

    name: Literal["idn"]
    axis: Whole = 0
    weights: Vector | None = None
    utility: Matrix | None = None


class DirectionalSection(Section):
    """``directional``: tight diagonal noise on a box of ranges."""

    name: Literal["directional"]
    weights: Vector | None = None


class RankOneSection(Section):
    """``rank-one``: noise along one random direction."""

    name: Literal["rank-one"]
    calibration: Literal["exact", "paper"] = "exact"


class KNormSection(Section):
    """``k-norm``: the l2 K-norm mechanism."""

    name: Literal["k-norm"]


MechanismSection = Annotated[
    ClassicGaussianSection
    | AnalyticGaussianSection
    | ImgmSection
    | MvgSection
    | MgmSection
    | UdnSection
    | IdnSection
    | DirectionalSection
    | RankOneSection
    | KNormSection,
    Field(discriminator="name"),
]


class SamplingSection(Section):
    """``sampling``: every step works on a Poisson sample, to which each of ``of`` belongs
    independently with ``rate``.
    """

    rate: Number
    of: Literal["privacy-units", "records"]

    @field_validator("rate")
    @classmethod
    def _probability(cls, value: float) -> float:
        if not 0 < value <= 1:
            raise ValueError(f"{value:g} is not a probability; choose 0 < rate <= 1")
        return value


class CompositionSection(Section):
    """``composition``: T steps that share the budget, optionally on Poisson samples."""

    steps: Whole = 1
    sampling: SamplingSection | None = None
    slack: Number = 1e-5

    @model_validator(mode="before")
    @classmethod
    def _says_who_is_sampled(cls, given: Any) -> Any:
        if isinstance(given, dict) and "sampling_rate" in given:
            raise ValueError(
                "sampling_rate does not say who is sampled; write sampling: {rate: ..., of:"
                " privacy-units}, or of: records"
                " where the records of one unit are drawn independently"
            )
        return given


class CalibrationSpec(Section):
    """The sections that fix the noise of a release."""

    shape: Annotated[list[Annotated[Whole, Field(ge=1)]], Field(min_length=1)]
    privacy: PrivacySection
    sensitivity: SensitivitySection
    mechanism: MechanismSection
    composition: CompositionSection = CompositionSection()


MECHANISMS: dict[str, type[BaseModel]] = {
    section.model_fields["name"].annotation.__args__[0]: section  # type: ignore[union-attr]
    for section in (
        ClassicGaussianSection,
        AnalyticGaussianSection,
        ImgmSection,
        MvgSection,
        MgmSection,
        UdnSection,
        IdnSection,
        DirectionalSection,
        RankOneSection,
        KNormSection,
    )
}

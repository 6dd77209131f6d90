"""The sections of a release card."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from dpdask.types import Json

__all__ = [
    "ArrayFacts",
    "BoundsFacts",
    "Budget",
    "CardSection",
    "ChainHead",
    "Claim",
    "Composition",
    "Directions",
    "GuaranteeFacts",
    "LayerFacts",
    "Manifest",
    "PartFacts",
    "People",
    "Released",
    "Sampling",
    "Sensitivity",
    "Session",
    "Unit",
    "VariableFacts",
    "Verified",
    "Window",
]


class CardSection(BaseModel):
    """A part of a card: frozen, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Budget(CardSection):
    """An (epsilon, delta) pair."""

    epsilon: float
    delta: float


class Claim(Budget):
    """What a theorem promises."""

    theorem: str


class Verified(CardSection):
    """The exact profile of the noise that was added."""

    name: str
    configuration: Json
    epsilon_at_delta: float
    delta_at_epsilon: float


class GuaranteeFacts(CardSection):
    """The claimed and the verified guarantee, kept apart."""

    claimed: Claim
    verified: Verified
    certified: bool
    reason: str


class OneIndex(CardSection):
    """The dimension of the source along which every privacy unit has one index, as declared.

    It is that of the records, where each record stays where it is; otherwise a privacy unit is one
    index of a record. Windows along it protect different units.
    """

    axis: int
    dimension: str


class People(CardSection):
    """Privacy units that ids tell apart: of each, so many records are kept at most."""

    name: str = Field(description="what one privacy unit is called")
    ids: str = Field(description="the private array of the source that says whose a record is")
    missing_ids: Literal["own", "drop"] = Field(
        description="a record without an id is a unit of its own, or left out"
    )
    enforced: Literal[True]
    by: Literal["random subset", "distinct cells", "clip norm", "random subset and clip norm"] = (
        Field(
            description="records were kept at random, those of a histogram in different cells"
            " where it says so; or the norm of all of a unit's records together was clipped; or"
            " both"
        )
    )


class Unit(CardSection):
    """Whom the release protects."""

    adjacency: Literal["replace-one", "add-remove-one"]
    record_axis: int | None
    bound: Json
    max_contributions: int
    contributions: Literal["one record per unit", "declared", "enforced"]
    per: OneIndex | None = Field(default=None, description="left out where none is declared")
    people: People | None = Field(
        default=None, description="left out where a privacy unit is not told by ids"
    )

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Leave out what only some releases have, so that cards keep their bytes."""
        document: Json = handler(self)
        optional = ("per", "people")
        return {name: value for name, value in document.items() if value or name not in optional}


class Sensitivity(CardSection):
    """How far one privacy unit changes the answer before it is divided, and why that is a bound."""

    set: Json = Field(
        description="the set of differences one unit can make, enough to compute the guarantee"
        " again"
    )
    l2: float
    released_l2: float | None = Field(
        default=None,
        description="how far one unit changes the released numbers; left out where they are"
        " computed from several noisy parts",
    )
    origin: Literal["clipped", "public-range", "declared"]

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Leave out what only some releases have."""
        document: Json = handler(self)
        if self.released_l2 is None:
            del document["released_l2"]
        return document


class Sampling(CardSection):
    """Who was sampled for each step, independently of all others: by the caller, unless the session
    says more.
    """

    rate: float
    of: Literal["privacy-units", "records"]
    amplified_rate: float = Field(
        description="the probability that a privacy unit takes part in a step: rate, or"
        " 1-(1-rate)^max_contributions of records"
    )


class Directions(CardSection):
    """The DP covariance whose eigenvectors rotated the noise; its privacy cost is composed in."""

    query: Json
    bound: Json
    sensitivity: Json
    noise: Json
    grid: Json


class BoundsFacts(CardSection):
    """The noisy histogram by which the bound was chosen; its privacy cost is composed in."""

    chosen: Json = Field(description="the bound: norm, or ranges")
    rule: Json = Field(
        description="how it follows from the counts: quantile of norms, how many norms may lie"
        " above it, or quantiles of values"
    )
    between: list[list[float]] = Field(
        description="the smallest and the largest end that could be chosen, by histogram"
    )
    at_end: bool = Field(
        description="whether an end of these was chosen, so that the data may lie beyond"
    )
    share: float = Field(description="of the squared mu of the histogram and the data together")
    counts: str = Field(description="the array of dp_release that holds the noisy counts")
    edges: str = Field(description="the array of dp_release that holds the edges of the bins")
    noise_std: float = Field(description="standard deviation of the noise of a count")
    query: Json
    bound: Json
    sensitivity: Json
    noise: Json
    grid: Json


class PartFacts(CardSection):
    """A further noisy sum that was drawn beside the main one: counts beside a sum."""

    name: str
    noise: Json
    grid: Json


class ArrayFacts(CardSection):
    """An array that is published beside the main one: enough to build its metadata again."""

    array: str
    shape: list[int]
    chunks: list[int]
    shards: list[int] | None
    dtype: str
    codec: str
    dimension_names: list[str]
    attributes: Json


class LayerFacts(CardSection):
    """A layer: post-processing of published numbers."""

    name: str
    configuration: Json


class Session(CardSection):
    """Steps that were handed over one by one: noise was added to each before the next was there."""

    released: int = Field(description="how many of the steps that were charged were released")
    sampled_by: Literal["dpdask"] | None = Field(
        description="who drew the sample of every step, from the release key; null without sampling"
    )


class Composition(CardSection):
    """This release among the dataset's."""

    dataset: str
    steps: int
    steps_are_independent: Literal["declared"] | None = Field(
        description="the caller declares that no step was computed from another's raw result;"
        " null for a single result, and for a session"
    )
    sampling: Sampling | None
    session: Session | None = Field(
        default=None, description="left out where steps were not handed over one by one"
    )
    total: Budget
    cumulative_epsilon: float = Field(
        description="epsilon spent by the dataset up to and with this release, at the total's delta"
    )

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Leave out what only some releases have, so that cards keep their bytes."""
        document: Json = handler(self)
        if self.session is None:
            del document["session"]
        return document


class Window(CardSection):
    """The part of a dimension of the source that was released; public."""

    dimension: str | int = Field(description="its name; its index where the source has no names")
    start: int
    stop: int


class Released(CardSection):
    """The published array: enough to build its metadata again."""

    array: str
    shape: list[int]
    dtype: str
    chunks: list[int]
    shards: list[int] | None
    codec: str
    dimension_names: list[str]
    noise_std: float | None = Field(
        description="root mean square of the noise of an entry, in released units; null where it"
        " depends on released counts, and is an array beside the main one"
    )
    noise_std_range: tuple[float, float] | None = Field(
        default=None,
        description="the smallest and the largest standard deviation of an entry's noise; left out"
        " where all are equal",
    )
    scale_factor: float | None = None
    attributes: Json = Field(description="attributes that were declared public")
    coordinates: list[str] = Field(description="arrays beside the source that were declared public")
    beside: list[ArrayFacts] = Field(
        default_factory=list, description="arrays published beside the main one"
    )
    layers: list[LayerFacts] = Field(
        default_factory=list,
        description="what was computed from published numbers, in the order of the arrays beside",
    )
    auxiliary: list[str] | None = Field(
        default=None,
        description="coordinates that are not named after a dimension: the array's CF attribute"
        " coordinates; left out where there are none",
    )
    grid_mapping: str | None = Field(
        default=None, description="the array's CF attribute; left out where there is none"
    )
    window: Window | None = Field(
        default=None, description="left out where all of the source was released"
    )

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Leave out optional parts, so that cards without them keep their bytes."""
        document: Json = handler(self)
        optional = ("auxiliary", "grid_mapping", "window", "beside", "layers", "noise_std_range")
        return {name: value for name, value in document.items() if value or name not in optional}


class VariableFacts(CardSection):
    """A further variable of a release of several: what is its own."""

    share: float = Field(description="its share of the squared mu of the release")
    record_axis: int | None
    per_axis: int | None = Field(
        default=None, description="its axis of privacy_unit.per, null where there is none"
    )
    bound: Json
    sensitivity: Sensitivity
    query: Json
    mechanism: Json
    noise: Json
    grid: Json
    parts: list[PartFacts] = Field(default_factory=list)
    bounds: BoundsFacts | None = Field(
        default=None, description="left out where its bound was not chosen privately"
    )
    released: Released

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Leave out what only some releases have, so that cards keep their bytes."""
        document: Json = handler(self)
        return {name: value for name, value in document.items() if value or name != "bounds"}


class Manifest(CardSection):
    """Every object of the group with its metadata; the lines are in dp_release/manifest."""

    algorithm: Literal["BLAKE3 Merkle tree of 'digest size key' lines"] = (
        "BLAKE3 Merkle tree of 'digest size key' lines"
    )
    root: str
    objects: int


class ChainHead(CardSection):
    """The newest entry of the dataset's hash chain when the card was written.

    A ledger without it was rolled back, or is another one.
    """

    sequence: int
    hash: str

"""The release card: what a reader must know to judge a release; nothing depends on the data.

The card is the ``dp`` attribute of the published group; its model is the JSON schema in
docs/dp-release.schema.json. The released array repeats the essentials as flat ``dp:*`` attributes.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from dpdask.errors import VerificationFailed
from dpdask.types import Json

__all__ = [
    "CONVENTION",
    "ArrayFacts",
    "ReleaseCard",
    "Released",
    "array_attributes",
    "card_document",
    "card_from_attributes",
    "card_text",
    "group_attributes",
    "json_schema",
]

CONVENTION = {
    "uuid": "6d2f1f0e-5a37-4b0e-9a5c-2f9f1d3a7c41",
    "name": "dp",
    "description": "Differential-privacy budget metadata of a released array",
    "schema_url": "https://raw.githubusercontent.com/dpdask/dpdask/main/docs/dp-release.schema.json",
    "spec_url": "https://github.com/dpdask/dpdask/blob/main/docs/metadata.md",
}


class _Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Budget(_Facts):
    """An (epsilon, delta) pair."""

    epsilon: float
    delta: float


class Claim(Budget):
    """What a theorem promises."""

    theorem: str


class Verified(_Facts):
    """The exact profile of the noise that was added."""

    name: str
    configuration: Json
    epsilon_at_delta: float
    delta_at_epsilon: float


class GuaranteeFacts(_Facts):
    """The claimed and the verified guarantee, kept apart."""

    claimed: Claim
    verified: Verified
    certified: bool
    reason: str


class Unit(_Facts):
    """Whom the release protects."""

    adjacency: Literal["replace-one", "add-remove-one"]
    record_axis: int | None
    bound: Json
    max_contributions: int
    contributions: Literal["one record per unit", "declared"]


class Sensitivity(_Facts):
    """How far one privacy unit changes the answer before it is divided, and why that is a bound."""

    set: Json = Field(
        description="the set of differences one unit can make, enough to compute the guarantee"
        " again"
    )
    l2: float
    origin: Literal["clipped", "public-range", "declared"]


class Sampling(_Facts):
    """Who was sampled for each step, by the caller, independently of all others."""

    rate: float
    of: Literal["privacy-units", "records"]
    amplified_rate: float = Field(
        description="the probability that a privacy unit takes part in a step: rate, or"
        " 1-(1-rate)^max_contributions of records"
    )


class Directions(_Facts):
    """The DP covariance whose eigenvectors rotated the noise; its privacy cost is composed in."""

    query: Json
    bound: Json
    sensitivity: Json
    noise: Json
    grid: Json


class PartFacts(_Facts):
    """A further noisy sum that was drawn beside the main one: counts beside a sum."""

    name: str
    noise: Json
    grid: Json


class ArrayFacts(_Facts):
    """An array that is published beside the main one: enough to build its metadata again."""

    array: str
    shape: list[int]
    chunks: list[int]
    shards: list[int] | None
    dtype: str
    codec: str
    dimension_names: list[str]
    attributes: Json


class LayerFacts(_Facts):
    """A layer: post-processing of published numbers."""

    name: str
    configuration: Json


class Composition(_Facts):
    """This release among the dataset's."""

    dataset: str
    steps: int
    steps_are_independent: Literal["declared"] | None = Field(
        description="the caller declares that no step was computed from another's raw result;"
        " null for a single result"
    )
    sampling: Sampling | None
    total: Budget
    cumulative_epsilon: float = Field(
        description="epsilon spent by the dataset up to and with this release, at the total's delta"
    )


class Window(_Facts):
    """The part of a dimension of the source that was released; public."""

    dimension: str | int = Field(description="its name; its index where the source has no names")
    start: int
    stop: int


class Released(_Facts):
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


class Manifest(_Facts):
    """Every object of the group with its metadata; the lines are in dp_release/manifest."""

    algorithm: Literal["BLAKE3 Merkle tree of 'digest size key' lines"] = (
        "BLAKE3 Merkle tree of 'digest size key' lines"
    )
    root: str
    objects: int


class ChainHead(_Facts):
    """The newest entry of the dataset's hash chain when the card was written.

    A ledger without it was rolled back, or is another one.
    """

    sequence: int
    hash: str


class ReleaseCard(_Facts):
    """The ``dp`` attribute of a released group."""

    schema_version: Literal["dp-release/2"] = "dp-release/2"
    release_id: str
    edition: int
    reserved_at: str
    description: str | None
    curator: str | None
    guarantee: GuaranteeFacts
    privacy_unit: Unit
    sensitivity: Sensitivity
    query: Json
    mechanism: Json
    noise: Json
    grid: Json
    parts: list[PartFacts] = Field(
        default_factory=list, description="further noisy sums, charged together with the main one"
    )
    directions: Directions | None = None
    composition: Composition
    released: Released
    unprotected: list[str]
    software: dict[str, str]
    ledger: ChainHead
    signed_by: str | None = Field(
        description="fingerprint of the curator's public key, null for an unsigned release"
    )
    manifest: Manifest | None = Field(
        default=None, description="null only while a release is being written"
    )

    @model_serializer(mode="wrap")
    def _leave_out_absent(self, handler: SerializerFunctionWrapHandler) -> Json:
        """Leave out further sums where there are none, so that cards keep their bytes."""
        document: Json = handler(self)
        return {name: value for name, value in document.items() if value or name != "parts"}


def json_schema() -> Json:
    """Return the JSON schema of a release card."""
    schema = ReleaseCard.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": CONVENTION["schema_url"],
        **schema,
    }


def group_attributes(card: ReleaseCard, signature: Json | None = None) -> Json:
    """Return the attributes of the published group; the card's signature is beside the card."""
    attributes = {"zarr_conventions": [CONVENTION], "dp": card_document(card)}
    return attributes if signature is None else {**attributes, "dp_signature": signature}


def array_attributes(card: ReleaseCard) -> Json:
    """Return flat attributes of the released array, with those that were declared public.

    NetCDF has no booleans: ``dp:certified`` is 1 or 0.
    """
    guarantee = card.guarantee
    flat: Json = {
        "dp:release_id": card.release_id,
        "dp:epsilon": guarantee.claimed.epsilon,
        "dp:delta": guarantee.claimed.delta,
        "dp:verified_epsilon": guarantee.verified.epsilon_at_delta,
        "dp:certified": int(guarantee.certified),
        "dp:adjacency": card.privacy_unit.adjacency,
        "dp:query": card.query.get("name"),
        "dp:mechanism": card.mechanism.get("name"),
        "dp:noise": card.noise.get("name"),
        "dp:dataset": card.composition.dataset,
    }
    if card.released.noise_std is not None:
        flat["dp:noise_std"] = card.released.noise_std
    if card.released.noise_std_range is not None:
        flat["dp:noise_std_min"], flat["dp:noise_std_max"] = card.released.noise_std_range
    if card.released.beside:
        flat["ancillary_variables"] = " ".join(beside.array for beside in card.released.beside)
    if card.released.scale_factor is not None:
        flat["scale_factor"] = card.released.scale_factor
        flat["add_offset"] = 0.0
    if card.released.auxiliary:
        flat["coordinates"] = " ".join(card.released.auxiliary)
    if card.released.grid_mapping is not None:
        flat["grid_mapping"] = card.released.grid_mapping
    public = card.released.attributes.items()
    return {**{name: value for name, value in public if name not in flat}, **flat}


def card_text(card: ReleaseCard) -> str:
    """Return everything on a card as canonical JSON, which the ledger keeps."""
    return json.dumps(card_document(card), sort_keys=True)


def card_document(card: ReleaseCard) -> Json:
    """Return a card as JSON."""
    return card.model_dump(mode="json")


def card_from_attributes(attributes: Json) -> ReleaseCard:
    """Return the card of a published group.

    Raises:
        VerificationFailed: There is none, or it breaks its schema.
    """
    stored = attributes.get("dp")
    if stored is None:
        raise VerificationFailed(
            "the group has no dp attribute, so it is not a release of dpdask; check the URL"
        )
    try:
        return ReleaseCard.model_validate(stored)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise VerificationFailed(
            f"the release card breaks its schema at {place}: {first['msg']}"
        ) from None

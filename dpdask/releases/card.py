"""The release card: everything a reader must know to judge a release, and nothing that depends on
the data.

The card is the ``dp`` attribute of the published group; its model is the JSON schema in
docs/dp-release.schema.json. The released array repeats the essentials as flat ``dp:*`` attributes.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpdask.errors import VerificationFailed
from dpdask.types import Json

__all__ = [
    "CONVENTION",
    "ReleaseCard",
    "array_attributes",
    "card_from_attributes",
    "card_text",
    "group_attributes",
    "json_schema",
    "registry_entry",
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
    """Claimed and verified, never confused."""

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
    """How far one unit moves the answer before it is divided, in l2 norm, and where that bound
    comes from.
    """

    set: Json = Field(
        description="the set of differences one unit can make, enough to compute the guarantee"
        " again"
    )
    l2: float
    origin: Literal["clipped", "public-range", "declared"]


class Sampling(_Facts):
    """Who was sampled for each step, by the caller, independently of everybody else."""

    rate: float
    of: Literal["privacy-units", "records"]
    amplified_rate: float = Field(
        description="the probability that a privacy unit takes part in a step: rate, or"
        " 1-(1-rate)^max_contributions of records"
    )


class Directions(_Facts):
    """The DP covariance whose eigenvectors turned the noise, released before the data and composed
    with it.
    """

    query: Json
    bound: Json
    sensitivity: Json
    noise: Json
    grid: Json


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


class Released(_Facts):
    """The published array: enough to build its metadata again."""

    array: str
    shape: list[int]
    dtype: str
    chunks: list[int]
    shards: list[int] | None
    codec: str
    dimension_names: list[str]
    noise_std: float = Field(
        description="root mean square of the noise of an entry, in released units"
    )
    scale_factor: float | None = None
    attributes: Json = Field(description="attributes of the source that were declared public")
    coordinates: list[str] = Field(description="arrays beside the source that were declared public")


class Manifest(_Facts):
    """Every object of the group, its metadata included; the lines are in the array
    dp_release/manifest.
    """

    algorithm: Literal["BLAKE3 Merkle tree of 'digest size key' lines"] = (
        "BLAKE3 Merkle tree of 'digest size key' lines"
    )
    root: str
    objects: int


class ChainHead(_Facts):
    """The newest entry of the dataset's chain in the ledger when the card was written: a ledger
    without it is another one.
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


def json_schema() -> Json:
    """The JSON schema of a release card."""
    schema = ReleaseCard.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": CONVENTION["schema_url"],
        **schema,
    }


def group_attributes(card: ReleaseCard, signature: Json | None = None) -> Json:
    """The attributes of the published group; the card's signature stands beside the card."""
    facts = {"zarr_conventions": [CONVENTION], "dp": card.model_dump(mode="json")}
    return facts if signature is None else {**facts, "dp_signature": signature}


def array_attributes(card: ReleaseCard) -> Json:
    """Flat attributes of the released array, with those of the source that were declared public."""
    guarantee = card.guarantee
    facts: Json = {
        "dp:release_id": card.release_id,
        "dp:epsilon": guarantee.claimed.epsilon,
        "dp:delta": guarantee.claimed.delta,
        "dp:verified_epsilon": guarantee.verified.epsilon_at_delta,
        "dp:certified": guarantee.certified,
        "dp:adjacency": card.privacy_unit.adjacency,
        "dp:query": card.query["name"],
        "dp:mechanism": card.mechanism["name"],
        "dp:noise_std": card.released.noise_std,
        "dp:dataset": card.composition.dataset,
    }
    if card.released.scale_factor is not None:
        facts["scale_factor"] = card.released.scale_factor
        facts["add_offset"] = 0.0
    return {
        **{name: value for name, value in card.released.attributes.items() if name not in facts},
        **facts,
    }


def card_text(card: ReleaseCard) -> str:
    """Everything on a card as canonical JSON, which the ledger keeps."""
    return json.dumps(card.model_dump(mode="json"), sort_keys=True)


def card_from_attributes(attributes: Json) -> ReleaseCard:
    """The card of a published group; raises :class:`VerificationFailed` when there is none or it
    breaks its schema.
    """
    found = attributes.get("dp")
    if found is None:
        raise VerificationFailed("the group has no dp attribute; it is no release of dpdask")
    try:
        return ReleaseCard.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise VerificationFailed(
            f"the release card breaks its schema at {place}: {first['msg']}"
        ) from None


def registry_entry(card: ReleaseCard) -> Json:
    """The fields of the OpenDP deployments registry that a card answers; what it cannot know is
    left for the curator.
    """
    claimed, verified = card.guarantee.claimed, card.guarantee.verified
    neighbours = (
        "one record replaced"
        if card.privacy_unit.adjacency == "replace-one"
        else "one record added or removed"
    )
    return {
        "status": "Draft",
        "deployment": {
            "name": card.description or f"Release {card.release_id[:12]}",
            "data_curator": card.curator or "TO BE FILLED IN",
            "description": card.description or "TO BE FILLED IN",
            "intended_use": "TO BE FILLED IN",
            "data_product_type": "Tensor (Zarr)",
            "data_product_region": "TO BE FILLED IN",
            "publication_date": card.reserved_at[:10],
        },
        "dp_flavor": {
            "name": "Approximate DP",
            "input_metric": card.privacy_unit.adjacency,
            "output_measure": "(epsilon, delta), from an exact privacy profile",
        },
        "privacy_loss": {
            "privacy_unit": "record"
            if card.privacy_unit.max_contributions == 1
            else f"up to {card.privacy_unit.max_contributions} records",
            "privacy_unit_description": f"neighbouring datasets differ in {neighbours}",
            "privacy_parameters": {"epsilon": claimed.epsilon, "delta": claimed.delta},
            "privacy_parameters_description": (
                f"claimed by {claimed.theorem}; verified epsilon {verified.epsilon_at_delta:.6g}"
                f" at delta {claimed.delta:g};"
                f" {'certified' if card.guarantee.certified else 'NOT certified'}"
            ),
        },
        "model": {
            "model_name": "Central",
            "actors": [
                "curator: trusted with raw values",
                "Dask cluster and ledger: inside the curator's trust boundary",
            ],
            "release_type": "One-off"
            if card.composition.steps == 1
            else f"{card.composition.steps} composed steps",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "composition": (
                f"dataset {card.composition.dataset}: epsilon"
                f" {card.composition.cumulative_epsilon:.6g} of"
                f" {card.composition.total.epsilon:g} at delta {card.composition.total.delta:g},"
                " this release included"
            ),
            "post_processing": "symmetrised after noise"
            if card.query["name"] == "covariance"
            else "none",
        },
        "implementation": {
            "mechanisms": [card.mechanism["name"]],
            "noise": card.noise["name"],
            "exact_sampling": bool(card.grid["exact"]),
            "unprotected_quantities": card.unprotected,
            "software": card.software,
        },
    }

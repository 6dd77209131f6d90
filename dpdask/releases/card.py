"""The release card: what a reader must know to judge a release; nothing depends on the data.

The card is the ``dp`` attribute of the published group; its model is the JSON schema in
docs/dp-release.schema.json. The released array repeats the essentials as flat ``dp:*`` attributes.
"""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from dpdask.errors import VerificationFailed
from dpdask.releases.card_sections import (
    BoundsFacts,
    CardSection,
    ChainHead,
    Composition,
    Directions,
    GuaranteeFacts,
    Manifest,
    PartFacts,
    Released,
    Sensitivity,
    Unit,
    VariableFacts,
)
from dpdask.types import Json

__all__ = [
    "CONVENTION",
    "ReleaseCard",
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


class ReleaseCard(CardSection):
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
    bounds: BoundsFacts | None = Field(
        default=None, description="left out where no bound was chosen privately"
    )
    composition: Composition
    released: Released
    share: float | None = Field(
        default=None,
        description="of several variables, the first one's share of the squared mu of the release;"
        " left out where there is one",
    )
    further_variables: list[VariableFacts] = Field(
        default_factory=list,
        description="of several variables, all but the first one, which is described above; left"
        " out where there is one",
    )
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
        """Leave out what only some releases have, so that cards keep their bytes."""
        document: Json = handler(self)
        optional = ("parts", "share", "further_variables", "bounds")
        return {name: value for name, value in document.items() if value or name not in optional}

    def each_variable(self) -> list[ReleaseCard]:
        """Return the card of every variable as if it were alone, with the guarantee of all."""
        alone = self.model_copy(update={"further_variables": []})
        return [alone, *(alone._about(variable) for variable in self.further_variables)]

    def _about(self, variable: VariableFacts) -> ReleaseCard:
        unit, per = self.privacy_unit, self.privacy_unit.per
        if per is not None:
            axis = -1 if variable.per_axis is None else variable.per_axis  # -1 does not verify
            per = per.model_copy(update={"axis": axis})
        own = {"record_axis": variable.record_axis, "bound": variable.bound, "per": per}
        changes = {
            name: getattr(variable, name)
            for name in VariableFacts.model_fields
            if name not in (*own, "per_axis")
        }
        return self.model_copy(update={**changes, "privacy_unit": unit.model_copy(update=own)})


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

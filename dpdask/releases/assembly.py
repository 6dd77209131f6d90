"""Everything that publication needs of a release but its chunks: the card, its manifest, the
signature, every document.

It is assembled once before the charge, with what is known then, so that what cannot be published or
would not verify is refused while that is free; and again when all chunks are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dpdask.errors import InvalidMechanism, ReleaseError, VerificationFailed
from dpdask.ledger import LedgerHead
from dpdask.planning import Component, ReleasePlan
from dpdask.privacy import PrivacyBudget
from dpdask.releases.build_card import Charge, make_card
from dpdask.releases.card import Manifest, ReleaseCard, array_attributes, group_attributes
from dpdask.releases.card_arrays import CardArrays, noise_arrays
from dpdask.releases.recompute import check_guarantee
from dpdask.releases.verify import card_statement
from dpdask.signing import KEY_VARIABLE, SigningKey, fingerprint, sign_statement
from dpdask.storage import (
    ROOT,
    Coordinate,
    ManifestEntry,
    document_entries,
    manifest_documents,
    merkle_root,
    release_documents,
    with_attributes,
)
from dpdask.types import Json

__all__ = ["Assembly"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Assembly:
    """What the documents of a release are made of.

    Args: plan: What was planned. name: The public name of the release. data: The data component as
        it is released, noise directions that were found on the way included. coordinates: Arrays
        beside the source that were declared public. attributes: The source's attributes that were
        declared public. signing_key: The curator's key, None for an unsigned release. arrays:
        Further arrays to be published with the card.
    """

    plan: ReleasePlan
    name: str
    data: Component
    coordinates: list[Coordinate]
    attributes: Json
    signing_key: SigningKey | None
    arrays: CardArrays = field(default_factory=dict)

    def __repr__(self) -> str:
        return "<Assembly>"

    def card(self, charge: Charge) -> ReleaseCard:
        """The card of the release, but for its manifest."""
        signed_by = None if self.signing_key is None else fingerprint(self.signing_key.public)
        return make_card(
            self.plan,
            self.data,
            charge,
            name=self.name,
            attributes=self.attributes,
            signed_by=signed_by,
        )

    def complete(
        self, card: ReleaseCard, chunks: Iterable[ManifestEntry]
    ) -> tuple[ReleaseCard, dict[str, bytes]]:
        """The card with its manifest, and every document of the release."""
        bare = card.model_copy(update={"manifest": None})
        documents = release_documents(
            self.plan.layout,
            group_attributes=group_attributes(bare),
            array_attributes=array_attributes(bare),
            coordinates=self.coordinates,
            card_arrays={
                **noise_arrays(self.data.noise.to_dict())[1],
                **self.arrays,
            },
        )
        entries = [*chunks, *document_entries(documents)]
        complete = bare.model_copy(
            update={"manifest": Manifest(root=merkle_root(entries), objects=len(entries))}
        )
        root = with_attributes(
            documents[ROOT], group_attributes(complete, self._signature(complete))
        )
        return complete, {**documents, **manifest_documents(entries), ROOT: root}

    def check_publishable(self) -> None:
        """Refuse, before the charge, what could not be published or would not verify."""
        delta = self.plan.spec.privacy.delta
        spent = min(
            max(2 * self.plan.guarantee.verified.epsilon(delta), 1e-9), 1e6
        )  # stands for the dataset's
        charge = Charge(
            reserved_at="",
            total=PrivacyBudget(epsilon=spent, delta=delta),
            cumulative_epsilon=spent,
            head=LedgerHead(self.plan.spec.budget.dataset, 1, "0" * 64),
        )
        card, _ = self.complete(self.card(charge), [])
        try:
            check_guarantee(card, self.data.noise)
        except VerificationFailed as error:
            raise InvalidMechanism(
                f"the release would not verify, and nothing was charged: {error}"
            ) from None

    def _signature(self, card: ReleaseCard) -> dict[str, str] | None:
        """The signature over a complete card, by the key that the card names."""
        if card.signed_by is None:
            return None
        if self.signing_key is None or fingerprint(self.signing_key.public) != card.signed_by:
            raise ReleaseError(
                f"the release is to be signed by {card.signed_by}, which is not the configured"
                f" key; set {KEY_VARIABLE} to that"
                " key's file and `dpdask resume`"
            )
        return sign_statement(self.signing_key, card_statement(card)).to_dict()

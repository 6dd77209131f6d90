"""Everything that publication needs of a release but its chunks: card, manifest, signature,
documents.

It is assembled once before the charge, with what is known then, so that what cannot be published or
would not verify is refused while that is free; and again when all chunks are there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dpdask.errors import InvalidMechanism, ReleaseError, VerificationFailed
from dpdask.ledger import LedgerHead
from dpdask.planning import ReleasePlan, Variable
from dpdask.privacy import PrivacyBudget
from dpdask.releases.build_card import Charge, make_card
from dpdask.releases.card import Manifest, ReleaseCard, array_attributes, group_attributes
from dpdask.releases.card_arrays import CardArrays, noise_arrays
from dpdask.releases.check_beside import check_beside
from dpdask.releases.recompute import check_guarantee
from dpdask.releases.verify import card_statement
from dpdask.signing import KEY_VARIABLE, SigningKey, fingerprint, sign_statement
from dpdask.storage import (
    ROOT,
    Coordinate,
    Layout,
    ManifestEntry,
    document_entries,
    manifest_documents,
    merkle_root,
    release_documents,
    with_attributes,
)
from dpdask.types import Array, Json

__all__ = ["Assembly"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Assembly:
    """What the documents of a release are built from.

    Args:
        plan: What was planned.
        release_id: The public random name of the release.
        variables: The variables as they are released, with the DP directions of their noise.
        coordinates: Arrays that are published beside the result.
        attributes: The attributes of every variable that were declared public.
        signed_by: The fingerprint of the curator's public key, None for an unsigned release.
        arrays: Further arrays to be published with the card.
    """

    plan: ReleasePlan
    release_id: str
    variables: tuple[Variable, ...]
    coordinates: list[Coordinate]
    attributes: tuple[Json, ...]
    signed_by: str | None
    arrays: CardArrays = field(default_factory=dict)

    def __repr__(self) -> str:
        return "<Assembly>"

    @property
    def _only(self) -> Variable:
        [variable] = self.variables
        return variable

    def card(self, charge: Charge) -> ReleaseCard:
        """Return the card of the release, but for its manifest."""
        return make_card(
            self.plan,
            self._only,
            charge,
            release_id=self.release_id,
            attributes=self.attributes[0],
            coordinates=self.coordinates,
            signed_by=self.signed_by,
        )

    def complete(
        self, card: ReleaseCard, chunks: Iterable[ManifestEntry], signing_key: SigningKey | None
    ) -> tuple[ReleaseCard, dict[str, bytes]]:
        """Return the card with its manifest, and every document of the release.

        Args:
            card: The card, with or without a manifest.
            chunks: The manifest entries of all write chunks.
            signing_key: The curator's key, None if there is none.

        Raises:
            ReleaseError: The card is to be signed by another key.
        """
        bare = card.model_copy(update={"manifest": None})
        documents = release_documents(
            self._only.layout,
            group_attributes=group_attributes(bare),
            array_attributes=array_attributes(bare),
            coordinates=self.coordinates,
            card_arrays={
                **noise_arrays(self._only.component.noise.to_dict())[1],
                **self.arrays,
            },
            beside=self._beside(bare),
        )
        entries = [*chunks, *document_entries(documents)]
        complete = bare.model_copy(
            update={"manifest": Manifest(root=merkle_root(entries), objects=len(entries))}
        )
        root = with_attributes(
            documents[ROOT], group_attributes(complete, _signature(complete, signing_key))
        )
        return complete, {**documents, **manifest_documents(entries), ROOT: root}

    def _beside(self, card: ReleaseCard) -> list[tuple[Layout, Json, Array | None]]:
        """Return the arrays beside the main one with their attributes, and what is constant."""
        variable = self._only
        level = variable.component.noise_level
        return [
            (
                layout,
                recorded.attributes,
                level.values() if array.constant and level is not None else None,
            )
            for (array, layout), recorded in zip(
                variable.arrays_beside, card.released.beside, strict=True
            )
        ]

    def check_publishable(self, signing_key: SigningKey | None) -> None:
        """Refuse, before the charge, what could not be published or would not verify."""
        delta = self.plan.spec.privacy.delta
        epsilon = self.plan.guarantee.verified.epsilon(delta)
        spent = min(max(2 * epsilon, 1e-9), 1e6)  # stands for what the dataset will have spent
        charge = Charge(
            reserved_at="",
            total=PrivacyBudget(epsilon=spent, delta=delta),
            cumulative_epsilon=spent,
            head=LedgerHead(self.plan.spec.budget.dataset, 1, "0" * 64),
        )
        card, _ = self.complete(self.card(charge), [], signing_key)
        try:
            check_guarantee(card, self._only.component.noise)
            check_beside(card, self._only.component.noise)
        except VerificationFailed as error:
            raise InvalidMechanism(
                f"the release would not verify, and nothing was charged: {error}"
            ) from None


def _signature(card: ReleaseCard, signing_key: SigningKey | None) -> dict[str, str] | None:
    """Return the signature over a complete card, by the key that the card names."""
    if card.signed_by is None:
        return None
    if signing_key is None or fingerprint(signing_key.public) != card.signed_by:
        raise ReleaseError(
            f"the release is to be signed by {card.signed_by}, which is not the configured key;"
            f" set {KEY_VARIABLE} to that key's file and `dpdask resume`"
        )
    return sign_statement(signing_key, card_statement(card)).to_dict()

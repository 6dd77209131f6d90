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
from dpdask.releases.card import ReleaseCard, array_attributes, group_attributes
from dpdask.releases.card_arrays import CardArrays, noise_arrays
from dpdask.releases.card_sections import Manifest
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

    def card(self, charge: Charge) -> ReleaseCard:
        """Return the card of the release, but for its manifest."""
        return make_card(
            self.plan,
            self.variables,
            charge,
            release_id=self.release_id,
            attributes=self.attributes,
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
            self._arrays(bare),
            group_attributes=group_attributes(bare),
            coordinates=self.coordinates,
            card_arrays=self._card_arrays(),
        )
        entries = [*chunks, *document_entries(documents)]
        complete = bare.model_copy(
            update={"manifest": Manifest(root=merkle_root(entries), objects=len(entries))}
        )
        root = with_attributes(
            documents[ROOT], group_attributes(complete, _signature(complete, signing_key))
        )
        return complete, {**documents, **manifest_documents(entries), ROOT: root}

    def _arrays(self, card: ReleaseCard) -> list[tuple[Layout, Json, Array | None]]:
        """Return every released array with its attributes, and what is constant."""
        arrays: list[tuple[Layout, Json, Array | None]] = []
        for variable, own in zip(self.variables, card.each_variable(), strict=True):
            level = variable.component.noise_level
            arrays.append((variable.layout, array_attributes(own), None))
            arrays += [
                (
                    layout,
                    recorded.attributes,
                    level.values() if array.constant and level is not None else None,
                )
                for (array, layout), recorded in zip(
                    variable.arrays_beside, own.released.beside, strict=True
                )
            ]
        return arrays

    def _card_arrays(self) -> CardArrays:
        """Return the numbers of the noise that are too many for the card."""
        arrays = dict(self.arrays)
        for variable in self.variables:
            noise = variable.component.noise.to_dict()
            arrays = noise_arrays(noise, variable.noise_name)[1] | arrays
        return arrays

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
            noises = [variable.component.noise for variable in self.variables]
            check_guarantee(card, *noises)
            for own, noise in zip(card.each_variable(), noises, strict=True):
                check_beside(own, noise)
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

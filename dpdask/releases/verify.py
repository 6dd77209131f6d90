"""Published releases: open one, read its card, and recompute what it says of itself."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from dpdask.errors import DpdaskError, StoreError, VerificationFailed
from dpdask.ledger import Ledger, LedgerHead
from dpdask.noise import Noise, noise_from_dict
from dpdask.releases.card import (
    ReleaseCard,
    array_attributes,
    card_from_attributes,
    card_text,
    group_attributes,
)
from dpdask.releases.card_arrays import with_arrays
from dpdask.releases.recompute import check_guarantee
from dpdask.signing import (
    PublicKey,
    SignatureFacts,
    check_statement,
    fingerprint,
    release_statement,
)
from dpdask.storage import (
    CARD_ARRAYS,
    MANIFEST_ARRAY,
    NOT_A_FILE,
    ROOT,
    Layout,
    Storage,
    canonical,
    digest_of,
    manifest_documents,
    merkle_root,
    open_group,
    open_storage,
    parse_manifest,
    root_document_digest,
)
from dpdask.types import Json

__all__ = [
    "card_statement",
    "check_objects",
    "check_signature",
    "open_release",
    "published_card",
    "read_card",
    "verify_release",
]


def published_card(output: Storage, name: str | None = None) -> ReleaseCard | None:
    """The card of the output, if there is one, and of this very release if a name is given."""
    if output.read("zarr.json") is None:
        return None
    try:
        card = card_from_attributes(dict(open_group(output).attrs))
    except (VerificationFailed, StoreError):
        return None
    return card if name in (None, card.release_id) else None


def read_card(url: str, options: Json | None = None) -> ReleaseCard:
    """The release card of a published group."""
    return card_from_attributes(dict(open_group(open_storage(url, options)).attrs))


def open_release(url: str, options: Json | None = None) -> Any:
    """A published release as an xarray.DataArray; without xarray, the pair (zarr array, release
    card).
    """
    place = open_storage(url, options)
    card = card_from_attributes(dict(open_group(place).attrs))
    try:
        import xarray
    except ModuleNotFoundError:
        return open_group(place)[card.released.array], card
    return xarray.open_zarr(place.zarr_store(), consolidated=True)[card.released.array]


def verify_release(
    url: str,
    options: Json | None = None,
    ledger: Ledger | None = None,
    trust: PublicKey | None = None,
) -> ReleaseCard:
    """Recompute what a release says of itself: schema, every object, metadata, guarantee,
    signature.

    Without a ledger or a trusted key, a release that was rewritten as a whole, to agree with
    itself, is not found.

    Args: url: The published group. options: Storage options. ledger: Also check that this ledger
        committed this very card, and holds the entry that the card names. trust: Also check that
        this key signed the release.

    Raises:
        VerificationFailed: At the first thing that does not hold.
    """
    place = open_storage(url, options)
    root = place.read(ROOT)
    if root is None:
        raise StoreError("there is no published release; check the path or URL")
    card = _card_of(root)
    check_objects(place, card, root)
    _check_documents(place, card, root)
    check_guarantee(card, _noise_of(place, card))
    if ledger is not None:
        _check_ledger(card, ledger)
    check_signature(card, root, trust)
    return card


def _card_of(root: bytes) -> ReleaseCard:
    """The card in a group's root document."""
    try:
        attributes = dict(json.loads(root)["attributes"])
    except (ValueError, KeyError, TypeError):
        raise VerificationFailed(
            "the group's zarr.json cannot be read; restore it from a copy"
        ) from None
    return card_from_attributes(attributes)


def check_objects(place: Storage, card: ReleaseCard, root: bytes) -> None:
    """Every stored object is the one in the manifest, none is missing or too many, and the manifest
    is the card's.

    ``root`` is the group's own metadata document, which may not be in its place yet.
    """
    if card.manifest is None:
        raise VerificationFailed("the card has no manifest; the release was never complete")
    entries = parse_manifest(place.read(f"{MANIFEST_ARRAY}/c/0") or b"")
    if merkle_root(entries) != card.manifest.root or len(entries) != card.manifest.objects:
        raise VerificationFailed("the manifest is not the one on the card: its Merkle root differs")
    expected = {entry.key: entry for entry in entries}
    own = manifest_documents(entries)
    sizes = {ROOT: 0} | {name: size for name, size, _ in place.without_links().listing()}
    for name in sorted(set(sizes) - set(expected) - set(own)):
        raise VerificationFailed(
            f"{name!r} is stored beside the release but not in its manifest: it was added later"
        )
    for name in sorted(set(expected) | set(own)):
        if name not in sizes:
            raise VerificationFailed(f"{name!r} is missing; restore it from a copy")
        if sizes[name] == NOT_A_FILE:
            raise VerificationFailed(
                f"{name!r} is a link or not a plain file; restore it from a copy"
            )
    for name, content in own.items():
        if place.read(name) != content:
            raise VerificationFailed(
                f"{name!r} was changed after publication; restore it from a copy"
            )
    document = json.loads(root)
    if root != canonical(document) or root_document_digest(document) != expected.pop(ROOT).digest:
        raise VerificationFailed(
            "'zarr.json' of the group, which holds the card, was changed after publication"
        )
    for name, entry in expected.items():
        with place.viewed(name) as found:
            if found is None or found.size != entry.size or digest_of([found]) != entry.digest:
                raise VerificationFailed(
                    f"{name!r} was changed after publication: its BLAKE3 digest is not the"
                    " manifest's"
                )


def _check_documents(place: Storage, card: ReleaseCard, root: bytes) -> None:
    """The metadata follow from the card, and the group's copies of them are copies."""
    document = json.loads(root)
    if document["attributes"] != group_attributes(card, document["attributes"].get("dp_signature")):
        raise VerificationFailed("the group's attributes do not follow from its card")
    for path, copied in document.get("consolidated_metadata", {}).get("metadata", {}).items():
        own = json.loads(place.read(f"{path}/{ROOT}") or b"{}")
        if own != {
            name: copied[name] for name in copied if name in own or name != "consolidated_metadata"
        }:
            raise VerificationFailed(
                f"the metadata of {path!r} and the group's copy of it differ; restore them from"
                " a copy"
            )
    facts = card.released
    try:
        layout = Layout(
            name=facts.array,
            shape=tuple(facts.shape),
            chunks=tuple(facts.chunks),
            shards=None if facts.shards is None else tuple(facts.shards),
            dtype=facts.dtype,
            codec=facts.codec,
            dimension_names=tuple(facts.dimension_names),
        )
        same = (
            layout.metadata(array_attributes(card))
            == open_group(place, consolidated=False)[facts.array].metadata.to_dict()
        )
    except Exception:
        raise VerificationFailed(
            f"the group has no readable array {facts.array!r}, which its card names"
        ) from None
    if not same:
        raise VerificationFailed(
            f"the metadata of {facts.array!r} (shape, dtype, names, attributes) do not follow"
            " from the card"
        )


def _noise_of(place: Storage, card: ReleaseCard) -> Noise:
    """The noise that the card describes, with the arrays that it refers to."""
    try:
        group = open_group(place, consolidated=False)[CARD_ARRAYS]
        arrays = {name: np.asarray(array[...]) for name, array in group.arrays()}
        return noise_from_dict(with_arrays(card.noise, arrays))
    except (
        DpdaskError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise VerificationFailed(
            f"the noise on the card cannot be rebuilt ({type(error).__name__})"
        ) from None


def _check_ledger(card: ReleaseCard, ledger: Ledger) -> None:
    """This very card was committed by a ledger that still holds what the card saw of it."""
    dataset = card.composition.dataset
    if not ledger.contains(dataset, _head_of(card)):
        raise VerificationFailed(
            f"the ledger does not hold entry {card.ledger.sequence} of dataset {dataset!r},"
            " which the card names: it was"
            " restored from an older copy, or it is another ledger"
        )
    record = ledger.entry_named(card.release_id)
    if record is None or record.last != "commit":
        raise VerificationFailed(
            "the ledger does not know the release as committed; ask its curator"
        )
    if record.card != card_text(card):
        raise VerificationFailed(
            "the ledger committed another card; the release was changed after publication"
        )


def card_statement(card: ReleaseCard) -> bytes:
    """What the curator signs: the card as a whole, and with it the manifest's root and the ledger's
    head.
    """
    if card.manifest is None:
        raise VerificationFailed("the card has no manifest; the release was never complete")
    digest = hashlib.sha256(card_text(card).encode()).hexdigest()
    return release_statement(digest, card.manifest.root, _head_of(card))


def _head_of(card: ReleaseCard) -> LedgerHead:
    return LedgerHead(card.composition.dataset, card.ledger.sequence, card.ledger.hash)


def check_signature(card: ReleaseCard, root: bytes, trust: PublicKey | None = None) -> None:
    """The signature, where there is one, is over this card by the key that the card names; with
    ``trust``, by that very key.
    """
    stored = json.loads(root)["attributes"].get("dp_signature")
    if stored is None and card.signed_by is None:
        if trust is not None:
            raise VerificationFailed(
                f"the release is unsigned, so nothing shows that {fingerprint(trust)} published"
                " it; verify it with the ledger"
            )
        return
    if stored is None or card.signed_by is None:
        raise VerificationFailed(
            "the card and the signature beside it do not belong together: one of them was removed"
        )
    signature = SignatureFacts.from_dict(stored)
    if signature.fingerprint != card.signed_by:
        raise VerificationFailed(
            f"the signature is by {signature.fingerprint}, but the card names {card.signed_by}"
        )
    check_statement(signature, card_statement(card), trust)

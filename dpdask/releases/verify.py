"""Verify a published release: recompute what it says of itself."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from dpdask.errors import DpdaskError, StoreError, VerificationFailed
from dpdask.ledger import Ledger, LedgerHead
from dpdask.noise import Noise, noise_from_dict
from dpdask.queries.base import NOISE_STD
from dpdask.releases.card import (
    ReleaseCard,
    array_attributes,
    card_from_attributes,
    card_text,
    group_attributes,
)
from dpdask.releases.card_arrays import CardArrays, with_arrays
from dpdask.releases.card_sections import ArrayFacts, Released
from dpdask.releases.check_beside import check_beside, noise_level_of
from dpdask.releases.check_bounds import check_choice
from dpdask.releases.check_directions import check_axes
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
    "layout_of",
    "verify_release",
]


def verify_release(
    url: str,
    options: Json | None = None,
    ledger: Ledger | None = None,
    trust: PublicKey | None = None,
) -> ReleaseCard:
    """Recompute schema, every object, metadata, guarantee and signature of a release.

    Without a ledger or a trusted key, a release that was rewritten as a whole, so that it agrees
    with itself, is not detected.

    Args:
        url: The published group.
        options: Storage options.
        ledger: Also check that this ledger committed this very card, and holds the entry that the
            card names.
        trust: Also check that this key signed the release.

    Raises:
        VerificationFailed: At the first thing that does not hold.
    """
    storage = open_storage(url, options)
    root = storage.read(ROOT)
    if root is None:
        raise StoreError("there is no published release; check the path or URL")
    card = _card_of(root)
    check_objects(storage, card, root)
    _check_documents(storage, card, root)
    variables = card.each_variable()
    arrays = _card_arrays(storage)
    noises = [_noise_of(arrays, own) for own in variables]
    check_guarantee(card, *noises)
    check_axes(card, noises[0], arrays)
    for own, noise in zip(variables, noises, strict=True):
        check_beside(own, noise)
        _check_noise_std(storage, own, noise)
        check_choice(own.bounds, arrays)
    if ledger is not None:
        _check_ledger(card, ledger)
    check_signature(card, root, trust)
    return card


def _card_of(root: bytes) -> ReleaseCard:
    """Return the card in a group's root document."""
    try:
        attributes = dict(json.loads(root)["attributes"])
    except (ValueError, KeyError, TypeError):
        raise VerificationFailed(
            "the group's zarr.json cannot be read; restore it from a copy"
        ) from None
    return card_from_attributes(attributes)


def check_objects(storage: Storage, card: ReleaseCard, root: bytes) -> None:
    """Check that every stored object is the one in the manifest, and the manifest the card's.

    None may be missing, and none may be added.

    Args:
        storage: Where the objects are.
        card: The card of the release.
        root: The group's own metadata document, which may not be in its place yet.

    Raises:
        VerificationFailed: At the first difference.
    """
    if card.manifest is None:
        raise VerificationFailed("the card has no manifest; the release was never complete")
    entries = parse_manifest(storage.read(f"{MANIFEST_ARRAY}/c/0") or b"")
    if merkle_root(entries) != card.manifest.root or len(entries) != card.manifest.objects:
        raise VerificationFailed("the manifest is not the one on the card: its Merkle root differs")
    expected = {entry.key: entry for entry in entries}
    own = manifest_documents(entries)
    sizes = {ROOT: 0} | {name: size for name, size, _ in storage.without_links().listing()}
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
        if storage.read(name) != content:
            raise VerificationFailed(
                f"{name!r} was changed after publication; restore it from a copy"
            )
    document = json.loads(root)
    if root != canonical(document) or root_document_digest(document) != expected.pop(ROOT).digest:
        raise VerificationFailed(
            "'zarr.json' of the group, which holds the card, was changed after publication"
        )
    for name, entry in expected.items():
        with storage.viewed(name) as stored:
            intact = stored is not None and stored.size == entry.size
            if stored is None or not intact or digest_of([stored]) != entry.digest:
                raise VerificationFailed(
                    f"{name!r} was changed after publication: its BLAKE3 digest is not the"
                    " manifest's"
                )


def _check_documents(storage: Storage, card: ReleaseCard, root: bytes) -> None:
    """Check that metadata follow from the card, and that the group's copies of them are equal."""
    document = json.loads(root)
    if document["attributes"] != group_attributes(card, document["attributes"].get("dp_signature")):
        raise VerificationFailed("the group's attributes do not follow from its card")
    for path, copied in document.get("consolidated_metadata", {}).get("metadata", {}).items():
        own = json.loads(storage.read(f"{path}/{ROOT}") or b"{}")
        if own != {
            name: copied[name] for name in copied if name in own or name != "consolidated_metadata"
        }:
            raise VerificationFailed(
                f"the metadata of {path!r} and the group's copy of it differ; restore them from"
                " a copy"
            )
    variables = card.each_variable()
    _check_described(document, card)
    for own in variables:
        _check_array(storage, own.released, array_attributes(own))
        for beside in own.released.beside:
            _check_array(storage, beside, beside.attributes)


def _check_described(document: Json, card: ReleaseCard) -> None:
    """Check that every array that says that it is of this release is on the card."""
    names = {own.released.array for own in card.each_variable()}
    copies = document.get("consolidated_metadata", {}).get("metadata", {})
    for name, copied in copies.items():
        release_id = copied.get("attributes", {}).get("dp:release_id")
        if release_id == card.release_id and name not in names:
            raise VerificationFailed(
                f"{name!r} says that it is of this release, and the card does not describe it;"
                " restore the card from a copy"
            )


def layout_of(array: Released | ArrayFacts) -> Layout:
    """Return the layout of an array that the card describes."""
    return Layout(
        name=array.array,
        shape=tuple(array.shape),
        chunks=tuple(array.chunks),
        shards=None if array.shards is None else tuple(array.shards),
        dtype=array.dtype,
        codec=array.codec,
        dimension_names=tuple(array.dimension_names),
    )


def _check_array(storage: Storage, array: Released | ArrayFacts, attributes: Json) -> None:
    """Check that an array's metadata follow from the card."""
    try:
        same = (
            layout_of(array).metadata(attributes)
            == open_group(storage, consolidated=False)[array.array].metadata.to_dict()
        )
    except Exception:
        raise VerificationFailed(
            f"the group has no readable array {array.array!r}, which its card names"
        ) from None
    if not same:
        raise VerificationFailed(
            f"the metadata of {array.array!r} (shape, dtype, names, attributes) do not follow"
            " from the card"
        )


def _check_noise_std(storage: Storage, card: ReleaseCard, noise: Noise) -> None:
    """Check that the published noise of every entry is that of the card, chunk by chunk."""
    name = f"{card.released.array}_{NOISE_STD}"
    level = noise_level_of(card, noise)
    if level is None or name not in [beside.array for beside in card.released.beside]:
        return  # it follows from released counts, or the release is older than the array
    array = open_group(storage, consolidated=False)[name]
    if level.small:
        same = np.allclose(array[...], level.values(), rtol=1e-9, atol=0)
    else:
        layout = layout_of(card.released)
        boxes = (layout.region(index) for index in layout.indices())
        same = all(np.allclose(array[box], level.of(box), rtol=1e-9, atol=0) for box in boxes)
    if not same:
        raise VerificationFailed(f"{name!r} is not the standard deviation of the card's noise")


def _card_arrays(storage: Storage) -> CardArrays:
    """Return the arrays that the card refers to."""
    try:
        group = open_group(storage, consolidated=False)[CARD_ARRAYS]
        return {name: np.asarray(array[...]) for name, array in group.arrays()}
    except Exception:
        raise VerificationFailed(
            f"the arrays of {CARD_ARRAYS!r} cannot be read; restore them from a copy"
        ) from None


def _noise_of(arrays: CardArrays, card: ReleaseCard) -> Noise:
    """Return the noise that the card describes, with the arrays that it refers to."""
    try:
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
    """Check that a ledger committed this card, and still holds the entry that the card names."""
    dataset = card.composition.dataset
    record = ledger.entry_named(card.release_id)
    restored = record is not None and record.restored == _head_of(card)
    if not restored and not ledger.contains(dataset, _head_of(card)):
        raise VerificationFailed(
            f"the ledger does not hold entry {card.ledger.sequence} of dataset {dataset!r},"
            " which the card names: it was"
            " restored from an older copy, or it is another ledger; its curator may `dpdask ledger"
            " reconcile`"
        )
    if record is None or record.last != "commit":
        raise VerificationFailed(
            "the ledger does not know the release as committed; ask its curator"
        )
    if record.card != card_text(card):
        raise VerificationFailed(
            "the ledger committed another card; the release was changed after publication"
        )


def card_statement(card: ReleaseCard) -> bytes:
    """Return what the curator signs: the card, and with it the manifest's root and ledger head."""
    if card.manifest is None:
        raise VerificationFailed("the card has no manifest; the release was never complete")
    digest = hashlib.sha256(card_text(card).encode()).hexdigest()
    return release_statement(digest, card.manifest.root, _head_of(card))


def _head_of(card: ReleaseCard) -> LedgerHead:
    return LedgerHead(card.composition.dataset, card.ledger.sequence, card.ledger.hash)


def check_signature(card: ReleaseCard, root: bytes, trust: PublicKey | None = None) -> None:
    """Check a signature: over this card, by the key that the card names.

    Args:
        card: The card of the release.
        root: The group's root document, with the signature beside the card.
        trust: The key that must have signed; None accepts unsigned releases and any key.

    Raises:
        VerificationFailed: The signature does not hold.
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

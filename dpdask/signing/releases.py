"""The signature of a release as its group carries it: one attribute that holds the ledger's head and the signature.

The attribute is not part of the card: the signature is made over the card's text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from dpdask.errors import VerificationFailed
from dpdask.signing.keys import PublicKey, SigningKey, fingerprint
from dpdask.signing.statements import Head, SignatureFacts, check_statement, release_statement, sign_statement

__all__ = ["SIGNATURE_ATTRIBUTE", "check_release_signature", "release_signature", "sign_release"]

SIGNATURE_ATTRIBUTE = "dp_signature"


@dataclass(frozen=True, slots=True)
class _NamedHead:
    """The head that a signature document names."""

    dataset: str
    sequence: int
    hash: str


def sign_release(key: SigningKey, *, card: str, manifest_root: str, head: Head) -> dict[str, Any]:
    """Return the attribute of a signed release.

    Args:
        key: the curator's.
        card: the card's canonical text.
        manifest_root: the digest over everything that is stored, which is on the card too.
        head: the newest entry of the dataset's chain.
    """
    statement = release_statement(_sha256(card), manifest_root, head)
    return {
        "ledger": {"dataset": head.dataset, "sequence": head.sequence, "hash": head.hash},
        "signature": sign_statement(key, statement).to_dict(),
    }


def release_signature(attributes: dict[str, Any]) -> SignatureFacts | None:
    """Return the signature among a group's attributes, unchecked; None for an unsigned release."""
    document = attributes.get(SIGNATURE_ATTRIBUTE)
    return None if document is None else _parts(document)[1]


def check_release_signature(
    attributes: dict[str, Any], *, card: str, manifest_root: str, trust: PublicKey | None = None
) -> SignatureFacts | None:
    """Check the signature among a group's attributes; None where the release is unsigned and no key was given to trust.

    Guarantee: with ``trust``, the owner of that key signed this card, these stored bytes and the head that the attribute names.

    Raises:
        VerificationFailed: the signature does not fit, is not the trusted key's, or is missing although a key is trusted.
    """
    document = attributes.get(SIGNATURE_ATTRIBUTE)
    if document is None:
        if trust is None:
            return None
        raise VerificationFailed(
            f"the release is unsigned, so nothing shows that {fingerprint(trust)} published it; verify it with the ledger"
        )
    head, signature = _parts(document)
    check_statement(signature, release_statement(_sha256(card), manifest_root, head), trust)
    return signature


def _parts(document: Any) -> tuple[_NamedHead, SignatureFacts]:
    if not isinstance(document, dict) or sorted(document) != ["ledger", "signature"]:
        raise VerificationFailed(f"the attribute {SIGNATURE_ATTRIBUTE} does not have exactly the fields ledger, signature")
    head = document["ledger"]
    kinds = {"dataset": str, "sequence": int, "hash": str}
    if not isinstance(head, dict) or {name: type(value) for name, value in head.items()} != kinds:
        raise VerificationFailed(f"the ledger's head in {SIGNATURE_ATTRIBUTE} is not a dataset, a sequence and a hash")
    return _NamedHead(**head), SignatureFacts.from_dict(document["signature"])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()

"""Signed heads of the ledger, to be kept where they cannot be changed later.

`dpdask ledger head --sign` prints them.
"""

from __future__ import annotations

from dpdask.errors import VerificationFailed
from dpdask.signing.keys import PublicKey, SigningKey
from dpdask.signing.statements import (
    Head,
    SignatureFacts,
    check_statement,
    head_statement,
    sign_statement,
)
from dpdask.types import Json

__all__ = ["check_head", "sign_head"]


def sign_head(key: SigningKey, head: Head, *, at: str) -> Json:
    """Return a signed head for JSON; ``at`` says when it was signed (ISO 8601, UTC)."""
    statement = head_statement(head.dataset, head.sequence, head.hash, at)
    return {
        "dataset": head.dataset,
        "sequence": head.sequence,
        "hash": head.hash,
        "at": at,
        "signature": sign_statement(key, statement).to_dict(),
    }


def check_head(document: object, trust: PublicKey | None = None) -> SignatureFacts:
    """Check a signed head from JSON and return its signature.

    Args:
        document: the head as JSON.
        trust: the key that must have signed it; None for any.

    Raises:
        VerificationFailed: it is not a signed head, or ``trust`` did not sign it.
    """
    kinds = {"dataset": str, "sequence": int, "hash": str, "at": str, "signature": dict}
    if (
        not isinstance(document, dict)
        or {name: type(value) for name, value in document.items()} != kinds
    ):
        raise VerificationFailed(
            f"a signed head does not have exactly the fields {', '.join(kinds)}"
        )
    signature = SignatureFacts.from_dict(document["signature"])
    statement = head_statement(
        document["dataset"], document["sequence"], document["hash"], document["at"]
    )
    check_statement(signature, statement, trust)
    return signature

"""A signed head of the ledger, to be kept where it cannot be changed later: what `dpdask ledger
head --sign` prints.
"""

from __future__ import annotations

from typing import Any

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
    facts: Json = {
        "dataset": head.dataset,
        "sequence": head.sequence,
        "hash": head.hash,
        "at": at,
    }
    return {**facts, "signature": sign_statement(key, head_statement(**facts)).to_dict()}


def check_head(document: Any, trust: PublicKey | None = None) -> SignatureFacts:
    """Check a signed head from JSON and, if given, that ``trust`` signed it; raises
    :class:`VerificationFailed`.
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
    facts = {name: value for name, value in document.items() if name != "signature"}
    check_statement(signature, head_statement(**facts), trust)
    return signature

"""Statements and their signatures: canonical JSON that names the one purpose of a signature."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Protocol

from dpdask.errors import VerificationFailed
from dpdask.signing.keys import ALGORITHM, PublicKey, SigningKey, check, decode, fingerprint, sign
from dpdask.types import Json

__all__ = [
    "Head",
    "SignatureFacts",
    "check_statement",
    "head_statement",
    "release_statement",
    "sign_statement",
]

_DIGEST = re.compile(r"[0-9a-f]{64}")


class Head(Protocol):
    """The newest entry of a dataset's chain in the ledger."""

    @property
    def dataset(self) -> str:
        """Whose chain it is."""

    @property
    def sequence(self) -> int:
        """How many entries the chain has, counted from 1."""

    @property
    def hash(self) -> str:
        """The newest entry's hash."""


@dataclass(frozen=True, slots=True)
class SignatureFacts:
    """A signature as it is published.

    Args:
        algorithm: always ``ed25519``.
        public_key: the signer's public key, 32 bytes in base64.
        fingerprint: the short name of that key.
        signature: 64 bytes in base64.
    """

    algorithm: str
    public_key: str
    fingerprint: str
    signature: str

    def __post_init__(self) -> None:
        if self.algorithm != ALGORITHM:
            raise VerificationFailed(
                f"the signature's algorithm {self.algorithm!r} is not {ALGORITHM}; a newer"
                " dpdask may know it"
            )
        decode(self.signature, 64, "signature")
        if fingerprint(self.signer) != self.fingerprint:
            raise VerificationFailed(
                "the fingerprint of the signature is not that of its public key"
            )

    @property
    def signer(self) -> PublicKey:
        """The key that it names; the signature does not say whose key that is."""
        return PublicKey(decode(self.public_key, 32, "public key"))

    def to_dict(self) -> dict[str, str]:
        """Return the signature for JSON."""
        return {
            "algorithm": self.algorithm,
            "public_key": self.public_key,
            "fingerprint": self.fingerprint,
            "signature": self.signature,
        }

    @classmethod
    def from_dict(cls, document: object) -> SignatureFacts:
        """Return the signature from JSON; raise :class:`VerificationFailed` if it is not one."""
        names = ("algorithm", "public_key", "fingerprint", "signature")
        if not isinstance(document, dict) or sorted(document) != sorted(names):
            raise VerificationFailed(
                f"the signature does not have exactly the fields {', '.join(names)}"
            )
        if not all(isinstance(document[name], str) for name in names):
            raise VerificationFailed("a field of the signature is not text")
        return cls(**document)


def sign_statement(key: SigningKey, statement: bytes) -> SignatureFacts:
    """Sign a statement; the result names the key."""
    return SignatureFacts(
        ALGORITHM, key.public.base64, fingerprint(key.public), sign(key, statement)
    )


def check_statement(
    signature: SignatureFacts, statement: bytes, trust: PublicKey | None = None
) -> None:
    """Check that a statement is signed by the key that the signature names.

    Args:
        signature: the signature.
        statement: what is signed.
        trust: the key that must have signed it; None for any.

    Raises:
        VerificationFailed: it is not; the text names both keys if another one signed.
    """
    if trust is not None and signature.signer != trust:
        raise VerificationFailed(
            f"signed by {signature.fingerprint}, not by the trusted {fingerprint(trust)}; ask"
            " the curator which key is theirs"
        )
    check(signature.signer, statement, signature.signature)


def release_statement(card_digest: str, manifest_root: str, head: Head) -> bytes:
    """Return what a release's signature covers: its card, all stored bytes, the ledger's head.

    Args:
        card_digest: SHA-256 of the card's text without a signature, in hexadecimal.
        manifest_root: the digest over every stored chunk and document, in hexadecimal.
        head: the newest entry of the dataset's chain that the card names.
    """
    return _statement(
        "dpdask release",
        card=_digest(card_digest, "card digest"),
        manifest=_digest(manifest_root, "manifest root"),
        ledger=_head(head.dataset, head.sequence, head.hash),
    )


def head_statement(dataset: str, sequence: int, hash: str, at: str) -> bytes:  # noqa: A002  # the ledger's own name for it
    """Return what is signed to anchor a ledger's head elsewhere.

    Args:
        dataset: whose chain it is.
        sequence: the position of its newest entry.
        hash: the hash of that entry.
        at: when it was signed (ISO 8601, UTC).
    """
    return _statement("dpdask ledger head", ledger=_head(dataset, sequence, hash), at=at)


def _statement(purpose: str, **parts: str | Json) -> bytes:
    """Return canonical JSON: sorted keys, no spaces, ASCII only."""
    statement = {"what": purpose, "version": 1, **parts}
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode("ascii")


def _digest(text: str, label: str) -> str:
    if _DIGEST.fullmatch(text) is None:
        raise VerificationFailed(f"the {label} is not 64 hexadecimal digits")
    return text


def _head(dataset: str, sequence: int, hash: str) -> Json:  # noqa: A002
    if sequence < 1:
        raise VerificationFailed(
            f"sequence {sequence} of the ledger's head is not a valid position; entries count"
            " from 1"
        )
    return {
        "dataset": dataset,
        "sequence": sequence,
        "hash": _digest(hash, "hash of the ledger's head"),
    }

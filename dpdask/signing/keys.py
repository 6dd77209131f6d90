"""Ed25519 keys in memory: what may be printed, what may not, and the signature of a message."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import NoReturn

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpdask.errors import InvalidKey, VerificationFailed

__all__ = ["ALGORITHM", "PublicKey", "SigningKey", "check", "decode", "fingerprint", "sign"]

ALGORITHM = "ed25519"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A curator's public key: 32 bytes, to be handed out."""

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 32:
            raise InvalidKey(
                f"a public key of {len(self.raw)} bytes is not a valid Ed25519 key; it has 32"
            )

    @property
    def base64(self) -> str:
        """The key in one line of text."""
        return base64.b64encode(self.raw).decode()

    @property
    def pem(self) -> bytes:
        """The key as PEM SubjectPublicKeyInfo, which OpenSSL reads too."""
        return Ed25519PublicKey.from_public_bytes(self.raw).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def __repr__(self) -> str:
        return f"<PublicKey {fingerprint(self)}>"


class SigningKey:
    """A curator's private key.

    Its printed forms are redacted; it is not compared, copied or pickled.
    """

    __slots__ = ("_private", "public")

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = PublicKey(private.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of a signature; the same for the same message."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return "<SigningKey redacted>"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> NoReturn:
        raise TypeError("signing keys are not compared; compare their public keys")

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a signing key is not pickled or copied; it stays in the driver's process")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a signing key is not pickled or copied; it stays in the driver's process")


def fingerprint(public: PublicKey) -> str:
    """Return a short name of a public key that people can compare: 128 bits of its SHA-256.

    Finding another key with the same 128 bits takes about 2^128 tries. Whoever creates both keys
    needs only 2^64, so nothing is ever trusted by its fingerprint: checks compare whole keys, and
    error texts name them by fingerprint.
    """
    return f"{ALGORITHM}:{hashlib.sha256(public.raw).hexdigest()[:32]}"


def sign(key: SigningKey, message: bytes) -> str:
    """Return the signature of a message in base64."""
    return base64.b64encode(key.sign(message)).decode()


def check(public: PublicKey, message: bytes, signature: str) -> None:
    """Check that ``signature`` is that key's signature of ``message``.

    Args:
        public: the key.
        message: what was signed.
        signature: 64 bytes in base64.

    Raises:
        VerificationFailed: it is not.
    """
    try:
        Ed25519PublicKey.from_public_bytes(public.raw).verify(
            decode(signature, 64, "signature"), message
        )
    except (InvalidSignature, ValueError):
        raise VerificationFailed(
            "the signature does not fit what is signed, or is not a signature by"
            f" {fingerprint(public)}"
        ) from None


def decode(text: str, size: int, label: str) -> bytes:
    """Return bytes of a fixed size from base64 in its one canonical spelling.

    Args:
        text: base64.
        size: how many bytes it must hold.
        label: what it is, for the error text.
    """
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        content = b""
    if len(content) != size or base64.b64encode(content).decode() != text:
        raise VerificationFailed(f"the {label} is not {size} bytes in base64")
    return content

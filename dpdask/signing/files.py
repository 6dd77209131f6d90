"""Key files: the private key of its owner alone, its public key beside it, and where they are
looked for.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpdask.errors import InvalidKey
from dpdask.keystream import random_bytes
from dpdask.signing.keys import PublicKey, SigningKey

__all__ = [
    "KEY_VARIABLE",
    "PASSPHRASE_VARIABLE",
    "configured_key_path",
    "create_key",
    "load_signing_key",
    "public_key_of",
    "public_key_path",
    "read_public_key",
    "read_signing_key",
]

KEY_VARIABLE = "DPDASK_SIGNING_KEY"
PASSPHRASE_VARIABLE = "DPDASK_SIGNING_KEY_PASSPHRASE"

_ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----"
_LARGEST_KEY_FILE = 16_384
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_EXISTS = (
    "{path!r} exists, and a key is never replaced: releases it signed need its public key;"
    " choose another --path"
)


def configured_key_path(path: str | Path | None = None) -> Path:
    """Return ``path`` if given, else the path in DPDASK_SIGNING_KEY, else the default place in the
    user's configuration.
    """
    chosen = path or os.environ.get(KEY_VARIABLE)
    return Path(chosen).expanduser() if chosen else _default_key_path()


def _default_key_path() -> Path:
    configuration = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(configuration).expanduser() / "dpdask" / "signing.key"


def public_key_path(path: Path) -> Path:
    """Return where the public key of a signing key lies: beside it, with ``.pub`` appended to its
    name.
    """
    return path.with_name(path.name + ".pub")


def create_key(path: str | Path | None = None) -> PublicKey:
    """Create a signing key and its public key beside it; never over an existing file.

    The private key is PEM PKCS8, readable by its owner alone, encrypted when
    DPDASK_SIGNING_KEY_PASSPHRASE is set. The public key (``.pub``) is PEM SubjectPublicKeyInfo.
    Each file appears whole or not at all.

    Raises:
        InvalidKey: one of the two files exists, or the folder cannot be written.
    """
    place = configured_key_path(path)
    private = Ed25519PrivateKey.from_private_bytes(random_bytes(32))
    key = SigningKey(private)
    passphrase = _passphrase()
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase)
    content = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    beside = public_key_path(place)
    for existing in (place, beside):
        if os.path.lexists(existing):
            raise InvalidKey(_EXISTS.format(path=str(existing)))
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(place, content, mode=0o600)
        try:
            _create(beside, key.public.pem, mode=0o644)
        except BaseException:
            # a key whose public half could not be written was never shown to anybody
            place.unlink()
            raise
    except FileExistsError as error:
        raise InvalidKey(_EXISTS.format(path=str(error.filename2 or error.filename))) from None
    except OSError as error:
        raise InvalidKey(
            f"cannot write the signing key {str(place)!r}: {error.strerror}; choose another --path"
        ) from None
    return key.public


def _create(path: Path, content: bytes, *, mode: int) -> None:
    """Put a new file whole: written under a temporary name, then linked, which fails where
    something exists.
    """
    temporary = path.with_name(f".{path.name}.{random_bytes(8).hex()}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def load_signing_key() -> SigningKey | None:
    """Return the configured signing key: of DPDASK_SIGNING_KEY (a path), else of the default place;
    None when there is none.

    Raises:
        InvalidKey: a key is configured and cannot be used. Nothing is left unsigned by accident.
    """
    place = configured_key_path()
    if not os.environ.get(KEY_VARIABLE) and not os.path.lexists(place):
        return None
    return read_signing_key(place)


def read_signing_key(path: str | Path) -> SigningKey:
    """Read a private key file; one that others may read is refused."""
    place = Path(path).expanduser()
    content = _read(place, "the signing key", private=True)
    passphrase = _passphrase()
    encrypted = _ENCRYPTED in content
    if encrypted and passphrase is None:
        raise InvalidKey(f"the signing key {str(place)!r} is encrypted; set {PASSPHRASE_VARIABLE}")
    if not encrypted and passphrase is not None:
        raise InvalidKey(
            f"the signing key {str(place)!r} is not encrypted, but {PASSPHRASE_VARIABLE} is set;"
            " unset it, or encrypt the key"
        )
    private: Any = None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        private = serialization.load_pem_private_key(content, passphrase)
    if private is None and encrypted:
        raise InvalidKey(
            f"the signing key {str(place)!r} cannot be decrypted; set {PASSPHRASE_VARIABLE} to"
            " its passphrase"
        )
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidKey(
            f"{str(place)!r} is not a valid signing key, which is an Ed25519 private key in PEM;"
            " make one: `dpdask key create`"
        )
    return SigningKey(private)


def read_public_key(path: str | Path) -> PublicKey:
    """Read a public key file (PEM), such as the ``.pub`` that a curator handed out."""
    place = Path(path).expanduser()
    content = _read(place, "the public key", private=False)
    if b"PRIVATE KEY-----" in content:
        raise InvalidKey(
            f"{str(place)!r} is a private key, which stays with its owner; give its public key,"
            f" {str(place)!r}.pub"
        )
    public: Any = None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        public = serialization.load_pem_public_key(content)
    if not isinstance(public, Ed25519PublicKey):
        raise InvalidKey(
            f"{str(place)!r} is not a valid Ed25519 public key in PEM; ask the curator for the"
            " .pub file"
        )
    return PublicKey(public.public_bytes_raw())


def public_key_of(path: str | Path) -> PublicKey:
    """Return the public key of a private key file, or of a ``.pub`` file, without a passphrase.

    An encrypted private key is known by the ``.pub`` beside it; one that can be read must fit it.
    """
    place = Path(path).expanduser()
    if place.suffix == ".pub":
        return read_public_key(place)
    beside = public_key_path(place)
    if not os.path.lexists(place) and not os.path.lexists(beside):
        raise InvalidKey(
            f"there is no signing key at {str(place)!r}; make one: `dpdask key create`, or say"
            " --path"
        )
    published = read_public_key(beside) if os.path.lexists(beside) else None
    if published is not None and (not os.path.lexists(place) or _is_encrypted(place)):
        return published
    public = read_signing_key(place).public
    if published not in (None, public):
        raise InvalidKey(
            f"{str(beside)!r} is not the public key of {str(place)!r}; restore the pair from a copy"
        )
    return public


def _is_encrypted(place: Path) -> bool:
    return _ENCRYPTED in _read(place, "the signing key", private=True)


def _read(place: Path, what: str, *, private: bool) -> bytes:
    """A key file's content; its permissions are those of the very file that is read."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not hold us
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidKey(
                    f"{what} {str(place)!r} is not a regular file; give the path of a key file"
                )
            if private and status.st_mode & _OTHERS:
                raise InvalidKey(
                    f"{what} {str(place)!r} has mode {stat.S_IMODE(status.st_mode):04o}, so"
                    " others can use it;"
                    f" `chmod 600` it, or make a new key if it has been seen"
                )
            return file.read(_LARGEST_KEY_FILE)
    except OSError as error:
        raise InvalidKey(
            f"{what} {str(place)!r} cannot be read: {error.strerror}; check the path"
        ) from None


def _passphrase() -> bytes | None:
    found = os.environ.get(PASSPHRASE_VARIABLE)
    return found.encode() if found else None

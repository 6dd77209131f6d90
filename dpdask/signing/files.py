"""Key files: a private key that only its owner can read, and its public key beside it."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

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
    """Return ``path``, else the path in DPDASK_SIGNING_KEY, else the default path.

    The default is in the user's configuration folder.
    """
    chosen = path or os.environ.get(KEY_VARIABLE)
    return Path(chosen).expanduser() if chosen else _default_key_path()


def _default_key_path() -> Path:
    configuration = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(configuration).expanduser() / "dpdask" / "signing.key"


def public_key_path(path: Path) -> Path:
    """Return the path of a signing key's public key: the same with ``.pub`` appended."""
    return path.with_name(path.name + ".pub")


def create_key(path: str | Path | None = None) -> PublicKey:
    """Create a signing key and its public key beside it; never over an existing file.

    The private key is PEM PKCS8, readable by its owner alone, encrypted when
    DPDASK_SIGNING_KEY_PASSPHRASE is set. The public key (``.pub``) is PEM SubjectPublicKeyInfo.
    Each file appears whole or not at all.

    Raises:
        InvalidKey: one of the two files exists, or the folder cannot be written.
    """
    path = configured_key_path(path)
    private = Ed25519PrivateKey.from_private_bytes(random_bytes(32))
    key = SigningKey(private)
    passphrase = _passphrase()
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase)
    content = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
    beside = public_key_path(path)
    for existing in (path, beside):
        if os.path.lexists(existing):
            raise InvalidKey(_EXISTS.format(path=str(existing)))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _create(path, content, mode=0o600)
        try:
            _create(beside, key.public.pem, mode=0o644)
        except BaseException:
            # nobody has seen a key whose public half could not be written
            path.unlink()
            raise
    except FileExistsError as error:
        raise InvalidKey(_EXISTS.format(path=str(error.filename2 or error.filename))) from None
    except OSError as error:
        raise InvalidKey(
            f"cannot write the signing key {str(path)!r}: {error.strerror}; choose another --path"
        ) from None
    return key.public


def _create(path: Path, content: bytes, *, mode: int) -> None:
    """Create a file, whole or not at all: written under a temporary name, then linked.

    Linking fails if the file exists.
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
    """Return the configured signing key, None if there is none.

    DPDASK_SIGNING_KEY names its path; otherwise it is read from the default path.

    Raises:
        InvalidKey: a key is configured and cannot be used. Nothing is left unsigned by accident.
    """
    path = configured_key_path()
    if not os.environ.get(KEY_VARIABLE) and not os.path.lexists(path):
        return None
    return read_signing_key(path)


def read_signing_key(path: str | Path) -> SigningKey:
    """Read a private key file; one that others may read is refused."""
    path = Path(path).expanduser()
    content = _read(path, "the signing key", private=True)
    passphrase = _passphrase()
    encrypted = _ENCRYPTED in content
    if encrypted and passphrase is None:
        raise InvalidKey(f"the signing key {str(path)!r} is encrypted; set {PASSPHRASE_VARIABLE}")
    if not encrypted and passphrase is not None:
        raise InvalidKey(
            f"the signing key {str(path)!r} is not encrypted, but {PASSPHRASE_VARIABLE} is set;"
            " unset it, or encrypt the key"
        )
    private: object = None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        private = serialization.load_pem_private_key(content, passphrase)
    if private is None and encrypted:
        raise InvalidKey(
            f"the signing key {str(path)!r} cannot be decrypted; set {PASSPHRASE_VARIABLE} to"
            " its passphrase"
        )
    if not isinstance(private, Ed25519PrivateKey):
        raise InvalidKey(
            f"{str(path)!r} is not a valid signing key, which is an Ed25519 private key in PEM;"
            " create one: `dpdask key create`"
        )
    return SigningKey(private)


def read_public_key(path: str | Path) -> PublicKey:
    """Read a public key file (PEM), such as the ``.pub`` that a curator handed out."""
    path = Path(path).expanduser()
    content = _read(path, "the public key", private=False)
    if b"PRIVATE KEY-----" in content:
        raise InvalidKey(
            f"{str(path)!r} is a private key, which stays with its owner; give its public key,"
            f" {str(path)!r}.pub"
        )
    public: object = None
    with contextlib.suppress(ValueError, TypeError, UnsupportedAlgorithm):
        public = serialization.load_pem_public_key(content)
    if not isinstance(public, Ed25519PublicKey):
        raise InvalidKey(
            f"{str(path)!r} is not a valid Ed25519 public key in PEM; ask the curator for the"
            " .pub file"
        )
    return PublicKey(public.public_bytes_raw())


def public_key_of(path: str | Path) -> PublicKey:
    """Return the public key of a private key file, or of a ``.pub`` file, without a passphrase.

    For an encrypted private key it is read from the ``.pub`` beside it; a private key that can be
    read must belong to that one.
    """
    path = Path(path).expanduser()
    if path.suffix == ".pub":
        return read_public_key(path)
    beside = public_key_path(path)
    if not os.path.lexists(path) and not os.path.lexists(beside):
        raise InvalidKey(
            f"there is no signing key at {str(path)!r}; create one: `dpdask key create`, or give"
            " --path"
        )
    published = read_public_key(beside) if os.path.lexists(beside) else None
    if published is not None and (not os.path.lexists(path) or _is_encrypted(path)):
        return published
    public = read_signing_key(path).public
    if published not in (None, public):
        raise InvalidKey(
            f"{str(beside)!r} is not the public key of {str(path)!r}; restore the pair from a copy"
        )
    return public


def _is_encrypted(path: Path) -> bool:
    return _ENCRYPTED in _read(path, "the signing key", private=True)


def _read(path: Path, label: str, *, private: bool) -> bytes:
    """Return a key file's content, after checking the permissions of the opened file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidKey(
                    f"{label} {str(path)!r} is not a regular file; give the path of a key file"
                )
            if private and status.st_mode & _OTHERS:
                raise InvalidKey(
                    f"{label} {str(path)!r} has mode {stat.S_IMODE(status.st_mode):04o}, so"
                    " others can use it; `chmod 600` it, or create a new key if it has been seen"
                )
            return file.read(_LARGEST_KEY_FILE)
    except OSError as error:
        raise InvalidKey(
            f"{label} {str(path)!r} cannot be read: {error.strerror}; check the path"
        ) from None


def _passphrase() -> bytes | None:
    passphrase = os.environ.get(PASSPHRASE_VARIABLE)
    return passphrase.encode() if passphrase else None

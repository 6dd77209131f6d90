"""The master key that wraps release keys, and where it is kept: never with the ledger.

Whoever reads a release key before its release is published and its key destroyed can take the noise
away again. A backup of the database is read by others than the release was made for, so release
keys lie in it under AES-256-GCM, and the master key comes from the environment, from a file, or
from the user's configuration folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dpdask.errors import InvalidSpec, LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.keystream import random_bytes

__all__ = ["KeyWrapper", "default_key_file", "find_master_key", "make_master_key"]

VARIABLE = "DPDASK_MASTER_KEY"
FILE_VARIABLE = "DPDASK_MASTER_KEY_FILE"

_MAKE = "make one with `openssl rand -hex 32`"


class KeyWrapper:
    """Wrap release keys under one master key of 32 bytes, each bound to dataset and release."""

    __slots__ = ("_cipher", "check")

    def __init__(self, master_key: bytes) -> None:
        if len(master_key) != 32:
            raise LedgerError(f"the master key has {len(master_key)} bytes; give exactly 32")
        self._cipher = AESGCM(_subkey(master_key, b"dpdask-wrap-v2"))
        self.check = _subkey(
            master_key, b"dpdask-check-v2"
        ).hex()  # tells one master key from another, and nothing else

    def __repr__(self) -> str:
        return "<KeyWrapper redacted>"

    def fits(self, check: str) -> bool:
        """Whether this is the master key that ``check`` was made from."""
        return hmac.compare_digest(self.check, check)

    def wrap(self, dataset: str, release: str, secret: bytes) -> bytes:
        """A release key as it may lie in the database."""
        nonce = random_bytes(12)
        return nonce + self._cipher.encrypt(nonce, secret, _bound_to(dataset, release))

    def unwrap(self, dataset: str, release: str, content: bytes) -> bytes:
        """The release key that :meth:`wrap` was given."""
        try:
            return self._cipher.decrypt(content[:12], content[12:], _bound_to(dataset, release))
        except InvalidTag:
            raise LedgerCorrupt(
                "the stored key of the release was changed in the database; `dpdask abort` the"
                " release and start a new one"
            ) from None


def _subkey(master_key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(key=master_key, person=purpose, digest_size=32).digest()


def _bound_to(dataset: str, release: str) -> bytes:
    return release.encode() + b"/" + dataset.encode()


def default_key_file() -> Path:
    """Where the master key lies when nothing else is said: the user's configuration folder."""
    folder = os.environ.get("XDG_CONFIG_HOME") or ""
    base = Path(folder) if os.path.isabs(folder) else Path.home() / ".config"
    return base / "dpdask" / "master.key"


def find_master_key(database: Path | None) -> bytes | None:
    """The master key from DPDASK_MASTER_KEY, DPDASK_MASTER_KEY_FILE or the configuration folder;
    None where there is none.

    A key file in the folder of the SQLite file ``database`` is refused.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return _parsed(given, VARIABLE)
    named = os.environ.get(FILE_VARIABLE)
    path = Path(named) if named else default_key_file()
    if not named and not path.exists():
        return None
    _check_apart(path, database)
    if not named and path.stat().st_mode & 0o077:
        raise MasterKeyError(
            f"the master key {str(path)!r} can be read by others; `chmod 600` it, or make another"
        )
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        raise MasterKeyError(
            f"the master key file {str(path)!r} cannot be read; check the path and who may read it"
        ) from None
    return _parsed(text, f"the file {str(path)!r}")


def make_master_key(database: Path | None) -> bytes:
    """The master key of a new ledger: the one that is there, else a new one in the configuration
    folder.
    """
    found = find_master_key(database)
    if found is not None:
        return found
    path = default_key_file()
    _check_apart(path, database)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{random_bytes(8).hex()}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(random_bytes(32).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first: its key is the one
            os.link(temporary, path)
        temporary.unlink()
    except OSError:
        raise MasterKeyError(
            f"no master key could be written to {str(path)!r}; set {VARIABLE} or"
            f" {FILE_VARIABLE}: {_MAKE}"
        ) from None
    made = find_master_key(database)
    assert made is not None
    return made


def _check_apart(path: Path, database: Path | None) -> None:
    if database is not None and path.resolve().parent == database.resolve().parent:
        raise MasterKeyError(
            f"the master key {str(path)!r} lies in the ledger's own folder, and a copy of that"
            " folder would hold the noise keys"
            " and what opens them; move it elsewhere"
        )


def _parsed(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidSpec(f"{where} is not 64 hexadecimal digits; {_MAKE}")
    return key

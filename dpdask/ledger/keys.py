"""The master key that wraps release keys, and where it is kept: never with the ledger.

Whoever reads a release key before the release is published and its key destroyed can remove the
noise. A backup of the database has other readers than the curator, so release keys are stored under
AES-256-GCM, and the master key comes from the environment, from a file, or from the user's
configuration folder.
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
        # tells one master key from another, and nothing else
        self.check = _subkey(master_key, b"dpdask-check-v2").hex()

    def __repr__(self) -> str:
        return "<KeyWrapper redacted>"

    def fits(self, check: str) -> bool:
        """Return whether this is the master key that ``check`` was computed from."""
        return hmac.compare_digest(self.check, check)

    def wrap(self, dataset: str, fingerprint: str, secret: bytes) -> bytes:
        """Return a release key as it may be stored in the database.

        Args:
            dataset: the dataset that the release is charged to.
            fingerprint: the release's fingerprint.
            secret: the release key.
        """
        nonce = random_bytes(12)
        return nonce + self._cipher.encrypt(nonce, secret, _bound_to(dataset, fingerprint))

    def unwrap(self, dataset: str, fingerprint: str, content: bytes) -> bytes:
        """Return the release key that :meth:`wrap` wrapped for the same dataset and release.

        Args:
            dataset: the dataset that the release is charged to.
            fingerprint: the release's fingerprint.
            content: what is stored.

        Raises:
            LedgerCorrupt: it was changed, or wrapped for another dataset or release.
        """
        try:
            return self._cipher.decrypt(content[:12], content[12:], _bound_to(dataset, fingerprint))
        except InvalidTag:
            raise LedgerCorrupt(
                "the stored key of the release was changed in the database; `dpdask abort` the"
                " release and start a new one"
            ) from None


def _subkey(master_key: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(key=master_key, person=purpose, digest_size=32).digest()


def _bound_to(dataset: str, fingerprint: str) -> bytes:
    return fingerprint.encode() + b"/" + dataset.encode()


def default_key_file() -> Path:
    """Return the default path of the master key, in the user's configuration folder."""
    folder = os.environ.get("XDG_CONFIG_HOME") or ""
    base = Path(folder) if os.path.isabs(folder) else Path.home() / ".config"
    return base / "dpdask" / "master.key"


def find_master_key(database: Path | None) -> bytes | None:
    """Return the configured master key, None if there is none.

    It is in DPDASK_MASTER_KEY, in the file that DPDASK_MASTER_KEY_FILE names, or in the
    configuration folder.

    Raises:
        MasterKeyError: the key file is in the folder of the SQLite file ``database``, others can
            read it, or it cannot be read.
    """
    digits = os.environ.get(VARIABLE)
    if digits:
        return _parsed(digits, VARIABLE)
    file_name = os.environ.get(FILE_VARIABLE)
    path = Path(file_name) if file_name else default_key_file()
    if not file_name and not path.exists():
        return None
    _check_apart(path, database)
    if not file_name and path.stat().st_mode & 0o077:
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
    """Return the master key of a new ledger: the configured one, else a new one.

    A new one is written to the configuration folder.
    """
    existing = find_master_key(database)
    if existing is not None:
        return existing
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
        with contextlib.suppress(FileExistsError):  # another process was first: its key is used
            os.link(temporary, path)
        temporary.unlink()
    except OSError:
        raise MasterKeyError(
            f"no master key could be written to {str(path)!r}; set {VARIABLE} or"
            f" {FILE_VARIABLE}: {_MAKE}"
        ) from None
    master_key = find_master_key(database)
    assert master_key is not None
    return master_key


def _check_apart(path: Path, database: Path | None) -> None:
    if database is not None and path.resolve().parent == database.resolve().parent:
        raise MasterKeyError(
            f"the master key {str(path)!r} is in the ledger's own folder, and a copy of that"
            " folder would hold the noise keys and what opens them; move it elsewhere"
        )


def _parsed(text: str, where: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidSpec(f"{where} is not 64 hexadecimal digits; {_MAKE}")
    return key

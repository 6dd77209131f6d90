"""Release keys in the database: wrapped by the master key, or bare if the ledger says so."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from dpdask.errors import BareKeysWarning, LedgerCorrupt, MasterKeyError
from dpdask.keystream import ReleaseKey
from dpdask.ledger.keys import KeyWrapper
from dpdask.ledger.schema import release_keys

__all__ = ["KeyStore"]

_BARE = (
    "this ledger stores release keys bare (ledger init --bare-keys): whoever reads the database"
    " while a release is under way can take its noise away"
)


@dataclass(frozen=True, slots=True)
class KeyStore:
    """How a ledger stores release keys.

    Args:
        wrapper: wraps keys by the master key; None if there is no master key or keys are bare.
        check: tells the ledger's own master key from others; None for a ledger with bare keys.
    """

    wrapper: KeyWrapper | None
    check: str | None

    @property
    def bare(self) -> bool:
        """Whether release keys are stored as they are."""
        return self.check is None

    def check_master_key(self) -> None:
        """Raise :class:`MasterKeyError` if a new key could not be wrapped: before any charge."""
        if self.check is None:
            warnings.warn(_BARE, BareKeysWarning, stacklevel=3)
        elif self.wrapper is None:
            raise MasterKeyError(
                "this ledger wraps its release keys, and no master key is configured; set"
                " DPDASK_MASTER_KEY or DPDASK_MASTER_KEY_FILE, or restore master.key in the"
                " configuration folder"
            )
        elif not self.wrapper.fits(self.check):
            raise MasterKeyError(
                "the master key is not the one this ledger was created with, and nothing was"
                " charged; set DPDASK_MASTER_KEY or DPDASK_MASTER_KEY_FILE to that one"
            )

    def read(self, connection: Connection, dataset: str, fingerprint: str) -> ReleaseKey | None:
        """Return the stored key of a release, None if there is none.

        Args:
            connection: the caller's transaction.
            dataset: the dataset that the release is charged to.
            fingerprint: the release's fingerprint.

        Raises:
            LedgerCorrupt: the stored key was changed in the database.
        """
        query = select(release_keys).where(release_keys.c.fingerprint == fingerprint)
        stored = connection.execute(query).one_or_none()
        if stored is None:
            return None
        if bool(stored.wrapped) is self.bare:
            raise LedgerCorrupt(
                "the stored key of the release was changed in the database; `dpdask abort` the"
                " release"
            )
        content = bytes(stored.content)
        if self.wrapper is not None:
            content = self.wrapper.unwrap(dataset, fingerprint, content)
        return ReleaseKey(content)

    def write(self, connection: Connection, dataset: str, fingerprint: str, secret: bytes) -> None:
        """Store the key of a release.

        Args:
            connection: the caller's transaction.
            dataset: the dataset that the release is charged to.
            fingerprint: the release's fingerprint.
            secret: the key's bytes.
        """
        content = secret
        if self.wrapper is not None:
            content = self.wrapper.wrap(dataset, fingerprint, secret)
        wrapped = int(self.wrapper is not None)
        values = {"fingerprint": fingerprint, "wrapped": wrapped, "content": content}
        connection.execute(insert(release_keys).values(**values))

    @staticmethod
    def destroy(connection: Connection, fingerprint: str) -> None:
        """Delete the key of a release. Idempotent."""
        connection.execute(delete(release_keys).where(release_keys.c.fingerprint == fingerprint))

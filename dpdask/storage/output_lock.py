"""The lock beside an output: a small file that names the one release under way to it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from dpdask.errors import OutputLockDamaged, StoreError
from dpdask.storage.base import Storage

__all__ = ["LOCK_FILE", "STAGING_SUFFIX", "OutputLock", "read_output_lock", "remove_output_lock"]

STAGING_SUFFIX = ".dpdask-staging"
LOCK_FILE = "release.json"
_RELEASE_ID = re.compile(r"[0-9a-f]{32}")


def read_output_lock(output: Storage) -> str | None:
    """Return the id of the release under way to an output, None if the output is not locked.

    Raises:
        OutputLockDamaged: the lock does not name a release.
    """
    return _locked_for(output.beside(STAGING_SUFFIX))


def remove_output_lock(output: Storage) -> None:
    """Remove a damaged lock. Idempotent."""
    output.beside(STAGING_SUFFIX).remove(LOCK_FILE)


def _locked_for(folder: Storage) -> str | None:
    content = folder.read(LOCK_FILE)
    if content is None:
        return None
    try:
        release_id = str(json.loads(content)["release_id"])
    except (ValueError, KeyError, TypeError):
        release_id = ""
    if not _RELEASE_ID.fullmatch(release_id):  # a planted one could lead to any folder
        raise OutputLockDamaged(
            "the lock beside the output is damaged; `dpdask abort` removes it, and `dpdask run`"
            " resumes what was charged"
        )
    return release_id


@dataclass(frozen=True, repr=False)
class OutputLock:
    """The lock of one release on its output, in the staging folder beside the output."""

    folder: Storage
    release_id: str

    def __repr__(self) -> str:
        return "<OutputLock>"

    def acquire(self) -> bool:
        """Lock the output, and return whether this call did: False if this release has the lock.

        Guarantee: at most one release holds the lock of an output.

        Raises:
            StoreError: another release holds the lock.
        """
        if self.folder.create(LOCK_FILE, self._content()):
            return True
        if not self.held():
            raise StoreError(
                "another release to this output is under way; let it finish. If no run is at it,"
                " `dpdask resume` or `dpdask abort` it first"
            )
        return False

    def held(self) -> bool:
        """Return whether the output is locked for this release."""
        return _locked_for(self.folder) == self.release_id

    def held_or_free(self) -> bool:
        """Return whether no other release holds the lock; a damaged lock may be another's."""
        try:
            return _locked_for(self.folder) in (self.release_id, None)
        except OutputLockDamaged:
            return False

    def release(self) -> None:
        """Remove the lock if this release holds it, and the staging folder if it is empty then."""
        self.folder.remove_if(LOCK_FILE, self._content())
        self.folder.remove_empty()

    def _content(self) -> bytes:
        return json.dumps({"release_id": self.release_id}).encode()

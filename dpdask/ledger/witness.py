"""What this user saw last of each dataset, outside the database: a restored backup is behind it.

One small file for each dataset, in the configuration folder beside the master key, holds the newest
head and the sums. It is named by the hash of the dataset's opening entry, which is random. Where
the folder cannot be written, nothing is remembered and nothing is refused.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpdask.errors import LedgerCorrupt
from dpdask.keystream import random_bytes
from dpdask.ledger.charges import Spent
from dpdask.ledger.keys import default_key_file
from dpdask.ledger.models import LedgerHead
from dpdask.ledger.steps import known_dataset

if TYPE_CHECKING:
    from dpdask.ledger.ledger import Ledger

__all__ = ["Sight", "check_not_restored", "forgotten", "last_sight", "remember", "sight_of"]


@dataclass(frozen=True, slots=True)
class Sight:
    """A dataset as it was seen: its newest entry, the hash of its first one, and its sums."""

    opening: str
    head: LedgerHead
    spent: Spent


def _path(opening: str) -> Path:
    return default_key_file().parent / "heads" / f"{opening}.json"


def last_sight(opening: str) -> Sight | None:
    """Return what was seen last of the dataset with this opening entry, None if nothing was."""
    try:
        seen = json.loads(_path(opening).read_text())
        head = LedgerHead(seen["dataset"], seen["sequence"], seen["hash"])
        return Sight(opening, head, Spent.read(*seen["spent"]))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # the last: no home
        return None


def remember(sight: Sight) -> None:
    """Note what was seen, in place of what was seen before."""
    document = {**sight.head.to_dict(), "spent": list(sight.spent.digits())}
    with contextlib.suppress(OSError, RuntimeError):
        path = _path(sight.opening)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{random_bytes(8).hex()}")
        temporary.write_text(json.dumps(document))
        os.replace(temporary, path)


def sight_of(ledger: Ledger, dataset: str) -> Sight:
    """Return a dataset as it is now."""
    with ledger.reading() as connection:
        standing = known_dataset(connection, dataset)
    return Sight(standing.opening, standing.head, standing.spent)


def forgotten(ledger: Ledger, dataset: str) -> Sight | None:
    """Return what was seen last of a dataset if its chain does not hold it any more."""
    seen = last_sight(sight_of(ledger, dataset).opening)
    return None if seen is None or ledger.contains(dataset, seen.head) else seen


def check_not_restored(ledger: Ledger, dataset: str) -> None:
    """Refuse a ledger that has forgotten what was seen of a dataset: nothing is charged to it.

    Raises:
        LedgerCorrupt: it was restored from a backup, or rewritten.
    """
    seen = forgotten(ledger, dataset)
    if seen is not None:
        raise LedgerCorrupt(
            f"the ledger does not hold entry {seen.head.sequence} of dataset {dataset!r}, which was"
            " seen here: it was restored from a backup, or rewritten. Nothing is charged before"
            " `dpdask ledger reconcile` has restored the charges of what is published"
        )

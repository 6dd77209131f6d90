"""Write the ledger of tests/golden/ledger-0.2.0.db: `python -m tests.support.golden_ledger PATH`.

Two datasets; one release is committed, one burned, one open. It is written once for a version of
the ledger's format and then kept: a later version must read, verify and continue it.
"""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from pathlib import Path

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.ledger import Ledger, PrivacyUnit

__all__ = ["MASTER_KEY", "PROFILE", "UNIT", "fingerprint", "payload", "release_id", "write_ledger"]

MASTER_KEY = bytes(range(32))
PROFILE = GaussianProfile(0.125)
UNIT = PrivacyUnit(array=hashlib.sha256(b"golden array").hexdigest(), record_axis=0)
_OTHER_UNIT = PrivacyUnit(array=hashlib.sha256(b"another golden array").hexdigest())
_WINDOW = {"axis": 0, "start": 0, "stop": 10, "series": "daily"}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(name: str) -> str:
    """Return the fingerprint of a golden release."""
    return _digest(f"golden 0.2.0 {name}")


def release_id(name: str) -> str:
    """Return the public name of a golden release."""
    return _digest(f"golden 0.2.0 id of {name}")[:32]


def payload(name: str) -> dict[str, object]:
    """Return what a golden reservation records beside its profile and its privacy unit."""
    return {
        "release_id": release_id(name),
        "source_identity": _digest(f"source of {name}"),
        "spec_digest": _digest(f"spec of {name}"),
        "output_url": f"{name}.zarr",
        "output_address": f"/data/{name}.zarr",
        "curator": "golden",
    }


def write_ledger(path: Path) -> bytes:
    """Write the golden ledger to a new file and return the key of its open release."""
    ledger = Ledger(f"sqlite:///{path}", master_key=MASTER_KEY)
    ledger.open_dataset("people", PrivacyBudget(epsilon=2.0, delta=1e-6))
    ledger.open_dataset("others", PrivacyBudget(epsilon=1.0, delta=1e-7))

    committed = fingerprint("committed")
    windowed = {**payload("committed"), "window": _WINDOW}
    ledger.reserve("people", committed, PROFILE, UNIT, windowed)
    ledger.release_key(committed)
    ledger.put_once(committed, "directions", "[[1.0, 0.0], [0.0, 1.0]]")
    ledger.publish(committed, '{"card": "committed"}')
    ledger.commit(committed)

    burned = fingerprint("burned")
    ledger.reserve("others", burned, PROFILE, _OTHER_UNIT, payload("burned"))
    ledger.release_key(burned)
    ledger.burn(burned, "aborted by the curator")

    unfinished = fingerprint("open")
    ledger.reserve("people", unfinished, PROFILE, UNIT, payload("open"))
    key = ledger.release_key(unfinished).reveal()
    ledger.close()
    with sqlite3.connect(path) as raw:  # one file, without a write-ahead log beside it
        raw.execute("PRAGMA journal_mode=DELETE")
    raw.close()
    return key


if __name__ == "__main__":
    key = write_ledger(Path(sys.argv[1]))
    print(f"SHA-256 of the open release's key: {hashlib.sha256(key).hexdigest()}")

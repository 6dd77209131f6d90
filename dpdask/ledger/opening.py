"""Where the ledger is and what wraps its keys, from the environment."""

from __future__ import annotations

import os

from dpdask.errors import InvalidSpec
from dpdask.ledger.book import Ledger

__all__ = ["open_ledger"]


def open_ledger(url: str | None = None) -> Ledger:
    """The ledger at ``url``, or of DPDASK_LEDGER; keys are wrapped by DPDASK_MASTER_KEY (64 hexadecimal digits) when set."""
    found = url or os.environ.get("DPDASK_LEDGER") or "sqlite:///dpdask-ledger.db"
    return Ledger(found, master_key=master_key(), create=False)


def master_key() -> bytes | None:
    """The key that wraps release keys, from DPDASK_MASTER_KEY."""
    given = os.environ.get("DPDASK_MASTER_KEY")
    if not given:
        return None
    try:
        key = bytes.fromhex(given)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidSpec("DPDASK_MASTER_KEY is not 64 hexadecimal digits; make one with `openssl rand -hex 32`")
    return key

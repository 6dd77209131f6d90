"""Where the ledger is, from the environment."""

from __future__ import annotations

import os

from dpdask.ledger.ledger import Ledger

__all__ = ["open_ledger"]


def open_ledger(url: str | None = None) -> Ledger:
    """The ledger at ``url``, or of DPDASK_LEDGER, which must be there."""
    return Ledger(
        url or os.environ.get("DPDASK_LEDGER") or "sqlite:///dpdask-ledger.db", create=False
    )

"""Open the ledger that the environment or a spec names."""

from __future__ import annotations

import os

from dpdask.ledger.ledger import Ledger

__all__ = ["open_ledger"]


def open_ledger(url: str | None = None) -> Ledger:
    """Open the ledger at ``url``, else of DPDASK_LEDGER, which must exist."""
    return Ledger(
        url or os.environ.get("DPDASK_LEDGER") or "sqlite:///dpdask-ledger.db", create=False
    )

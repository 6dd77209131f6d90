"""Open the ledger that the environment or a spec names."""

from __future__ import annotations

import os

from dpdask.ledger.ledger import Ledger
from dpdask.patience import NO_PATIENCE, Patience

__all__ = ["open_ledger"]


def open_ledger(url: str | None = None, patience: Patience = NO_PATIENCE) -> Ledger:
    """Open the ledger at ``url``, else of DPDASK_LEDGER, which must exist."""
    named = url or os.environ.get("DPDASK_LEDGER") or "sqlite:///dpdask-ledger.db"
    return Ledger(named, create=False, patience=patience)

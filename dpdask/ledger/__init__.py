"""The ledger: what each dataset may spend and has spent, and the keys of open releases."""

from dpdask.ledger.connections import TimeOuts
from dpdask.ledger.ledger import Ledger
from dpdask.ledger.models import (
    Block,
    ChargedAxis,
    DatasetState,
    Forecast,
    LedgerEntry,
    LedgerHead,
    PrivacyUnit,
    ReleaseDetails,
    Reservation,
    SeriesWindow,
)
from dpdask.ledger.open import open_ledger
from dpdask.ledger.rates import Allowance
from dpdask.ledger.upgrade import upgrade_ledger

__all__ = [
    "Allowance",
    "Block",
    "ChargedAxis",
    "DatasetState",
    "Forecast",
    "Ledger",
    "LedgerEntry",
    "LedgerHead",
    "PrivacyUnit",
    "ReleaseDetails",
    "Reservation",
    "SeriesWindow",
    "TimeOuts",
    "open_ledger",
    "upgrade_ledger",
]

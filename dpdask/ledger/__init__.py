"""The ledger: what each dataset may spend, what it has spent, and the keys of releases under way."""

from dpdask.ledger.book import Ledger
from dpdask.ledger.charges import charged_after
from dpdask.ledger.opening import open_ledger
from dpdask.ledger.records import DatasetState, Forecast, LedgerHead, ProtectedUnit, ReleaseRecord, Reservation, SeriesWindow
from dpdask.ledger.upgrade import upgrade_ledger

__all__ = [
    "DatasetState",
    "Forecast",
    "Ledger",
    "LedgerHead",
    "ProtectedUnit",
    "ReleaseRecord",
    "Reservation",
    "SeriesWindow",
    "charged_after",
    "open_ledger",
    "upgrade_ledger",
]

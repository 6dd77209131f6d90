"""The ledger: what each dataset may spend, what it has spent, and the keys of releases under way."""

from dpdask.ledger.book import Ledger
from dpdask.ledger.opening import open_ledger
from dpdask.ledger.records import DatasetState, Forecast, ProtectedUnit, ReleaseRecord, Reservation, SeriesWindow

__all__ = [
    "DatasetState",
    "Forecast",
    "Ledger",
    "ProtectedUnit",
    "ReleaseRecord",
    "Reservation",
    "SeriesWindow",
    "open_ledger",
]

"""The ledger: what each dataset may spend, what it has spent, and the keys of releases under way."""

from dpdask.ledger.book import DatasetState, Forecast, Ledger, ReleaseRecord, Reservation, SeriesWindow
from dpdask.ledger.opening import open_ledger

__all__ = ["DatasetState", "Forecast", "Ledger", "ReleaseRecord", "Reservation", "SeriesWindow", "open_ledger"]

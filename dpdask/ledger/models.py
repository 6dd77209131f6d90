"""What the ledger tells: reservations, states of datasets, histories of releases."""

from __future__ import annotations

from dataclasses import dataclass

from dpdask.privacy import Adjacency, PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = [
    "CLOSING",
    "DatasetState",
    "Forecast",
    "LedgerEntry",
    "LedgerHead",
    "PrivacyUnit",
    "Reservation",
    "SeriesWindow",
]

CLOSING = ("commit", "burn")


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The newest entry of a dataset: its place, counted from 1, and its hash, which everything
    before it went into.
    """

    dataset: str
    sequence: int
    hash: str

    def to_dict(self) -> Json:
        """The head as JSON-ready facts."""
        return {"dataset": self.dataset, "sequence": self.sequence, "hash": self.hash}


@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """Whom a release protects: all releases of a dataset must speak of the same units, or their
    charges do not add up.

    ``array`` is a digest of where the source is, ``record_axis`` the axis of it along which the
    units lie, where it has one. With ``array_in_other_dataset`` the curator accepts that another
    dataset's budget is spent on the same array.
    """

    adjacency: Adjacency = Adjacency.REPLACE_ONE
    contributions: int = 1
    array: str | None = None
    record_axis: int | None = None
    array_in_other_dataset: bool = False

    def to_dict(self) -> Json:
        """What a reservation notes."""
        return {
            "adjacency": str(self.adjacency),
            "contributions": self.contributions,
            "array": self.array,
            "record_axis": self.record_axis,
            **({"array_in_other_dataset": True} if self.array_in_other_dataset else {}),
        }


@dataclass(frozen=True, slots=True)
class Reservation:
    """A charged release: ``new`` when this call charged it, else it was charged before."""

    dataset: str
    release: str
    new: bool


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset's total, what has been spent of it, its releases with their last step, and the head
    of its chain.
    """

    name: str
    total: PrivacyBudget
    spent: PrivacyProfile | None
    releases: dict[str, str]
    details: dict[str, Json]
    head: LedgerHead

    @property
    def spent_epsilon(self) -> float:
        """The epsilon spent so far, at the total's delta."""
        return 0.0 if self.spent is None else self.spent.epsilon(self.total.delta)

    @property
    def overspent(self) -> bool:
        """Whether more than the total is spent: possible for a dataset of 0.1.0, which counted
        less.
        """
        return (
            self.spent is not None and not self.spent.delta(self.total.epsilon) <= self.total.delta
        )

    def to_dict(self) -> Json:
        """The state as JSON-ready facts."""
        return {
            "dataset": self.name,
            "total": {"epsilon": self.total.epsilon, "delta": self.total.delta},
            "spent_epsilon": self.spent_epsilon,
            "spent": None if self.spent is None else self.spent.to_dict(),
            "head": self.head.to_dict(),
            "releases": [
                {**self.details[release], "last_step": step}
                for release, step in self.releases.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a dataset has spent, and would have after one more release, at its total's delta."""

    total: PrivacyBudget
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SeriesWindow:
    """A window of a series that was charged: where it is, of which array, where its result goes,
    and its last step.
    """

    window: Json
    array: str | None
    output: str
    last: str

    @property
    def open(self) -> bool:
        """Whether it is neither committed nor burned."""
        return self.last not in CLOSING


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One release as the ledger knows it.

    ``release`` is its fingerprint, which depends on the data and stays inside; ``name`` is the
    random one that is published. ``asked`` is a digest of its spec, ``array`` one of where its
    source is. ``cumulative`` composes everything charged up to and with it; ``place`` is where its
    output is; ``card`` the JSON text of its card, once it is about to be published; ``head`` its
    reservation in the chain.
    """

    dataset: str
    release: str
    name: str
    source: str
    asked: str | None
    array: str | None
    total: PrivacyBudget
    last: str
    reserved_at: str
    cumulative: PrivacyProfile
    place: str | None
    card: str | None
    head: LedgerHead

    @property
    def open(self) -> bool:
        """Whether it is neither committed nor burned."""
        return self.last not in CLOSING

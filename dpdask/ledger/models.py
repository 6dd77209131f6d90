"""What the ledger returns: reservations, states of datasets, histories of releases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from dpdask.privacy import Adjacency, PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = [
    "CLOSING",
    "DatasetState",
    "Forecast",
    "LedgerEntry",
    "LedgerHead",
    "PrivacyUnit",
    "ReleaseDetails",
    "Reservation",
    "SeriesWindow",
]

CLOSING = ("commit", "burn")
"""The steps that close a release."""


@dataclass(frozen=True, slots=True)
class LedgerHead:
    """The newest entry of a dataset: its position, counted from 1, and its hash.

    The hash covers everything before it.
    """

    dataset: str
    sequence: int
    hash: str

    def to_dict(self) -> Json:
        """Return the head for JSON."""
        return {"dataset": self.dataset, "sequence": self.sequence, "hash": self.hash}


@dataclass(frozen=True, slots=True)
class PrivacyUnit:
    """Whom a release protects. All releases of a dataset must protect the same privacy unit.

    Otherwise their charges do not add up.

    Args:
        adjacency: which datasets are neighbours.
        contributions: how many records one person may have at most.
        array: a digest of where the source is; None if it is not an array.
        record_axis: the axis of the array along which privacy units lie, if it has one.
        array_in_other_dataset: whether the curator accepts that another dataset's budget is spent
            on the same array.
        further_arrays: digest and record axis of every further array of the same release.
    """

    adjacency: Adjacency = Adjacency.REPLACE_ONE
    contributions: int = 1
    array: str | None = None
    record_axis: int | None = None
    array_in_other_dataset: bool = False
    further_arrays: tuple[tuple[str, int | None], ...] = ()

    @property
    def arrays(self) -> tuple[tuple[str, int | None], ...]:
        """Every array of the release with its record axis."""
        first = () if self.array is None else ((self.array, self.record_axis),)
        return (*first, *self.further_arrays)

    def to_dict(self) -> Json:
        """Return what a reservation records."""
        accepted: Json = {"array_in_other_dataset": True} if self.array_in_other_dataset else {}
        return {
            "adjacency": str(self.adjacency),
            "contributions": self.contributions,
            "array": self.array,
            "record_axis": self.record_axis,
            **accepted,
        }


@dataclass(frozen=True, slots=True)
class Reservation:
    """A charged release: ``new`` if this call charged it, else it was charged before."""

    dataset: str
    fingerprint: str
    new: bool


class ReleaseDetails(TypedDict):
    """What may be shown of one release.

    ``epsilon`` is what it would cost alone, ``at`` when it was charged, ``output`` where its
    result is or was to be published.
    """

    release_id: str | None
    at: str
    output: str | None
    epsilon: float


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset's total, what is spent of it, and its releases.

    Args:
        name: the dataset's name.
        total: all that it may ever spend.
        spent: the profile of all charges together; None if nothing was charged.
        releases: the last step of each release, by fingerprint.
        details: what may be shown of each release, by fingerprint.
        head: the newest entry of its chain.
    """

    name: str
    total: PrivacyBudget
    spent: PrivacyProfile | None
    releases: dict[str, str]
    details: dict[str, ReleaseDetails]
    head: LedgerHead

    @property
    def spent_epsilon(self) -> float:
        """The epsilon spent so far, at the total's delta."""
        return 0.0 if self.spent is None else self.spent.epsilon(self.total.delta)

    @property
    def overspent(self) -> bool:
        """Whether more than the total is spent: possible for a dataset that 0.1.0 accounted for."""
        if self.spent is None:
            return False
        return not self.spent.delta(self.total.epsilon) <= self.total.delta

    def to_dict(self) -> Json:
        """Return the state for JSON, without fingerprints, which depend on data."""
        return {
            "dataset": self.name,
            "total": {"epsilon": self.total.epsilon, "delta": self.total.delta},
            "spent_epsilon": self.spent_epsilon,
            "spent": None if self.spent is None else self.spent.to_dict(),
            "head": self.head.to_dict(),
            "releases": [
                {**self.details[fingerprint], "last_step": step}
                for fingerprint, step in self.releases.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class Forecast:
    """The epsilon of a dataset before and after further releases, at its total's delta."""

    total: PrivacyBudget
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SeriesWindow:
    """A window of a series that was charged.

    Args:
        window: its axis, start, stop and series.
        array: a digest of where its source is.
        output: the URL of its result.
        last: its last step.
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

    Args:
        dataset: the dataset that it is charged to.
        fingerprint: its fingerprint, which depends on the data and is never published.
        release_id: its public random name.
        source_identity: a digest of the source when it was planned.
        spec_digest: a digest of its spec.
        array: a digest of where its source is.
        total: the dataset's total.
        last: its last step.
        reserved_at: when it was charged.
        cumulative: the profile of everything charged up to and with it.
        output_address: where its output is.
        card: the JSON text of its card, once it is about to be published.
        head: its reservation in the chain.
    """

    dataset: str
    fingerprint: str
    release_id: str
    source_identity: str
    spec_digest: str | None
    array: str | None
    total: PrivacyBudget
    last: str
    reserved_at: str
    cumulative: PrivacyProfile
    output_address: str | None
    card: str | None
    head: LedgerHead

    @property
    def open(self) -> bool:
        """Whether it is neither committed nor burned."""
        return self.last not in CLOSING

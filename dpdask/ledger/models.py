"""What the ledger returns: reservations, states of datasets, histories of releases."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TypedDict

from dpdask.errors import LedgerError
from dpdask.privacy import Adjacency, PrivacyBudget, PrivacyProfile
from dpdask.types import Json

__all__ = [
    "BY_THE_CURATOR",
    "CLOSING",
    "Block",
    "ChargedAxis",
    "DatasetState",
    "Forecast",
    "LedgerEntry",
    "LedgerHead",
    "PrivacyUnit",
    "ReleaseDetails",
    "Reservation",
    "SeriesWindow",
    "WindowForecast",
]

BY_THE_CURATOR = "aborted by the curator"
"""The reason of a burn that somebody asked for."""

CLOSING = ("commit", "burn")
"""The steps that close a release."""

LARGEST_INDEX = 2**62
"""The largest index that a block may end at."""


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
class Block:
    """Indices ``start`` to ``stop`` of an axis along which every privacy unit has one index.

    Releases of disjoint blocks protect disjoint units, so their charges do not add up.
    """

    axis: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not (self.axis >= 0 and 0 <= self.start < self.stop <= LARGEST_INDEX):
            raise LedgerError(
                f"axis {self.axis}, {self.start} to {self.stop} is not a valid block of an array;"
                " give 0 <= start < stop"
            )

    def to_dict(self) -> Json:
        """Return what a reservation records."""
        return {"axis": self.axis, "start": self.start, "stop": self.stop}


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
        per: the dimension along which a privacy unit is one index only, beside that of its
            records: one person's ``day``; None where it is a whole record.
        block: the part of an axis that the release reads, where every privacy unit has one index
            along that axis; None where it is charged to all units of the dataset.
        name: what one privacy unit is called where ids tell them apart, and enforce their
            contributions; None where it is a record.
    """

    adjacency: Adjacency = Adjacency.REPLACE_ONE
    contributions: int = 1
    array: str | None = None
    record_axis: int | None = None
    array_in_other_dataset: bool = False
    further_arrays: tuple[tuple[str, int | None], ...] = ()
    per: str | None = None
    block: Block | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.block is None:
            return
        several = self.contributions > 1 and self.block.axis == self.record_axis
        if self.array is None or self.adjacency is not Adjacency.REPLACE_ONE or several:
            raise LedgerError(
                "a block needs an array, replace-one, and units that have one index along its axis;"
                " charge the release without a block"
            )

    @property
    def arrays(self) -> tuple[tuple[str, int | None], ...]:
        """Every array of the release with its record axis."""
        first = () if self.array is None else ((self.array, self.record_axis),)
        return (*first, *self.further_arrays)

    @property
    def block_arrays(self) -> str:
        """A digest of what is read together: charges along an axis of it are kept together."""
        digests = [array for array, _ in self.arrays]
        return digests[0] if len(digests) == 1 else _digest_of(digests)

    def to_dict(self) -> Json:
        """Return what a reservation records, but for its block."""
        accepted: Json = {"array_in_other_dataset": True} if self.array_in_other_dataset else {}
        if self.per is not None:
            accepted["per"] = self.per
        return {
            "adjacency": str(self.adjacency),
            "contributions": self.contributions,
            "array": self.array,
            "record_axis": self.record_axis,
            **accepted,
            **({} if self.name is None else {"privacy_unit": self.name}),
        }


def _digest_of(digests: list[str]) -> str:
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reservation:
    """A charged release: ``new`` if this call charged it, else it was charged before."""

    dataset: str
    fingerprint: str
    new: bool


@dataclass(frozen=True, slots=True)
class ChargedAxis:
    """An axis along which every privacy unit has one index, and what its indices were charged.

    Args:
        array: a digest of where the array is.
        axis: the axis.
        start: the first index that was charged.
        stop: the index after the last one.
        segments: how many parts with different charges the ledger keeps.
        largest_epsilon: the largest charge of any index, at the total's delta.
    """

    array: str
    axis: int
    start: int
    stop: int
    segments: int
    largest_epsilon: float

    def to_dict(self) -> Json:
        """Return it for JSON."""
        return dataclasses.asdict(self)


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
        policy: how its charges add up.
        zcdp: what is spent as rho of zero-concentrated privacy, and the delta beside it.
        axes: the axes along which disjoint blocks were charged.
        unit: whom all of its releases protect, in words; None if nothing was charged.
    """

    name: str
    total: PrivacyBudget
    spent: PrivacyProfile | None
    releases: dict[str, str]
    details: dict[str, ReleaseDetails]
    head: LedgerHead
    policy: str
    zcdp: tuple[float, float]
    axes: tuple[ChargedAxis, ...] = ()
    unit: str | None = None

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
            "policy": self.policy,
            "privacy_unit": self.unit,
            "total": {"epsilon": self.total.epsilon, "delta": self.total.delta},
            "spent_epsilon": self.spent_epsilon,
            "spent": None if self.spent is None else self.spent.to_dict(),
            "zcdp": {"rho": self.zcdp[0], "delta": self.zcdp[1]},
            "head": self.head.to_dict(),
            "axes": [axis.to_dict() for axis in self.axes],
            "releases": [
                {**self.details[fingerprint], "last_step": step}
                for fingerprint, step in self.releases.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class WindowForecast:
    """The window of a release whose charge does not add up with that of disjoint windows.

    Args:
        spent: the epsilon that the most charged of its units has lost afterwards.
        left: the epsilon that a release of a window without any charge could still spend.
    """

    spent: float
    left: float

    def to_dict(self) -> Json:
        """Return it for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The epsilon of a dataset before and after further releases, at its total's delta.

    Args:
        total: all that the dataset may ever spend.
        before: what it has spent.
        after: what it will have spent.
        more: how many more times the same would fit, at most a million; None if nothing is charged.
        window: of a single release of a block.
    """

    total: PrivacyBudget
    before: float
    after: float
    more: int | None = None
    window: WindowForecast | None = None

    def to_dict(self) -> Json:
        """Return the forecast for JSON."""
        return {
            "total": {"epsilon": self.total.epsilon, "delta": self.total.delta},
            "spent_before": self.before,
            "spent_after": self.after,
            "more": self.more,
            "window": None if self.window is None else self.window.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class SeriesWindow:
    """A window of a series that was charged.

    Args:
        window: its axis, start, stop and series.
        array: a digest of where its source is.
        output: the URL of its result.
        last: its last step.
        aborted: whether the curator aborted it.
    """

    window: Json
    array: str | None
    output: str
    last: str
    aborted: bool = False

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
        restored: the head that its card names, if it was recorded from that card after a backup
            was restored.
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
    restored: LedgerHead | None = None

    @property
    def open(self) -> bool:
        """Whether it is neither committed nor burned."""
        return self.last not in CLOSING

"""Rows of the ledger: a chain of hashes per dataset, what was charged in it, and whether one more release fits.

Whoever writes holds the dataset's lock.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from dpdask.errors import BudgetExceeded, LedgerError
from dpdask.ledger.records import CLOSING, Forecast, ProtectedUnit
from dpdask.ledger.tables import datasets, entries
from dpdask.privacy import PrivacyBudget, PrivacyProfile
from dpdask.profiles import compose, profile_from_description

__all__ = [
    "GENESIS",
    "admit",
    "append",
    "chain_hash",
    "charges",
    "check_release",
    "check_same",
    "known_total",
    "last_row",
    "name_of",
    "reservations",
    "rows_of",
    "total_of",
]

GENESIS = "0" * 64


def check_release(release: str) -> None:
    """Refuse what is no fingerprint."""
    if len(release) != 64 or any(c not in "0123456789abcdef" for c in release):
        raise LedgerError("this is no fingerprint of a release; give 64 lower-case hexadecimal digits")


def total_of(connection: Connection, name: str, *, lock: bool) -> PrivacyBudget | None:
    """The total of a dataset, None if it is not open; with ``lock``, nobody else writes to it until the transaction ends."""
    query = select(datasets).where(datasets.c.name == name)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    return None if row is None else PrivacyBudget(epsilon=float(row.epsilon), delta=float(row.delta))


def known_total(connection: Connection, name: str, *, lock: bool) -> PrivacyBudget:
    """The total of a dataset that must be there."""
    total = total_of(connection, name, lock=lock)
    if total is None:
        raise LedgerError(
            f"dataset {name!r} is not in the ledger; open it with its total: `dpdask ledger init {name} --epsilon E --delta D`"
        )
    return total


def rows_of(connection: Connection, dataset: str) -> list[Any]:
    """All rows of a dataset, oldest first."""
    return list(connection.execute(select(entries).where(entries.c.dataset == dataset).order_by(entries.c.sequence)))


def last_row(connection: Connection, release: str) -> Any:
    """The newest row of a release."""
    check_release(release)
    query = select(entries).where(entries.c.release == release).order_by(entries.c.sequence.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise LedgerError("the release is not reserved; reserve it before asking for its key")
    return row


def charges(rows: list[Any]) -> dict[str, PrivacyProfile]:
    """Every profile ever reserved, whatever became of it."""
    return {row.release: profile_from_description(json.loads(row.body)["profile"]) for row in rows if row.kind == "reserve"}


def reservations(connection: Connection) -> list[Any]:
    """The reservations of all datasets."""
    return list(connection.execute(select(entries.c.release, entries.c.body).where(entries.c.kind == "reserve")))


def name_of(row: Any) -> str | None:
    """The public name in a reservation."""
    name: str | None = json.loads(row.body).get("name")
    return name


def admit(dataset: str, total: PrivacyBudget, rows: list[Any], profile: PrivacyProfile, unit: ProtectedUnit) -> Forecast:
    """Refuse a profile that does not fit, or that speaks of other units than the dataset's releases so far."""
    for row in rows:
        if row.kind == "reserve":
            _check_unit(dataset, json.loads(row.body), unit)
    charged = list(charges(rows).values())
    before = compose([(part, 1) for part in charged]).epsilon(total.delta) if charged else 0.0
    after = compose([(part, 1) for part in (*charged, profile)])
    if not after.delta(total.epsilon) <= total.delta:
        raise BudgetExceeded(
            f"dataset {dataset!r} has spent epsilon {before:.4g} of {total.epsilon:g} at delta {total.delta:g};"
            f" this release would make it {after.epsilon(total.delta):.4g}: give it a smaller epsilon, or release less"
        )
    return Forecast(total, before, after.epsilon(total.delta))


def _check_unit(dataset: str, noted: dict[str, Any], unit: ProtectedUnit) -> None:
    if noted["adjacency"] != str(unit.adjacency):
        raise LedgerError(
            f"dataset {dataset!r} is accounted under {noted['adjacency']}; a release under {unit.adjacency} cannot be added to"
            f" it: use unit.adjacency: {noted['adjacency']}"
        )
    if noted["contributions"] != unit.contributions:
        raise LedgerError(
            f"dataset {dataset!r} is accounted for units of up to {noted['contributions']} records; one of up to"
            f" {unit.contributions} cannot be added to it: use unit.max_contributions: {noted['contributions']}"
        )
    axes = noted.get("record_axis"), unit.record_axis
    if unit.array is not None and noted.get("array") == unit.array and None not in axes and axes[0] != axes[1]:
        raise LedgerError(
            f"dataset {dataset!r} is accounted for the units along axis {axes[0]} of this array; those along axis {axes[1]} are"
            f" others, which its total does not protect: use unit.record_axis: {axes[0]}, or a dataset of their own"
        )


def check_same(rows: list[Any], release: str, profile: PrivacyProfile) -> None:
    """A reservation may be repeated only as it was, and only while the release is open."""
    mine = [row for row in rows if row.release == release]
    if json.loads(mine[0].body)["profile"] != json.loads(json.dumps(profile.describe())):
        raise LedgerError("the release was reserved with another guarantee; a fingerprint stands for one release")
    if mine[-1].kind in CLOSING:
        raise LedgerError(f"the release is closed by {mine[-1].kind}; a new release is a new charge")


def append(connection: Connection, dataset: str, release: str | None, kind: str, facts: dict[str, Any]) -> None:
    """Add the next link of a dataset's chain; the caller holds the dataset's lock."""
    query = select(entries.c.hash).where(entries.c.dataset == dataset).order_by(entries.c.sequence.desc()).limit(1)
    previous = connection.scalar(query) or GENESIS
    stamped = {**facts, "at": datetime.now(UTC).isoformat(timespec="seconds")}
    body = json.dumps(stamped, sort_keys=True, separators=(",", ":"), allow_nan=False)
    connection.execute(
        insert(entries).values(
            dataset=dataset,
            release=release,
            kind=kind,
            body=body,
            previous=previous,
            hash=chain_hash(previous, dataset, release or "", kind, body),
        )
    )


def chain_hash(*parts: str) -> str:
    """SHA-256 over an injective encoding of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

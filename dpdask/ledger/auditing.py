"""Recompute the ledger: every link, column, charge and sum, and that no total was passed."""

from __future__ import annotations

from sqlalchemy import Connection, select

from dpdask.accounting import Dominated, profile_from_dict
from dpdask.errors import LedgerCorrupt
from dpdask.ledger.blocks import AxisCharges, AxisKey, segments_in_tables
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.hash_chain import (
    GENESIS,
    check_link,
    payload_of,
    policy_in,
    spent_after,
    total_in,
)
from dpdask.ledger.models import Block, PrivacyUnit
from dpdask.ledger.payloads import charge_in, index_columns, is_version_1
from dpdask.ledger.policies import ADAPTIVE, Policy
from dpdask.ledger.schema import EntryRow, datasets, entries, fetch_entries
from dpdask.privacy import Adjacency, PrivacyBudget
from dpdask.types import Json

__all__ = ["audit"]


def audit(connection: Connection) -> int:
    """Return the number of entries if everything is as it must be.

    Raises:
        LedgerCorrupt: something is not; the text names the first entry.
    """
    count = 0
    for name in connection.scalars(select(datasets.c.name).order_by(datasets.c.name)).all():
        count += _audit_dataset(connection, name)
    return count


def _audit_dataset(connection: Connection, name: str) -> int:
    query = select(entries).where(entries.c.dataset == name).order_by(entries.c.sequence)
    rows = fetch_entries(connection, query)
    if not rows:
        raise LedgerCorrupt(f"dataset {name!r} has no opening entry")
    total, policy = total_in(rows[0]), policy_in(rows[0])
    old_count = _count_version_1(name, rows) if is_version_1(payload_of(rows[0])) else 0
    before: EntryRow | None = None
    if old_count:
        _audit_version_1(name, rows[:old_count], rows[old_count])
        before = rows[old_count - 1]
    axes: dict[AxisKey, AxisCharges] = {}
    for row in rows[old_count:]:
        payload = check_link(row, before)
        if row.kind == "reserve":
            _check_charge(row, payload, total, policy)
            _check_block(row, payload, axes)
        elif charge_in(payload) is not None or (row.kind == "open") != (before is None):
            raise LedgerCorrupt(
                f"entry {row.sequence} of dataset {name!r} is not a valid entry of the ledger"
            )
        before = row
    if segments_in_tables(connection, name) != {key: axes[key].segments for key in axes}:
        raise LedgerCorrupt(
            f"the charges of blocks of dataset {name!r} are not those of its entries: the ledger"
            " was changed; restore a backup"
        )
    return len(rows)


def _check_charge(row: EntryRow, payload: Json, total: PrivacyBudget, policy: Policy) -> None:
    charge = charge_in(payload)
    if charge is None or not policy.covers(charge, profile_from_dict(payload["profile"])):
        raise LedgerCorrupt(
            f"entry {row.sequence} of dataset {row.dataset!r} charges less than its release costs"
        )
    if "restored" not in payload and not policy.fits(spent_after(row), total):
        raise LedgerCorrupt(
            f"entry {row.sequence} of dataset {row.dataset!r} passes the dataset's total"
        )


def _check_block(row: EntryRow, payload: Json, axes: dict[AxisKey, AxisCharges]) -> None:
    """Compute again what a release of a block does to the charges along its axis."""
    recorded, charge = payload.get("parallel"), charge_in(payload)
    if recorded is None or charge is None:
        return
    unit = PrivacyUnit(
        adjacency=Adjacency(payload["adjacency"]),
        contributions=payload["contributions"],
        array=payload["array"],
        record_axis=payload["record_axis"],
        block=Block(recorded["axis"], recorded["start"], recorded["stop"]),
    )
    assert unit.block is not None
    key = (recorded["arrays"], unit.block.axis)
    computed = axes.setdefault(key, AxisCharges()).add(key, unit.block, Spent.on(charge))
    if computed.to_dict() != recorded:
        raise LedgerCorrupt(
            f"entry {row.sequence} of dataset {row.dataset!r} charges its block other sums than"
            " those before it lead to"
        )


def _count_version_1(name: str, rows: list[EntryRow]) -> int:
    """Return how many entries of 0.1.0 a dataset has; the upgrade's entry follows them."""
    for number, row in enumerate(rows):
        if row.kind == "upgrade":
            return number
    raise LedgerCorrupt(
        f"dataset {name!r} has entries of 0.1.0 and none of `dpdask ledger upgrade`"
    )


def _audit_version_1(name: str, rows: list[EntryRow], upgrade: EntryRow) -> None:
    """Audit entries of 0.1.0: their chain by their own rule, their charges by the upgrade's."""
    charges: Json = payload_of(upgrade)["charges"]
    previous, clock, spent = GENESIS, "", NOTHING
    for position, row in enumerate(rows, start=1):
        payload = payload_of(row)
        if row.previous != previous or row.sequence != position:
            raise LedgerCorrupt(
                f"entry {row.sequence} of dataset {name!r} does not follow from the one before it"
            )
        if row.kind == "reserve":
            spent += Spent.on(_charge_by_upgrade(row, payload, charges))
        clock = max(clock, payload["at"])
        columns = {**index_columns(row.kind, payload), "clock": clock}
        stored = {column: getattr(row, column) for column in columns}
        if spent_after(row) != spent or columns != stored:
            raise LedgerCorrupt(
                f"entry {position} of dataset {name!r} has other sums or columns than it says"
            )
        previous = row.hash
    if charges:
        raise LedgerCorrupt(f"the upgrade of dataset {name!r} charges releases that are not in it")


def _charge_by_upgrade(row: EntryRow, payload: Json, charges: Json) -> Dominated:
    """Remove and return what the upgrade charges for a reservation of 0.1.0."""
    recorded = charges.pop(row.fingerprint or "", None)
    charge = None if recorded is None else Dominated(**recorded)
    if charge is None or not ADAPTIVE.covers(charge, profile_from_dict(payload["profile"])):
        raise LedgerCorrupt(
            f"the upgrade charges less for entry {row.sequence} of dataset {row.dataset!r} than"
            " its release costs"
        )
    return charge

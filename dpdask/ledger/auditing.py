"""Recompute the ledger: every link, every column, every charge from its profile, every sum, and
that no total was passed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select

from dpdask.accounting import Dominated, profile_from_dict
from dpdask.errors import LedgerCorrupt
from dpdask.ledger.charges import NOTHING, Spent, covers, fits
from dpdask.ledger.hash_chain import (
    GENESIS,
    body_of,
    charge_in,
    check_link,
    columns_of,
    spent_after,
    total_in,
)
from dpdask.ledger.schema import datasets, entries
from dpdask.privacy import PrivacyBudget
from dpdask.types import Json

__all__ = ["audit"]


def audit(connection: Connection) -> int:
    """The number of entries, if everything is as it must be; :class:`LedgerCorrupt` names the first
    that is not.
    """
    count = 0
    for name in connection.scalars(select(datasets.c.name).order_by(datasets.c.name)).all():
        count += _audit_dataset(connection, name)
    return count


def _audit_dataset(connection: Connection, name: str) -> int:
    rows = list(
        connection.execute(
            select(entries).where(entries.c.dataset == name).order_by(entries.c.sequence)
        )
    )
    if not rows:
        raise LedgerCorrupt(f"dataset {name!r} has no opening entry")
    total = total_in(rows[0])
    old = 0 if "sequence" in body_of(rows[0]) else _old_entries(name, rows)
    if old:
        _audit_old(name, rows[:old], rows[old])
    before = rows[old - 1] if old else None
    for row in rows[old:]:
        facts = check_link(row, before)
        if row.kind == "reserve":
            _check_charge(row, facts, total)
        elif charge_in(facts) is not None or (row.kind == "open") != (before is None):
            raise LedgerCorrupt(
                f"entry {row.sequence} of dataset {name!r} is not one that the ledger writes"
            )
        before = row
    return len(rows)


def _check_charge(row: Any, facts: Json, total: PrivacyBudget) -> None:
    charge = charge_in(facts)
    if charge is None or not covers(charge, profile_from_dict(facts["profile"])):
        raise LedgerCorrupt(
            f"entry {row.sequence} of dataset {row.dataset!r} charges less than its release costs"
        )
    if not fits(spent_after(row), total):
        raise LedgerCorrupt(
            f"entry {row.sequence} of dataset {row.dataset!r} passes the dataset's total"
        )


def _old_entries(name: str, rows: list[Any]) -> int:
    """How many entries a dataset brought from 0.1.0; the one after them is the upgrade's."""
    for number, row in enumerate(rows):
        if row.kind == "upgrade":
            return number
    raise LedgerCorrupt(
        f"dataset {name!r} has entries of 0.1.0 and none of `dpdask ledger upgrade`"
    )


def _audit_old(name: str, rows: list[Any], upgrade: Any) -> None:
    """Entries of 0.1.0: their chain by their own rule, their charges by what the upgrade noted of
    them.
    """
    noted: Json = body_of(upgrade)["charges"]
    previous, clock, spent = GENESIS, "", NOTHING
    for place, row in enumerate(rows, start=1):
        facts = body_of(row)
        if row.previous != previous or row.sequence != place:
            raise LedgerCorrupt(
                f"entry {row.sequence} of dataset {name!r} does not follow from the one before it"
            )
        if row.kind == "reserve":
            charge = noted.pop(row.release, None)
            if charge is None or not covers(
                Dominated(**charge), profile_from_dict(facts["profile"])
            ):
                raise LedgerCorrupt(
                    f"the upgrade charges less for entry {place} of dataset {name!r} than its"
                    " release costs"
                )
            spent += Spent.on(Dominated(**charge))
        clock = max(clock, facts["at"])
        columns = {**columns_of(row.kind, facts), "clock": clock}
        if spent_after(row) != spent or columns != {key: getattr(row, key) for key in columns}:
            raise LedgerCorrupt(
                f"entry {place} of dataset {name!r} has other sums or columns than it says"
            )
        previous = row.hash
    if noted:
        raise LedgerCorrupt(f"the upgrade of dataset {name!r} charges releases that are not in it")

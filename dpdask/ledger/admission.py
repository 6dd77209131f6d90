"""Whether one more release may be charged to a dataset: privacy unit, array, and the total.

Every check reads indexed columns and the newest sums, so its cost does not grow with past releases.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select, text

from dpdask.accounting import Dominated
from dpdask.errors import LedgerError
from dpdask.ledger.charges import Spent, charge_of, check_within
from dpdask.ledger.hash_chain import Standing, payload_of
from dpdask.ledger.models import PrivacyUnit
from dpdask.ledger.schema import entries, fetch_entry
from dpdask.privacy import PrivacyProfile

__all__ = ["admit", "lock_arrays"]


def admit(
    connection: Connection,
    standing: Standing,
    parts: Sequence[tuple[PrivacyProfile, PrivacyUnit]],
) -> tuple[list[Dominated], Spent]:
    """Return what each release would be charged, and the sums afterwards.

    Args:
        connection: the caller's transaction.
        standing: the dataset that they would be charged to.
        parts: profile and privacy unit of each release.

    Raises:
        LedgerError: a release protects another privacy unit, or its array is charged elsewhere.
        BudgetExceeded: they pass the total together.
    """
    for _, privacy_unit in parts:
        _check_privacy_unit(connection, standing.dataset, privacy_unit)
        for array, record_axis in privacy_unit.arrays:
            _check_axis(connection, standing.dataset, array, record_axis)
            if not privacy_unit.array_in_other_dataset:
                _check_array(connection, standing.dataset, array)
    spent, charges = standing.spent, []
    for profile, _ in parts:
        charge = charge_of(profile, spent, standing.total)
        spent += Spent.on(charge)
        check_within(standing.dataset, standing.total, standing.spent, spent)
        charges.append(charge)
    return charges, spent


def lock_arrays(connection: Connection, privacy_unit: PrivacyUnit) -> None:
    """Let nobody else charge these arrays to another dataset until the transaction ends.

    SQLite runs one transaction at a time anyway. Locks are taken in one order, so that no two
    transactions wait for each other.
    """
    if connection.dialect.name != "postgresql":
        return
    for key in sorted({int(array[:15], 16) for array, _ in privacy_unit.arrays}):
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})


def _check_privacy_unit(connection: Connection, dataset: str, privacy_unit: PrivacyUnit) -> None:
    """All releases of a dataset must protect the same privacy unit, else charges do not add up."""
    reservations = select(entries).where(entries.c.dataset == dataset, entries.c.kind == "reserve")
    first = fetch_entry(connection, reservations.order_by(entries.c.sequence).limit(1))
    if first is None:
        return
    payload = payload_of(first)
    adjacency, contributions = payload["adjacency"], payload["contributions"]
    if adjacency != str(privacy_unit.adjacency):
        raise LedgerError(
            f"dataset {dataset!r} is accounted under {adjacency}; a release under"
            f" {privacy_unit.adjacency} cannot be added to it: use"
            f" privacy_unit.adjacency: {adjacency}"
        )
    if contributions != privacy_unit.contributions:
        raise LedgerError(
            f"dataset {dataset!r} is accounted for privacy units of up to {contributions}"
            f" records; one of up to {privacy_unit.contributions} cannot be added to it: use"
            f" privacy_unit.max_contributions: {contributions}"
        )


def _check_axis(connection: Connection, dataset: str, array: str, record_axis: int | None) -> None:
    """The privacy units of one array lie along one axis.

    Earlier releases agree with each other, so any of them tells which.
    """
    known = connection.scalar(
        select(entries.c.record_axis)
        .where(
            entries.c.array == array,
            entries.c.dataset == dataset,
            entries.c.record_axis.is_not(None),
        )
        .limit(1)
    )
    if known is None or record_axis in (None, known):
        return
    raise LedgerError(
        f"dataset {dataset!r} is accounted for the privacy units along axis {known} of this"
        f" array; those along axis {record_axis} are others, which its total does"
        f" not protect: use privacy_unit.record_dim: {known}, or a dataset of their own"
    )


def _check_array(connection: Connection, dataset: str, array: str) -> None:
    """An array is charged to one dataset: otherwise the people in it would lose two budgets."""
    for elsewhere in (entries.c.dataset < dataset, entries.c.dataset > dataset):
        other = connection.scalar(
            select(entries.c.dataset)
            .where(entries.c.array == array, elsewhere)
            .order_by(entries.c.dataset)
            .limit(1)
        )
        if other is not None:
            raise LedgerError(
                f"this array is charged to dataset {other!r} already, and the same people would"
                f" lose both budgets; use budget.dataset: {other}, or"
                " budget.array_in_other_dataset: true if the two may add up"
            )

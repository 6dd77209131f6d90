"""Whether one more release may be charged to a dataset: privacy unit, array, and the total.

Every check reads indexed columns, the newest sums, and the segments that a block overlaps, so its
cost does not grow with past releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select, text

from dpdask.errors import LedgerError
from dpdask.ledger.blocks import BlockCharge, load_axes
from dpdask.ledger.charges import Charge, Spent
from dpdask.ledger.hash_chain import Standing, payload_of
from dpdask.ledger.models import PrivacyUnit
from dpdask.ledger.policies import check_within
from dpdask.ledger.schema import entries, fetch_entry
from dpdask.privacy import PrivacyProfile

__all__ = ["Admission", "admit", "lock_arrays"]


@dataclass(frozen=True, slots=True)
class Admission:
    """What one release is charged.

    Args:
        charge: what it costs its privacy units.
        block: what it does to the charges along an axis; None if all units are charged.
        spent: the dataset's sums afterwards.
    """

    charge: Charge
    block: BlockCharge | None
    spent: Spent


def admit(
    connection: Connection,
    standing: Standing,
    parts: Sequence[tuple[PrivacyProfile, PrivacyUnit]],
) -> list[Admission]:
    """Return what each release would be charged, one after the other.

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
    axes = load_axes(connection, standing.dataset, [unit for _, unit in parts])
    policy, spent, admissions = standing.policy, standing.spent, []
    for profile, privacy_unit in parts:
        charge = policy.charge_of(profile, spent, standing.total)
        amount, block = Spent.on(charge), None
        if privacy_unit.block is not None:
            key = (privacy_unit.block_arrays, privacy_unit.block.axis)
            block = axes[key].add(key, privacy_unit.block, amount)
            amount = block.grown
        spent += amount
        check_within(standing.dataset, policy, standing.total, standing.spent, spent)
        admissions.append(Admission(charge, block, spent))
    return admissions


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
    name = payload.get("privacy_unit")
    if name != privacy_unit.name:
        known, other = (
            "one record, or what is declared" if unit is None else f"one {unit}"
            for unit in (name, privacy_unit.name)
        )
        raise LedgerError(
            f"dataset {dataset!r} is accounted for {known} as the privacy unit; a release that"
            f" protects {other} cannot be added to it: use the same privacy_unit.ids and name, or"
            " a dataset of its own"
        )
    # with ids every release enforces its own number of records of the same people
    if name is None and contributions != privacy_unit.contributions:
        raise LedgerError(
            f"dataset {dataset!r} is accounted for privacy units of up to {contributions}"
            f" records; one of up to {privacy_unit.contributions} cannot be added to it: use"
            f" privacy_unit.max_contributions: {contributions}"
        )
    per = payload.get("per")
    if per != privacy_unit.per:
        known, other = (
            f"per {name}" if name else "of whole records" for name in (per, privacy_unit.per)
        )
        raise LedgerError(
            f"dataset {dataset!r} is accounted for privacy units {known}; a release for units"
            f" {other} cannot be added to it: use"
            f" {f'privacy_unit.per: {per}' if per else 'no privacy_unit.per'}, or a dataset of"
            " their own"
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

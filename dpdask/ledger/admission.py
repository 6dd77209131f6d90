"""Whether one more release fits a dataset: its units, its array, and what it would be charged.

Every question is answered from indexed columns and the newest sums, so its cost does not grow with
past releases.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select, text

from dpdask.accounting import Dominated
from dpdask.errors import LedgerError
from dpdask.ledger.charges import Spent, charge_of, check_within
from dpdask.ledger.hash_chain import Standing, body_of
from dpdask.ledger.models import PrivacyUnit
from dpdask.ledger.schema import entries
from dpdask.privacy import PrivacyProfile

__all__ = ["admit", "hold_array"]


def admit(
    connection: Connection,
    standing: Standing,
    parts: Sequence[tuple[PrivacyProfile, PrivacyUnit]],
) -> tuple[list[Dominated], Spent]:
    """What each release would be charged and what is spent then; refuses those that do not fit, all
    together.
    """
    for _, privacy_unit in parts:
        _check_unit(connection, standing.dataset, privacy_unit)
    spent, charges = standing.spent, []
    for profile, _ in parts:
        charge = charge_of(profile, spent, standing.total)
        spent += Spent.on(charge)
        check_within(standing.dataset, standing.total, standing.spent, spent)
        charges.append(charge)
    return charges, spent


def hold_array(connection: Connection, privacy_unit: PrivacyUnit) -> None:
    """Let nobody else charge this array to another dataset until the transaction ends; SQLite's
    writers are alone anyway.
    """
    if privacy_unit.array is not None and connection.dialect.name == "postgresql":
        connection.execute(
            text("SELECT pg_advisory_xact_lock(:key)"), {"key": int(privacy_unit.array[:15], 16)}
        )


def _check_unit(connection: Connection, dataset: str, privacy_unit: PrivacyUnit) -> None:
    """All releases of a dataset speak of the same units, and an array is charged to one dataset."""
    first = connection.execute(
        select(entries)
        .where(entries.c.dataset == dataset, entries.c.kind == "reserve")
        .order_by(entries.c.sequence)
        .limit(1)
    ).one_or_none()
    if first is not None:
        noted = body_of(first)
        if noted["adjacency"] != str(privacy_unit.adjacency):
            raise LedgerError(
                f"dataset {dataset!r} is accounted under {noted['adjacency']}; a release under"
                f" {privacy_unit.adjacency} cannot be added"
                f" to it: use unit.adjacency: {noted['adjacency']}"
            )
        if noted["contributions"] != privacy_unit.contributions:
            raise LedgerError(
                f"dataset {dataset!r} is accounted for units of up to {noted['contributions']}"
                " records; one of up to"
                f" {privacy_unit.contributions} cannot be added to it: use unit.max_contributions:"
                f" {noted['contributions']}"
            )
    if privacy_unit.array is not None:
        _check_axis(connection, dataset, privacy_unit)
        _check_array(connection, dataset, privacy_unit)


def _check_axis(connection: Connection, dataset: str, privacy_unit: PrivacyUnit) -> None:
    """The units of one array lie along one axis; earlier releases agree with each other, so any of
    them tells.
    """
    known = connection.scalar(
        select(entries.c.record_axis)
        .where(
            entries.c.array == privacy_unit.array,
            entries.c.dataset == dataset,
            entries.c.record_axis.is_not(None),
        )
        .limit(1)
    )
    if (
        known is not None
        and privacy_unit.record_axis is not None
        and known != privacy_unit.record_axis
    ):
        raise LedgerError(
            f"dataset {dataset!r} is accounted for the units along axis {known} of this array;"
            " those along axis"
            f" {privacy_unit.record_axis} are others, which its total does not protect: use"
            f" unit.record_axis: {known}, or a dataset of"
            " their own"
        )


def _check_array(connection: Connection, dataset: str, privacy_unit: PrivacyUnit) -> None:
    """An array that is charged to two datasets has two budgets, and the people in it are promised
    each of them alone.
    """
    if privacy_unit.array_in_other_dataset:
        return
    for elsewhere in (entries.c.dataset < dataset, entries.c.dataset > dataset):
        other = connection.scalar(
            select(entries.c.dataset)
            .where(entries.c.array == privacy_unit.array, elsewhere)
            .order_by(entries.c.dataset)
            .limit(1)
        )
        if other is not None:
            raise LedgerError(
                f"this array is charged to dataset {other!r} already, and the same people would"
                " lose both budgets; use"
                f" budget.dataset: {other}, or budget.array_in_other_dataset: true if the two"
                " may add up"
            )

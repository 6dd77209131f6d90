"""What releases since a moment were charged together, as if there were no others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, select

from dpdask.ledger.blocks import AxisCharges, AxisKey, blocks_since, charged_since
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.hash_chain import Standing, spent_after
from dpdask.ledger.models import PrivacyUnit
from dpdask.ledger.schema import entries, fetch_entry
from dpdask.privacy import PrivacyBudget, PrivacyProfile

__all__ = ["Recent", "recent_charges", "recent_with"]


@dataclass(frozen=True, slots=True)
class Recent:
    """What was charged since a moment, and with one more release.

    Args:
        before: the epsilon without it, at the delta of what is allowed.
        after: the epsilon with it.
        fits: whether that is within what is allowed.
    """

    before: float
    after: float
    fits: bool


def recent_charges(
    connection: Connection, standing: Standing, since: datetime
) -> tuple[Spent, dict[AxisKey, AxisCharges]]:
    """Return the sums since a moment, and the charges along axes among them."""
    moment = (since - timedelta(seconds=1)).astimezone(UTC).isoformat(timespec="seconds")
    newest_first = entries.c.clock.desc(), entries.c.sequence.desc()
    earlier = (
        select(entries)
        .where(entries.c.dataset == standing.dataset, entries.c.clock < moment)
        .order_by(*newest_first)
        .limit(1)
    )
    row = fetch_entry(connection, earlier)
    sequence, before = (0, NOTHING) if row is None else (row.sequence, spent_after(row))
    if not blocks_since(connection, standing.dataset, sequence):
        return standing.spent - before, {}
    return charged_since(connection, standing.dataset, sequence)


def recent_with(
    connection: Connection,
    standing: Standing,
    since: datetime,
    allowed: PrivacyBudget,
    part: tuple[PrivacyProfile, PrivacyUnit],
) -> Recent:
    """Return what was charged since a moment, and whether one more release is within what is
    allowed.

    Args:
        connection: the caller's transaction.
        standing: the dataset.
        since: the moment.
        allowed: what may be spent since then.
        part: profile and privacy unit of the release.
    """
    policy = standing.policy
    spent, axes = recent_charges(connection, standing, since)
    profile, unit = part
    amount = Spent.on(policy.charge_of(profile, spent, allowed))
    if unit.block is not None:
        key = (unit.block_arrays, unit.block.axis)
        amount = axes.get(key, AxisCharges()).add(key, unit.block, amount).grown
    after = spent + amount
    return Recent(
        policy.profile(spent).epsilon(allowed.delta),
        policy.profile(after).epsilon(allowed.delta),
        policy.fits(after, allowed),
    )

"""What releases since a moment were charged together, and whether one more is allowed.

The check of a rate limit is part of the transaction that charges, so runs that start at once cannot
all pass it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, select

from dpdask.errors import RateLimited
from dpdask.ledger.blocks import AxisCharges, AxisKey, blocks_since, charged_since
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.hash_chain import Standing, spent_after
from dpdask.ledger.models import PrivacyUnit
from dpdask.ledger.schema import entries, fetch_entry
from dpdask.privacy import PrivacyBudget, PrivacyProfile

__all__ = ["Allowance", "check_allowance", "recent_charges"]


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a dataset may spend within any stretch of days."""

    budget: PrivacyBudget
    days: float


def recent_charges(
    connection: Connection, standing: Standing, since: datetime
) -> tuple[Spent, dict[AxisKey, AxisCharges]]:
    """Return the sums since a moment, and the charges along axes among them."""
    moment = _moment(since)
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


def _moment(since: datetime) -> str:
    """Return a moment as entries record it, a second earlier: they leave out fractions of one."""
    return (since - timedelta(seconds=1)).astimezone(UTC).isoformat(timespec="seconds")


def check_allowance(
    connection: Connection,
    standing: Standing,
    allowance: Allowance,
    part: tuple[PrivacyProfile, PrivacyUnit],
) -> None:
    """Check that one more release stays within what the last days allow.

    Args:
        connection: the caller's transaction.
        standing: the dataset.
        allowance: what it may spend.
        part: profile and privacy unit of the release.

    Raises:
        RateLimited: it would spend more; the text says when it no longer would.
    """
    stretch, allowed = timedelta(days=allowance.days), allowance.budget
    before, after = _with(connection, standing, datetime.now(UTC) - stretch, allowed, part)
    policy = standing.policy
    if policy.fits(after, allowed):
        return
    epsilon = policy.profile(after).epsilon(allowed.delta)
    amount = f"{epsilon:.4g}" if math.isfinite(epsilon) else "more than can be computed"
    spent = policy.profile(before).epsilon(allowed.delta)
    raise RateLimited(
        f"rate limited: dataset {standing.dataset!r} has spent epsilon {spent:.4g} of"
        f" {allowed.epsilon:g} in the last {allowance.days:g} days, this run would make it"
        f" {amount}; {_outlook(connection, standing, allowance, part)}"
    )


def _with(
    connection: Connection,
    standing: Standing,
    since: datetime,
    allowed: PrivacyBudget,
    part: tuple[PrivacyProfile, PrivacyUnit],
) -> tuple[Spent, Spent]:
    """Return what was charged since a moment, without and with one more release."""
    profile, unit = part
    spent, axes = recent_charges(connection, standing, since)
    amount = Spent.on(standing.policy.charge_of(profile, spent, allowed))
    if unit.block is not None:
        key = (unit.block_arrays, unit.block.axis)
        amount = axes.get(key, AxisCharges()).add(key, unit.block, amount).grown
    return spent, spent + amount


def _outlook(
    connection: Connection,
    standing: Standing,
    allowance: Allowance,
    part: tuple[PrivacyProfile, PrivacyUnit],
) -> str:
    """Return when enough charges are older than the allowance counts, in words."""
    stretch = timedelta(days=allowance.days)
    since = _moment(datetime.now(UTC) - stretch)
    charged = select(entries.c.clock).where(
        entries.c.dataset == standing.dataset,
        entries.c.kind == "reserve",
        entries.c.clock >= since,
    )
    clocks = sorted({datetime.fromisoformat(clock) for clock in connection.scalars(charged)})
    after_each = [clock + timedelta(seconds=2) for clock in clocks]

    def fits(since: datetime) -> bool:
        _, after = _with(connection, standing, since, allowance.budget, part)
        return standing.policy.fits(after, allowance.budget)

    first = bisect_left(after_each, True, key=fits)
    if first == len(after_each):
        return "it passes the limit by itself: give it a smaller epsilon, or raise the limit"
    resumes = (after_each[first] + stretch).isoformat(timespec="seconds")
    return f"a run after {resumes} resumes, when older charges are outside that time"

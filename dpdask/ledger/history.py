"""What the ledger says of the past: datasets, histories of releases, windows of series."""

from __future__ import annotations

import functools
import json

from sqlalchemy import Connection, select

from dpdask.accounting import profile_from_dict
from dpdask.ledger.hash_chain import Standing, body_of, spent_after, steps_of, total_in
from dpdask.ledger.models import DatasetState, LedgerEntry, LedgerHead, SeriesWindow
from dpdask.ledger.schema import entries
from dpdask.types import Json

__all__ = ["dataset_state", "ledger_entry", "series_windows"]

_AT_ONCE = 500  # releases in one statement


def dataset_state(connection: Connection, standing: Standing) -> DatasetState:
    """A dataset with all its releases."""
    query = select(entries.c.release, entries.c.kind, entries.c.body).where(
        entries.c.dataset == standing.dataset,
        entries.c.release.is_not(None),
        entries.c.kind != "settle",
    )
    rows = connection.execute(query.order_by(entries.c.sequence)).all()
    details: dict[str, Json] = {}
    for row in rows:
        if row.kind == "reserve":
            facts = json.loads(row.body)
            alone = _epsilon_alone(json.dumps(facts["profile"]), standing.total.delta)
            details[row.release] = {name: facts.get(name) for name in ("name", "at", "output")} | {
                "epsilon": alone
            }
    return DatasetState(
        name=standing.dataset,
        total=standing.total,
        spent=standing.spent.profile if details else None,
        releases={row.release: row.kind for row in rows},
        details=details,
        head=standing.head,
    )


@functools.lru_cache(maxsize=1024)
def _epsilon_alone(description: str, delta: float) -> float:
    return profile_from_dict(json.loads(description)).epsilon(delta)


def ledger_entry(connection: Connection, release: str) -> LedgerEntry | None:
    """A release's history, None when it was never reserved."""
    steps = steps_of(connection, release)
    if not steps:
        return None
    reserved = steps[0]
    opening = select(entries).where(entries.c.dataset == reserved.dataset, entries.c.sequence == 1)
    noted = body_of(reserved)
    published: Json = next((body_of(row) for row in steps if row.kind == "publish"), {})
    return LedgerEntry(
        dataset=reserved.dataset,
        release=release,
        name=noted.get("name", release),
        source=noted.get("source", ""),
        asked=noted.get("asked"),
        array=noted.get("array"),
        total=total_in(connection.execute(opening).one()),
        last=steps[-1].kind,
        reserved_at=noted["at"],
        cumulative=spent_after(reserved).profile,
        place=noted.get("place"),
        card=published.get("card"),
        head=LedgerHead(reserved.dataset, reserved.sequence, reserved.hash),
    )


def series_windows(connection: Connection, dataset: str, series: str) -> list[SeriesWindow]:
    """The windows of a series that were charged, oldest first; other releases are not read."""
    # Asked for the dataset too, or for an order, SQLite would walk through the whole dataset.
    named = connection.execute(select(entries).where(entries.c.series == series)).all()
    oldest_first = sorted(
        (row for row in named if row.dataset == dataset), key=lambda row: int(row.sequence)
    )
    last: dict[str, str] = {}
    for start in range(0, len(oldest_first), _AT_ONCE):
        releases = [row.release for row in oldest_first[start : start + _AT_ONCE]]
        steps = select(entries.c.sequence, entries.c.release, entries.c.kind).where(
            entries.c.release.in_(releases), entries.c.kind != "settle"
        )
        for row in sorted(connection.execute(steps), key=lambda row: int(row.sequence)):
            last[row.release] = row.kind
    noted = [(row.release, body_of(row)) for row in oldest_first]
    return [
        SeriesWindow(facts["window"], facts.get("array"), facts["output"], last[release])
        for release, facts in noted
    ]

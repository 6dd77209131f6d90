"""What the ledger records of the past: datasets, histories of releases, windows of series."""

from __future__ import annotations

import functools
import json

from sqlalchemy import Connection, select

from dpdask.accounting import profile_from_dict
from dpdask.ledger.blocks import charged_axes
from dpdask.ledger.hash_chain import (
    Standing,
    payload_of,
    policy_in,
    spent_after,
    steps_of,
    total_in,
)
from dpdask.ledger.models import (
    BY_THE_CURATOR,
    DatasetState,
    LedgerEntry,
    LedgerHead,
    ReleaseDetails,
    SeriesWindow,
)
from dpdask.ledger.payloads import decode_payload
from dpdask.ledger.schema import EntryRow, entries, fetch_entries, fetch_entry
from dpdask.types import Json

__all__ = ["dataset_state", "ledger_entry", "series_windows"]

_RELEASES_AT_ONCE = 500  # in one statement


def dataset_state(connection: Connection, standing: Standing) -> DatasetState:
    """Return a dataset with all its releases."""
    query = select(entries.c.fingerprint, entries.c.kind, entries.c.payload).where(
        entries.c.dataset == standing.dataset,
        entries.c.fingerprint.is_not(None),
        entries.c.kind != "put_once",
    )
    rows = connection.execute(query.order_by(entries.c.sequence)).all()
    details = {
        row.fingerprint: _details(decode_payload(row.payload), standing.total.delta)
        for row in rows
        if row.kind == "reserve"
    }
    return DatasetState(
        name=standing.dataset,
        total=standing.total,
        spent=standing.policy.profile(standing.spent) if details else None,
        releases={row.fingerprint: row.kind for row in rows},
        details=details,
        head=standing.head,
        policy=standing.policy.name,
        zcdp=standing.policy.zcdp(standing.spent),
        axes=tuple(charged_axes(connection, standing)),
        unit=next(
            (_unit(decode_payload(row.payload)) for row in rows if row.kind == "reserve"), None
        ),
    )


def _unit(payload: Json) -> str:
    """Return whom a release protects, as all others of its dataset do."""
    name, per, records = (payload.get(key) for key in ("privacy_unit", "per", "contributions"))
    if name is not None:
        return f"one {name}"
    whole = "one record" if records in (None, 1) else f"up to {records} records"
    return whole if per is None else f"one {per} of {whole}"


def _details(payload: Json, delta: float) -> ReleaseDetails:
    return {
        "release_id": payload.get("release_id"),
        "at": payload["at"],
        "output": payload.get("output_url"),
        "epsilon": _epsilon_alone(json.dumps(payload["profile"]), delta),
    }


@functools.lru_cache(maxsize=1024)
def _epsilon_alone(description: str, delta: float) -> float:
    return profile_from_dict(json.loads(description)).epsilon(delta)


def ledger_entry(connection: Connection, fingerprint: str) -> LedgerEntry | None:
    """Return a release's history, None if it was never reserved."""
    steps = steps_of(connection, fingerprint)
    if not steps:
        return None
    reserved = steps[0]
    payload = payload_of(reserved)
    opening = _opening(connection, reserved.dataset)
    published: Json = next((payload_of(step) for step in steps if step.kind == "publish"), {})
    return LedgerEntry(
        dataset=reserved.dataset,
        fingerprint=fingerprint,
        release_id=payload.get("release_id", fingerprint),
        source_identity=payload.get("source_identity", ""),
        spec_digest=payload.get("spec_digest"),
        array=payload.get("array"),
        total=total_in(opening),
        last=steps[-1].kind,
        reserved_at=payload["at"],
        cumulative=policy_in(opening).profile(spent_after(reserved)),
        output_address=payload.get("output_address"),
        card=published.get("card"),
        head=LedgerHead(reserved.dataset, reserved.sequence, reserved.hash),
        restored=_restored_head(payload),
    )


def _restored_head(payload: Json) -> LedgerHead | None:
    recorded = payload.get("restored", {}).get("head")
    return None if recorded is None else LedgerHead(**recorded)


def _opening(connection: Connection, dataset: str) -> EntryRow:
    query = select(entries).where(entries.c.dataset == dataset, entries.c.sequence == 1)
    opening = fetch_entry(connection, query)
    assert opening is not None, "a dataset with a reservation has an opening entry"
    return opening


def series_windows(connection: Connection, dataset: str, series: str) -> list[SeriesWindow]:
    """Return the windows of a series that were charged, oldest first.

    Other releases are not read.
    """
    # With the dataset in the query, or an order, SQLite would walk through the whole dataset.
    rows = fetch_entries(connection, select(entries).where(entries.c.series == series))
    oldest_first = sorted(
        (row for row in rows if row.dataset == dataset), key=lambda row: row.sequence
    )
    last = _last_steps(connection, [str(row.fingerprint) for row in oldest_first])
    windows = []
    for row in oldest_first:
        payload = payload_of(row)
        step = last[str(row.fingerprint)]
        output = payload["output_url"]
        aborted = step == "burn" and _is_aborted(connection, str(row.fingerprint))
        windows.append(SeriesWindow(payload["window"], payload.get("array"), output, step, aborted))
    return windows


def _is_aborted(connection: Connection, fingerprint: str) -> bool:
    """Return whether the curator burned a release."""
    burns = select(entries).where(entries.c.fingerprint == fingerprint, entries.c.kind == "burn")
    row = fetch_entry(connection, burns)
    return row is not None and payload_of(row).get("reason") == BY_THE_CURATOR


def _last_steps(connection: Connection, fingerprints: list[str]) -> dict[str, str]:
    """Return the last step of each release."""
    last: dict[str, str] = {}
    for start in range(0, len(fingerprints), _RELEASES_AT_ONCE):
        some = fingerprints[start : start + _RELEASES_AT_ONCE]
        query = select(entries.c.sequence, entries.c.fingerprint, entries.c.kind).where(
            entries.c.fingerprint.in_(some), entries.c.kind != "put_once"
        )
        for row in sorted(connection.execute(query), key=lambda row: int(row.sequence)):
            last[row.fingerprint] = row.kind
    return last

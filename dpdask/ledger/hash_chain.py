"""Entries of the ledger: a chain of hashes per dataset that carries what was charged so far.

The hash of an entry covers the one before it and its payload. Since 0.2.0 a payload holds the
entry's position in its dataset, the sums of all charges up to it, and a secret salt: hashes are
published, and payloads hold digests that depend on data. Whoever writes holds the dataset's lock.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, insert, select

from dpdask.errors import LedgerCorrupt, LedgerError
from dpdask.keystream import random_bytes
from dpdask.ledger.charges import NOTHING, Charge, Spent
from dpdask.ledger.models import LedgerHead
from dpdask.ledger.payloads import (
    added_by,
    charge_to_dict,
    decode_payload,
    encode_payload,
    index_columns,
)
from dpdask.ledger.policies import ADAPTIVE, Policy, policy_named
from dpdask.ledger.schema import EntryRow, datasets, entries, fetch_entries, fetch_entry
from dpdask.privacy import PrivacyBudget, PureBudget
from dpdask.types import Json

__all__ = [
    "GENESIS",
    "Standing",
    "append",
    "chain_hash",
    "check_fingerprint",
    "check_link",
    "last_step",
    "payload_of",
    "policy_in",
    "spent_after",
    "standing_of",
    "steps_of",
    "total_in",
]

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Standing:
    """A dataset at its newest entry.

    Args:
        dataset: its name.
        total: all that it may ever spend.
        spent: the sums of all its charges.
        head: its newest entry.
        clock: the latest time of any of its entries.
        policy: how its charges add up.
        opening: the hash of its first entry.
    """

    dataset: str
    total: PrivacyBudget
    spent: Spent
    head: LedgerHead
    clock: str
    policy: Policy = ADAPTIVE
    opening: str = ""


def check_fingerprint(fingerprint: str) -> None:
    """Raise :class:`LedgerError` unless this is a fingerprint."""
    if len(fingerprint) != 64 or any(c not in "0123456789abcdef" for c in fingerprint):
        raise LedgerError(
            "this is not a valid fingerprint of a release; give 64 lower-case hexadecimal digits"
        )


def standing_of(connection: Connection, dataset: str, *, lock: bool) -> Standing | None:
    """Return a dataset's standing, None if it is not open; check its newest link and its opening.

    Args:
        connection: the caller's transaction.
        dataset: the dataset's name.
        lock: whether nobody else may write to the dataset until the transaction ends.
    """
    query = select(datasets.c.name).where(datasets.c.name == dataset)
    if connection.scalar(query.with_for_update() if lock else query) is None:
        return None
    chain = select(entries).where(entries.c.dataset == dataset)
    newest = fetch_entries(connection, chain.order_by(entries.c.sequence.desc()).limit(2))
    first = fetch_entry(connection, chain.where(entries.c.sequence == 1))
    if first is None or not newest:
        raise LedgerCorrupt(f"dataset {dataset!r} has no opening entry")
    total = total_in(first)
    last = newest[0]
    check_link(last, newest[1] if len(newest) > 1 else None)
    head = LedgerHead(dataset, last.sequence, last.hash)
    policy = policy_in(first)
    return Standing(dataset, total, spent_after(last), head, last.clock, policy, first.hash)


def total_in(first: EntryRow) -> PrivacyBudget:
    """Return the total in the opening entry of a dataset."""
    opening = payload_of(first)
    if first.kind != "open" or first.previous != GENESIS:
        raise LedgerCorrupt(f"dataset {first.dataset!r} has no opening entry")
    if opening["delta"] == 0:
        return PureBudget(epsilon=opening["epsilon"])
    return PrivacyBudget(epsilon=opening["epsilon"], delta=opening["delta"])


def policy_in(first: EntryRow) -> Policy:
    """Return the accounting policy in the opening entry of a dataset."""
    return policy_named(payload_of(first).get("policy", ADAPTIVE.name))


def payload_of(row: EntryRow) -> Json:
    """Return what an entry says; raise :class:`LedgerCorrupt` unless its hash covers it."""
    parts = (row.previous, row.dataset, row.fingerprint or "", row.kind, row.payload)
    if row.hash != chain_hash(*parts):
        raise _broken(row, "is not what its hash was computed from")
    return decode_payload(row.payload)


def spent_after(row: EntryRow) -> Spent:
    """Return the sums of all charges of a dataset up to and with an entry."""
    return Spent.read(row.mu_squared, row.delta)


def check_link(row: EntryRow, before: EntryRow | None) -> Json:
    """Return the payload of an entry if it follows from the one before it.

    Raises:
        LedgerCorrupt: it does not follow, or its sums or columns are not its own.
    """
    payload = payload_of(row)
    previous_hash, previous_sequence = GENESIS, 0
    previous_clock, previous_spent = "", NOTHING
    if before is not None:
        previous_hash, previous_sequence = before.hash, before.sequence
        previous_clock, previous_spent = before.clock, spent_after(before)
    if row.previous != previous_hash or row.sequence != previous_sequence + 1:
        raise _broken(row, "does not follow from the one before it")
    columns = index_columns(row.kind, payload)
    columns["clock"] = max(payload["at"], previous_clock)
    if columns != {name: getattr(row, name) for name in columns}:
        raise _broken(row, "is indexed as something else than it says")
    sums = (row.mu_squared, row.delta)
    if payload.get("sequence") != row.sequence or tuple(payload["spent"]) != sums:
        raise _broken(row, "has another position or other sums than it says")
    if spent_after(row) != previous_spent + added_by(payload):
        raise _broken(row, "does not add its charge to what was spent before it")
    return payload


def _broken(row: EntryRow, problem: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"entry {row.sequence} of dataset {row.dataset!r} {problem}: the ledger was changed;"
        " restore a backup"
    )


def steps_of(connection: Connection, fingerprint: str) -> list[EntryRow]:
    """Return the steps that a release took, oldest first; at most five."""
    check_fingerprint(fingerprint)
    query = select(entries).where(
        entries.c.fingerprint == fingerprint, entries.c.kind != "put_once"
    )
    return fetch_entries(connection, query.order_by(entries.c.sequence))


def last_step(connection: Connection, fingerprint: str) -> EntryRow:
    """Return the newest step of a release, which must be reserved."""
    steps = steps_of(connection, fingerprint)
    if not steps:
        raise LedgerError("the release is not reserved; reserve it before anything else")
    return steps[-1]


def append(
    connection: Connection,
    dataset: str,
    standing: Standing | None,
    kind: str,
    payload: Json,
    fingerprint: str | None = None,
    charge: Charge | None = None,
) -> LedgerHead:
    """Append the next link of a dataset's chain; the caller holds the dataset's lock.

    Args:
        connection: the caller's transaction.
        dataset: the dataset's name.
        standing: the dataset before this entry; None for its opening.
        kind: what the entry is.
        payload: what it says.
        fingerprint: the release that it is about; None if it is about the dataset.
        charge: what it charges.
    """
    spent, sequence, previous, clock = NOTHING, 1, GENESIS, ""
    if standing is not None:
        spent, clock = standing.spent, standing.clock
        sequence, previous = standing.head.sequence + 1, standing.head.hash
    if charge is not None:
        payload = {**payload, "charge": charge_to_dict(charge)}
    mu_squared, delta = (spent + added_by(payload)).digits()
    complete: Json = {
        **payload,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "sequence": sequence,
        "spent": [mu_squared, delta],
        "salt": random_bytes(16).hex(),
    }
    text = encode_payload(complete)
    entry_hash = chain_hash(previous, dataset, fingerprint or "", kind, text)
    row = {
        "dataset": dataset,
        "sequence": sequence,
        "fingerprint": fingerprint,
        "kind": kind,
        **index_columns(kind, complete),
        "clock": max(complete["at"], clock),
        "mu_squared": mu_squared,
        "delta": delta,
        "payload": text,
        "previous": previous,
        "hash": entry_hash,
    }
    connection.execute(insert(entries), row)
    return LedgerHead(dataset, sequence, entry_hash)


def chain_hash(*parts: str) -> str:
    """Return SHA-256 over an injective encoding of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

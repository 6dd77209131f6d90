"""Entries of the ledger: a chain of hashes per dataset that carries what was charged so far.

The hash of an entry covers the one before it and its body. Since 0.2.0 a body holds the entry's
place in its dataset, the sums of all charges up to it, and a secret salt: hashes are published, and
bodies hold digests that depend on data. Whoever writes holds the dataset's lock.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from dpdask.accounting import Dominated
from dpdask.errors import LedgerCorrupt, LedgerError
from dpdask.keystream import random_bytes
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.models import CLOSING, LedgerHead
from dpdask.ledger.schema import datasets, entries
from dpdask.privacy import PrivacyBudget
from dpdask.types import Json

__all__ = [
    "GENESIS",
    "Standing",
    "append",
    "body_of",
    "chain_hash",
    "charge_in",
    "check_link",
    "check_release",
    "check_same",
    "columns_of",
    "last_step",
    "now",
    "spent_after",
    "standing_of",
    "steps_of",
    "total_in",
]

GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Standing:
    """A dataset at its newest entry: its total, what is spent of it, and where its chain ends."""

    dataset: str
    total: PrivacyBudget
    spent: Spent
    head: LedgerHead
    clock: str


def check_release(release: str) -> None:
    """Refuse what is not a fingerprint."""
    if len(release) != 64 or any(c not in "0123456789abcdef" for c in release):
        raise LedgerError(
            "this is no fingerprint of a release; give 64 lower-case hexadecimal digits"
        )


def standing_of(connection: Connection, dataset: str, *, lock: bool) -> Standing | None:
    """The newest standing of a dataset, None if it is not open; its newest link and its opening are
    checked.

    With ``lock``, nobody else writes to the dataset until the transaction ends.
    """
    query = select(datasets.c.name).where(datasets.c.name == dataset)
    if connection.scalar(query.with_for_update() if lock else query) is None:
        return None
    chain = select(entries).where(entries.c.dataset == dataset)
    newest = connection.execute(chain.order_by(entries.c.sequence.desc()).limit(2)).all()
    first = connection.execute(chain.where(entries.c.sequence == 1)).one_or_none()
    if first is None or not newest:
        raise LedgerCorrupt(f"dataset {dataset!r} has no opening entry")
    total = total_in(first)
    last, before = newest[0], newest[1] if len(newest) > 1 else None
    check_link(last, before)
    return Standing(
        dataset, total, spent_after(last), LedgerHead(dataset, last.sequence, last.hash), last.clock
    )


def total_in(first: Any) -> PrivacyBudget:
    """The total in the opening entry of a dataset."""
    opening = body_of(first)
    if first.kind != "open" or first.previous != GENESIS:
        raise LedgerCorrupt(f"dataset {first.dataset!r} has no opening entry")
    return PrivacyBudget(epsilon=opening["epsilon"], delta=opening["delta"])


def body_of(row: Any) -> Json:
    """What an entry says, if its hash is the one of what it says."""
    if row.hash != chain_hash(row.previous, row.dataset, row.release or "", row.kind, row.body):
        raise _broken(row, "is not what its hash was made of")
    facts: Json = json.loads(row.body)
    return facts


def spent_after(row: Any) -> Spent:
    """The sums of all charges of a dataset up to and with an entry."""
    return Spent.read(row.mu_squared, row.delta)


def charge_in(facts: Json) -> Dominated | None:
    """What an entry charges."""
    charge = facts.get("charge")
    return None if charge is None else Dominated(charge["mu"], charge["delta0"])


def check_link(row: Any, before: Any | None) -> Json:
    """Refuse an entry that does not follow from the one before it, or whose sums or columns are not
    its own; its body.
    """
    facts = body_of(row)
    if (
        row.previous != (GENESIS if before is None else before.hash)
        or row.sequence != (before.sequence if before else 0) + 1
    ):
        raise _broken(row, "does not follow from the one before it")
    clock = max(facts["at"], "" if before is None else before.clock)
    if {**columns_of(row.kind, facts), "clock": clock} != {
        name: getattr(row, name) for name in (*_COLUMNS, "clock")
    }:
        raise _broken(row, "is indexed as something else than it says")
    if facts.get("sequence") != row.sequence or tuple(facts["spent"]) != (
        row.mu_squared,
        row.delta,
    ):
        raise _broken(row, "has another place or other sums than it says")
    charge = charge_in(facts)
    previous = NOTHING if before is None else spent_after(before)
    if spent_after(row) != previous + (NOTHING if charge is None else Spent.on(charge)):
        raise _broken(row, "does not add its charge to what was spent before it")
    return facts


def _broken(row: Any, what: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"entry {row.sequence} of dataset {row.dataset!r} {what}: the ledger was changed;"
        " restore a backup"
    )


_COLUMNS = ("settled", "name", "array", "record_axis", "series")


def columns_of(kind: str, facts: Json) -> Json:
    """The parts of a body that the database indexes."""
    found: Json = dict.fromkeys(_COLUMNS)
    found["settled"] = facts["settled"] if kind == "settle" else ""
    if kind == "reserve":
        found |= {name: facts.get(name) for name in ("name", "array", "record_axis")}
        found["series"] = (facts.get("window") or {}).get("series")
    return found


def steps_of(connection: Connection, release: str) -> list[Any]:
    """The steps that a release took, oldest first; at most five."""
    check_release(release)
    query = select(entries).where(entries.c.release == release, entries.c.kind != "settle")
    return list(connection.execute(query.order_by(entries.c.sequence)))


def last_step(connection: Connection, release: str) -> Any:
    """The newest step of a release that must be there."""
    steps = steps_of(connection, release)
    if not steps:
        raise LedgerError("the release is not reserved; reserve it before asking for its key")
    return steps[-1]


def check_same(connection: Connection, steps: list[Any], description: Json) -> Dominated | None:
    """A reservation may be repeated only as it was, and only while the release is open; what it was
    charged.
    """
    reserved = steps[0]
    before = connection.execute(
        select(entries).where(
            entries.c.dataset == reserved.dataset, entries.c.sequence == reserved.sequence - 1
        )
    ).one_or_none()
    facts = body_of(reserved)
    if "sequence" in facts:  # else of 0.1.0, whose charge is in the upgrade's entry
        check_link(reserved, before)
    if facts["profile"] != json.loads(json.dumps(description)):
        raise LedgerError(
            "the release was reserved with another guarantee; a fingerprint stands for one release"
        )
    if steps[-1].kind in CLOSING:
        raise LedgerError(
            f"the release is closed by {steps[-1].kind}; a new release is a new charge"
        )
    return charge_in(facts)


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def append(
    connection: Connection,
    dataset: str,
    standing: Standing | None,
    kind: str,
    facts: Json,
    release: str | None = None,
    charge: Dominated | None = None,
) -> LedgerHead:
    """Add the next link of a dataset's chain after ``standing``; the caller holds the dataset's
    lock.
    """
    spent = (NOTHING if standing is None else standing.spent) + (
        NOTHING if charge is None else Spent.on(charge)
    )
    sequence = 1 if standing is None else standing.head.sequence + 1
    previous = GENESIS if standing is None else standing.head.hash
    noted = {
        **facts,
        "at": now(),
        "sequence": sequence,
        "spent": list(spent.digits()),
        "salt": random_bytes(16).hex(),
    }
    if charge is not None:
        noted["charge"] = {"mu": charge.mu, "delta0": charge.delta0}
    body = json.dumps(noted, sort_keys=True, separators=(",", ":"), allow_nan=False)
    mu_squared, delta = spent.digits()
    row = {
        "dataset": dataset,
        "sequence": sequence,
        "release": release,
        "kind": kind,
        **columns_of(kind, noted),
        "clock": max(noted["at"], "" if standing is None else standing.clock),
        "mu_squared": mu_squared,
        "delta": delta,
        "body": body,
        "previous": previous,
        "hash": chain_hash(previous, dataset, release or "", kind, body),
    }
    connection.execute(insert(entries), row)
    return LedgerHead(dataset, sequence, row["hash"])


def chain_hash(*parts: str) -> str:
    """SHA-256 over an injective encoding of the parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

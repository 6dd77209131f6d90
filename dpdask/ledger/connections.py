"""How the ledger's database is reached: its address, its engine, and who is waited for how long."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dpdask.errors import LedgerError
from dpdask.ledger.faults import plain_errors

if TYPE_CHECKING:
    import psycopg

__all__ = [
    "NO_LEDGER",
    "TimeOuts",
    "connect",
    "database_file",
    "forget_deleted",
    "parse_url",
    "reading",
]

T = TypeVar("T")

NO_LEDGER = (
    "the database holds no ledger; check its address, or `dpdask ledger init DATASET --epsilon E"
    " --delta D` creates one"
)
_READING = "dpdask_reading"
PsycopgWait: TypeAlias = Generator[Any, Any, T]
"""What psycopg drives: it yields what it waits for, and gets what is ready; nothing every 0.1 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOuts:
    """For how many seconds the ledger's database is waited for.

    Args:
        connect: until a connection is open.
        lock: while somebody else holds what a transaction needs.
        statement: for the answer to one statement, also from a server that is frozen.
    """

    connect: float = 10.0
    lock: float = 60.0
    statement: float = 120.0

    def __post_init__(self) -> None:
        if not min(self.connect, self.lock, self.statement) > 0:
            raise LedgerError("a time-out of the ledger must be above 0 seconds; choose one")


def parse_url(url: str) -> URL:
    """Return the address of a ledger, in a database that can hold one."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError(
            "the ledger URL cannot be read; write sqlite:///path/to/ledger.db or"
            " postgresql+psycopg://host/database"
        ) from None
    backend = parsed.get_backend_name()
    if backend not in ("postgresql", "sqlite"):
        raise LedgerError(f"a ledger on {backend} is not supported; use sqlite or postgresql")
    if backend == "sqlite" and (not parsed.database or parsed.database == ":memory:"):
        raise LedgerError(
            "a ledger in memory forgets what was spent; give sqlite:///path/to/ledger.db"
        )
    return parsed


def database_file(parsed: URL) -> Path | None:
    """Return the file of a SQLite ledger, None for PostgreSQL."""
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def connect(parsed: URL, *, create: bool, time_outs: TimeOuts) -> Engine:
    """Return an engine whose transactions are serial per dataset.

    SQLite runs one transaction at a time, PostgreSQL locks the dataset's row.

    Args:
        parsed: the ledger's address.
        create: whether a SQLite file that does not exist is created.
        time_outs: for how long the database is waited for.
    """
    path = database_file(parsed)
    if path is None:
        return _postgres(parsed, time_outs)
    if not path.parent.is_dir():
        raise LedgerError(
            f"the ledger's folder {str(path.parent)!r} does not exist; create it first"
        )
    if not create:
        _check_holds_ledger(path)
    return _sqlite(parsed, path, time_outs)


def _check_holds_ledger(path: Path) -> None:
    """Refuse a file that holds no ledger, and leave it as it is: it may be somebody else's."""
    if not path.exists():
        raise LedgerError(
            f"there is no ledger at {str(path)!r}; check the path, or `dpdask ledger init"
            f" DATASET --epsilon E --delta D --ledger sqlite:///{path}`"
        )
    engine = create_engine(f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true")
    with plain_errors(), engine.connect() as connection:
        tables = connection.exec_driver_sql(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'dpdask_entries'"
        ).all()
    engine.dispose()
    if not tables:
        raise LedgerError(NO_LEDGER)


def _sqlite(parsed: URL, path: Path, time_outs: TimeOuts) -> Engine:
    engine = create_engine(parsed, connect_args={"timeout": time_outs.lock})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        with contextlib.suppress(PermissionError):  # somebody else's, who shares it with us
            os.chmod(path, 0o600)  # it holds digests of data, and perhaps bare release keys
        connection.isolation_level = None  # transactions begin below, not when the driver decides
        for pragma in (
            f"busy_timeout={int(1000 * time_outs.lock)}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "secure_delete=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        kind = "DEFERRED" if connection.get_execution_options().get(_READING) else "IMMEDIATE"
        connection.exec_driver_sql(f"BEGIN {kind}")

    return engine


def _postgres(parsed: URL, time_outs: TimeOuts) -> Engine:
    # Whatever the server's default is: a snapshot taken before the lock was granted would not
    # see what was spent in between.
    engine = create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        isolation_level="READ COMMITTED",
    )

    @event.listens_for(engine, "do_connect")
    def open_connection(
        _dialect: object, _record: object, args: list[str], options: dict[str, object]
    ) -> psycopg.Connection[tuple[object, ...]]:
        # libpq counts whole seconds, and takes 1 for 2
        options.setdefault("connect_timeout", max(2, round(time_outs.connect)))
        return _patient_connection(time_outs.statement, args, options)

    # For each transaction: a pool between us and the server may hand sessions to others.
    limits = (
        f"SELECT set_config('lock_timeout', '{int(1000 * time_outs.lock)}ms', true),"
        f" set_config('statement_timeout', '{int(1000 * time_outs.statement)}ms', true)"
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(limits)

    return engine


def _patient_connection(
    seconds: float, args: list[str], options: dict[str, object]
) -> psycopg.Connection[tuple[object, ...]]:
    """Open a connection that is closed when the server is silent for too long.

    The server's own time-outs do not help against a server that is frozen.
    """
    import psycopg

    class PatientConnection(psycopg.Connection[tuple[object, ...]]):
        def wait(  # type: ignore[override]  # versions differ in what else they pass
            self, gen: PsycopgWait[T], *args: float, **options: float
        ) -> T:
            try:
                return super().wait(_until(gen, time.monotonic() + seconds), *args, **options)
            except TimeoutError:
                self.pgconn.finish()
                raise psycopg.errors.ConnectionTimeout("timeout expired") from None

    return PatientConnection.connect(*args, **options)  # type: ignore[arg-type]


def _until(gen: PsycopgWait[T], deadline: float) -> PsycopgWait[T]:
    """Pass a generator of psycopg on, but stop when nothing was ready until the deadline."""
    try:
        waiting_for = next(gen)
        while True:
            ready = yield waiting_for
            if not ready and time.monotonic() > deadline:
                raise TimeoutError
            waiting_for = gen.send(ready)
    except StopIteration as stop:
        return cast("T", stop.value)


def reading(engine: Engine) -> Engine:
    """Return the engine for transactions that only read: they wait for nobody who writes."""
    return engine.execution_options(**{_READING: True})


def forget_deleted(engine: Engine) -> None:
    """Remove deleted keys from SQLite's write-ahead log too.

    On PostgreSQL, vacuum removes them later.
    """
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            raw = cast("sqlite3.Connection", connection.connection.driver_connection)
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

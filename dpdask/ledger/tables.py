"""The ledger's three tables, append-only by trigger, on SQLite or PostgreSQL.

``datasets`` and ``entries`` can be dumped and shown; ``release_keys`` alone holds secrets, and its rows are deleted when a
release is committed or burned.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    create_engine,
    event,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from dpdask.errors import LedgerError

__all__ = ["connect", "create_tables", "datasets", "entries", "forget_deleted", "release_keys"]

_metadata = MetaData()

datasets = Table(
    "dpdask_datasets",
    _metadata,
    Column("name", String(200), primary_key=True),
    Column("epsilon", Text, nullable=False),  # decimal text that reads back as the same double
    Column("delta", Text, nullable=False),
)

entries = Table(
    "dpdask_entries",
    _metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("dataset", ForeignKey("dpdask_datasets.name"), nullable=False, index=True),
    Column("release", String(64)),  # null for the opening of a dataset
    Column("kind", String(20), nullable=False),
    Column("body", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    UniqueConstraint("release", "kind"),  # a release takes each step once
    UniqueConstraint("dataset", "previous"),  # a chain does not fork
)

release_keys = Table(
    "dpdask_release_keys",
    _metadata,
    Column("release", String(64), primary_key=True),
    Column("wrapped", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
)

_SQLITE_TRIGGERS = [
    f"CREATE TRIGGER IF NOT EXISTS {table.name}_{action.lower()} BEFORE {action} ON {table.name} "
    f"BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
    for table in (datasets, entries)
    for action in ("UPDATE", "DELETE")
]
_POSTGRES_TRIGGERS = [
    "CREATE OR REPLACE FUNCTION dpdask_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the ledger is append-only'; END $$",
    *(
        f"CREATE OR REPLACE TRIGGER {table.name}_append_only BEFORE UPDATE OR DELETE ON {table.name} "
        "FOR EACH ROW EXECUTE FUNCTION dpdask_append_only()"
        for table in (datasets, entries)
    ),
]


def connect(url: str, *, create: bool = True) -> Engine:
    """An engine whose transactions are serial per dataset: SQLite writes one at a time, PostgreSQL locks the dataset's row."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError(
            "the ledger URL cannot be read; write sqlite:///path/to/ledger.db or postgresql+psycopg://host/database"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        # whatever the server's default: a snapshot taken before the lock was granted would not see what was spent meanwhile
        return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, isolation_level="READ COMMITTED")
    if backend != "sqlite":
        raise LedgerError(f"a ledger on {backend} is not supported; use sqlite or postgresql")
    if not parsed.database or parsed.database == ":memory:":
        raise LedgerError("a ledger in memory forgets what was spent; give sqlite:///path/to/ledger.db")
    path = Path(parsed.database)
    if not path.parent.is_dir():
        raise LedgerError(f"the ledger's folder {str(path.parent)!r} does not exist; create it first")
    if not create and not path.exists():
        raise LedgerError(
            f"there is no ledger at {parsed.database!r}; check the path, or `dpdask ledger init DATASET --epsilon E --delta D"
            f" --ledger sqlite:///{parsed.database}`"
        )
    engine = create_engine(parsed, connect_args={"timeout": 120})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        with contextlib.suppress(PermissionError):  # somebody else's, who shares it with us
            os.chmod(path, 0o600)  # it may hold release keys
        connection.isolation_level = None  # transactions begin below, not when the driver thinks best
        for pragma in ("busy_timeout=120000", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def create_tables(engine: Engine) -> None:
    """Create what is missing; safe to call again and from several processes."""
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(4951760157)"))
        _metadata.create_all(connection)
        for statement in _SQLITE_TRIGGERS if engine.dialect.name == "sqlite" else _POSTGRES_TRIGGERS:
            connection.execute(text(statement))


def forget_deleted(engine: Engine) -> None:
    """Remove deleted keys from SQLite's write-ahead log too. PostgreSQL's vacuum does its own, later."""
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

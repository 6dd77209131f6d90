"""The ledger's tables on SQLite or PostgreSQL, and the engine that reaches them.

Entries can be dumped and shown to whoever may see the ledger; ``dpdask_release_keys`` alone holds
keys, wrapped by a master key that is somewhere else, and its rows are deleted when a release is
committed or burned. All other tables only grow (:mod:`dpdask.ledger.triggers`). What an entry says
is in its body, which the chain of hashes covers; the other columns repeat parts of it so that the
database can find them without reading every row, and :meth:`Ledger.verify` compares the two.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
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
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from dpdask.errors import LedgerError
from dpdask.signals import signals_deferred

__all__ = [
    "SCHEMA_VERSION",
    "connect",
    "create_tables",
    "database_file",
    "datasets",
    "entries",
    "forget_deleted",
    "parse_url",
    "plain_errors",
    "release_keys",
    "schema",
    "settings",
]

SCHEMA_VERSION = 2  # 0.1.0 had no version; it counts as 1

_metadata = MetaData()


def _plain(length: int) -> Any:
    """Text that every server sorts by its bytes, so that prefixes and amounts can be found."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


schema = Table(
    "dpdask_schema",
    _metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

settings = Table(
    "dpdask_settings",
    _metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
    sqlite_with_rowid=False,
)

datasets = Table(
    "dpdask_datasets",
    _metadata,
    Column(
        "name", String(200), primary_key=True
    ),  # what PostgreSQL locks; a dataset's total is in its first entry
    sqlite_with_rowid=False,
)

entries = Table(
    "dpdask_entries",
    _metadata,
    Column("dataset", ForeignKey("dpdask_datasets.name"), primary_key=True),
    Column("sequence", Integer, primary_key=True, autoincrement=False),  # from 1 in each dataset
    Column("release", String(64)),  # null where the entry is about the dataset
    Column("kind", String(20), nullable=False),
    Column("settled", String(100), nullable=False),  # the name of a settled value, else empty
    Column(
        "name", _plain(200), unique=True
    ),  # of a reservation: what the release is published under
    Column("array", String(64)),  # of a reservation
    Column("record_axis", Integer),  # of a reservation
    Column("series", String(200)),  # of a reservation
    Column("clock", _plain(40), nullable=False),  # the latest time of any entry so far
    Column(
        "mu_squared", _plain(80), nullable=False
    ),  # charged so far, as padded hexadecimal digits
    Column("delta", _plain(80), nullable=False),
    Column("body", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    UniqueConstraint("release", "kind", "settled"),  # a release takes each step once
    Index("dpdask_entries_kind", "dataset", "kind", "sequence"),
    Index("dpdask_entries_series", "series"),
    Index("dpdask_entries_clock", "dataset", "clock", "sequence"),
    Index("dpdask_entries_array", "array", "dataset", "record_axis"),
    sqlite_with_rowid=False,  # so that INSERT OR REPLACE finds no hidden key
)

release_keys = Table(
    "dpdask_release_keys",
    _metadata,
    Column("release", String(64), primary_key=True),
    Column("wrapped", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Database errors as one line without statements, parameters or addresses; no signal cuts a
    transaction off.
    """
    try:
        with signals_deferred():
            yield
    except SQLAlchemyError as error:
        kind = type(getattr(error, "orig", None) or error).__name__
        raise LedgerError(
            f"the ledger's database refused ({kind}); check that it can be reached, written and"
            " is not full"
        ) from None


def parse_url(url: str) -> URL:
    """The address of a ledger, in a database that can hold one."""
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
    """The file of a SQLite ledger."""
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def connect(parsed: URL, *, create: bool) -> Engine:
    """An engine whose transactions are serial per dataset: SQLite writes one at a time, PostgreSQL
    locks the dataset's row.
    """
    path = database_file(parsed)
    if path is None:
        # whatever the server's default: a snapshot taken before the lock was granted would not see
        # what was spent meanwhile
        return create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
        )
    if not path.parent.is_dir():
        raise LedgerError(
            f"the ledger's folder {str(path.parent)!r} does not exist; create it first"
        )
    if not create and not path.exists():
        raise LedgerError(
            f"there is no ledger at {parsed.database!r}; check the path, or `dpdask ledger init"
            " DATASET --epsilon E --delta D"
            f" --ledger sqlite:///{parsed.database}`"
        )
    engine = create_engine(parsed, connect_args={"timeout": 120})

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _record: Any) -> None:
        with contextlib.suppress(PermissionError):  # somebody else's, who shares it with us
            os.chmod(path, 0o600)  # it holds digests of data, and perhaps bare release keys
        connection.isolation_level = (
            None  # transactions begin below, not when the driver thinks best
        )
        for pragma in (
            "busy_timeout=120000",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "secure_delete=ON",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def create_tables(connection: Connection) -> None:
    """Create all tables, with their triggers, in the caller's transaction."""
    from dpdask.ledger.triggers import trigger_statements

    _metadata.create_all(connection, checkfirst=False)
    for statement in trigger_statements(connection.dialect.name):
        connection.execute(text(statement))
    connection.execute(schema.insert().values(version=SCHEMA_VERSION))


def forget_deleted(engine: Engine) -> None:
    """Remove deleted keys from SQLite's write-ahead log too. PostgreSQL's vacuum does its own,
    later.
    """
    if engine.dialect.name == "sqlite":
        with engine.connect() as connection:
            raw: Any = connection.connection.driver_connection
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")

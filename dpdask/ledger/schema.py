"""The ledger's tables on SQLite or PostgreSQL, and the engine that reaches them.

``dpdask_release_keys`` alone holds keys, wrapped by a master key that is stored elsewhere, and its
rows are deleted when a release is committed or burned. All other tables only grow
(:mod:`dpdask.ledger.triggers`); rows of ``dpdask_blocks`` are marked, once, as replaced. What an
entry says is in its payload, which the chain of hashes covers; the other columns repeat parts of it
so that the database can look them up without reading every row, and :meth:`Ledger.verify` compares
the two.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Select,
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
    "EntryRow",
    "add_blocks",
    "blocks",
    "connect",
    "create_tables",
    "database_file",
    "datasets",
    "entries",
    "fetch_entries",
    "fetch_entry",
    "forget_deleted",
    "parse_url",
    "plain_errors",
    "release_keys",
    "schema",
    "settings",
]

SCHEMA_VERSION = 3  # 0.1.0 recorded no version; it counts as 1. 0.2.0 has 2: no blocks

_metadata = MetaData()


def _plain(length: int) -> String:
    """Return a type of text that every server sorts by bytes, for prefixes and amounts."""
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
    # what PostgreSQL locks; a dataset's total is in its first entry
    Column("name", String(200), primary_key=True),
    sqlite_with_rowid=False,
)

entries = Table(
    "dpdask_entries",
    _metadata,
    Column("dataset", ForeignKey("dpdask_datasets.name"), primary_key=True),
    Column("sequence", Integer, primary_key=True, autoincrement=False),  # from 1 in each dataset
    Column("fingerprint", String(64)),  # null where the entry is about the dataset
    Column("kind", String(20), nullable=False),
    Column("once_name", String(100), nullable=False),  # of a value that is put once, else empty
    Column("release_id", _plain(200), unique=True),  # of a reservation: the public random name
    Column("array", String(64)),  # of a reservation
    Column("record_axis", Integer),  # of a reservation
    Column("series", String(200)),  # of a reservation
    Column("clock", _plain(40), nullable=False),  # the latest time of any entry so far
    # charged so far, as padded hexadecimal digits
    Column("mu_squared", _plain(80), nullable=False),
    Column("delta", _plain(80), nullable=False),
    Column("payload", Text, nullable=False),
    Column("previous", String(64), nullable=False),
    Column("hash", String(64), nullable=False, unique=True),
    UniqueConstraint("fingerprint", "kind", "once_name"),  # a release takes each step once
    Index("dpdask_entries_kind", "dataset", "kind", "sequence"),
    Index("dpdask_entries_series", "series"),
    Index("dpdask_entries_clock", "dataset", "clock", "sequence"),
    Index("dpdask_entries_array", "array", "dataset", "record_axis"),
    sqlite_with_rowid=False,  # so that INSERT OR REPLACE has no hidden key to use
)

release_keys = Table(
    "dpdask_release_keys",
    _metadata,
    Column("fingerprint", String(64), primary_key=True),
    Column("wrapped", Integer, nullable=False),
    Column("content", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
)


blocks = Table(
    "dpdask_blocks",
    _metadata,
    # What the units of a part of an axis were charged so far; see dpdask.ledger.blocks.
    Column("dataset", ForeignKey("dpdask_datasets.name"), primary_key=True),
    Column("array", String(64), primary_key=True),
    Column("axis", Integer, primary_key=True, autoincrement=False),
    Column("written", Integer, primary_key=True, autoincrement=False),  # by this entry
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    Column("stop", BigInteger, nullable=False),
    Column("mu_squared", _plain(80), nullable=False),
    Column("delta", _plain(80), nullable=False),
    Column("replaced", Integer),  # by this entry; null while it holds
    Index("dpdask_blocks_current", "dataset", "array", "axis", "replaced", "start"),
    Index("dpdask_blocks_written", "dataset", "written"),
    sqlite_with_rowid=False,
)


class EntryRow(Protocol):
    """One row of ``dpdask_entries``."""

    @property
    def dataset(self) -> str:
        """The dataset whose chain it is in."""

    @property
    def sequence(self) -> int:
        """Its position in the chain, from 1."""

    @property
    def fingerprint(self) -> str | None:
        """The release that it is about."""

    @property
    def kind(self) -> str:
        """What it is: open, reserve, key, put_once, publish, commit, burn or upgrade."""

    @property
    def clock(self) -> str:
        """The latest time of any entry so far."""

    @property
    def mu_squared(self) -> str:
        """The sum of mu^2 so far."""

    @property
    def delta(self) -> str:
        """The sum of delta0 so far."""

    @property
    def payload(self) -> str:
        """What it says, as JSON text."""

    @property
    def previous(self) -> str:
        """The hash of the entry before it."""

    @property
    def hash(self) -> str:
        """The hash of the entry."""


def fetch_entries(connection: Connection, query: Select[tuple[object, ...]]) -> list[EntryRow]:
    """Return the rows of a query for whole entries."""
    return cast("list[EntryRow]", connection.execute(query).all())


def fetch_entry(connection: Connection, query: Select[tuple[object, ...]]) -> EntryRow | None:
    """Return the row of a query for at most one whole entry."""
    return cast("EntryRow | None", connection.execute(query).one_or_none())


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn database errors into one line without statements, parameters or addresses.

    No signal interrupts a transaction within.
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


def connect(parsed: URL, *, create: bool) -> Engine:
    """Return an engine whose transactions are serial per dataset.

    SQLite runs one transaction at a time, PostgreSQL locks the dataset's row.

    Args:
        parsed: the ledger's address.
        create: whether a SQLite file that does not exist is created.
    """
    path = database_file(parsed)
    if path is None:
        # Whatever the server's default is: a snapshot taken before the lock was granted would not
        # see what was spent in between.
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
    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        with contextlib.suppress(PermissionError):  # somebody else's, who shares it with us
            os.chmod(path, 0o600)  # it holds digests of data, and perhaps bare release keys
        connection.isolation_level = None  # transactions begin below, not when the driver decides
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


def add_blocks(connection: Connection) -> None:
    """Add what a ledger of 0.2.0 does not have, in the caller's transaction."""
    from dpdask.ledger.triggers import block_statements

    blocks.create(connection)
    for statement in block_statements(connection.dialect.name):
        connection.execute(text(statement))
    connection.execute(schema.insert().values(version=SCHEMA_VERSION))


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

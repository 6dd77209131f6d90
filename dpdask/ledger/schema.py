"""The ledger's tables on SQLite or PostgreSQL.

``dpdask_release_keys`` alone holds keys, wrapped by a master key that is stored elsewhere, and its
rows are deleted when a release is committed or burned. All other tables only grow
(:mod:`dpdask.ledger.triggers`); rows of ``dpdask_blocks`` are marked, once, as replaced. What an
entry says is in its payload, which the chain of hashes covers; the other columns repeat parts of it
so that the database can look them up without reading every row, and :meth:`Ledger.verify` compares
the two.
"""

from __future__ import annotations

from typing import Protocol, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
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
    text,
)

__all__ = [
    "SCHEMA_VERSION",
    "EntryRow",
    "add_blocks",
    "blocks",
    "create_tables",
    "datasets",
    "entries",
    "fetch_entries",
    "fetch_entry",
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

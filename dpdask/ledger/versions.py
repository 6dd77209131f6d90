"""The version of a ledger's tables: create a new ledger, refuse an older or a newer one."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, func, insert, inspect, select, text

from dpdask.errors import LedgerCorrupt, LedgerError
from dpdask.ledger.connections import NO_LEDGER, reading
from dpdask.ledger.key_store import KeyStore
from dpdask.ledger.keys import KeyWrapper, find_master_key, make_master_key
from dpdask.ledger.schema import (
    SCHEMA_VERSION,
    create_tables,
    entries,
    schema,
    settings,
)

__all__ = ["lock_schema", "prepare_schema", "record_key_storage", "schema_version"]

_KEY_STORAGE = "keys"  # bare, or wrapped
_CHECK = "master_key_check"
_SCHEMA_LOCK = 4951760157


def schema_version(connection: Connection) -> int:
    """Return 0 for a database without a ledger, 1 for tables of 0.1.0, else the recorded one."""
    tables = inspect(connection)
    if tables.has_table(schema.name):
        return int(connection.scalar(select(func.max(schema.c.version))) or 0)
    return 1 if tables.has_table(entries.name) else 0


def lock_schema(connection: Connection) -> None:
    """Let nobody else create or upgrade tables until the transaction ends.

    SQLite runs one transaction at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))


def prepare_schema(
    engine: Engine,
    wrapper: KeyWrapper | None,
    database: Path | None,
    *,
    create: bool,
    bare_keys: bool | None,
) -> KeyStore:
    """Create what a new ledger needs, or refuse one that this version cannot read.

    Args:
        engine: the ledger's database.
        wrapper: wraps keys by the configured master key, if there is one.
        database: the file of a SQLite ledger.
        create: whether a new ledger is created.
        bare_keys: whether keys are stored as they are; None for whatever the ledger says.
    """
    opened = engine if create else reading(engine)
    with opened.begin() as connection:
        version = schema_version(connection)
        if version == 0:
            if not create:
                raise LedgerError(NO_LEDGER)
            version = _create(connection, wrapper, database, bare_keys=bool(bare_keys))
        if version < SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger was created by an earlier dpdask (tables of version {version});"
                " `dpdask ledger upgrade` brings it to this version, and keeps every entry"
            )
        if version > SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has tables of version {version}, and this dpdask knows"
                f" {SCHEMA_VERSION}; use the newer dpdask"
            )
        return _key_store(connection, wrapper, database, bare_keys)


def _create(
    connection: Connection, wrapper: KeyWrapper | None, database: Path | None, *, bare_keys: bool
) -> int:
    """Create a ledger, unless another process was first; return the version of its tables."""
    lock_schema(connection)
    version = schema_version(connection)
    if version != 0:
        return version
    create_tables(connection)
    if bare_keys:
        record_key_storage(connection, None)
    else:
        record_key_storage(connection, wrapper or KeyWrapper(make_master_key(database)))
    return SCHEMA_VERSION


def record_key_storage(connection: Connection, wrapper: KeyWrapper | None) -> None:
    """Record, for good, whether release keys are wrapped and by which master key."""
    kind = "bare" if wrapper is None else "wrapped"
    connection.execute(insert(settings).values(name=_KEY_STORAGE, value=kind))
    if wrapper is not None:
        connection.execute(insert(settings).values(name=_CHECK, value=wrapper.check))


def _key_store(
    connection: Connection,
    wrapper: KeyWrapper | None,
    database: Path | None,
    bare_keys: bool | None,
) -> KeyStore:
    recorded = {row.name: row.value for row in connection.execute(select(settings))}
    kind = recorded.get(_KEY_STORAGE)
    if kind not in ("bare", "wrapped") or (kind == "wrapped") != (_CHECK in recorded):
        raise LedgerCorrupt("the ledger does not say how it keeps release keys; restore a backup")
    if bare_keys is not None and bare_keys != (kind == "bare"):
        raise LedgerError(
            f"this ledger keeps its release keys {kind}, and that never changes; use another ledger"
        )
    if kind == "bare":
        return KeyStore(wrapper=None, check=None)
    if wrapper is None:  # the master key of a new ledger was created a moment ago
        master_key = find_master_key(database)
        wrapper = None if master_key is None else KeyWrapper(master_key)
    return KeyStore(wrapper, recorded[_CHECK])

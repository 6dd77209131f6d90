"""The version of a ledger's tables: create a new ledger, name an older one, refuse a newer."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, func, insert, inspect, select, text

from dpdask.errors import LedgerCorrupt, LedgerError
from dpdask.ledger.keys import KeyWrapper, make_master_key
from dpdask.ledger.schema import SCHEMA_VERSION, create_tables, entries, schema, settings

__all__ = ["hold_schema", "note_keys", "prepare_schema", "schema_version"]

_KEYS = "keys"  # bare, or wrapped
_CHECK = "master_key_check"


def schema_version(connection: Connection) -> int:
    """0 for a database without a ledger, 1 for 0.1.0's tables, else what is written."""
    tables = inspect(connection)
    if tables.has_table(schema.name):
        return int(connection.scalar(select(func.max(schema.c.version))) or 0)
    return 1 if tables.has_table(entries.name) else 0


def hold_schema(connection: Connection) -> None:
    """Let nobody else create or upgrade tables until the transaction ends; SQLite's writers are
    alone anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(4951760157)"))


def prepare_schema(
    engine: Engine,
    wrapper: KeyWrapper | None,
    database: Path | None,
    *,
    create: bool,
    bare_keys: bool | None,
) -> tuple[KeyWrapper | None, str | None]:
    """Create what a new ledger needs, or refuse one that this version cannot read.

    What wraps keys, and what tells its master key: None for a ledger with bare keys.
    """
    with engine.begin() as connection:
        version = schema_version(connection)
        if version == 0:
            if not create:
                raise LedgerError(
                    "the database holds no ledger; `dpdask ledger init DATASET --epsilon E"
                    " --delta D` makes one"
                )
            hold_schema(connection)
            version = schema_version(connection)
            if version == 0:
                create_tables(connection)
                note_keys(
                    connection,
                    None if bare_keys else wrapper or KeyWrapper(make_master_key(database)),
                )
                version = SCHEMA_VERSION
        if version < SCHEMA_VERSION:
            raise LedgerError(
                "the ledger was made by dpdask 0.1.0; `dpdask ledger upgrade` brings it to this"
                " version, and keeps every entry"
            )
        if version > SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger has tables of version {version}, and this dpdask knows"
                f" {SCHEMA_VERSION}; use the newer dpdask"
            )
        return _keys_of(connection, wrapper, database, bare_keys)


def note_keys(connection: Connection, wrapper: KeyWrapper | None) -> None:
    """Write down, for good, whether release keys are wrapped and by which master key."""
    connection.execute(
        insert(settings).values(name=_KEYS, value="bare" if wrapper is None else "wrapped")
    )
    if wrapper is not None:
        connection.execute(insert(settings).values(name=_CHECK, value=wrapper.check))


def _keys_of(
    connection: Connection,
    wrapper: KeyWrapper | None,
    database: Path | None,
    bare_keys: bool | None,
) -> tuple[KeyWrapper | None, str | None]:
    noted = {row.name: row.value for row in connection.execute(select(settings))}
    kept = noted.get(_KEYS)
    if kept not in ("bare", "wrapped") or (kept == "wrapped") != (_CHECK in noted):
        raise LedgerCorrupt("the ledger does not say how it keeps release keys; restore a backup")
    if bare_keys is not None and bare_keys != (kept == "bare"):
        raise LedgerError(
            f"this ledger keeps its release keys {kept}, and that never changes; use another ledger"
        )
    if kept == "bare":
        return None, None
    check = noted[_CHECK]
    if wrapper is None:  # a ledger that was made just now
        from dpdask.ledger.keys import find_master_key

        found = find_master_key(database)
        wrapper = None if found is None else KeyWrapper(found)
    return wrapper, check

"""Bring a ledger of 0.1.0 to today's tables: its chains are verified, kept as they are, and go on
from an entry of the upgrade.

0.1.0 composed its releases by privacy loss distributions, which is not valid for releases chosen
after others were seen. The upgrade's entry notes what each of them is charged now, and the sums;
its hash follows from the last entry of 0.1.0.
"""

from __future__ import annotations

import json
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, insert, text

from dpdask.accounting import profile_from_dict
from dpdask.errors import LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.ledger.charges import NOTHING, Spent, charge_of
from dpdask.ledger.hash_chain import GENESIS, Standing, append, chain_hash, columns_of, standing_of
from dpdask.ledger.history import dataset_state
from dpdask.ledger.keys import KeyWrapper, find_master_key, make_master_key
from dpdask.ledger.models import DatasetState, LedgerHead
from dpdask.ledger.schema import (
    SCHEMA_VERSION,
    connect,
    create_tables,
    database_file,
    datasets,
    entries,
    forget_deleted,
    parse_url,
    plain_errors,
    release_keys,
)
from dpdask.ledger.versions import hold_schema, note_keys, schema_version
from dpdask.privacy import PrivacyBudget

__all__ = ["upgrade_ledger"]

_TABLES = ("dpdask_entries", "dpdask_datasets", "dpdask_release_keys")


def upgrade_ledger(url: str, *, bare_keys: bool = False) -> list[DatasetState]:
    """Upgrade the ledger at ``url`` in one transaction; the state of every dataset. Keys of open
    releases are wrapped.

    Guarantee: every entry of 0.1.0 stays, in its chain. A dataset that has spent more than its
    total by today's rule is kept and takes no further release.
    """
    parsed = parse_url(url)
    database = database_file(parsed)
    master = find_master_key(database)
    engine = connect(parsed, create=False)
    try:
        with plain_errors(), engine.begin() as connection:
            hold_schema(connection)
            version = schema_version(connection)
            if version != 1:
                raise LedgerError(
                    "the database holds no ledger of dpdask 0.1.0; there is nothing to upgrade"
                    if version == 0
                    else f"the ledger has tables of version {version}, which needs no upgrade to"
                    f" {SCHEMA_VERSION}"
                )
            old_entries, old_datasets, old_keys = (_rows(connection, table) for table in _TABLES)
            for row in old_datasets:
                _check_old(row, [entry for entry in old_entries if entry.dataset == row.name])
            master = master if master is not None or bare_keys else make_master_key(database)
            wrapper = None if bare_keys or master is None else KeyWrapper(master)
            _drop(connection)
            create_tables(connection)
            note_keys(connection, wrapper)
            states = [
                _move(
                    connection, row, [entry for entry in old_entries if entry.dataset == row.name]
                )
                for row in old_datasets
            ]
            owner = {entry.release: entry.dataset for entry in old_entries}
            for row in old_keys:
                _move_key(connection, row, owner[row.release], master, wrapper)
        with plain_errors():
            forget_deleted(engine)
        return states
    finally:
        engine.dispose()


def _rows(connection: Connection, table: str) -> list[Any]:
    order = {
        "dpdask_entries": "sequence",
        "dpdask_datasets": "name",
        "dpdask_release_keys": "release",
    }[table]
    return list(connection.execute(text(f"SELECT * FROM {table} ORDER BY {order}")))


def _check_old(dataset: Any, rows: list[Any]) -> None:
    """The chain of a dataset by the rule of 0.1.0."""
    previous = GENESIS
    for row in rows:
        if row.previous != previous or row.hash != chain_hash(
            previous, row.dataset, row.release or "", row.kind, row.body
        ):
            raise LedgerCorrupt(
                f"entry {row.sequence} of dataset {dataset.name!r} does not follow from the one"
                " before it; nothing was upgraded"
            )
        previous = row.hash
    opening = json.loads(rows[0].body) if rows and rows[0].kind == "open" else {}
    if (opening.get("epsilon"), opening.get("delta")) != (
        float(dataset.epsilon),
        float(dataset.delta),
    ):
        raise LedgerCorrupt(
            f"the total of dataset {dataset.name!r} is not the one it was opened with; nothing"
            " was upgraded"
        )


def _drop(connection: Connection) -> None:
    """Drop the tables of 0.1.0, and its triggers with them."""
    for table in _TABLES:
        connection.execute(text(f"DROP TABLE {table}"))


def _move(connection: Connection, dataset: Any, rows: list[Any]) -> DatasetState:
    """Put the entries of a dataset into the new tables, with sums beside them, and the upgrade's
    entry after them.
    """
    total = PrivacyBudget(epsilon=float(dataset.epsilon), delta=float(dataset.delta))
    connection.execute(insert(datasets).values(name=dataset.name))
    spent, clock, charges = NOTHING, "", {}
    for sequence, row in enumerate(rows, start=1):
        facts = json.loads(row.body)
        if row.kind == "reserve":
            charge = charge_of(profile_from_dict(facts["profile"]), spent, total)
            charges[row.release] = {"mu": charge.mu, "delta0": charge.delta0}
            spent += Spent.on(charge)
        clock = max(clock, facts["at"])
        mu_squared, delta = spent.digits()
        kept = {
            name: getattr(row, name)
            for name in ("dataset", "release", "kind", "body", "previous", "hash")
        }
        columns = {
            **columns_of(row.kind, facts),
            "clock": clock,
            "mu_squared": mu_squared,
            "delta": delta,
        }
        connection.execute(insert(entries).values(sequence=sequence, **kept, **columns))
    last = Standing(
        dataset.name, total, spent, LedgerHead(dataset.name, len(rows), rows[-1].hash), clock
    )
    append(
        connection,
        dataset.name,
        last,
        "upgrade",
        {"schema": SCHEMA_VERSION, "from": "0.1.0", "charges": charges},
    )
    standing = standing_of(connection, dataset.name, lock=False)
    assert standing is not None
    return dataset_state(connection, standing)


def _move_key(
    connection: Connection, row: Any, dataset: str, master: bytes | None, wrapper: KeyWrapper | None
) -> None:
    """The key of a release that is open, wrapped as keys are now."""
    secret = bytes(row.content)
    if row.wrapped:
        if master is None:
            raise MasterKeyError(
                "an open release has a key wrapped by a master key; set DPDASK_MASTER_KEY to"
                " that one"
            )
        try:
            secret = AESGCM(master).decrypt(secret[:12], secret[12:], row.release.encode())
        except InvalidTag:
            raise MasterKeyError(
                "the master key does not fit the key of an open release; set DPDASK_MASTER_KEY"
                " to the one it was made with"
            ) from None
    content = secret if wrapper is None else wrapper.wrap(dataset, row.release, secret)
    connection.execute(
        insert(release_keys).values(
            release=row.release, wrapped=int(wrapper is not None), content=content
        )
    )

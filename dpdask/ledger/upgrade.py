"""Upgrade a ledger of 0.1.0: its chains are verified, kept, and continued by an upgrade entry.

A ledger of 0.2.0 gets the table of blocks, and nothing in it changes.

0.1.0 composed its releases by privacy loss distributions, which is not valid for releases chosen
after others were seen. The upgrade's entry records what each of them is charged now, and the sums;
its hash follows from the last entry of 0.1.0.
"""

from __future__ import annotations

import json
from typing import Protocol, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, insert, select, text

from dpdask.accounting import profile_from_dict
from dpdask.errors import LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.connections import (
    TimeOuts,
    connect,
    database_file,
    forget_deleted,
    parse_url,
)
from dpdask.ledger.faults import plain_errors
from dpdask.ledger.hash_chain import GENESIS, Standing, append, chain_hash, standing_of
from dpdask.ledger.history import dataset_state
from dpdask.ledger.key_store import KeyStore
from dpdask.ledger.keys import KeyWrapper, find_master_key, make_master_key
from dpdask.ledger.models import DatasetState, LedgerHead
from dpdask.ledger.payloads import charge_to_dict, decode_payload, index_columns
from dpdask.ledger.policies import ADAPTIVE
from dpdask.ledger.schema import (
    SCHEMA_VERSION,
    add_blocks,
    create_tables,
    datasets,
    entries,
)
from dpdask.ledger.steps import known_dataset
from dpdask.ledger.versions import lock_schema, record_key_storage, schema_version
from dpdask.privacy import PrivacyBudget
from dpdask.types import Json

__all__ = ["upgrade_ledger"]

_WITHOUT_BLOCKS = 2  # tables of 0.2.0


class _OldEntry(Protocol):
    """A row of ``dpdask_entries`` in 0.1.0, whose sequence counted all datasets together."""

    sequence: int
    dataset: str
    release: str | None  # the fingerprint
    kind: str
    body: str  # the payload
    previous: str
    hash: str


class _OldDataset(Protocol):
    """A row of ``dpdask_datasets`` in 0.1.0."""

    name: str
    epsilon: str
    delta: str


class _OldKey(Protocol):
    """A row of ``dpdask_release_keys`` in 0.1.0."""

    release: str
    wrapped: int
    content: bytes


class _OldLedger:
    """All rows of a ledger of 0.1.0."""

    def __init__(self, connection: Connection) -> None:
        self.datasets = cast(
            "list[_OldDataset]", _rows(connection, "dpdask_datasets", order="name")
        )
        self.entries = cast("list[_OldEntry]", _rows(connection, "dpdask_entries", "sequence"))
        self.keys = cast("list[_OldKey]", _rows(connection, "dpdask_release_keys", "release"))

    def chain(self, dataset: _OldDataset) -> list[_OldEntry]:
        """Return the entries of one dataset."""
        return [entry for entry in self.entries if entry.dataset == dataset.name]

    def dataset_of(self, key: _OldKey) -> str:
        """Return the dataset that a key's release is charged to."""
        return next(entry.dataset for entry in self.entries if entry.release == key.release)


def _rows(connection: Connection, table: str, order: str) -> list[object]:
    return list(connection.execute(text(f"SELECT * FROM {table} ORDER BY {order}")))


def upgrade_ledger(url: str, *, bare_keys: bool = False) -> list[DatasetState]:
    """Upgrade the ledger at ``url`` in one transaction; return the state of every dataset.

    Guarantee: every entry of 0.1.0 stays, in its chain. A dataset that has spent more than its
    total by today's rule is kept and takes no further release.

    Args:
        url: the database's URL.
        bare_keys: whether release keys are stored as they are; by default they are wrapped.
    """
    parsed = parse_url(url)
    database = database_file(parsed)
    master_key = find_master_key(database)
    engine = connect(parsed, create=False, time_outs=TimeOuts())
    try:
        with plain_errors(), engine.begin() as connection:
            lock_schema(connection)
            version = schema_version(connection)
            _check_version(version)
            if version == _WITHOUT_BLOCKS:
                return _add_blocks(connection)
            old = _OldLedger(connection)
            for dataset in old.datasets:
                _check_chain(dataset, old.chain(dataset))
            if master_key is None and not bare_keys:
                master_key = make_master_key(database)
            wrapper = None if bare_keys or master_key is None else KeyWrapper(master_key)
            states = _replace_tables(connection, old, wrapper)
            _move_keys(connection, old, master_key, wrapper)
        with plain_errors():
            forget_deleted(engine)
        return states
    finally:
        engine.dispose()


def _add_blocks(connection: Connection) -> list[DatasetState]:
    """Add the table of blocks to a ledger of 0.2.0; nothing that it holds is changed."""
    add_blocks(connection)
    names = connection.scalars(select(datasets.c.name).order_by(datasets.c.name)).all()
    return [dataset_state(connection, known_dataset(connection, name)) for name in names]


def _check_version(version: int) -> None:
    if version == 0:
        raise LedgerError("the database holds no ledger; there is nothing to upgrade")
    if version not in (1, _WITHOUT_BLOCKS):
        raise LedgerError(
            f"the ledger has tables of version {version}, which needs no upgrade to"
            f" {SCHEMA_VERSION}"
        )


def _check_chain(dataset: _OldDataset, rows: list[_OldEntry]) -> None:
    """Check the chain of a dataset by the rule of 0.1.0."""
    previous = GENESIS
    for row in rows:
        parts = (previous, row.dataset, row.release or "", row.kind, row.body)
        if row.previous != previous or row.hash != chain_hash(*parts):
            raise LedgerCorrupt(
                f"entry {row.sequence} of dataset {dataset.name!r} does not follow from the one"
                " before it; nothing was upgraded"
            )
        previous = row.hash
    opening = json.loads(rows[0].body) if rows and rows[0].kind == "open" else {}
    total = (float(dataset.epsilon), float(dataset.delta))
    if (opening.get("epsilon"), opening.get("delta")) != total:
        raise LedgerCorrupt(
            f"the total of dataset {dataset.name!r} is not the one it was opened with; nothing"
            " was upgraded"
        )


def _replace_tables(
    connection: Connection, old: _OldLedger, wrapper: KeyWrapper | None
) -> list[DatasetState]:
    """Replace the tables of 0.1.0, and its triggers with them, by today's; move every entry."""
    for table in ("dpdask_entries", "dpdask_datasets", "dpdask_release_keys"):
        connection.execute(text(f"DROP TABLE {table}"))
    create_tables(connection)
    record_key_storage(connection, wrapper)
    return [_move_dataset(connection, dataset, old.chain(dataset)) for dataset in old.datasets]


def _move_dataset(
    connection: Connection, dataset: _OldDataset, rows: list[_OldEntry]
) -> DatasetState:
    """Put the entries of a dataset into the new tables, and the upgrade's entry after them."""
    total = PrivacyBudget(epsilon=float(dataset.epsilon), delta=float(dataset.delta))
    connection.execute(insert(datasets).values(name=dataset.name))
    spent, clock = NOTHING, ""
    charges: Json = {}
    for sequence, row in enumerate(rows, start=1):
        payload = decode_payload(row.body)
        if row.kind == "reserve":
            charge = ADAPTIVE.charge_of(profile_from_dict(payload["profile"]), spent, total)
            charges[row.release or ""] = charge_to_dict(charge)
            spent += Spent.on(charge)
        clock = max(clock, payload["at"])
        mu_squared, delta = spent.digits()
        kept = {
            "dataset": row.dataset,
            "fingerprint": row.release,
            "kind": row.kind,
            "payload": row.body,
            "previous": row.previous,
            "hash": row.hash,
        }
        added = {"sequence": sequence, "clock": clock, "mu_squared": mu_squared, "delta": delta}
        columns = {**kept, **added, **index_columns(row.kind, payload)}
        connection.execute(insert(entries).values(**columns))
    head = LedgerHead(dataset.name, len(rows), rows[-1].hash)
    last = Standing(dataset.name, total, spent, head, clock)
    upgrade = {"schema": SCHEMA_VERSION, "from": "0.1.0", "charges": charges}
    append(connection, dataset.name, last, "upgrade", upgrade)
    standing = standing_of(connection, dataset.name, lock=False)
    assert standing is not None
    return dataset_state(connection, standing)


def _move_keys(
    connection: Connection,
    old: _OldLedger,
    master_key: bytes | None,
    wrapper: KeyWrapper | None,
) -> None:
    """Store the keys of open releases as keys are stored now."""
    store = KeyStore(wrapper, None if wrapper is None else wrapper.check)
    for key in old.keys:
        secret = _unwrapped(key, master_key)
        store.write(connection, old.dataset_of(key), key.release, secret)


def _unwrapped(key: _OldKey, master_key: bytes | None) -> bytes:
    """Return the secret of a key by the rule of 0.1.0."""
    content = bytes(key.content)
    if not key.wrapped:
        return content
    if master_key is None:
        raise MasterKeyError(
            "an open release has a key wrapped by a master key; set DPDASK_MASTER_KEY to that one"
        )
    try:
        return AESGCM(master_key).decrypt(content[:12], content[12:], key.release.encode())
    except InvalidTag:
        raise MasterKeyError(
            "the master key does not fit the key of an open release; set DPDASK_MASTER_KEY to the"
            " one it was wrapped with"
        ) from None

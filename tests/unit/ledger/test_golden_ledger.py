"""A ledger of 0.2.0, kept as it was written, is read, verified and continued; its format is fixed.

The file is written by `python -m tests.support.golden_ledger`. Where a test here fails, the format
of the ledger changed: that needs a new schema version and an upgrade, not a new golden file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpdask.accounting import Dominated
from dpdask.errors import LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.ledger import Block, Ledger, upgrade_ledger
from tests.support.golden_ledger import (
    MASTER_KEY,
    PROFILE,
    UNIT,
    fingerprint,
    payload,
    release_id,
    write_ledger,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "ledger-0.2.0.db"
OPEN_KEY_DIGEST = "e52fe013187f413fed145e73881fd84af750044c5b425e4e7d929cc68b05bfe0"
HEADS = {
    "others": (4, "3844715244fb0a16570b95ced014725c5aa0ee43075921e735d40e22752f9e32"),
    "people": (8, "d2e5aad387f5b946517a362894dab4b294abaa5459df80783be7498698ad8b64"),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copy(GOLDEN, tmp_path / "ledger.db"))


@pytest.fixture
def ledger(copy: Path) -> Iterator[Ledger]:
    upgrade_ledger(f"sqlite:///{copy}")
    opened = Ledger(f"sqlite:///{copy}", master_key=MASTER_KEY, create=False)
    yield opened
    opened.close()


def rows(path: Path, query: str) -> list[dict[str, Any]]:
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as raw:
        raw.row_factory = sqlite3.Row
        return [dict(row) for row in raw.execute(query)]


def test_it_is_verified_and_its_heads_are_the_ones_it_was_written_with(ledger: Ledger) -> None:
    assert ledger.verify() == 12
    heads = {name: ledger.head(name) for name in ledger.datasets()}
    assert {name: (head.sequence, head.hash) for name, head in heads.items()} == HEADS


def test_what_it_says_of_its_releases_is_read(ledger: Ledger) -> None:
    people, others = ledger.state("people"), ledger.state("others")
    assert (people.total.epsilon, others.total.delta) == (2.0, 1e-7)
    assert list(people.releases.values()) == ["commit", "key"]
    assert list(others.releases.values()) == ["burn"]
    assert [details["release_id"] for details in people.details.values()] == [
        release_id("committed"),
        release_id("open"),
    ]
    entry = ledger.entry_named(release_id("committed"))
    assert entry is not None
    recorded = payload("committed")
    assert (entry.source_identity, entry.spec_digest, entry.output_address) == (
        recorded["source_identity"],
        recorded["spec_digest"],
        recorded["output_address"],
    )
    assert (entry.fingerprint, entry.array) == (fingerprint("committed"), UNIT.array)
    assert entry.card == '{"card": "committed"}'
    assert ledger.get_once(fingerprint("committed"), "directions") is not None
    [window] = ledger.windows("people", "daily")
    assert (window.window["stop"], window.output, window.last) == (10, "committed.zarr", "commit")


def test_its_open_release_is_continued_with_the_same_key_and_no_further_charge(
    ledger: Ledger,
) -> None:
    spent = ledger.spent_epsilon("people")
    unfinished = fingerprint("open")
    assert not ledger.reserve("people", unfinished, PROFILE, UNIT, payload("open")).new
    key = ledger.release_key(unfinished).reveal()
    assert hashlib.sha256(key).hexdigest() == OPEN_KEY_DIGEST
    ledger.publish(unfinished, "card")
    ledger.commit(unfinished)
    assert ledger.spent_epsilon("people") == spent
    assert ledger.reserve("people", fingerprint("new"), PROFILE, UNIT, payload("new")).new
    assert ledger.spent_epsilon("people") > spent
    with pytest.raises(LedgerError, match="closed by burn"):
        ledger.release_key(fingerprint("burned"))
    assert ledger.verify() == 15


def test_its_key_needs_its_master_key(copy: Path, ledger: Ledger) -> None:
    other = Ledger(f"sqlite:///{copy}", master_key=bytes(32))
    with pytest.raises(MasterKeyError, match="not the one this ledger was created with"):
        other.release_key(fingerprint("open"))
    other.close()


def test_a_changed_entry_is_noticed(copy: Path, ledger: Ledger) -> None:
    with sqlite3.connect(copy) as raw:
        raw.execute("DROP TRIGGER dpdask_entries_update")
        raw.execute(
            "UPDATE dpdask_entries SET payload = replace(payload, 'golden', 'forged')"
            " WHERE kind = 'reserve'"
        )
    with pytest.raises(LedgerCorrupt, match="is not what its hash was computed from"):
        ledger.verify()


def test_it_gains_the_table_of_blocks_when_it_is_upgraded_and_takes_them(
    copy: Path, ledger: Ledger
) -> None:
    assert rows(GOLDEN, "SELECT * FROM dpdask_schema") == [{"version": 2}]
    for day in range(3):
        unit = dataclasses.replace(UNIT, block=Block(0, day, day + 1))
        ledger.reserve("people", fingerprint(f"day {day}"), PROFILE, unit)
    spent = ledger.state("people").spent
    assert isinstance(spent, Dominated)
    assert spent.mu == pytest.approx(math.sqrt(3) * PROFILE.mu, rel=1e-12)  # two before, one day
    assert ledger.verify() == 15


def test_a_new_ledger_has_the_same_tables_triggers_and_payload_keys(
    tmp_path: Path, copy: Path
) -> None:
    new = tmp_path / "new.db"
    write_ledger(new)
    with pytest.raises(LedgerError, match="`dpdask ledger upgrade`"):
        Ledger(f"sqlite:///{copy}", master_key=MASTER_KEY)
    upgrade_ledger(f"sqlite:///{copy}")
    schema = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"
    assert rows(new, schema) == rows(copy, schema)
    assert [row["version"] for row in rows(copy, "SELECT * FROM dpdask_schema")] == [2, 3]
    entries = "SELECT * FROM dpdask_entries ORDER BY dataset, sequence"
    for ours, golden in zip(rows(new, entries), rows(GOLDEN, entries), strict=True):
        assert _without_chance(ours) == _without_chance(golden)


def _without_chance(row: dict[str, Any]) -> dict[str, Any]:
    """An entry without what differs between two ledgers: times, salts and hashes."""
    said = json.loads(row["payload"])
    assert {"at", "salt"} <= set(said)
    kept = {name: value for name, value in said.items() if name not in ("at", "salt")}
    fixed = {
        name: value
        for name, value in row.items()
        if name not in ("payload", "clock", "previous", "hash")
    }
    return {**fixed, "payload": kept}

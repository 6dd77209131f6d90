"""Row 7: nobody raises a total, lowers a sum or replaces an entry by SQL, and what is done behind
the triggers is detected.

0.1.0 had triggers for UPDATE and DELETE only: `INSERT OR REPLACE` raised the total of a dataset,
two releases were made, the old total was put back, and `ledger verify` called 1.83 spent of 1.0
intact. It never added up what was charged.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.accounting import Dominated
from dpdask.cli import main
from dpdask.errors import BudgetExceeded, LedgerCorrupt
from dpdask.ledger import Ledger
from dpdask.ledger.charges import Spent
from dpdask.ledger.hash_chain import chain_hash

TOTAL = PrivacyBudget(epsilon=1.0, delta=1e-6)
MOST = GaussianProfile.meeting(TOTAL)
HALF = GaussianProfile(MOST.mu * 0.7)


def fingerprint(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    book = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    book.open_dataset("people", TOTAL)
    book.reserve("people", fingerprint(0), HALF, payload={"release_id": "n0"})
    return book


def entry(tmp_path: Path, sequence: int) -> dict[str, Any]:
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        raw.row_factory = sqlite3.Row
        return dict(
            raw.execute("SELECT * FROM dpdask_entries WHERE sequence = ?", (sequence,)).fetchone()
        )


def put(
    tmp_path: Path, row: dict[str, Any], *, verb: str = "INSERT", triggers: bool = True
) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        if not triggers:
            for (name,) in raw.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall():
                raw.execute(f"DROP TRIGGER {name}")
        marks = ", ".join("?" * len(row))
        raw.execute(
            f"{verb} INTO dpdask_entries ({', '.join(row)}) VALUES ({marks})", list(row.values())
        )


def rewritten(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An entry that says something else, with a hash that fits."""
    payload = json.dumps(
        {**json.loads(row["payload"]), **changes}, sort_keys=True, separators=(",", ":")
    )
    return {
        **row,
        "payload": payload,
        "hash": chain_hash(
            row["previous"], row["dataset"], row["fingerprint"] or "", row["kind"], payload
        ),
    }


def raised_total(row: dict[str, Any]) -> dict[str, Any]:
    return rewritten(row, epsilon=100.0)


@pytest.mark.parametrize(
    ("sequence", "change"),
    [
        (1, raised_total),
        (2, lambda row: rewritten(row, charge={"mu": 1e-6, "delta0": 0.0})),
        (2, lambda row: {**row, "mu_squared": "0" * 80}),
        (
            2,
            lambda row: {**row, "sequence": 3},
        ),  # takes the hash, the name and the release of entry 2
        (
            2,
            lambda row: {
                **row,
                "sequence": 3,
                "hash": "ab" * 32,
                "release_id": None,
                "fingerprint": fingerprint(9),
            },
        ),
        (2, lambda row: {**row, "sequence": 3, "previous": row["hash"], "hash": "ab" * 32}),
        (
            2,
            lambda row: {
                **row,
                "sequence": 3,
                "previous": row["hash"],
                "hash": "ab" * 32,
                "release_id": None,
            },
        ),
    ],
)
@pytest.mark.parametrize("verb", ["INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE", "REPLACE"])
def test_row_07_no_entry_is_replaced_or_put_where_it_does_not_follow(
    book: Ledger,
    tmp_path: Path,
    sequence: int,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    verb: str,
) -> None:
    with pytest.raises(sqlite3.Error, match="append-only"):
        put(tmp_path, change(entry(tmp_path, sequence)), verb=verb)
    assert book.verify() == 2
    with pytest.raises(BudgetExceeded):
        book.reserve("people", fingerprint(1), MOST)


@pytest.mark.parametrize(
    "table", ["dpdask_datasets", "dpdask_settings", "dpdask_schema", "dpdask_release_keys"]
)
def test_row_07_no_other_row_is_replaced(book: Ledger, tmp_path: Path, table: str) -> None:
    book.release_key(fingerprint(0))
    with (
        sqlite3.connect(tmp_path / "ledger.db") as raw,
        pytest.raises(sqlite3.Error, match="append-only"),
    ):
        raw.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}")


def test_row_07_sums_never_go_down(book: Ledger, tmp_path: Path) -> None:
    """An entry with a hash that fits, after the newest, whose sums forget what was spent."""
    last = entry(tmp_path, 2)
    following = {
        **last,
        "sequence": 3,
        "previous": last["hash"],
        "fingerprint": None,
        "release_id": None,
        "kind": "open",
    }
    with pytest.raises(sqlite3.Error, match="append-only"):
        put(
            tmp_path,
            rewritten(
                {**following, "mu_squared": "0" * 80}, sequence=3, spent=["0" * 80, last["delta"]]
            ),
        )
    assert book.spent_epsilon("people") > 0.5


TAMPERINGS: dict[str, Callable[[Path], None]] = {
    "a raised total": lambda folder: put(
        folder, raised_total(entry(folder, 1)), verb="REPLACE", triggers=False
    ),
    "a smaller sum": lambda folder: put(
        folder, {**entry(folder, 2), "mu_squared": "0" * 80}, verb="REPLACE", triggers=False
    ),
    "a smaller charge": lambda folder: put(
        folder, _cheaper(entry(folder, 2)), verb="REPLACE", triggers=False
    ),
    "another array": lambda folder: put(
        folder, {**entry(folder, 2), "array": "ab"}, verb="REPLACE", triggers=False
    ),
}


def _cheaper(row: dict[str, Any]) -> dict[str, Any]:
    """A reservation that charges nearly nothing, consistent in itself: only its profile tells."""
    charge = Dominated(1e-6, 0.0)
    mu_squared, delta = Spent.on(charge).digits()
    changed = {**row, "mu_squared": mu_squared, "delta": delta}
    return rewritten(changed, charge={"mu": charge.mu, "delta0": 0.0}, spent=[mu_squared, delta])


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_row_07_what_is_done_behind_the_triggers_is_found(
    book: Ledger, tmp_path: Path, tampering: str
) -> None:
    assert book.verify() == 2
    TAMPERINGS[tampering](tmp_path)
    with pytest.raises(LedgerCorrupt):
        book.verify()
    result = CliRunner().invoke(
        main, ["ledger", "verify", "--ledger", f"sqlite:///{tmp_path}/ledger.db"]
    )
    assert result.exit_code == 4
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("tampering", ["a raised total", "a smaller sum", "another array"])
def test_row_07_reserve_checks_the_newest_link_and_the_opening(
    book: Ledger, tmp_path: Path, tampering: str
) -> None:
    TAMPERINGS[tampering](tmp_path)
    with pytest.raises((LedgerCorrupt, BudgetExceeded)):
        book.reserve("people", fingerprint(1), MOST)


def test_row_07_a_total_that_was_passed_is_found_though_every_hash_fits(
    book: Ledger, tmp_path: Path
) -> None:
    """What 0.1.0 called intact: more spent than the total, in a chain without a flaw."""
    generous = PrivacyBudget(epsilon=100.0, delta=1e-6)
    folder = tmp_path / "generous"
    folder.mkdir()
    other = Ledger(f"sqlite:///{folder}/ledger.db")
    other.open_dataset("people", generous)
    for number in range(3):
        other.reserve("people", fingerprint(number), HALF)
    assert other.verify() == 4
    rows = [entry(folder, sequence) for sequence in range(1, 5)]
    previous = rows[0]["previous"]
    for number, row in enumerate(rows):  # the whole chain anew, with the old total put back
        changes = {"epsilon": TOTAL.epsilon} if number == 0 else {}
        rows[number] = rewritten({**row, "previous": previous}, **changes)
        previous = rows[number]["hash"]
    for row in rows:
        put(folder, row, verb="REPLACE", triggers=False)
    with pytest.raises(
        LedgerCorrupt, match="entry 4 of dataset 'people' passes the dataset's total"
    ):
        other.verify()

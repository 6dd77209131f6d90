"""A ledger of 0.1.0, kept as it was written, is refused until it is upgraded, and then
continued: SQLite and PostgreSQL.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, create_engine, text

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.accounting import Dominated
from dpdask.cli import main
from dpdask.errors import BudgetExceeded, LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.ledger import Ledger, PrivacyUnit, upgrade_ledger
from dpdask.ledger.charges import NOTHING, Spent
from dpdask.ledger.hash_chain import chain_hash

GOLDEN = Path(__file__).parents[1] / "golden"
ONE = GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-6))
UNIT = PrivacyUnit(
    array=hashlib.sha256(b"array").hexdigest(), record_axis=0
)  # as in the golden file
TABLES = ("dpdask_datasets", "dpdask_entries", "dpdask_release_keys")


def fingerprint(name: str) -> str:
    return hashlib.sha256(f"golden {name}".encode()).hexdigest()


def golden_rows() -> dict[str, list[dict[str, object]]]:
    with sqlite3.connect(f"file:{GOLDEN}/ledger-0.1.0.db?mode=ro&immutable=1", uri=True) as raw:
        raw.row_factory = sqlite3.Row
        return {
            table: [dict(row) for row in raw.execute(f"SELECT * FROM {table}")] for table in TABLES
        }


def fill(connection: Connection) -> None:
    for statement in (GOLDEN / "ledger-0.1.0-postgresql.sql").read_text().split(";\n"):
        if statement.strip():
            connection.execute(text(statement))
    for table, rows in golden_rows().items():
        for row in rows:
            names = ", ".join(row)
            connection.execute(
                text(
                    f"INSERT INTO {table} ({names}) VALUES"
                    f" ({', '.join(':' + name for name in row)})"
                ),
                row,
            )


@pytest.fixture
def old(url: str, tmp_path: Path) -> str:
    """The address of a ledger as 0.1.0 left it."""
    if url.startswith("sqlite"):
        shutil.copy(GOLDEN / "ledger-0.1.0.db", tmp_path / "ledger.db")
        return url
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        fill(connection)
    engine.dispose()
    return url


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_every_command_refuses_it_and_names_the_upgrade(old: str) -> None:
    for command in (
        ["list"],
        ["show", "people"],
        ["verify"],
        ["head"],
        ["init", "new", "--epsilon", "1", "--delta", "1e-6"],
    ):
        result = run("ledger", *command, "--ledger", old)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert "`dpdask ledger upgrade`" in result.stderr
    with pytest.raises(LedgerError, match="`dpdask ledger upgrade`"):
        Ledger(old)


@pytest.mark.slow
def test_it_upgrades_verifies_and_refuses_what_would_pass_its_total(old: str) -> None:
    upgraded = run("ledger", "upgrade", "--ledger", old)
    assert upgraded.exit_code == 0, upgraded.output
    assert "warning: dataset 'tight' has spent more than its total" in upgraded.stderr
    assert run("ledger", "verify", "--ledger", old).stdout.startswith(
        "29 entries"
    )  # 26 of 0.1.0 and one per dataset
    book = Ledger(old)
    before = golden_rows()["dpdask_entries"]
    heads = {str(row["dataset"]): row for row in before}  # the last of each
    with book._engine.begin() as connection:
        kept = {
            row.hash: row.payload
            for row in connection.execute(text("SELECT hash, payload FROM dpdask_entries"))
        }
        following = connection.execute(
            text("SELECT dataset, previous FROM dpdask_entries WHERE kind = 'upgrade'")
        ).all()
    assert all(kept[row["hash"]] == row["body"] for row in before)
    assert {(row.dataset, row.previous) for row in following} == {
        (name, row["hash"]) for name, row in heads.items()
    }
    state = book.state("people")
    assert list(state.releases.values()) == ["commit", "commit", "commit", "burn", "key"]
    assert 1.28 < state.spent_epsilon < 1.3
    with pytest.raises(BudgetExceeded):
        book.reserve("people", fingerprint("too much"), GaussianProfile(ONE.mu * 2), UNIT)
    with pytest.raises(BudgetExceeded):
        book.reserve("tight", fingerprint("any"), GaussianProfile(1e-3))
    assert book.reserve(
        "people", fingerprint("new"), GaussianProfile(ONE.mu / 4), UNIT, {"release_id": "n"}
    ).new
    assert book.verify() == 30
    book.close()


@pytest.mark.slow
def test_what_was_under_way_goes_on_with_the_same_key_now_wrapped(old: str, tmp_path: Path) -> None:
    [key] = [bytes(row["content"]) for row in golden_rows()["dpdask_release_keys"]]  # type: ignore[call-overload]
    upgrade_ledger(old)
    book = Ledger(old)
    release = fingerprint("open")
    assert not book.reserve("people", release, ONE, UNIT).new
    assert book.release_key(release).reveal() == key
    with book._engine.begin() as connection:
        [(wrapped, content)] = connection.execute(
            text("SELECT wrapped, content FROM dpdask_release_keys")
        ).all()
    assert (wrapped, key in bytes(content)) == (1, False)
    if old.startswith("sqlite"):
        assert key not in b"".join(
            path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
        )
    record = book.entry(release)
    assert record is not None
    assert (record.last, record.open) == ("key", True)
    assert [window.last for window in book.windows("people", "daily")] == ["commit"]
    book.publish(release, "card")
    book.commit(release)
    with pytest.raises(LedgerError, match="closed by commit"):
        book.reserve("people", release, ONE, UNIT)
    assert book.verify() == 31
    with pytest.raises(LedgerError, match="needs no upgrade"):
        upgrade_ledger(old)
    book.close()


def drop_triggers(raw: sqlite3.Connection) -> None:
    for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        raw.execute(f"DROP TRIGGER {name}")


def open_golden(tmp_path: Path) -> str:
    shutil.copy(GOLDEN / "ledger-0.1.0.db", tmp_path / "ledger.db")
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.mark.parametrize(
    ("tampering", "message"),
    [
        (
            "UPDATE dpdask_entries SET body = replace(body, 'mu', 'nu') WHERE kind = 'reserve'",
            "does not follow",
        ),
        ("UPDATE dpdask_datasets SET epsilon = '99.0'", "not the one it was opened with"),
    ],
)
def test_a_broken_one_is_not_upgraded(tmp_path: Path, tampering: str, message: str) -> None:
    address = open_golden(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        drop_triggers(raw)
        raw.execute(tampering)
    with pytest.raises(LedgerCorrupt, match=message):
        upgrade_ledger(address)
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        assert raw.execute("SELECT count(*) FROM dpdask_entries").fetchone() == (26,)
        assert raw.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'dpdask_schema'"
        ).fetchone() == (0,)


def only_people(tmp_path: Path) -> str:
    """The golden ledger without the datasets that take long to charge anew."""
    address = open_golden(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        drop_triggers(raw)
        for table, column in (("dpdask_entries", "dataset"), ("dpdask_datasets", "name")):
            raw.execute(f"DELETE FROM {table} WHERE {column} <> 'people'")
    return address


def test_entries_of_0_1_0_are_read_with_todays_keys(tmp_path: Path) -> None:
    address = only_people(tmp_path)
    upgrade_ledger(address)
    book = Ledger(address)
    [reserved] = [
        json.loads(str(row["body"]))
        for row in golden_rows()["dpdask_entries"]
        if (row["release"], row["kind"]) == (fingerprint("open"), "reserve")
    ]
    entry = book.entry_named(reserved["name"])
    assert entry is not None
    assert (entry.fingerprint, entry.release_id) == (fingerprint("open"), reserved["name"])
    assert (entry.spec_digest, entry.source_identity) == (reserved["asked"], reserved["source"])
    assert entry.output_address == reserved["place"]
    assert book.state("people").details[fingerprint("open")]["output"] == reserved["output"]
    assert [window.output for window in book.windows("people", "daily")] == ["released-window.zarr"]
    assert [entry.release_id for entry in book.open_releases(reserved["name"][:8])] == [
        reserved["name"]
    ]
    book.close()


def test_keys_that_0_1_0_wrapped_need_their_master_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = only_people(tmp_path)
    release, key = fingerprint("open"), bytes(range(32))
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        content = bytes(12) + AESGCM(b"m" * 32).encrypt(bytes(12), key, release.encode())
        raw.execute("UPDATE dpdask_release_keys SET wrapped = 1, content = ?", (content,))
    monkeypatch.setenv("DPDASK_MASTER_KEY", "cd" * 32)
    with pytest.raises(MasterKeyError, match="does not fit the key of an open release"):
        upgrade_ledger(address)
    monkeypatch.setenv("DPDASK_MASTER_KEY", (b"m" * 32).hex())
    upgrade_ledger(address)
    assert Ledger(address).release_key(release).reveal() == key


def test_a_newer_ledger_is_refused(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/ledger.db"
    Ledger(address).close()
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        raw.execute("INSERT INTO dpdask_schema VALUES (4)")
    result = run("ledger", "list", "--ledger", address)
    assert result.exit_code == 2
    assert (
        result.stderr
        == "error: the ledger has tables of version 4, and this dpdask knows 3; use the newer"
        " dpdask\n"
    )


def test_an_empty_database_holds_no_ledger(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "ledger.db").close()
    for command in (["list"], ["upgrade"]):
        result = run("ledger", *command, "--ledger", f"sqlite:///{tmp_path}/ledger.db")
        assert (result.exit_code, "holds no ledger" in result.stderr) == (2, True)


def test_an_upgrade_entry_that_charges_too_little_is_found_though_every_hash_fits(
    tmp_path: Path,
) -> None:
    address = only_people(tmp_path)
    upgrade_ledger(address)
    book = Ledger(address)
    assert book.verify() == 19
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        raw.row_factory = sqlite3.Row
        drop_triggers(raw)
        rows = [dict(row) for row in raw.execute("SELECT * FROM dpdask_entries ORDER BY sequence")]
        upgrade = json.loads(rows[-1]["payload"])
        cheap, digits = Dominated(1e-6, 0.0), NOTHING.digits()
        upgrade["charges"] = {
            release: {"mu": cheap.mu, "delta0": 0.0} for release in upgrade["charges"]
        }
        spent = NOTHING
        for row in rows:
            spent += Spent.on(cheap) if row["kind"] == "reserve" else NOTHING
            digits = spent.digits()
            raw.execute(
                "UPDATE dpdask_entries SET mu_squared = ?, delta = ? WHERE sequence = ?",
                (*digits, row["sequence"]),
            )
        payload = json.dumps(
            {**upgrade, "spent": list(digits)}, sort_keys=True, separators=(",", ":")
        )
        fitting = chain_hash(rows[-1]["previous"], "people", "", "upgrade", payload)
        raw.execute(
            "UPDATE dpdask_entries SET payload = ?, hash = ? WHERE kind = 'upgrade'",
            (payload, fitting),
        )
    assert book.spent_epsilon("people") < 0.01
    with pytest.raises(LedgerCorrupt, match="the upgrade charges less"):
        book.verify()

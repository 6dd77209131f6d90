"""Row 4: a copy of the database, taken while a release is under way, does not take the noise of the
result away.

0.1.0 stored release keys as they are unless DPDASK_MASTER_KEY was set. A backup taken between `key`
and `commit` gave the raw array back, up to rounding.
"""

from __future__ import annotations

import hashlib
import sqlite3
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.cli import main
from dpdask.errors import BareKeysWarning, InvalidSpec, LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.ledger import Ledger
from dpdask.ledger.keys import default_key_file
from dpdask.planning import make_plan
from dpdask.spec import parse_release_spec
from tests.support import workspace
from tests.support.workspace import Workspace, people

RELEASE = hashlib.sha256(b"release").hexdigest()
TOTAL = PrivacyBudget(epsilon=2.0, delta=1e-6)
SMALL = GaussianProfile(0.1)


def keys_in(copy: Path) -> list[bytes]:
    """Every release key that whoever has a copy of the database can read in it."""
    with sqlite3.connect(copy) as raw:
        return [
            content
            for (content,) in raw.execute("SELECT content FROM dpdask_release_keys")
            if len(content) == 32
        ]


def with_copy(space: Workspace, **changes: Any) -> tuple[Path, Path]:
    """Release, and copy the database in the middle of it, as a backup would."""
    backup = space.folder.parent / "backup.db"

    def watch(progress: Any) -> None:
        if progress.stage == "key":
            with (
                sqlite3.connect(space.folder / "ledger.db") as live,
                sqlite3.connect(backup) as copied,
            ):
                live.backup(copied)

    space.release(on_progress=watch, **changes)
    return backup, space.folder / "out.zarr"


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    (tmp_path / "work").mkdir()
    space = Workspace(tmp_path / "work")
    space.source(people(32, 4))
    return space


def test_row_04_a_backup_taken_between_key_and_commit_holds_no_key_that_can_be_read(
    space: Workspace,
) -> None:
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    backup, _ = with_copy(space)
    with sqlite3.connect(backup) as raw:
        [(wrapped, content)] = raw.execute(
            "SELECT wrapped, content FROM dpdask_release_keys"
        ).fetchall()
    assert keys_in(backup) == []
    assert wrapped == 1
    assert len(content) == 12 + 32 + 16  # nonce, ciphertext, tag
    restored = Ledger(f"sqlite:///{backup}", master_key=bytes(32))  # a thief's guess
    release = next(iter(restored.state("people").releases))
    with pytest.raises(MasterKeyError, match="not the one"):
        restored.release_key(release)


def test_row_04_with_bare_keys_the_same_backup_takes_the_noise_away(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: what the attack needs is the key, and a ledger with bare keys, which says so, gives
    it.
    """
    Ledger(space.ledger_url, bare_keys=True).open_dataset(
        "people", PrivacyBudget(epsilon=1e6, delta=0.1)
    )
    with pytest.warns(BareKeysWarning, match="take its noise away"):
        backup, _ = with_copy(space, privacy={"epsilon": 0.1, "delta": 1e-6})
    [stolen] = keys_in(backup)
    with sqlite3.connect(backup) as raw:
        [(fingerprint,)] = raw.execute("SELECT fingerprint FROM dpdask_release_keys").fetchall()
    # The thief draws the same noise again, on a source of zeros.
    space.source(np.zeros((32, 4)), file="zeros.zarr")
    own = {
        "source": {"url": str(space.folder / "zeros.zarr"), "array": "x"},
        "output": {"url": str(space.folder / "z.zarr")},
    }
    plan = make_plan(parse_release_spec(space.spec(privacy={"epsilon": 0.1, "delta": 1e-6}, **own)))
    monkeypatch.setattr(workspace, "KEY", stolen)
    [chunk] = workspace.staged_bytes(plan, fingerprint).values()
    noise = np.frombuffer(chunk[:-4], plan.layout.dtype).reshape(32, 4)
    assert np.abs(space.values() - people(32, 4)).max() > 5  # what was to hide it
    assert np.abs(space.values() - noise - people(32, 4)).max() < 0.1


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "configuration"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder / "dpdask" / "master.key"


def test_row_04_a_new_ledger_makes_a_master_key_that_only_its_owner_reads(
    tmp_path: Path, configuration: Path
) -> None:
    (tmp_path / "data").mkdir()
    Ledger(f"sqlite:///{tmp_path}/data/ledger.db")
    assert default_key_file() == configuration
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
    assert stat.S_IMODE(configuration.parent.stat().st_mode) == 0o700
    text = configuration.read_text()
    assert len(bytes.fromhex(text.strip())) == 32
    Ledger(f"sqlite:///{tmp_path}/data/second.db")
    assert configuration.read_text() == text
    configuration.chmod(0o640)
    with pytest.raises(MasterKeyError, match="can be read by others"):
        Ledger(f"sqlite:///{tmp_path}/data/ledger.db")


def test_row_04_a_master_key_beside_the_database_is_refused(
    tmp_path: Path, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("ab" * 32)
    monkeypatch.setenv("DPDASK_MASTER_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(MasterKeyError, match="in the ledger's own folder"):
        Ledger(f"sqlite:///{tmp_path}/ledger.db")
    assert not (tmp_path / "ledger.db").exists()
    configuration.parent.mkdir(parents=True)
    monkeypatch.delenv("DPDASK_MASTER_KEY_FILE")
    with pytest.raises(MasterKeyError, match="in the ledger's own folder"):
        Ledger(f"sqlite:///{configuration.parent}/ledger.db")
    assert not configuration.exists()


@pytest.mark.usefixtures("configuration")
def test_row_04_without_its_master_key_nothing_is_charged_and_everything_can_be_read(
    tmp_path: Path, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    url = f"sqlite:///{tmp_path}/data/ledger.db"
    book = Ledger(url)
    book.open_dataset("people", TOTAL)
    book.reserve("people", RELEASE, SMALL)
    configuration.unlink()
    new = hashlib.sha256(b"new").hexdigest()
    for setting, message in (
        (None, "no master key is configured"),
        ("cd" * 32, "not the one this ledger was created with"),
    ):
        if setting is not None:
            monkeypatch.setenv("DPDASK_MASTER_KEY", setting)
        lost = Ledger(url)
        for step in (
            lambda book=lost: book.reserve("people", new, SMALL),
            lambda book=lost: book.forecast("people", SMALL),
            lambda book=lost: book.release_key(RELEASE),
        ):
            with pytest.raises(MasterKeyError, match=message):
                step()
        assert (
            lost.verify(),
            lost.head("people").sequence,
            len(lost.state("people").releases),
        ) == (2, 2, 1)
        lost.burn(RELEASE, "the master key is lost") if setting is not None else None
    assert not configuration.exists()  # nobody makes another one behind the curator's back
    monkeypatch.setenv("DPDASK_MASTER_KEY", "short")
    with pytest.raises(InvalidSpec, match="64 hexadecimal digits"):
        Ledger(url)


def test_row_04_a_wrong_or_missing_master_key_is_one_line_and_exit_code_4(
    space: Workspace, configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    spec = str(space.write_spec())

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env={"DPDASK_NO_PROGRESS": "1"})

    configuration.unlink()
    for setting in ("", "cd" * 32):
        monkeypatch.setenv("DPDASK_MASTER_KEY", setting)
        for command in ("plan", "run"):
            result = run(command, spec)
            assert result.exit_code == 4, result.output
            assert result.stderr.count("\n") == 1
            assert "master key" in result.stderr
        assert run("ledger", "verify", "--ledger", space.ledger_url).exit_code == 0
    assert space.left_behind() == []
    assert space.spent() == 0


def test_row_04_bare_keys_take_a_flag_and_are_said_at_every_use(
    space: Workspace, configuration: Path
) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env={"DPDASK_NO_PROGRESS": "1"})

    opening = (
        "ledger",
        "init",
        "people",
        "--epsilon",
        "1000",
        "--delta",
        "1e-3",
        "--ledger",
        space.ledger_url,
    )
    created = run(*opening, "--bare-keys")
    assert created.exit_code == 0
    assert "stored bare" in created.stdout
    assert not configuration.exists()
    spec = str(space.write_spec())
    for command in ("plan", "run"):
        result = run(command, spec)
        assert result.exit_code == 0, result.stderr
        assert result.stderr.count("warning: this ledger stores release keys bare") == 1
    wrapped = f"sqlite:///{space.folder}/wrapped.db"
    assert run(*opening[:-1], wrapped).exit_code == 0
    refused = run(*opening[:-1], wrapped, "--bare-keys")
    assert (refused.exit_code, "keeps its release keys wrapped" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "planting",
    [
        # before the ledger makes one
        "INSERT INTO dpdask_release_keys VALUES ('{release}', 0, x'{key}')",
        "DELETE FROM dpdask_release_keys",
        "DELETE FROM dpdask_release_keys; INSERT INTO dpdask_release_keys VALUES ('{release}',"
        " 0, x'{key}')",
        "DELETE FROM dpdask_release_keys; INSERT INTO dpdask_release_keys VALUES ('{release}',"
        " 1, x'{key}')",
        "CREATE TABLE t AS SELECT * FROM dpdask_release_keys; DELETE FROM dpdask_release_keys;"
        "INSERT INTO dpdask_release_keys SELECT '{release}', wrapped, content FROM t WHERE"
        " fingerprint <> '{release}'",
    ],
)
def test_row_04_a_planted_key_is_not_used(tmp_path: Path, planting: str) -> None:
    book = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    book.open_dataset("people", TOTAL)
    other = hashlib.sha256(b"other").hexdigest()
    for release in (RELEASE, other):
        book.reserve("people", release, SMALL)
    if not planting.startswith("INSERT"):
        for release in (RELEASE, other):
            book.release_key(release)
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        raw.executescript(planting.format(release=RELEASE, key="ab" * 32))
    with pytest.raises((LedgerCorrupt, LedgerError), match=r"abort"):
        book.release_key(RELEASE)
    book.burn(RELEASE, "its key was planted")

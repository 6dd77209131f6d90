"""A ledger that was restored from a backup is brought up to what is published (row 1 of the
operations review); on SQLite by its file, on PostgreSQL by a copy of its database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from dpdask import PrivacyBudget
from dpdask.cli import main
from dpdask.errors import BudgetExceeded, LedgerCorrupt
from dpdask.ledger import Ledger
from dpdask.releases.api import abort, release, resume
from dpdask.releases.series import Series, next_release
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace, people

TOTAL = PrivacyBudget(epsilon=8.0, delta=1e-3)


@dataclasses.dataclass
class Site(Workspace):
    """A workspace whose ledger can be backed up and restored."""

    url: str = ""

    @property
    def ledger_url(self) -> str:
        return self.url

    @property
    def _plain(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    def _sql(self, *statements: str) -> None:
        maintenance = make_url(self._plain).set(database="postgres")
        engine = create_engine(maintenance, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))
        engine.dispose()

    def back_up(self) -> None:
        database = make_url(self._plain).database
        if self.url.startswith("sqlite"):
            with (
                contextlib.closing(sqlite3.connect(str(database))) as live,
                contextlib.closing(sqlite3.connect(f"{database}-backup")) as copy,
            ):
                live.backup(copy)
        else:
            self._close_sessions(str(database))
            self._sql(f"CREATE DATABASE {database}_backup TEMPLATE {database}")

    def restore(self) -> None:
        database = make_url(self._plain).database
        if self.url.startswith("sqlite"):
            for suffix in ("-wal", "-shm"):
                Path(f"{database}{suffix}").unlink(missing_ok=True)
            shutil.copy(f"{database}-backup", str(database))
        else:
            self._close_sessions(str(database))
            self._sql(
                f"ALTER DATABASE {database} RENAME TO {database}_lost",
                f"ALTER DATABASE {database}_backup RENAME TO {database}",
            )

    def _close_sessions(self, database: str) -> None:
        self._sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
        )

    def output(self, name: str) -> dict[str, str]:
        return {"url": f"{self.folder}/{name}.zarr"}

    def reconcile(self, *arguments: str) -> Result:
        command = ["ledger", "reconcile", *arguments, "--ledger", self.url]
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
        return result


@pytest.fixture
def site(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "source.zarr-config"))
    made = Site(tmp_path, url=url.replace("postgres:@", "postgres@"))
    made.ledger.open_dataset("people", TOTAL)
    made.source(people(), chunks=(20, 8))
    return made


def test_row_01_charges_after_the_backup_are_restored(site: Site) -> None:
    release(site.spec(output=site.output("first")))
    site.back_up()
    before = site.ledger.spent_epsilon("people")
    for name in ("second", "third"):
        release(site.spec(output=site.output(name)))
    spent = site.ledger.spent_epsilon("people")
    site.restore()
    assert site.ledger.spent_epsilon("people") == before
    assert site.ledger.verify() > 0  # from inside nothing can be seen
    with pytest.raises(LedgerCorrupt, match="ledger reconcile"):
        release(site.spec(output=site.output("fourth")))
    with pytest.raises(LedgerCorrupt, match="ledger reconcile"):
        release(site.spec(output=site.output("second")))
    assert not (site.folder / "fourth.zarr").exists()
    assert site.ledger.spent_epsilon("people") == before
    one = site.reconcile(f"{site.folder}/second.zarr")
    assert "its charge is restored" in one.stdout
    assert "less is charged than was seen" in one.stderr
    with pytest.raises(LedgerCorrupt, match="ledger reconcile"):
        release(site.spec(output=site.output("fourth")))
    outputs = [f"{site.folder}/{name}.zarr" for name in ("first", "second", "third")]
    all_of_them = site.reconcile(*outputs)
    assert all_of_them.stdout.count("known and committed") == 2
    assert all_of_them.stderr == ""
    assert site.ledger.spent_epsilon("people") == pytest.approx(spent)
    entries = site.ledger.verify()
    again = json.loads(site.reconcile(*outputs, "--json").stdout)
    assert [one["was"] for one in again["releases"]] == ["known"] * 3
    assert site.ledger.verify() == entries  # idempotent
    for output in outputs:
        verify_release(output, ledger=site.ledger)
    release(site.spec(output=site.output("fourth")))


@pytest.mark.parametrize("stage", ["key", "tiles"])
def test_row_01_a_release_that_was_open_in_the_backup_is_closed(site: Site, stage: str) -> None:
    spec = site.spec(output=site.output("out"))
    backups: list[bool] = []

    def back_up(progress: Any) -> None:
        if progress.stage == stage and not backups:
            backups.append(True)
            site.back_up()

    release(spec, on_progress=back_up)
    spent = site.ledger.spent_epsilon("people")
    site.restore()
    for command in (release, resume):
        with pytest.raises(LedgerCorrupt, match="ledger reconcile"):
            command(spec)
    assert "committed, its key is destroyed" in site.reconcile(f"{site.folder}/out.zarr").stdout
    assert set(site.ledger.state("people").releases.values()) == {"commit"}
    with site.ledger.transaction() as connection:
        assert connection.scalar(text("SELECT count(*) FROM dpdask_release_keys")) == 0
    assert site.ledger.spent_epsilon("people") == spent
    verify_release(f"{site.folder}/out.zarr", ledger=site.ledger)


def test_row_01_what_aborted_releases_cost_is_charged_from_what_was_seen(site: Site) -> None:
    site.back_up()

    def stop(progress: Any) -> None:
        if progress.stage == "key":
            raise KeyboardInterrupt

    spec = site.spec(output=site.output("aborted"))
    with pytest.raises(KeyboardInterrupt):
        release(spec, on_progress=stop)
    abort(spec)
    spent = site.ledger.spent_epsilon("people")
    site.restore()
    with pytest.raises(LedgerCorrupt, match="ledger reconcile"):
        release(site.spec(output=site.output("next")))
    assert "less is charged" in site.reconcile().stderr
    assert site.reconcile("--charge-missing").stderr == ""
    assert site.ledger.spent_epsilon("people") >= spent
    assert site.ledger.spent_epsilon("people") == pytest.approx(spent)
    entries = site.ledger.verify()
    site.reconcile("--charge-missing")
    assert site.ledger.verify() == entries
    release(site.spec(output=site.output("next")))


def test_row_01_a_series_continues_after_its_windows_are_restored(site: Site) -> None:
    unit = {"record_dim": 0, "per": 0, "l2_clip_norm": 1.0}
    template = site.spec(
        privacy_unit=unit, output={"url": f"{site.folder}/w-{{start}}-{{stop}}.zarr"}
    )
    series = Series("daily", 0, max_window=20)

    def run() -> str:
        spec = next_release(site.ledger, parse_release_spec(template), series)
        assert spec is not None
        release(spec)
        return spec.output.url

    site.back_up()
    first, second = run(), run()
    spent = site.ledger.spent_epsilon("people")
    site.restore()
    with pytest.raises(LedgerCorrupt, match="ledger reconcile"):
        run()
    path = site.folder / "spec.yaml"
    path.write_text(json.dumps(template))
    site.reconcile(first, second, "--spec", str(path), "--series", "daily")
    assert site.ledger.verify() > 0
    assert site.ledger.spent_epsilon("people") == pytest.approx(spent)  # disjoint, as before
    assert [window.window["stop"] for window in site.ledger.windows("people", "daily")] == [20, 40]
    assert run().endswith("w-0000000040-0000000060.zarr")


def test_row_01_restored_charges_may_pass_the_total_and_then_nothing_is_charged(
    site: Site,
) -> None:
    site.back_up()
    release(site.spec(output=site.output("first"), privacy={"epsilon": 7.0, "delta": 9e-4}))
    site.restore()
    shutil.rmtree(site.folder / "source.zarr-config" / "dpdask" / "heads")  # another machine
    release(site.spec(output=site.output("second"), privacy={"epsilon": 7.0, "delta": 9e-4}))
    site.reconcile(f"{site.folder}/first.zarr")
    assert site.ledger.state("people").overspent
    assert site.ledger.verify() > 0
    with pytest.raises(BudgetExceeded):
        release(site.spec(output=site.output("third")))


def test_row_01_only_what_holds_is_restored(site: Site) -> None:
    site.back_up()
    release(site.spec(output=site.output("out")))
    site.restore()
    files = [path for path in (site.folder / "out.zarr" / "data").rglob("*") if path.is_file()]
    next(path for path in files if path.suffix != ".json").write_bytes(b"other bytes")
    command = ["ledger", "reconcile", f"{site.folder}/out.zarr", "--ledger", site.url]
    refused = CliRunner().invoke(main, command)
    assert refused.exit_code == 4
    assert site.ledger.state("people").releases == {}


def test_row_01_where_nothing_can_be_remembered_nothing_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPDASK_MASTER_KEY", (b"m" * 32).hex())
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    url = f"sqlite:///{site.folder}/ledger.db-elsewhere"
    Ledger(url).open_dataset("people", TOTAL)
    budget = {"ledger": url, "dataset": "people"}
    for name in ("first", "second"):
        release(site.spec(output=site.output(name), budget=budget))
    assert len(Ledger(url).state("people").releases) == 2

"""Opening a ledger runs no DDL, so that roles without it can charge and read; datasets do not wait
for each other (row 4 of the operations review).
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, event, text

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.cli import main
from dpdask.errors import LedgerError, LedgerStorageError
from dpdask.ledger import Ledger, PrivacyUnit, TimeOuts, upgrade_ledger
from dpdask.ledger import steps as step_module

TOTAL = PrivacyBudget(epsilon=2.0, delta=1e-6)
SMALL = GaussianProfile(0.1)
PAGE = Path(__file__).parents[2] / "docs" / "operations.md"


def fingerprint(number: int) -> str:
    return f"{number:064x}"


def run(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["ledger", *arguments, "--ledger", url])


@pytest.fixture(scope="module")
def owned(postgres: str) -> str:
    """A ledger of the owner, with the grants of the documentation."""
    [grants] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert run(postgres, "init", "people", "--epsilon", "2", "--delta", "1e-6").exit_code == 0
    engine = create_engine(postgres.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE dpdask_charger LOGIN"))
        connection.execute(text("CREATE ROLE dpdask_reader LOGIN"))
        connection.exec_driver_sql(grants)
    engine.dispose()
    return postgres


def as_role(url: str, role: str) -> str:
    return url.replace("postgres:@", f"{role}@")


def test_row_04_a_charger_takes_every_step_and_cannot_change_the_ledger(owned: str) -> None:
    url = as_role(owned, "dpdask_charger")
    ledger = Ledger(url, create=False)
    unit = PrivacyUnit(array="ab" * 32, record_axis=0)
    for number, close in ((1, "commit"), (2, "burn")):
        ledger.reserve("people", fingerprint(number), SMALL, unit)
        ledger.release_key(fingerprint(number))
        if close == "commit":
            ledger.publish(fingerprint(number), "{}")
            ledger.commit(fingerprint(number))
        else:
            ledger.burn(fingerprint(number), "because")
    with pytest.raises(LedgerStorageError, match="lacks the permission"):
        ledger.open_dataset("others", TOTAL)
    assert ledger.verify() == 8
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    for statement in (
        "DROP TRIGGER dpdask_entries_change ON dpdask_entries",
        "ALTER TABLE dpdask_entries DISABLE TRIGGER ALL",
        "DELETE FROM dpdask_entries",
        "UPDATE dpdask_datasets SET name = 'other'",
        "TRUNCATE dpdask_entries CASCADE",
        "CREATE OR REPLACE FUNCTION dpdask_append_only() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN NEW; END $$",
    ):
        with pytest.raises(Exception, match=r"must be owner|permission denied|append-only"):
            _execute(engine, statement)
    engine.dispose()


def _execute(engine: Any, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def test_row_04_a_reader_reads_everything_but_keys_and_writes_nothing(owned: str) -> None:
    url = as_role(owned, "dpdask_reader")
    for command in (["list"], ["show", "people"], ["head"], ["verify"]):
        result = run(url, *command)
        assert result.exit_code == 0, result.output
    ledger = Ledger(url, create=False)
    assert ledger.forecast("people", SMALL).after > 0
    with pytest.raises(LedgerStorageError, match="lacks the permission"):
        ledger.reserve("people", fingerprint(3), SMALL)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with pytest.raises(Exception, match="permission denied"):
        _execute(engine, "SELECT * FROM dpdask_release_keys")
    engine.dispose()


def test_row_04_opening_runs_no_ddl(url: str) -> None:
    Ledger(url).open_dataset("people", TOTAL)
    statements: list[str] = []
    ledger = Ledger(url, create=False)
    event.listen(
        ledger._engine,
        "before_cursor_execute",
        lambda _c, _u, statement, *_: statements.append(statement),
    )
    ledger.reserve("people", fingerprint(1), SMALL)
    ledger.state("people")
    assert statements
    ddl = re.compile(r"^\s*(CREATE|ALTER|DROP|GRANT)", re.IGNORECASE)
    assert not [statement for statement in statements if ddl.match(statement)]
    with pytest.raises(LedgerError, match="needs no upgrade"):
        upgrade_ledger(url)


def test_row_04_an_open_charge_blocks_no_reader_and_no_other_dataset(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(url)
    for name in ("people", "others"):
        ledger.open_dataset(name, TOTAL)
    inside, leave = threading.Event(), threading.Event()
    admit = step_module.admit

    def slow(connection: Any, standing: Any, parts: Any) -> Any:
        if standing.dataset == "people":
            inside.set()
            leave.wait(60)
        return admit(connection, standing, parts)

    monkeypatch.setattr(step_module, "admit", slow)
    charging = threading.Thread(target=lambda: Ledger(url).reserve("people", fingerprint(1), SMALL))
    charging.start()
    try:
        assert inside.wait(30)
        began = time.monotonic()
        other = Ledger(url, create=False, time_outs=TimeOuts(lock=5))
        assert other.state("people").releases == {}
        assert other.verify() == 2
        if url.startswith("postgresql"):
            assert other.reserve("others", fingerprint(2), SMALL).new
        assert time.monotonic() - began < 30  # nobody waited for the charge
    finally:
        leave.set()
        charging.join()
    assert len(Ledger(url).state("people").releases) == 1

"""Exit codes by kind, and JSON errors for programs (row 13 of the operations review)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dpdask import PrivacyBudget, errors
from dpdask.cli import main
from dpdask.cli.failures import exit_code
from dpdask.errors import DpdaskError
from tests.support.workspace import Workspace, people

CODES = {
    "DpdaskError": 2,
    "InvalidSpec": 2,
    "LedgerError": 2,
    "ReleaseError": 2,
    "ClusterError": 2,
    "OutOfReach": 2,
    "BudgetExceeded": 3,
    "RateLimited": 3,
    "VerificationFailed": 4,
    "SourceChanged": 4,
    "LedgerCorrupt": 4,
    "MasterKeyError": 4,
    "Unavailable": 5,
    "LedgerUnavailable": 5,
    "StoreUnavailable": 5,
    "ClusterUnavailable": 5,
    "StoreError": 2,
    "StorageFault": 6,
    "OutputLockDamaged": 6,
    "LedgerStorageError": 6,
}


@pytest.mark.parametrize("name", CODES)
def test_row_13_each_kind_of_error_has_its_exit_code(name: str) -> None:
    assert exit_code(getattr(errors, name)("why")) == CODES[name]


def test_row_13_every_error_has_a_code_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "release.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {exit_code(kind("why")) for kind in kinds if issubclass(kind, DpdaskError)}
    assert codes <= documented
    assert {0, 70, 130, 143} <= documented


def failed(*arguments: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    document = json.loads(result.stdout)
    assert result.stderr.startswith("error: ")
    assert document["error"]["exit_code"] == result.exit_code
    assert document["error"]["message"] in result.stderr
    return result.exit_code, document["error"]


def test_row_13_errors_under_json_are_json(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people())
    space.ledger.open_dataset("few", PrivacyBudget(epsilon=0.1, delta=1e-6))
    path = str(space.write_spec(budget={"ledger": space.ledger_url, "dataset": "few"}))
    code, error = failed("run", path)
    assert (code, error["kind"], error["try_again"]) == (3, "BudgetExceeded", False)
    path = str(space.write_spec(source={"url": str(space.folder / "gone.zarr"), "array": "x"}))
    assert failed("run", path)[0] == 2
    next((space.folder / "source.zarr" / "x" / "c" / "0").iterdir()).write_bytes(b"cut")
    assert failed("run", str(space.write_spec()))[0] == 6
    monkeypatch.setenv("DPDASK_LEDGER", "postgresql://u:hunter2@127.0.0.1:1/db")
    code, error = failed("plan", str(space.write_spec(budget={"dataset": "people"})))
    assert (code, error["kind"], error["try_again"]) == (5, "LedgerUnavailable", True)
    assert "hunter2" not in json.dumps(error)
    assert failed("run", str(space.write_spec(quarry="mean")))[0] == 2
    assert failed("run")[0] == 2  # nothing is named
    assert failed("ledger", "show", "nobody", "--ledger", space.ledger_url)[0] == 2

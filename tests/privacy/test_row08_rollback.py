"""Row 8: a ledger that was rolled back does not contain the heads that were written down, and one
array has one budget.

With 0.1.0 a backup of the ledger, restored between runs, spent the same budget three times, and
nothing that was published told; one array was charged to two datasets, each with a total of its
own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.cli import main
from dpdask.errors import LedgerError
from dpdask.ledger import Ledger, LedgerHead, PrivacyUnit
from dpdask.ledger import steps as step_module
from tests.support.workspace import Workspace, people

TOTAL = PrivacyBudget(epsilon=1.0, delta=1e-6)
SMALL = GaussianProfile(0.1)
ARRAY = hashlib.sha256(b"array").hexdigest()


def fingerprint(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def test_row_08_a_ledger_that_was_rolled_back_does_not_contain_the_head(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    path = tmp_path / "live" / "ledger.db"
    book = Ledger(f"sqlite:///{path}")
    book.open_dataset("people", TOTAL)
    book.close()
    shutil.copy(path, tmp_path / "backup.db")
    heads = []
    for run in range(3):
        shutil.copy(tmp_path / "backup.db", path)
        book = Ledger(f"sqlite:///{path}")
        book.reserve("people", fingerprint(run), SMALL)
        heads.append(book.head("people"))
        assert book.contains("people", heads[-1])
        book.close()
    assert len({head.hash for head in heads}) == 3
    book = Ledger(f"sqlite:///{path}")
    assert book.verify() == 2  # the chain itself cannot tell
    assert [book.contains("people", head) for head in heads] == [False, False, True]
    assert not book.contains("people", LedgerHead("others", *_place(heads[2])))
    assert not book.contains("others", heads[2])


def _place(head: LedgerHead) -> tuple[int, str]:
    return head.sequence, head.hash


def test_row_08_the_same_reservation_has_another_hash_in_a_restored_ledger(tmp_path: Path) -> None:
    """Hashes are published: a secret salt keeps digests of data in a payload from being guessed."""
    heads = []
    for copy in ("a", "b"):
        (tmp_path / copy).mkdir()
        book = Ledger(f"sqlite:///{tmp_path}/{copy}/ledger.db")
        book.open_dataset("people", TOTAL)
        book.reserve("people", fingerprint("same"), SMALL)
        heads.append(book.head("people").hash)
    assert heads[0] != heads[1]


def test_row_08_ledger_head_prints_place_and_hash(tmp_path: Path) -> None:
    ledger_url = f"sqlite:///{tmp_path}/ledger.db"

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["ledger", "head", *arguments, "--ledger", ledger_url])

    book = Ledger(ledger_url)
    for name in ("people", "places"):
        book.open_dataset(name, TOTAL)
    book.reserve("people", fingerprint(1), SMALL)
    head = book.head("people")
    assert head.sequence == 2
    assert run("people").stdout == f"people 2 {head.hash}\n"
    heads = json.loads(run("--json").stdout)["heads"]
    assert [(head["dataset"], head["sequence"]) for head in heads] == [("people", 2), ("places", 1)]
    assert run("nobody").exit_code == 2
    record = book.entry(fingerprint(1))
    assert record is not None
    assert record.head == head  # of its reservation, however many entries follow
    book.release_key(fingerprint(1))
    assert book.entry(fingerprint(1)).head == head  # type: ignore[union-attr]
    assert book.contains("people", head)


def test_row_08_an_array_is_charged_to_one_dataset_unless_said(url: str) -> None:
    book = Ledger(url)
    for name in ("a", "people", "z"):
        book.open_dataset(name, TOTAL)
    privacy_unit = PrivacyUnit(array=ARRAY, record_axis=0)
    book.reserve("people", fingerprint(0), SMALL, privacy_unit)
    for other in ("a", "z"):
        for step in (
            lambda name=other: book.reserve(name, fingerprint(name), SMALL, privacy_unit),
            lambda name=other: book.forecast(name, SMALL, privacy_unit),
        ):
            with pytest.raises(LedgerError, match="charged to dataset 'people' already"):
                step()
        assert book.state(other).releases == {}
    book.reserve("people", fingerprint(1), SMALL, privacy_unit)
    said = PrivacyUnit(array=ARRAY, record_axis=0, array_in_other_dataset=True)
    assert book.reserve("z", fingerprint("z"), SMALL, said).new
    assert book.verify() == 6
    book.close()


def test_row_08_two_datasets_that_race_for_one_array_do_not_both_get_it(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    book = Ledger(url)
    for name in ("first", "second"):
        book.open_dataset(name, TOTAL)
    real = step_module.admit

    def slow(*arguments: Any) -> Any:
        result = real(*arguments)
        time.sleep(0.8)
        return result

    monkeypatch.setattr(step_module, "admit", slow)
    outcomes: dict[str, Any] = {}

    def reserve(name: str) -> None:
        mine = Ledger(url)
        try:
            outcomes[name] = mine.reserve(name, fingerprint(name), SMALL, PrivacyUnit(array=ARRAY))
        except LedgerError as error:
            outcomes[name] = error
        mine.close()

    threads = [threading.Thread(target=reserve, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    assert [type(outcomes[name]).__name__ for name in ("first", "second")] == [
        "Reservation",
        "LedgerError",
    ]
    book.close()


def test_row_08_the_spec_says_that_an_array_has_two_budgets(tmp_path: Path) -> None:
    space = Workspace(tmp_path)
    space.source(people(20, 3))
    for name in ("people", "others"):
        space.ledger.open_dataset(name, PrivacyBudget(epsilon=1e3, delta=1e-3))
    space.release()
    budget = {"dataset": "others", "ledger": space.ledger_url}
    output = {"url": f"{space.folder}/b.zarr"}
    with pytest.raises(LedgerError, match=r"budget\.array_in_other_dataset: true"):
        space.release(budget=budget, output=output)
    assert space.ledger.state("others").releases == {}
    space.release(budget={**budget, "array_in_other_dataset": True}, output=output)
    assert len(space.ledger.state("others").releases) == 1

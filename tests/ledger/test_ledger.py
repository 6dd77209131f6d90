"""The ledger cannot be overspent, forgets nothing but keys, and notices tampering; on SQLite and on
a real PostgreSQL.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from dpdask import GaussianProfile, PrivacyBudget, SphericalProfile
from dpdask.accounting import Dominated, Gamma, dominating_gaussian
from dpdask.errors import BudgetExceeded, LedgerCorrupt, LedgerError, MasterKeyError
from dpdask.keystream import ReleaseKey
from dpdask.ledger import Ledger, PrivacyUnit
from dpdask.ledger import steps as step_module

TOTAL = PrivacyBudget(epsilon=2.0, delta=1e-6)
ONE = GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-6))


def fingerprint(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    book = Ledger(url)
    book.open_dataset("people", TOTAL)
    yield book
    book.close()


def test_a_release_that_would_pass_the_total_is_refused_and_charges_nothing(ledger: Ledger) -> None:
    for i in range(3):
        assert ledger.reserve("people", fingerprint(i), ONE).new
    before = ledger.state("people")
    with pytest.raises(BudgetExceeded, match=r"spent epsilon 1\.81.* of 2 .*would make it 2\.12"):
        ledger.reserve("people", fingerprint(3), ONE)
    assert ledger.state("people") == before
    assert isinstance(before.spent, Dominated)
    assert before.spent.delta0 == 0
    assert math.isclose(before.spent.mu, ONE.mu * math.sqrt(3), rel_tol=1e-12)
    small = GaussianProfile(ONE.mu / 3)
    assert ledger.reserve("people", fingerprint("small"), small).new


def test_other_noise_is_charged_as_the_least_gaussian_above_it(ledger: Ledger) -> None:
    k_norm = SphericalProfile(dimension=20, law=Gamma(1.0), sensitivity=1.0)
    ledger.reserve("people", fingerprint("gaussian"), ONE)
    ledger.reserve("people", fingerprint("k-norm"), k_norm)
    together = ledger.state("people").spent
    assert isinstance(together, Dominated)
    assert math.isclose(
        together.mu**2, ONE.mu**2 + dominating_gaussian(k_norm, delta0=0.0).mu ** 2, rel_tol=1e-12
    )
    spent = ledger.state("people").spent_epsilon
    assert 1.0 < spent <= 2.0
    with pytest.raises(BudgetExceeded):
        ledger.reserve("people", fingerprint("again"), GaussianProfile(ONE.mu * 2))


def test_reserving_again_is_free_and_gives_the_same_key(ledger: Ledger) -> None:
    release = fingerprint("r")
    assert ledger.reserve("people", release, ONE).new
    key = ledger.release_key(release)
    spent = ledger.state("people").spent_epsilon
    assert not ledger.reserve("people", release, ONE).new
    assert ledger.release_key(release).reveal() == key.reveal()
    assert ledger.state("people").spent_epsilon == spent


def test_a_fingerprint_stands_for_one_release(ledger: Ledger) -> None:
    release = fingerprint("r")
    ledger.reserve("people", release, ONE)
    with pytest.raises(LedgerError, match="another guarantee"):
        ledger.reserve("people", release, GaussianProfile(ONE.mu / 2))
    ledger.open_dataset("others", TOTAL)
    with pytest.raises(LedgerError, match="another dataset"):
        ledger.reserve("others", release, ONE)


@pytest.mark.parametrize("closing", ["commit", "burn"])
def test_a_closed_release_keeps_its_charge_loses_its_key_and_stays_closed(
    ledger: Ledger, closing: str
) -> None:
    release = fingerprint("r")
    ledger.reserve("people", release, ONE)
    ledger.release_key(release)
    spent = ledger.state("people").spent_epsilon

    if closing == "commit":
        ledger.publish(release, "card")

    def close() -> None:
        ledger.commit(release) if closing == "commit" else ledger.burn(release, "source changed")

    close()
    close()  # a retry after a crash
    assert ledger.state("people").spent_epsilon == spent
    assert ledger.state("people").releases == {release: closing}
    for again in (
        lambda: ledger.release_key(release),
        lambda: ledger.reserve("people", release, ONE),
    ):
        with pytest.raises(LedgerError, match="closed"):
            again()
    with pytest.raises(LedgerError, match="closed"):
        ledger.burn(release, "x") if closing == "commit" else ledger.commit(release)


def test_what_may_be_visible_is_not_burned_and_what_is_burned_is_not_published(
    ledger: Ledger,
) -> None:
    first, second, third = fingerprint("a"), fingerprint("b"), fingerprint("c")
    for release in (first, second, third):
        ledger.reserve("people", release, GaussianProfile(ONE.mu / 4))
    with pytest.raises(LedgerError, match="not published"):
        ledger.commit(first)
    assert ledger.publish(first, "card") == "card"
    assert (
        ledger.publish(first, "another card") == "card"
    )  # a retry after a crash takes what was noted first
    with pytest.raises(LedgerError, match="may be visible"):
        ledger.burn(first, "too late")
    record = ledger.entry(first)
    assert record is not None
    assert (record.open, record.card) == (True, "card")
    ledger.burn(second, "in time")
    with pytest.raises(LedgerError, match="closed by burn"):
        ledger.publish(second, "card")
    ledger.publish(third, "card")
    ledger.burn(third, "its staging is lost", invisible=True)
    assert list(ledger.state("people").releases.values()) == ["publish", "burn", "burn"]


def test_a_name_stands_for_one_release(ledger: Ledger) -> None:
    small = GaussianProfile(ONE.mu / 4)
    ledger.reserve("people", fingerprint("a"), small, payload={"release_id": "n"})
    ledger.open_dataset("others", TOTAL)
    for dataset in ("people", "others"):
        with pytest.raises(LedgerError, match="took over"):
            ledger.reserve(dataset, fingerprint("b"), small, payload={"release_id": "n"})
    assert not ledger.reserve("people", fingerprint("a"), small, payload={"release_id": "n"}).new


def test_no_key_without_a_charge(ledger: Ledger) -> None:
    for step in (ledger.release_key, ledger.commit):
        with pytest.raises(LedgerError, match="not reserved"):
            step(fingerprint("nobody"))


def test_a_total_never_changes_and_survives_exactly(url: str) -> None:
    odd = PrivacyBudget(epsilon=0.1 + 0.2, delta=1.0000000000000002e-9)
    for _ in range(2):
        book = Ledger(url)
        book.open_dataset("d", odd)
        assert book.state("d").total == odd
        book.close()
    book = Ledger(url)
    with pytest.raises(LedgerError, match="never changes"):
        book.open_dataset("d", TOTAL)
    assert book.datasets() == ["d"]
    book.close()


def race(url: str, number: int, barrier: Any, results: Any) -> None:
    book = Ledger(url)
    barrier.wait()
    try:
        results.put(book.reserve("people", fingerprint(f"racer {number}"), ONE).new)
    except BudgetExceeded:
        results.put(False)
    book.close()


@pytest.mark.slow
def test_fifty_processes_racing_for_the_last_budget_never_overspend(
    ledger: Ledger, url: str
) -> None:
    ledger.reserve("people", fingerprint("first"), ONE)
    ledger.reserve("people", fingerprint("second"), ONE)  # one more fits
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # fifty processes, but one import of everything
    barrier, results = context.Barrier(50), context.Queue()
    processes = [context.Process(target=race, args=(url, i, barrier, results)) for i in range(50)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sum(outcomes) == 1
    state = ledger.state("people")
    assert len(state.releases) == 3
    assert state.spent is not None
    assert state.spent.delta(TOTAL.epsilon) <= TOTAL.delta
    assert ledger.verify() == 4


def at_once(*steps: Callable[[], Any]) -> list[Any]:
    """Run steps in threads, each begun while the one before is in its transaction; their results or
    errors.
    """
    results: list[Any] = [None] * len(steps)

    def run(number: int) -> None:
        try:
            results[number] = steps[number]()
        except LedgerError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(steps))]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    return results


def slowed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = getattr(step_module, name)

    def slow(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        time.sleep(0.8)
        return result

    monkeypatch.setattr(step_module, name, slow)


def test_whatever_isolation_the_server_prefers_the_last_budget_goes_once(
    ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot taken before the dataset's lock is granted misses what the other one spent."""
    if url.startswith("postgresql"):
        engine = create_engine(
            url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.execute(
                text(
                    f"ALTER DATABASE {engine.url.database} SET default_transaction_isolation ="
                    " 'repeatable read'"
                )
            )
        engine.dispose()
    for name in ("first", "second"):
        ledger.reserve("people", fingerprint(name), ONE)
    slowed(monkeypatch, "admit")
    books = [Ledger(url), Ledger(url)]
    outcomes = at_once(
        *(lambda b=b, i=i: b.reserve("people", fingerprint(i), ONE) for i, b in enumerate(books))
    )  # type: ignore[misc]
    assert isinstance(outcomes[1], BudgetExceeded), outcomes
    assert len(ledger.state("people").releases) == 3
    assert ledger.verify() == 4
    for book in books:
        book.close()


def test_two_commits_at_once_are_one(
    ledger: Ledger, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = fingerprint("r")
    ledger.reserve("people", release, ONE)
    ledger.publish(release, "card")
    slowed(monkeypatch, "append")
    books = [Ledger(url), Ledger(url)]
    assert at_once(*(lambda b=b: b.commit(release) for b in books)) == [None, None]  # type: ignore[misc]
    assert ledger.state("people").releases == {release: "commit"}
    for book in books:
        book.close()


def test_a_chain_does_not_fork(ledger: Ledger, url: str) -> None:
    """Two rows that follow the same one are refused by the database itself."""
    ledger.reserve("people", fingerprint("r"), ONE)
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    columns = "once_name, clock, mu_squared, delta, payload, previous"
    for sequence in (2, 3):  # beside the newest entry, and after it but following the one before it
        copied = (
            f"SELECT dataset, {sequence}, 'open', 'other', {columns} FROM dpdask_entries"
            " WHERE kind = 'reserve'"
        )
        with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(
                text(
                    f"INSERT INTO dpdask_entries (dataset, sequence, kind, hash, {columns})"
                    f" {copied}"
                )
            )
    engine.dispose()


def test_rows_cannot_be_changed_or_removed(ledger: Ledger, url: str) -> None:
    ledger.reserve("people", fingerprint("r"), ONE)
    ledger.release_key(fingerprint("r"))
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    truncate = (
        ["TRUNCATE dpdask_entries", "TRUNCATE dpdask_datasets CASCADE"]
        if url.startswith("postgresql")
        else []
    )
    for statement in (
        *truncate,
        "UPDATE dpdask_entries SET kind = 'burn'",
        "DELETE FROM dpdask_entries",
        "UPDATE dpdask_datasets SET name = 'others'",
        "UPDATE dpdask_settings SET value = 'bare'",
        "DELETE FROM dpdask_schema",
        "UPDATE dpdask_release_keys SET wrapped = 0",
        "DELETE FROM dpdask_datasets",
    ):
        with pytest.raises(Exception, match="append-only"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()
    assert ledger.verify() == 3


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE dpdask_entries SET payload = replace(payload, 'mu', 'nu') WHERE kind = 'reserve'",
        "DELETE FROM dpdask_entries WHERE sequence = 2",
        "UPDATE dpdask_entries SET sequence = 99 WHERE sequence = 2",
        "UPDATE dpdask_entries SET payload = replace(payload, '2.0', '9.0') WHERE kind = 'open'",
        "UPDATE dpdask_entries SET mu_squared = replace(mu_squared, '1', '0') WHERE sequence = 3",
        "UPDATE dpdask_entries SET array = 'ab' WHERE sequence = 2",
        "UPDATE dpdask_entries SET clock = '2020' WHERE sequence = 2",
    ],
)
def test_tampering_behind_the_triggers_is_found(tmp_path: Path, tampering: str) -> None:
    book = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    book.open_dataset("people", TOTAL)
    for i in range(2):
        book.reserve("people", fingerprint(i), GaussianProfile(0.1))
    assert book.verify() == 3
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        for (name,) in raw.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            raw.execute(f"DROP TRIGGER {name}")
        raw.execute(tampering)
    with pytest.raises(LedgerCorrupt):
        book.verify()
    book.close()


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_the_key_is_only_in_its_table_and_gone_after_commit(tmp_path: Path) -> None:
    book = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    book.open_dataset("people", TOTAL)
    release = fingerprint("r")
    book.reserve("people", release, ONE)
    secret = book.release_key(release).reveal()
    assert secret not in files(tmp_path)
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        dump = "\n".join(line for line in raw.iterdump() if "release_keys" not in line)
    assert secret.hex() not in dump.lower()
    assert stat.S_IMODE(os.stat(tmp_path / "ledger.db").st_mode) == 0o600
    book.publish(release, "card")
    book.commit(release)
    assert secret not in files(tmp_path)
    book.close()


def test_a_master_key_wraps_release_keys(url: str, tmp_path: Path) -> None:
    master = bytes(range(32))
    book = Ledger(url, master_key=master)
    book.open_dataset("people", TOTAL)
    release = fingerprint("r")
    book.reserve("people", release, ONE)
    secret = book.release_key(release).reveal()
    assert isinstance(book.release_key(release), ReleaseKey)
    if url.startswith("sqlite"):
        assert secret not in files(tmp_path)
    book.close()
    other = Ledger(url)  # the one of the configuration folder, if there is one
    for step in (
        lambda: other.release_key(release),
        lambda: other.reserve("people", fingerprint("new"), ONE),
    ):
        with pytest.raises(MasterKeyError, match="set DPDASK_MASTER_KEY"):
            step()
    assert other.verify() == 3  # reading needs no key
    other.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "cannot be read"),
        ("mysql://host/db", "mysql is not supported"),
        ("sqlite://", "in memory"),
        ("sqlite:////nowhere/at/all/ledger.db", "does not exist"),
        ("postgresql://postgres:hunter2@127.0.0.1:1/db", "refused"),
    ],
)
def test_a_ledger_that_cannot_be_opened_says_so_in_one_line_without_secrets(
    url: str, message: str
) -> None:
    with pytest.raises(LedgerError, match=message) as caught:
        Ledger(url)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("release", ["", "xyz", "A" * 64])
def test_a_release_is_named_by_its_fingerprint(ledger: Ledger, release: str) -> None:
    with pytest.raises(LedgerError, match="not a valid fingerprint"):
        ledger.reserve("people", release, ONE)


def test_unknown_datasets_are_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="open it with its total"):
        ledger.reserve("nobody", fingerprint(1), ONE)
    with pytest.raises(LedgerError, match="printable"):
        ledger.open_dataset("", TOTAL)


def test_a_value_is_put_once_for_all_runs_of_a_release(ledger: Ledger) -> None:
    first, second = fingerprint("a"), fingerprint("b")
    for release in (first, second):
        ledger.reserve("people", release, GaussianProfile(ONE.mu / 4))
    assert ledger.get_once(first, "directions") is None
    assert ledger.put_once(first, "directions", "[1, 0]") == "[1, 0]"
    assert (
        ledger.put_once(first, "directions", "[0, 1]") == "[1, 0]"
    )  # another run's comes too late
    assert ledger.put_once(first, "bounds", "[2]") == "[2]"
    assert ledger.put_once(second, "directions", "[0, 1]") == "[0, 1]"
    assert (ledger.get_once(first, "directions"), ledger.get_once(first, "bounds")) == (
        "[1, 0]",
        "[2]",
    )
    assert ledger.state("people").releases == {
        first: "reserve",
        second: "reserve",
    }  # not a step of its own
    ledger.burn(first, "aborted")
    assert ledger.get_once(first, "directions") == "[1, 0]"
    with pytest.raises(LedgerError, match="closed by burn"):
        ledger.put_once(first, "more", "x")
    with pytest.raises(LedgerError, match="not reserved"):
        ledger.put_once(fingerprint("nobody"), "directions", "x")
    assert ledger.verify() == 7


def test_no_question_of_a_release_reads_past_releases(tmp_path: Path) -> None:
    """Every statement is answered from an index, or ends at its first row."""
    book = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    book.open_dataset("people", TOTAL)
    statements: list[tuple[str, Any]] = []
    event.listen(
        book._engine, "before_cursor_execute", lambda *call: statements.append((call[2], call[3]))
    )
    privacy_unit = PrivacyUnit(array=fingerprint("array"), record_axis=0)
    window = {"axis": 0, "start": 0, "stop": 1, "series": "daily"}
    book.reserve(
        "people",
        fingerprint("r"),
        GaussianProfile(0.1),
        privacy_unit,
        {"release_id": "n", "window": window, "output_url": "o"},
    )
    book.forecast("people", GaussianProfile(0.1), privacy_unit)
    book.put_once(fingerprint("r"), "directions", "x")
    book.get_once(fingerprint("r"), "directions")
    book.entry(fingerprint("r"))
    book.entry_named("n")
    book.open_releases("n")
    book.windows("people", "daily")
    book.spent_since("people", datetime.now(UTC))
    book.release_key(fingerprint("r"))
    book.publish(fingerprint("r"), "card")
    book.contains("people", book.head("people"))
    book.commit(fingerprint("r"))
    selects = [
        (statement, values) for statement, values in statements if statement.startswith("SELECT")
    ]
    assert len(selects) > 20
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        for statement, values in selects:
            for *_, step in raw.execute(f"EXPLAIN QUERY PLAN {statement}", values):
                assert not step.startswith("SCAN"), (statement, step)
                assert "LIMIT" in statement or not step.endswith("PRIMARY KEY (dataset=?)"), (
                    statement,
                    step,
                )
    book.close()

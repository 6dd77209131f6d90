"""Releases of disjoint blocks are charged once, overlaps twice, and nothing less than any unit
loses; on SQLite and on a real PostgreSQL.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import multiprocessing
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from dpdask import Adjacency, GaussianProfile, PrivacyBudget
from dpdask.accounting import SampledProfile
from dpdask.errors import BudgetExceeded, LedgerCorrupt, LedgerError
from dpdask.ledger import Block, Ledger, PrivacyUnit, upgrade_ledger
from dpdask.ledger.charges import Spent
from dpdask.ledger.interval_map import IntervalMap, Segment

TOTAL = PrivacyBudget(epsilon=2.0, delta=1e-6)
ONE = GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-6))
ARRAY, OTHER = (hashlib.sha256(name).hexdigest() for name in (b"array", b"other"))


def fingerprint(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def unit(start: int, stop: int, array: str = ARRAY, axis: int = 0, **changes: Any) -> PrivacyUnit:
    return PrivacyUnit(array=array, record_axis=0, block=Block(axis, start, stop), **changes)


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    book = Ledger(url)
    book.open_dataset("people", TOTAL)
    yield book
    book.close()


def mu(ledger: Ledger) -> float:
    spent: Any = ledger.state("people").spent
    return 0.0 if spent is None else float(spent.mu)


def reserve(ledger: Ledger, name: object, whom: PrivacyUnit, noise: Any = ONE) -> None:
    assert ledger.reserve("people", fingerprint(name), noise, whom).new


blocks = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 3)), min_size=1, max_size=25
)


@given(blocks)
def test_segments_are_the_sums_of_what_covers_each_index(
    charged: list[tuple[int, int, int]],
) -> None:
    """Against a sum over every index; the form is the only one, whatever the order."""
    brute = [Spent(0, 0)] * 50
    forward, backward = IntervalMap(), IntervalMap()
    for start, length, amount in charged:
        change = forward.add(start, start + length, Spent(amount, amount * 7))
        for index in range(start, start + length):
            brute[index] += Spent(amount, amount * 7)
        held = forward.segments
        assert change.largest == max((brute[start : start + length]), key=lambda s: s.amount)
        assert not set(change.removed) & set(held)
        assert set(change.added) <= set(held)
    for start, length, amount in reversed(charged):
        backward.add(start, start + length, Spent(amount, amount * 7))
    assert forward.segments == backward.segments
    expected: list[Segment] = []
    for index, spent in enumerate(brute):
        last = expected[-1] if expected else None
        if spent == Spent(0, 0):
            continue
        if last is not None and last.stop == index and last.spent == spent:
            expected[-1] = Segment(last.start, index + 1, spent)
        else:
            expected.append(Segment(index, index + 1, spent))
    assert forward.segments == expected


# mu in sixteenths: some with a block along axis 0, some along axis 1, some of the whole array
releases = st.lists(
    st.tuples(
        st.sampled_from([None, (ARRAY, 0), (ARRAY, 1), (OTHER, 0)]),
        st.integers(0, 12),
        st.integers(1, 6),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=12,
)


@given(releases)
@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_the_total_is_what_the_most_charged_unit_may_lose(
    tmp_path: Path, charged: list[tuple[tuple[str, int] | None, int, int, int]]
) -> None:
    """A unit has one index along each axis, independently: its loss is at most the sum of the
    largest charges, which some unit reaches.
    """
    book = Ledger(f"sqlite:///{tmp_path}/{fingerprint(charged)}.db")
    book.open_dataset("people", PrivacyBudget(epsilon=100.0, delta=1e-6))
    everyone, losses = 0.0, {key: [0.0] * 20 for key in ((ARRAY, 0), (ARRAY, 1), (OTHER, 0))}
    for number, (key, start, length, sixteenths) in enumerate(charged):
        noise = GaussianProfile(sixteenths / 16)
        if key is None:
            whom = PrivacyUnit(array=ARRAY, record_axis=0)
            everyone += noise.mu**2
        else:
            whom = unit(start, start + length, key[0], key[1])
            for index in range(start, start + length):
                losses[key][index] += noise.mu**2
        forecast = book.forecast("people", noise, whom)
        reserve(book, number, whom, noise)
        worst = everyone + sum(max(along) for along in losses.values())
        assert mu(book) ** 2 == pytest.approx(worst, rel=1e-12)
        assert forecast.after == book.spent_epsilon("people")
    assert book.verify() == 1 + len(charged)
    together = [
        (
            GaussianProfile(sixteenths / 16),
            PrivacyUnit(array=ARRAY, record_axis=0)
            if key is None
            else unit(start, start + length, key[0], key[1]),
        )
        for key, start, length, sixteenths in charged
    ]
    twice = 4 * (everyone + sum(max(along) for along in losses.values())) / 2
    after = book.forecast_all("people", together).after
    book.close()
    assert after == pytest.approx(GaussianProfile(math.sqrt(twice)).epsilon(1e-6), rel=1e-6)


def test_a_thousand_daily_windows_cost_what_one_does(ledger: Ledger) -> None:
    """Each of 100,000 new records; the ledger keeps a single segment."""
    for day in range(1000 if "sqlite" in str(ledger._engine.url) else 200):
        reserve(ledger, day, unit(day * 100_000, (day + 1) * 100_000))
        assert ledger.spent_epsilon("people") <= 1.0
    [axis] = ledger.state("people").axes
    assert (axis.axis, axis.start, axis.segments) == (0, 0, 1)
    assert axis.largest_epsilon == ledger.spent_epsilon("people")
    assert mu(ledger) == pytest.approx(ONE.mu, rel=1e-12)
    ledger.verify()


def test_days_without_the_promise_add_up(ledger: Ledger) -> None:
    """The twin: windows of the same days that nobody declares disjoint."""
    whom = PrivacyUnit(array=ARRAY, record_axis=0)
    for day in range(3):
        reserve(ledger, day, whom)
    with pytest.raises(BudgetExceeded):
        ledger.reserve("people", fingerprint("fourth"), ONE, whom)


def test_an_overlap_is_charged_exactly_for_the_overlap(ledger: Ledger) -> None:
    """Windows of eight days that begin every seven: two of them hold each seventh day."""
    for week in range(6):
        reserve(ledger, week, unit(7 * week, 7 * week + 8))
    assert mu(ledger) == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)
    reserve(ledger, "within", unit(1, 7))  # days of one window each: they catch up
    assert mu(ledger) == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)
    reserve(ledger, "third", unit(7, 8))
    assert mu(ledger) == pytest.approx(math.sqrt(3) * ONE.mu, rel=1e-12)
    before = ledger.state("people")
    with pytest.raises(BudgetExceeded, match=r"would make it 2\.12"):
        ledger.reserve("people", fingerprint("fourth"), ONE, unit(0, 20))
    assert ledger.state("people") == before
    reserve(ledger, "new days", unit(43, 50))  # the total is not reached by other units
    assert ledger.verify() == 10


@pytest.mark.parametrize(
    "other",
    [
        unit(10, 20, array=OTHER),
        unit(10, 20, axis=1),
        PrivacyUnit(array=ARRAY, record_axis=0),
        PrivacyUnit(array=OTHER),
    ],
    ids=["another array", "another axis", "the whole array", "another source"],
)
def test_other_arrays_axes_and_whole_arrays_add_up(ledger: Ledger, other: PrivacyUnit) -> None:
    reserve(ledger, "block", unit(0, 10))
    reserve(ledger, "other", other)
    assert mu(ledger) == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)
    reserve(ledger, "the twin: the same array and axis", unit(10, 20))
    assert mu(ledger) == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)


def test_masses_that_no_gaussian_covers_are_charged_by_block_too(ledger: Ledger) -> None:
    step = SampledProfile(GaussianProfile(0.3), 0.1, Adjacency.ADD_REMOVE_ONE)
    masses = []
    for start in (0, 10, 20, 5):
        reserve(ledger, start, unit(start, start + 10), step)
        spent: Any = ledger.state("people").spent
        masses.append(spent.delta0)
    assert masses[0] > 0
    assert masses[:3] == [masses[0]] * 3
    assert masses[3] == pytest.approx(2 * masses[0])
    ledger.verify()


def test_reserving_again_is_free_and_a_burned_block_keeps_its_charge(ledger: Ledger) -> None:
    reserve(ledger, "a", unit(0, 10))
    assert not ledger.reserve("people", fingerprint("a"), ONE, unit(0, 10)).new
    ledger.burn(fingerprint("a"), "aborted")
    reserve(ledger, "another edition", unit(0, 10))
    assert mu(ledger) == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)
    assert ledger.verify() == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"adjacency": Adjacency.ADD_REMOVE_ONE},
        {"contributions": 2},
        {"array": None},
    ],
)
def test_a_block_needs_units_with_one_index(changes: dict[str, Any]) -> None:
    """Positions shift when a record is removed, and k records of one unit may lie in k blocks."""
    with pytest.raises(LedgerError, match="charge the release without a block"):
        unit(0, 10, **changes)
    if "contributions" in changes:  # of one day, where days are the axis
        unit(0, 10, axis=1, per="day", **changes)


def test_person_days_and_persons_are_not_mixed(ledger: Ledger) -> None:
    reserve(ledger, "days", unit(0, 10, axis=1, per="day"))
    with pytest.raises(LedgerError, match=r"privacy units per day.*use privacy_unit\.per: day"):
        ledger.reserve("people", fingerprint("persons"), ONE, unit(0, 10))
    ledger.open_dataset("others", TOTAL)
    ledger.reserve("others", fingerprint("persons"), ONE, unit(0, 10, array=OTHER))
    with pytest.raises(LedgerError, match=r"use no privacy_unit\.per"):
        ledger.forecast("others", ONE, unit(0, 10, array=OTHER, axis=1, per="day"))


def test_what_was_spent_lately_counts_units_that_are_new(ledger: Ledger) -> None:
    """The largest charge does not grow by another day's window, but its units lose as much."""
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    for day in range(3):
        reserve(ledger, day, unit(day, day + 1))
        recent: Any = ledger.spent_since("people", hour_ago)
        assert recent.mu == pytest.approx(ONE.mu, rel=1e-12)
    reserve(ledger, "overlap", unit(2, 4))
    recent = ledger.spent_since("people", hour_ago)
    assert recent.mu == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)
    assert ledger.spent_since("people", datetime.now(UTC) + timedelta(hours=1)) is None


def race(url: str, number: int, barrier: Any, results: Any) -> None:
    """Charge a block that overlaps that of the next process by a half."""
    book = Ledger(url)
    barrier.wait()
    try:
        book.reserve("people", fingerprint(number), ONE, unit(number * 5, number * 5 + 10))
        results.put(True)
    except BudgetExceeded:
        results.put(False)
    book.close()


def test_fifty_processes_charge_the_largest_of_their_blocks(ledger: Ledger, url: str) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    barrier, results = context.Barrier(50), context.Queue()
    processes = [context.Process(target=race, args=(url, i, barrier, results)) for i in range(50)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert all(outcomes)
    assert mu(ledger) == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)
    assert ledger.verify() == 51


def change(statement: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with sqlite3.connect(folder / "ledger.db") as raw:
            for (name,) in raw.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            ).fetchall():
                raw.execute(f"DROP TRIGGER {name}")
            raw.execute(statement)

    return run


TAMPERINGS = {
    "a smaller sum": f"UPDATE dpdask_blocks SET mu_squared = '{'0' * 80}'",
    "a segment that ends earlier": "UPDATE dpdask_blocks SET stop = 4 WHERE start = 0",
    "a segment marked as replaced": "UPDATE dpdask_blocks SET replaced = 3",
    "no segments": "DELETE FROM dpdask_blocks",
    "another axis": "UPDATE dpdask_blocks SET axis = 1",
    "another dataset": "UPDATE dpdask_blocks SET dataset = 'others'",
}


@pytest.fixture
def filled(tmp_path: Path) -> Ledger:
    book = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    book.open_dataset("people", TOTAL)
    book.open_dataset("others", TOTAL)
    reserve(book, 1, unit(0, 10))
    reserve(book, 2, unit(5, 20))
    return book


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_changed_segments_are_found(filled: Ledger, tmp_path: Path, tampering: str) -> None:
    assert filled.verify() == 4
    change(TAMPERINGS[tampering])(tmp_path)
    with pytest.raises(LedgerCorrupt, match="charges of blocks of dataset"):
        filled.verify()


@pytest.mark.parametrize("tampering", ["a smaller sum", "a segment that ends earlier"])
def test_a_charge_checks_the_segments_that_it_reads(
    filled: Ledger, tmp_path: Path, tampering: str
) -> None:
    change(TAMPERINGS[tampering])(tmp_path)
    with pytest.raises(LedgerCorrupt, match="charges of blocks of dataset"):
        filled.reserve("people", fingerprint("next"), ONE, unit(0, 10))


@pytest.mark.parametrize(
    "statement",
    [
        *TAMPERINGS.values(),
        "INSERT OR REPLACE INTO dpdask_blocks SELECT * FROM dpdask_blocks",
        "INSERT INTO dpdask_blocks SELECT dataset, array, axis, 2, 50, 60, mu_squared, delta,"
        " NULL FROM dpdask_blocks LIMIT 1",
        "UPDATE dpdask_blocks SET replaced = NULL",
    ],
)
def test_triggers_keep_segments(filled: Ledger, tmp_path: Path, statement: str) -> None:
    filled.burn(fingerprint(2), "so that another entry is the newest")
    with (
        sqlite3.connect(tmp_path / "ledger.db") as raw,
        pytest.raises(sqlite3.Error, match="append-only"),
    ):
        raw.execute(statement)
    assert filled.verify() == 5


def test_a_ledger_of_020_gets_the_table_once_however_many_upgrade_it(url: str) -> None:
    """Also on PostgreSQL; what it holds stays, and blocks are charged beside it."""
    book = Ledger(url)
    book.open_dataset("people", TOTAL)
    reserve(book, "before", PrivacyUnit(array=ARRAY, record_axis=0))
    with book._engine.begin() as connection:
        connection.execute(text("DROP TABLE dpdask_blocks"))
        if connection.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER dpdask_schema_update"))
        else:
            connection.execute(text("ALTER TABLE dpdask_schema DISABLE TRIGGER ALL"))
        connection.execute(text("UPDATE dpdask_schema SET version = 2"))
    book.close()
    with pytest.raises(LedgerError, match="`dpdask ledger upgrade`"):
        Ledger(url)
    opened: list[Ledger] = []

    def upgrade_and_open() -> None:
        with contextlib.suppress(LedgerError):  # another one was first
            upgrade_ledger(url)
        opened.append(Ledger(url, create=False))

    threads = [threading.Thread(target=upgrade_and_open) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 8
    for day, one in enumerate(opened):
        reserve(one, day, unit(day, day + 1))
        one.close()
    last = Ledger(url)
    assert mu(last) == pytest.approx(math.sqrt(2) * ONE.mu, rel=1e-12)
    assert last.verify() == 10
    last.close()

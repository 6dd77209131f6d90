"""A rate limit is part of the charge: runs that start at once cannot all pass it."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.accounting import PureProfile
from dpdask.errors import RateLimited
from dpdask.ledger import Allowance, Block, Ledger, PrivacyUnit
from dpdask.privacy import PureBudget

ONE = GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-6))
MONTH = Allowance(PrivacyBudget(epsilon=1.5, delta=1e-6), days=30)  # two of ONE
ARRAY = hashlib.sha256(b"array").hexdigest()


def fingerprint(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    book = Ledger(url)
    book.open_dataset("people", PrivacyBudget(epsilon=50.0, delta=1e-6))
    yield book
    book.close()


def test_twelve_runs_at_once_pass_a_limit_for_two(ledger: Ledger, url: str) -> None:
    barrier, outcomes = threading.Barrier(12), []

    def run(number: int) -> None:
        book = Ledger(url)
        book.check_allowance("people", MONTH, ONE)  # each alone would pass
        barrier.wait()
        try:
            book.reserve("people", fingerprint(number), ONE, allowance=MONTH)
            outcomes.append(True)
        except RateLimited:
            outcomes.append(False)
        book.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(outcomes) == 2
    assert len(ledger.state("people").releases) == 2
    assert ledger.verify() == 3


def test_the_twin_without_a_limit_in_the_charge_passes_it(ledger: Ledger) -> None:
    for number in range(3):
        assert ledger.reserve("people", fingerprint(number), ONE).new


def test_the_refusal_says_when_a_run_resumes(ledger: Ledger) -> None:
    for number in range(2):
        ledger.reserve("people", fingerprint(number), ONE, allowance=MONTH)
    with pytest.raises(RateLimited, match=r"has spent epsilon 1\.4.*would make it 1\.8") as refused:
        ledger.reserve("people", fingerprint("third"), ONE, allowance=MONTH)
    said = re.search(r"a run after (\S+) resumes", str(refused.value))
    assert said is not None
    resumes = datetime.fromisoformat(said[1])
    in_a_month = datetime.now(UTC) + timedelta(days=30)
    assert timedelta(seconds=-60) < resumes - in_a_month < timedelta(seconds=60)
    assert not ledger.reserve("people", fingerprint(0), ONE, allowance=MONTH).new  # charged before
    with pytest.raises(RateLimited, match="it passes the limit by itself"):
        ledger.check_allowance("people", MONTH, GaussianProfile(3 * ONE.mu))


def test_disjoint_windows_spend_what_the_largest_does(ledger: Ledger) -> None:
    def day(start: int, stop: int) -> PrivacyUnit:
        return PrivacyUnit(array=ARRAY, record_axis=0, block=Block(0, start, stop))

    for number in range(5):
        whom = day(number, number + 1)
        ledger.reserve("people", fingerprint(number), ONE, whom, allowance=MONTH)
    ledger.reserve("people", fingerprint("twice"), ONE, day(0, 2), allowance=MONTH)
    with pytest.raises(RateLimited):
        ledger.reserve("people", fingerprint("thrice"), ONE, day(1, 9), allowance=MONTH)
    with pytest.raises(RateLimited):  # the twin: everybody in it
        ledger.reserve("people", fingerprint("all"), ONE, allowance=MONTH)


def test_epsilons_of_a_pure_dataset_are_limited_too(ledger: Ledger) -> None:
    ledger.open_dataset("counts", PureBudget(epsilon=50.0), policy="pure")
    limit: Any = Allowance(PrivacyBudget(epsilon=1.0, delta=1e-6), days=1)
    for number in range(2):
        name = fingerprint(f"pure {number}")
        ledger.reserve("counts", name, PureProfile(0.5), allowance=limit)
    with pytest.raises(RateLimited, match=r"would make it 1\.5"):
        ledger.reserve("counts", fingerprint("pure"), PureProfile(0.5), allowance=limit)

"""Signals wait while a transaction runs: they are not lost, and they never leave the ledger locked
against ourselves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpdask.signals import children_without_ctrl_c, signals_deferred


class Stop(Exception):
    """Raised by a handler, as KeyboardInterrupt is."""


def raise_stop(signum: int, _frame: object) -> None:
    raise Stop(signum)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def signum(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    before = signal.signal(request.param, raise_stop)
    yield request.param
    assert (
        signal.signal(request.param, before) is raise_stop
    )  # whatever happened, the handler is back


def test_a_signal_waits_until_the_block_is_done(signum: signal.Signals) -> None:
    done = []

    def work() -> None:
        with signals_deferred():
            os.kill(os.getpid(), signum)
            done.append("after the signal")

    with pytest.raises(Stop):
        work()
    assert done == ["after the signal"]


def test_without_a_signal_nothing_happens(signum: signal.Signals) -> None:
    with signals_deferred():
        pass
    with pytest.raises(ZeroDivisionError), signals_deferred():
        _ = 1 / 0


def test_a_second_signal_does_not_wait(signum: signal.Signals) -> None:
    done = []

    def work() -> None:
        with signals_deferred():
            os.kill(os.getpid(), signum)
            done.append("after the first")
            os.kill(os.getpid(), signum)
            done.append("never")

    with pytest.raises(Stop):
        work()
    assert done == ["after the first"]


def test_blocks_may_be_nested(signum: signal.Signals) -> None:
    done = []

    def work() -> None:
        with signals_deferred():
            with signals_deferred():
                os.kill(os.getpid(), signum)
            done.append("after the inner block")

    with pytest.raises(Stop):
        work()
    assert done == ["after the inner block"]


def test_other_threads_do_not_touch_handlers(signum: signal.Signals) -> None:
    seen = []

    def elsewhere() -> None:
        with signals_deferred():
            seen.append(signal.getsignal(signum))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [raise_stop]


def test_a_signal_without_a_handler_keeps_its_effect() -> None:
    code = (
        "import os, signal; from dpdask.signals import *\nwith signals_deferred():"
        " os.kill(os.getpid(), signal.SIGTERM)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGTERM


def test_processes_may_be_started_without_ctrl_c() -> None:
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    with children_without_ctrl_c():
        inside = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    outside = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert (inside, outside) == ("True\n", "False\n")


LEDGER_UNDER_FIRE = """
import signal, sys
from dpdask import GaussianProfile, PrivacyBudget
from dpdask.ledger import Ledger

ledger = Ledger(sys.argv[1])
ledger.open_dataset("people", PrivacyBudget(epsilon=1e5, delta=0.5))
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
interrupted = 0
for n in range(300):
    release = f"{n:064x}"
    try:
        signal.setitimer(signal.ITIMER_REAL, (n % 60 + 1) * 5e-5)
        ledger.reserve("people", release, GaussianProfile(1e-3))
        ledger.release_key(release)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:  # the timer fires once, wherever it fires in the block
        interrupted += 1
    ledger.entry_named(release)  # waits for ever if a transaction of ours was left open
print(interrupted, ledger.verify())
"""


def test_an_interrupt_never_leaves_the_ledger_locked(tmp_path: Path) -> None:
    """Before signals waited, one in the wrong instruction left a transaction open, and the clean-up
    waited for its lock.
    """
    arguments = [sys.executable, "-c", LEDGER_UNDER_FIRE, f"sqlite:///{tmp_path}/ledger.db"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    interrupted, rows = map(int, done.stdout.split())
    assert interrupted > 50  # the signals did come
    assert rows > 1

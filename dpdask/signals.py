"""Deferred signals: for code that an exception from a signal handler must not interrupt.

It would leave a database transaction open, or a cluster half started.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

__all__ = ["children_without_ctrl_c", "signals_deferred"]


@contextlib.contextmanager
def children_without_ctrl_c() -> Iterator[None]:
    """Start processes and threads that never see Ctrl-C.

    A terminal sends it to all processes of a command, and each would print a message. Only the
    process that the user started receives it, and ends the others.
    """
    # what starts from here on inherits the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the block is done; a second signal is not deferred.

    Python's handlers run between any two instructions of the main thread and may raise there:
    inside a database transaction that would leave it open, and its lock held against ourselves.
    The installed handlers are called afterwards; signals without a handler in Python keep their
    effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers run in the main thread only
        return
    with _deferred(signal.SIGTERM), _deferred(signal.SIGINT):
        yield


@contextlib.contextmanager
def _deferred(signum: signal.Signals) -> Iterator[None]:
    handler = signal.getsignal(signum)
    if not callable(handler):
        yield
        return
    waiting: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        if waiting:
            handler(number, frame)
        else:
            waiting.append(frame)

    try:
        signal.signal(signum, note)
        yield
    finally:
        signal.signal(signum, handler)
        if waiting:
            handler(signum, waiting[0])

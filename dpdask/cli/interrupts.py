"""Ctrl-C and SIGTERM: a command that is stopped says in one line what was charged and how to go on."""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import shlex
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any

import click

__all__ = ["INTERRUPTED", "Interrupted", "Interruption", "interruptible"]

INTERRUPTED = 128 + signal.SIGINT  # what shells report of a command that Ctrl-C ended

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_PRESS = 0.5  # seconds: a terminal and a wrapper may both pass on one Ctrl-C
_CLEANING = 20.0  # seconds for closing a cluster; orchestrators kill after 30


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to stop."""


class Interruption:
    """Whether a signal came, and whose release it stopped: none before ``spec_path`` is set."""

    def __init__(self) -> None:
        self.spec_path: str | None = None
        self.signum: signal.Signals | None = None
        self._came_at = 0.0
        self._swallowed = False

    @property
    def exit_code(self) -> int:
        """What shells report of a command that the signal ended."""
        assert self.signum is not None
        return 128 + self.signum

    def on_signal(self, signum: int, _frame: FrameType | None) -> None:
        """Stop the main thread wherever it is; a second signal, or a clean-up that hangs, ends the process at once."""
        if self._swallowed:
            self._swallowed = False
            raise Interrupted
        if self.signum is None:
            self.signum, self._came_at = signal.Signals(signum), time.monotonic()
            signal.signal(signal.SIGALRM, self._end_at_once)
            signal.setitimer(signal.ITIMER_REAL, _CLEANING)
            _be_quiet()
            raise Interrupted
        if time.monotonic() - self._came_at > _SAME_PRESS:
            self._end_at_once()

    def _end_at_once(self, *_alarm: Any) -> None:
        """Leave without any clean-up: worker processes end when this one does, and what was charged can be resumed."""
        spec = "SPEC.yaml" if self.spec_path is None else shlex.quote(self.spec_path)
        cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
        line = (
            f"{cursor}interrupted, ended at once: what was charged stays; `dpdask resume {spec}` finishes the release,"
            f" `dpdask abort {spec}` gives it up\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, line.encode())
        os._exit(self.exit_code)

    def on_unraisable(self, found: Any) -> None:
        """Raise the interruption again where Python lost it: in a finalizer, where exceptions are only printed."""
        if isinstance(found.exc_value, Interrupted) and self.signum is not None:
            self._swallowed = True
            _thread.interrupt_main(self.signum)
        elif self.signum is None:
            sys.__unraisablehook__(found)

    def line(self) -> str:
        """Return what was charged, the command that finishes the release and the one that gives it up."""
        from dpdask.errors import DpdaskError
        from dpdask.recovery import observe, way_on
        from dpdask.spec import load_release_spec

        if self.spec_path is None:
            return "interrupted before anything was charged or changed"
        spec = shlex.quote(self.spec_path)
        try:
            asked = load_release_spec(self.spec_path)
        except DpdaskError:
            return "interrupted before anything was charged or changed"
        try:
            return f"interrupted: {way_on(observe(asked), spec)}"
        except DpdaskError as error:
            return (
                f"interrupted: what was charged to dataset {asked.budget.dataset!r} cannot be looked up ({error}); then"
                f" `dpdask resume {spec}` finishes the release, `dpdask abort {spec}` gives it up"
            )


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Carry out a release that Ctrl-C and SIGTERM may stop: then one line on standard error, exit code 130 or 143.

    The line says what the ledger shows once everything was cleaned up: what was charged is looked up, not guessed. The body
    sets ``spec_path`` when its release begins.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread gets signals
        return
    before = {signum: signal.signal(signum, interruption.on_signal) for signum in _SIGNALS}
    hook, sys.unraisablehook = sys.unraisablehook, interruption.on_unraisable
    try:
        yield interruption
    except BaseException:
        if interruption.signum is None:
            raise
    finally:
        if interruption.signum is None:  # else a further signal still ends the process at once, until it is gone
            sys.unraisablehook = hook
            for signum, handler in before.items():
                signal.signal(signum, handler)
    if interruption.signum is not None:
        click.echo(interruption.line(), err=True)
        raise click.exceptions.Exit(interruption.exit_code)


def _be_quiet() -> None:
    """Silence what libraries have to say about being stopped."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    threading.excepthook = lambda _found: None

"""Ctrl-C and SIGTERM: a stopped command says in one line what was charged and how to resume."""

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
from typing import TYPE_CHECKING

import click

from dpdask.errors import DpdaskError

if TYPE_CHECKING:
    from dpdask.spec import ReleaseSpec

__all__ = ["INTERRUPTED", "Interrupted", "Interruption", "interruptible"]

INTERRUPTED = 128 + signal.SIGINT  # what shells report of a command that Ctrl-C ended

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAME_PRESS = 0.5  # seconds: a terminal and a wrapper may both pass on one Ctrl-C
_TOO_EARLY = "interrupted before the release began: this command charged nothing"
_CLEANING = 20.0  # seconds for closing a cluster; orchestrators kill after 30


class Interrupted(KeyboardInterrupt):
    """A signal told the command to stop."""


class Interruption:
    """Whether a signal came, and which release it stopped: none before :meth:`begin`."""

    def __init__(self) -> None:
        self._release: tuple[str, ReleaseSpec] | None = None
        self.signum: signal.Signals | None = None
        self._came_at = 0.0
        self._swallowed = False
        self._told = False

    @property
    def exit_code(self) -> int:
        """What shells report of a command that the signal ended."""
        assert self.signum is not None
        return 128 + self.signum

    def begin(self, spec_path: str, spec: ReleaseSpec) -> None:
        """Note the release that begins, and the path by which its spec is typed."""
        self._release = (shlex.quote(spec_path), spec)

    def on_signal(self, signum: int, _frame: FrameType | None) -> None:
        """Stop the main thread wherever it is.

        A second signal, or a clean-up that hangs, ends the process at once.
        """
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

    def _end_at_once(self, *_alarm: object) -> None:
        """Leave without any clean-up.

        Worker processes end when this one does, and what was charged can be resumed.
        """
        line = _TOO_EARLY
        if self._release is not None:
            line = (
                "interrupted, ended at once: what was charged, if anything, stays;"
                f" {_commands(self._release[0])}"
            )
        cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
        with contextlib.suppress(OSError):
            os.write(2, b"" if self._told else f"{cursor}{line}\n".encode())
        os._exit(self.exit_code)

    def tell(self) -> None:
        """Print the one line."""
        line = self._line()
        self._told = True
        click.echo(line, err=True)

    def on_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Raise the interruption again where Python lost it.

        In a finalizer exceptions are only printed.
        """
        if isinstance(lost.exc_value, Interrupted) and self.signum is not None:
            self._swallowed = True
            _thread.interrupt_main(self.signum)
        elif self.signum is None:
            sys.__unraisablehook__(lost)

    def _line(self) -> str:
        """Return what was charged, and the commands that finish or abort the release."""
        if self._release is None:
            return _TOO_EARLY
        from dpdask.releases.api import advice

        typed, spec = self._release
        try:
            return f"interrupted: {advice(spec, typed)}"
        except Exception as error:
            reason = str(error) if isinstance(error, DpdaskError) else type(error).__name__
        return (
            f"interrupted, and what was charged cannot be looked up ({reason}); {_commands(typed)}"
        )


def _commands(typed: str) -> str:
    return f"`dpdask resume {typed}` finishes the release, `dpdask abort {typed}` aborts it"


@contextlib.contextmanager
def interruptible() -> Iterator[Interruption]:
    """Carry out a release that Ctrl-C and SIGTERM may stop.

    A stopped command prints one line on standard error and exits with code 130 or 143.

    The line says what the ledger shows once everything was cleaned up: what was charged is looked
    up, not guessed. The body calls :meth:`Interruption.begin` when its release begins.
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
        # After a signal the handlers stay: a further one still ends the process at once.
        if interruption.signum is None:
            sys.unraisablehook = hook
            for signum, handler in before.items():
                signal.signal(signum, handler)
    if interruption.signum is not None:
        interruption.tell()
        raise click.exceptions.Exit(interruption.exit_code)


def _be_quiet() -> None:
    """Silence what libraries log about being stopped."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    threading.excepthook = lambda _lost: None

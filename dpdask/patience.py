"""How long somebody who does not answer is asked again: one policy for stores, ledger and cluster.

Pauses grow from a fifth of a second to ten seconds. Only what is safe to repeat is asked again: a
call that may have had its effect must look before it repeats it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from dpdask.errors import InvalidInput, Unavailable

__all__ = ["NO_PATIENCE", "Patience", "asked_again", "told_if_slow"]

P = ParamSpec("P")
T = TypeVar("T")

FIRST_PAUSE = 0.2  # seconds
LONGEST_PAUSE = 10.0
SLOW = 10.0
GROWTH = 2.0
_LONGEST_PATIENCE = 7 * 86400.0
_log = logging.getLogger("dpdask")


@dataclass(frozen=True, slots=True)
class Patience:
    """For how many seconds somebody is asked again; 0 asks once."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= _LONGEST_PATIENCE:
            raise InvalidInput(
                f"patience of {self.seconds:g} s is not a valid one; choose from 0 to"
                f" {_LONGEST_PATIENCE:g}"
            )

    def keep_asking(
        self,
        call: Callable[[], T],
        again: Callable[[], T] | None = None,
        *,
        on: type[Unavailable] = Unavailable,
        last_answer: Callable[[], float] = lambda: 0.0,
    ) -> T:
        """Return what a call returns, once somebody answers.

        Args:
            call: What is asked first.
            again: What is asked from the second time on: what looks before it repeats anything.
                By default the same.
            on: What means that nobody answered.
            last_answer: The time (of ``time.monotonic``) of a sign of life during a long call.
                Patience counts anew after it.

        Raises:
            Unavailable: Nobody answered within the patience; the text says for how long.
        """
        since, pauses = math.inf, _pauses()
        while True:
            try:
                return call()
            except on as error:
                now = time.monotonic()
                if since > now or last_answer() > since:
                    since, pauses = now, _pauses()
                waited, pause = now - since, next(pauses)
                if waited + pause > self.seconds:
                    raise self._lost(error, waited) from None
                left = self.seconds - waited
                _log.warning("%s; asking again in %.3g s, for %.0f s", error, pause, left)
            time.sleep(pause)
            call = again or call

    def _lost(self, error: Unavailable, waited: float) -> Unavailable:
        if not self.seconds:
            return error
        return type(error)(f"{error} (asked again for {waited:.3g} s, see compute.patience)")


NO_PATIENCE = Patience(0.0)


@contextlib.contextmanager
def told_if_slow(who: str) -> Iterator[None]:
    """Log a line if somebody does not answer for a while; for clients that ask again silently."""
    text = "%s has not answered for %.3g s; still asking"
    timer = threading.Timer(SLOW, _log.warning, (text, who, SLOW))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Asker(Protocol):
    """Who asks somebody, with patience."""

    @property
    def patience(self) -> Patience:
        """For how long somebody who does not answer is asked again."""


A = TypeVar("A", bound=_Asker)


def asked_again(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[A, P], T]:
    """Let a method begin anew when nobody answered, as the object's ``patience`` says.

    For methods that look first whether they had their effect before, and do not repeat it.
    """

    @functools.wraps(method)
    def patiently(asker: A, /, *args: P.args, **options: P.kwargs) -> T:
        return asker.patience.keep_asking(lambda: method(asker, *args, **options))

    return patiently


def _pauses() -> Iterator[float]:
    pause = FIRST_PAUSE
    while True:
        yield pause
        pause = min(GROWTH * pause, LONGEST_PAUSE)

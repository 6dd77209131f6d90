"""Faults of the ledger's database, told apart: who did not answer, for how long, and what to do.

A text of ours names no statement, parameter, address, user or password. What passes by itself is a
:class:`LedgerUnavailable`; what somebody must correct is another kind.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dpdask.errors import LedgerCorrupt, LedgerError, LedgerStorageError, LedgerUnavailable
from dpdask.signals import signals_deferred

__all__ = ["plain_errors"]

_WHO = "the ledger's database"


@dataclass(frozen=True, slots=True)
class _Fault:
    """An error to raise; ``{seconds}`` stands for how long the database was waited for."""

    kind: type[LedgerError]
    text: str

    def error(self, seconds: float) -> LedgerError:
        return self.kind(f"{_WHO} {self.text.format(seconds=f'{seconds:.3g}')}")


_HELD = _Fault(
    LedgerUnavailable,
    "was held by another process for {seconds} s; try again, or find out who holds it",
)
_SILENT = _Fault(
    LedgerUnavailable, "did not answer for {seconds} s; check that it runs, and try again"
)
_LOST = _Fault(
    LedgerUnavailable, "broke the connection after {seconds} s; check that it runs, and try again"
)
_CLOSED = _Fault(
    LedgerUnavailable,
    "refused the connection after {seconds} s: nothing listens there; start it, or check its host"
    " and port",
)
_UNKNOWN_HOST = _Fault(
    LedgerUnavailable,
    "cannot be found: its host name is not known here; check it, or the name service",
)
_STARTING = _Fault(LedgerUnavailable, "is starting, stopping or recovering; try again in a moment")
_CROWDED = _Fault(
    LedgerUnavailable, "has too many connections; try again, or raise its max_connections"
)
_COLLIDED = _Fault(LedgerUnavailable, "undid the transaction, which collided with another")
_LOGIN = _Fault(
    LedgerError,
    "refused the user or the password; check both (the ledger's URL, PGPASSWORD or ~/.pgpass)",
)
_NO_DATABASE = _Fault(
    LedgerError, "does not exist on its server, which runs; check its name, or create it"
)
_FULL = _Fault(LedgerStorageError, "has a full disk; free some space and try again")
_READ_ONLY = _Fault(
    LedgerStorageError,
    "cannot be opened or written: it is read-only, or this user lacks the permission; grant it, or"
    " use the server that accepts writes",
)
_DISK = _Fault(LedgerStorageError, "cannot be read or written; check its disk")
_DAMAGED = _Fault(LedgerCorrupt, "is damaged; restore a backup and `dpdask ledger reconcile`")
_NOT_SQLITE = _Fault(LedgerError, "is not a SQLite file; check its path")

# By the beginning of SQLite's error names.
_SQLITE = {
    "SQLITE_BUSY": _HELD,
    "SQLITE_LOCKED": _HELD,
    "SQLITE_FULL": _FULL,
    "SQLITE_READONLY": _READ_ONLY,
    "SQLITE_CANTOPEN": _READ_ONLY,
    "SQLITE_PERM": _READ_ONLY,
    "SQLITE_AUTH": _READ_ONLY,
    "SQLITE_IOERR": _DISK,
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_NOTADB": _NOT_SQLITE,
}
# By the beginning of PostgreSQL's codes; longer ones first.
_POSTGRES = {
    "55P03": _HELD,
    "57014": _SILENT,
    "40": _COLLIDED,
    "57P": _STARTING,
    "53300": _CROWDED,
    "53100": _FULL,
    "53": _DISK,
    "08": _LOST,
    "28": _LOGIN,
    "3D": _NO_DATABASE,
    "42501": _READ_ONLY,
    "25006": _READ_ONLY,
    "58": _DISK,
    "XX": _DAMAGED,
}
# What libpq says of a connection that failed has no code. A server that speaks another language
# than English falls to the last line of _fault_of.
_CONNECTING = (
    (re.compile("timeout expired"), _SILENT),
    (re.compile("password|authentication|role .* does not exist|pg_hba"), _LOGIN),
    (re.compile("database .* does not exist"), _NO_DATABASE),
    (re.compile("starting up|shutting down|recovery mode|not yet accepting"), _STARTING),
    (re.compile("too many|remaining connection slots"), _CROWDED),
    (re.compile("resolve host|translate host"), _UNKNOWN_HOST),
    (re.compile("refused|No such file"), _CLOSED),
)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn database errors into one line of ours, by kind.

    No signal interrupts a transaction within.
    """
    began = time.monotonic()
    try:
        with signals_deferred():
            yield
    except SQLAlchemyError as error:
        raise _fault_of(error).error(time.monotonic() - began) from None


def _fault_of(error: SQLAlchemyError) -> _Fault:
    original: object = getattr(error, "orig", None) or error
    for names, code in (
        (_SQLITE, getattr(original, "sqlite_errorname", None)),
        (_POSTGRES, getattr(original, "sqlstate", None)),
    ):
        for beginning, fault in names.items():
            if code is not None and code.startswith(beginning):
                return fault
    if getattr(original, "sqlstate", None) is None:
        text = str(original)
        for pattern, fault in _CONNECTING:
            if pattern.search(text):
                return fault
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return _LOST
    kind = type(original).__name__
    return _Fault(LedgerError, f"refused ({kind}); check that it can be reached and written")

"""What a failed command leaves for its caller: an exit code by kind, and JSON for programs."""

from __future__ import annotations

import click

from dpdask.cli.printing import print_json
from dpdask.errors import (
    BudgetExceeded,
    DpdaskError,
    LedgerCorrupt,
    LedgerStorageError,
    MasterKeyError,
    OutputLockDamaged,
    RateLimited,
    SourceChanged,
    StorageFault,
    Unavailable,
    VerificationFailed,
)

__all__ = ["MISTAKE", "UNFORESEEN", "exit_code", "report"]

MISTAKE = 2
UNFORESEEN = 70

_EXIT_CODES: tuple[tuple[tuple[type[DpdaskError], ...], int], ...] = (
    ((BudgetExceeded, RateLimited), 3),
    ((SourceChanged, VerificationFailed, LedgerCorrupt, MasterKeyError), 4),
    ((Unavailable,), 5),
    ((StorageFault, OutputLockDamaged, LedgerStorageError), 6),
    ((DpdaskError,), MISTAKE),
)


def exit_code(error: DpdaskError) -> int:
    """Return the exit code of the first kind that an error is of."""
    return next(code for kinds, code in _EXIT_CODES if isinstance(error, kinds))


def report(kind: str, message: str, code: int, *, as_json: bool) -> None:
    """Print why a command failed: a line on standard error, and a document for programs.

    Args:
        kind: The name of the error's type.
        message: What it says, in one line.
        code: The exit code of the command.
        as_json: Whether standard output is read by a program.
    """
    click.echo(f"error: {message}", err=True)
    if as_json:
        transient = code == _EXIT_CODES[2][1]
        error = {"kind": kind, "message": message, "exit_code": code, "try_again": transient}
        print_json({"error": error})

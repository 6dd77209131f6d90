"""The command line: parse, call, print."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import warnings
from collections.abc import Iterator
from typing import TextIO

import click

from dpdask.cli.calibration import calibrate, compare
from dpdask.cli.interrupts import INTERRUPTED
from dpdask.cli.key import key
from dpdask.cli.ledger import ledger
from dpdask.cli.plan import plan
from dpdask.cli.release import abort, demo, registry, resume, run, serve, show, verify
from dpdask.cli.schema import schema
from dpdask.cli.start import init, inspect, list_choices
from dpdask.cli.study import study
from dpdask.errors import (
    BareKeysWarning,
    BudgetExceeded,
    DpdaskError,
    LedgerCorrupt,
    MasterKeyError,
    SourceChanged,
    VerificationFailed,
)

__all__ = ["main"]

_BROKEN = (SourceChanged, VerificationFailed, LedgerCorrupt, MasterKeyError)
_EXIT_CODES: tuple[tuple[type[DpdaskError] | tuple[type[DpdaskError], ...], int], ...] = (
    (BudgetExceeded, 3),
    (_BROKEN, 4),
    (DpdaskError, 2),
)
_UNFORESEEN = 70


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Print warnings of a ledger with bare keys on standard error, each once per command.

    What zarr says of text of fixed length, which xarray writes, is left out: the reader of a
    command's output cannot act on it.
    """
    printed: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", BareKeysWarning)
        warnings.filterwarnings("ignore", message=r".*does not have a Zarr V3 specification")
        show = warnings.showwarning

        def echo(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, BareKeysWarning):
                show(message, category, filename, lineno, file, line)
            elif str(message) not in printed:
                printed.add(str(message))
                click.echo(f"warning: {message}", err=True)

        warnings.showwarning = echo
        yield


class _Group(click.Group):
    """Turns errors into one line on standard error and an exit code.

    2 is a mistake of the caller, 3 a spent budget, 4 a release or a ledger that does not hold, 70
    a bug.
    """

    def invoke(self, ctx: click.Context) -> object:
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except DpdaskError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(_exit_code(error))
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if os.environ.get("DPDASK_DEBUG"):
                raise
            click.echo(
                f"error: an unforeseen {type(error).__name__}; please report it (DPDASK_DEBUG=1"
                " shows where)",
                err=True,
            )
            ctx.exit(_UNFORESEEN)


def _exit_code(error: DpdaskError) -> int:
    """Return the exit code of the first kind that an error is of."""
    return next(code for kind, code in _EXIT_CODES if isinstance(error, kind))


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpdask")
def main() -> None:
    """Differentially private releases of large tensors: plan, run, show, verify."""
    atexit.register(gc.freeze)  # else Python looks for cycles in all that was loaded, as it ends


for _command in (
    demo,
    inspect,
    init,
    list_choices,
    plan,
    run,
    resume,
    abort,
    show,
    verify,
    registry,
    serve,
    ledger,
    key,
    calibrate,
    compare,
    study,
    schema,
):
    main.add_command(_command)

"""The command line: parse, call, print."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import click

from dpdask.cli.calibration import calibrate, compare
from dpdask.cli.interrupts import INTERRUPTED
from dpdask.cli.key import key
from dpdask.cli.ledger import ledger
from dpdask.cli.release import abort, demo, plan, registry, resume, run, serve, show, verify
from dpdask.cli.schema import schema
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
_EXIT_CODES = ((BudgetExceeded, 3), (_BROKEN, 4), (DpdaskError, 2))


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Warnings of a ledger with bare keys as one line on standard error, once per command."""
    said: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", BareKeysWarning)
        show = warnings.showwarning

        def echo(
            message: Warning | str, category: type[Warning], *rest: Any, **options: Any
        ) -> None:
            if not issubclass(category, BareKeysWarning):
                show(message, category, *rest, **options)
            elif str(message) not in said:
                said.add(str(message))
                click.echo(f"warning: {message}", err=True)

        warnings.showwarning = echo
        yield


class _Group(click.Group):
    """Turns our errors into one line on standard error; 2 for a mistake, 3 for a spent budget, 4
    for a broken release.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except DpdaskError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(next(code for kind, code in _EXIT_CODES if isinstance(error, kind)))
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
            ctx.exit(70)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpdask")
def main() -> None:
    """Differentially private releases of large tensors: plan, run, show, verify."""


for _command in (
    demo,
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
    schema,
):
    main.add_command(_command)

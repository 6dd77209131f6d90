"""The command line: parse, call, print."""

from __future__ import annotations

import os
from typing import Any

import click

from dpdask.cli.calibration import calibrate, compare
from dpdask.cli.interrupts import INTERRUPTED
from dpdask.cli.key import key
from dpdask.cli.ledger import ledger
from dpdask.cli.release import abort, demo, plan, registry, resume, run, serve, show, verify
from dpdask.errors import BudgetExceeded, DpdaskError, SourceChanged, VerificationFailed

__all__ = ["main"]

_EXIT_CODES = ((BudgetExceeded, 3), (SourceChanged, 4), (VerificationFailed, 4), (DpdaskError, 2))


class _Group(click.Group):
    """Turns our errors into one line on standard error; 2 for a mistake, 3 for a spent budget, 4 for a broken release."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
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
                f"error: an unforeseen {type(error).__name__}; please report it (DPDASK_DEBUG=1 shows where)",
                err=True,
            )
            ctx.exit(70)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dpdask")
def main() -> None:
    """Differentially private releases of large tensors: plan, run, show, verify."""


for _command in (demo, plan, run, resume, abort, show, verify, registry, serve, ledger, key, calibrate, compare):
    main.add_command(_command)

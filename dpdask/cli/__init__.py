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
from dpdask.cli.failures import MISTAKE, UNFORESEEN, exit_code, report
from dpdask.cli.interrupts import INTERRUPTED
from dpdask.cli.key import key
from dpdask.cli.ledger import ledger
from dpdask.cli.plan import plan
from dpdask.cli.release import abort, demo, registry, resume, run, serve, show, verify
from dpdask.cli.schema import schema
from dpdask.cli.start import init, inspect, list_choices
from dpdask.cli.study import study
from dpdask.errors import BareKeysWarning, DpdaskError

__all__ = ["main"]


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
    """Turns errors into one line on standard error and an exit code by kind.

    With ``--json`` standard output holds one JSON document, also when a command fails.
    """

    def invoke(self, ctx: click.Context) -> object:
        as_json = "--json" in ctx.args
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except DpdaskError as error:
            code = exit_code(error)
            report(type(error).__name__, str(error), code, as_json=as_json)
            ctx.exit(code)
        except click.UsageError as error:
            if not as_json:
                raise
            report("InvalidUsage", error.format_message(), MISTAKE, as_json=True)
            ctx.exit(MISTAKE)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if os.environ.get("DPDASK_DEBUG"):
                raise
            kind = type(error).__name__
            unforeseen = f"an unforeseen {kind}; please report it (DPDASK_DEBUG=1 shows where)"
            report(kind, unforeseen, UNFORESEEN, as_json=as_json)
            ctx.exit(UNFORESEEN)


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

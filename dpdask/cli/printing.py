"""How commands read numbers and print results."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from dpdask.errors import InvalidSpec

if TYPE_CHECKING:  # commands that print JSON need no tables
    from rich.console import Console

    from dpdask.types import Json

__all__ = ["console", "json_option", "matrix", "numbers", "print_json", "warn", "whole"]

_Number = TypeVar("_Number", int, float)


def json_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--json`` to a command."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command)


def options_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add ``--option NAME=VALUE`` to a command."""
    return click.option(
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Storage option of an object store; NAME=env:VARIABLE.",
    )(command)


def parsed_options(options: tuple[str, ...]) -> Json:
    """Return storage options by name; ``env:NAME`` stands for an environment variable."""
    from dpdask.spec.secrets import EnvironmentValue

    parsed: Json = {}
    for option in options:
        name, separator, value = option.partition("=")
        if not separator:
            raise InvalidSpec(
                f"--option {option!r} has no value; write NAME=VALUE or NAME=env:VARIABLE"
            )
        parsed[name] = EnvironmentValue(env=value[4:]) if value.startswith("env:") else value
    return parsed


def numbers(option: str, text: str) -> list[float]:
    """Return the numbers of an option that are separated by commas."""
    return [_parsed(option, part, float, "a number") for part in text.split(",")]


def whole(option: str, text: str) -> int:
    """Return the whole number of an option."""
    return _parsed(option, text, int, "a whole number")


def matrix(option: str, path: str) -> list[list[float]]:
    """Return the rows of numbers in a file: JSON, or lines of numbers."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidSpec(f"{option}: cannot read {path!r} as text; give a readable file") from None
    try:
        rows = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
        )
        return [[float(number) for number in row] for row in rows]
    except (ValueError, TypeError):
        raise InvalidSpec(
            f"{option}: {path!r} does not hold rows of numbers; give JSON, or numbers in lines"
        ) from None


def _parsed(option: str, text: str, parse: Callable[[str], _Number], expected: str) -> _Number:
    try:
        return parse(text)
    except ValueError:
        raise InvalidSpec(
            f"{option}: {text!r} is not {expected}; separate shapes by x and numbers by commas"
        ) from None


def warn(warnings: Sequence[str]) -> None:
    """Print each warning as one line on standard error."""
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def print_json(payload: Json) -> None:
    """Print JSON for programs; infinities and NaN, which JSON cannot carry, become null."""
    click.echo(json.dumps(_finite(payload), indent=2, allow_nan=False))


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def console() -> Console:
    """Return the console for tables: as wide as the terminal, 150 columns in a file or a pipe."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 150)

"""How commands read numbers and print results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import click

from dpdask.errors import InvalidSpec
from dpdask.types import Json

__all__ = ["console", "numbers", "print_json", "warn", "whole"]


def numbers(option: str, text: str) -> list[float]:
    """Numbers separated by commas."""
    return [_parsed(option, part, float, "a number") for part in text.split(",")]


def whole(option: str, text: str) -> int:
    """One whole number."""
    return int(_parsed(option, text, int, "a whole number"))


def _parsed(option: str, text: str, kind: Callable[[str], float], what: str) -> float:
    try:
        return kind(text)
    except ValueError:
        raise InvalidSpec(
            f"{option}: {text!r} is not {what}; separate shapes by x and numbers by commas"
        ) from None


def warn(warnings: tuple[str, ...]) -> None:
    """Warnings, one line each on standard error."""
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def print_json(facts: Json) -> None:
    """JSON for programs."""
    click.echo(json.dumps(_finite(facts), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    """The value with infinities and NaN spelled as null, which JSON can carry."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def console() -> Any:
    """Where tables go."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 150)

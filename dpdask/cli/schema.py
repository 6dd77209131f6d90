"""The command that prints the JSON schemas of specs and release cards."""

from __future__ import annotations

import click

from dpdask.cli.printing import print_json

__all__ = ["schema"]


@click.group()
def schema() -> None:
    """Print the JSON schema of a format, for editors and programs."""


@schema.command()
def spec() -> None:
    """Print the JSON schema of a release spec."""
    from dpdask.spec import release_spec_schema

    print_json(release_spec_schema())


@schema.command()
def card() -> None:
    """Print the JSON schema of a release card."""
    from dpdask.releases.card import json_schema

    print_json(json_schema())

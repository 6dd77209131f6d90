"""The keys that releases are signed with: create and show."""

from __future__ import annotations

import os

import click

from dpdask.cli.printing import print_json

__all__ = ["key"]

_path_option = click.option(
    "--path",
    "path",
    default=None,
    help="The private key's file; by default DPDASK_SIGNING_KEY, else dpdask/signing.key in the"
    " user's configuration folder.",
)


@click.group()
def key() -> None:
    """The key that releases are signed with."""


@key.command("create")
@_path_option
def key_create(path: str | None) -> None:
    """Create a signing key and, beside it, the public key to hand out; replace no existing one."""
    from dpdask.signing import (
        PASSPHRASE_VARIABLE,
        configured_key_path,
        create_key,
        fingerprint,
        public_key_path,
    )

    place = configured_key_path(path)
    public = create_key(place)
    click.echo(f"signing key {fingerprint(public)}")
    click.echo(
        f"private key: {place} (keep it; releases are signed with it when DPDASK_SIGNING_KEY or"
        " the default place names it)"
    )
    click.echo(
        f"public key:  {public_key_path(place)} (hand it out; `dpdask verify URL --trust"
        f" {public_key_path(place).name}`)"
    )
    if not os.environ.get(PASSPHRASE_VARIABLE):
        click.echo(
            f"the private key is not encrypted: set {PASSPHRASE_VARIABLE} before `dpdask key"
            " create` for one that is"
        )


@key.command("show")
@_path_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def key_show(path: str | None, as_json: bool) -> None:
    """The fingerprint and the public key to hand out, and where they lie."""
    from dpdask.signing import configured_key_path, fingerprint, public_key_of, public_key_path

    place = configured_key_path(path)
    public = public_key_of(place)
    beside = place if place.suffix == ".pub" else public_key_path(place)
    if as_json:
        print_json(
            {"fingerprint": fingerprint(public), "public_key": public.base64, "path": str(beside)}
        )
        return
    click.echo(f"fingerprint: {fingerprint(public)}")
    click.echo(f"public key:  {public.base64}")
    click.echo(f"file:        {beside}")

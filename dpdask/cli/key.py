"""Commands for signing keys: create and show."""

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
    """Create and show the key that releases are signed with."""


@key.command("create")
@_path_option
def key_create(path: str | None) -> None:
    """Create a signing key and, beside it, its public key; an existing key is never replaced."""
    from dpdask.signing import (
        PASSPHRASE_VARIABLE,
        configured_key_path,
        create_key,
        fingerprint,
        public_key_path,
    )

    private_path = configured_key_path(path)
    public_path = public_key_path(private_path)
    public = create_key(private_path)
    click.echo(f"signing key {fingerprint(public)}")
    click.echo(
        f"private key: {private_path} (keep it; releases are signed with it if it is at the default"
        " path or DPDASK_SIGNING_KEY names it)"
    )
    click.echo(
        f"public key:  {public_path} (hand it out; `dpdask verify URL --trust {public_path.name}`)"
    )
    if not os.environ.get(PASSPHRASE_VARIABLE):
        click.echo(
            f"the private key is not encrypted; to encrypt a key, set {PASSPHRASE_VARIABLE} before"
            " `dpdask key create`"
        )


@key.command("show")
@_path_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
def key_show(path: str | None, as_json: bool) -> None:
    """Show the fingerprint, the public key to hand out, and the path of its file."""
    from dpdask.signing import configured_key_path, fingerprint, public_key_of, public_key_path

    key_path = configured_key_path(path)
    public = public_key_of(key_path)
    public_path = key_path if key_path.suffix == ".pub" else public_key_path(key_path)
    if as_json:
        print_json(
            {
                "fingerprint": fingerprint(public),
                "public_key": public.base64,
                "path": str(public_path),
            }
        )
        return
    click.echo(f"fingerprint: {fingerprint(public)}")
    click.echo(f"public key:  {public.base64}")
    click.echo(f"file:        {public_path}")

"""A release as a page for a browser: ``dpdask show URL --html PAGE.html``."""

from __future__ import annotations

import click

from dpdask.errors import StoreError
from dpdask.releases.read import open_release_dataset
from dpdask.releases.verify import verify_release
from dpdask.types import Json
from dpdask.views.page import release_page

__all__ = ["write_page"]


def write_page(url: str, path: str, options: Json) -> None:
    """Verify a release and write it as a page; what does not verify gets none."""
    card = verify_release(url, options)
    page = release_page(open_release_dataset(url, options), card, url, intact=True)
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    except OSError as error:
        raise StoreError(
            f"--html {path!r} cannot be written ({error.strerror}); name another file"
        ) from None
    click.echo(f"page: {path}")

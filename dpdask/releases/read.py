"""Open a published release, and read its card."""

from __future__ import annotations

from typing import Any

from dpdask.errors import StoreError, VerificationFailed
from dpdask.releases.card import ReleaseCard, card_from_attributes
from dpdask.storage import ROOT, Storage, open_group, open_storage
from dpdask.types import Json

__all__ = ["open_release", "published_card", "read_card"]


def published_card(output: Storage, release_id: str | None = None) -> ReleaseCard | None:
    """Return the card at an output, None if there is none, or it is not of this release."""
    if output.read(ROOT) is None:
        return None
    try:
        card = card_from_attributes(dict(open_group(output).attrs))
    except (VerificationFailed, StoreError):
        return None
    return card if release_id in (None, card.release_id) else None


def read_card(url: str, options: Json | None = None) -> ReleaseCard:
    """Return the release card of a published group."""
    return card_from_attributes(dict(open_group(open_storage(url, options)).attrs))


def open_release(url: str, options: Json | None = None) -> Any:  # by what is installed
    """Return a published release as an xarray.DataArray; without xarray, (array, release card)."""
    storage = open_storage(url, options)
    card = card_from_attributes(dict(open_group(storage).attrs))
    try:
        import xarray
    except ModuleNotFoundError:
        return open_group(storage)[card.released.array], card
    return xarray.open_zarr(storage.zarr_store(), consolidated=True)[card.released.array]

"""Published releases: open one, read its card, and recompute what it says of itself."""

from __future__ import annotations

from typing import Any

from dpdask.errors import DpdaskError, StoreError, VerificationFailed
from dpdask.ledger import Ledger
from dpdask.metadata import ReleaseCard, card_from_attributes, card_text
from dpdask.noise import Noise, noise_from_description
from dpdask.recompute import check_guarantee
from dpdask.store import Place, digest_of, open_group, place_at, read_chunk_records

__all__ = ["open_release", "published_card", "read_card", "verify_release"]


def published_card(output: Place, name: str | None = None) -> ReleaseCard | None:
    """The card of the output, if there is one, and of this very release if a name is given."""
    if output.read("zarr.json") is None:
        return None
    try:
        card = card_from_attributes(dict(open_group(output).attrs))
    except (VerificationFailed, StoreError):
        return None
    return card if name in (None, card.release) else None


def read_card(url: str, options: dict[str, Any] | None = None) -> ReleaseCard:
    """The release card of a published group."""
    return card_from_attributes(dict(open_group(place_at(url, options)).attrs))


def open_release(url: str, options: dict[str, Any] | None = None) -> Any:
    """A published release as an xarray.DataArray; without xarray, the pair (zarr array, release card)."""
    place = place_at(url, options)
    card = card_from_attributes(dict(open_group(place).attrs))
    try:
        import xarray
    except ModuleNotFoundError:
        return open_group(place)[card.released.array], card
    return xarray.open_zarr(place.zarr_store(), consolidated=True)[card.released.array]


def verify_release(url: str, options: dict[str, Any] | None = None, ledger: Ledger | None = None) -> ReleaseCard:
    """Recompute what a release says of itself: schema, every chunk, digest, guarantee.

    With a ledger also that this very card and these chunks were committed; without one, a card that was rewritten as a whole,
    to agree with itself, is not found. Raises :class:`VerificationFailed` at the first thing that does not hold.
    """
    place = place_at(url, options)
    group = open_group(place)
    card = card_from_attributes(dict(group.attrs))
    _check_chunks(place, card)
    try:
        array = group[card.released.array]
        apart = open_group(place, consolidated=False)[card.released.array]
        if array.metadata.to_dict() != apart.metadata.to_dict():
            raise VerificationFailed("the array's own metadata and the group's copy of it differ; restore them from a copy")
    except VerificationFailed:
        raise
    except Exception:
        raise VerificationFailed(f"the group has no readable array {card.released.array!r}, which its card names") from None
    if list(array.shape) != card.released.shape or str(array.dtype) != card.released.dtype:
        raise VerificationFailed("the array's shape or dtype is not the one on the card")
    check_guarantee(card, _noise_of(card))
    if ledger is not None:
        record = ledger.named(card.release)
        if record is None or record.last != "commit":
            raise VerificationFailed("the ledger does not know the release as committed; ask its curator")
        if record.card != card_text(card):
            raise VerificationFailed("the ledger committed another card; the release was changed after publication")
    return card


def _check_chunks(place: Place, card: ReleaseCard) -> None:
    records = read_chunk_records(place)
    if len(records) != card.manifest.chunks:
        raise VerificationFailed(
            f"{len(records)} chunks are stored, the card says {card.manifest.chunks}: files were added or taken away"
        )
    if digest_of(records) != card.manifest.digest:
        raise VerificationFailed("the stored chunks are not those that were published: the manifest digest differs")


def _noise_of(card: ReleaseCard) -> Noise:
    """The noise that the card describes."""
    if "configuration" not in card.noise:
        raise VerificationFailed(
            "the card holds a digest of its noise instead of the factors: its guarantee cannot be recomputed"
        )
    try:
        return noise_from_description(card.noise)
    except (DpdaskError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise VerificationFailed(f"the noise on the card cannot be rebuilt ({type(error).__name__})") from None

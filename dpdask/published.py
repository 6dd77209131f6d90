"""Published releases: open one, read its card, and recompute what it says of itself."""

from __future__ import annotations

import math
from typing import Any

from dpdask.errors import DpdaskError, StoreError, VerificationFailed
from dpdask.ledger import Ledger
from dpdask.mechanisms import Steps, amplified_rate
from dpdask.mechanisms.gaussian import gaussian_mu
from dpdask.metadata import ReleaseCard, card_from_attributes, card_text
from dpdask.noise import IidNoise, KroneckerNoise, SphericalNoise, noise_from_description
from dpdask.profiles import GaussianProfile, SphericalProfile, profile_from_description
from dpdask.sensitivity import body_from_description
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
    try:
        _check_guarantee(card)
    except VerificationFailed:
        raise
    except (DpdaskError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise VerificationFailed(f"the guarantee on the card cannot be recomputed ({type(error).__name__})") from None
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


def _check_guarantee(card: ReleaseCard) -> None:
    """The numbers on the card follow from the parameters on it."""
    claimed, verified = card.guarantee.claimed, card.guarantee.verified
    profile = profile_from_description({"name": verified.name, "configuration": verified.configuration})
    found = profile.epsilon(claimed.delta), profile.delta(claimed.epsilon)
    said = verified.epsilon_at_delta, verified.delta_at_epsilon
    if not all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-300) for a, b in zip(found, said, strict=True)):
        raise VerificationFailed("the verified guarantee does not follow from the profile on the card")
    if card.guarantee.certified != (found[1] <= claimed.delta):
        raise VerificationFailed("the card's verdict does not follow from its own numbers")
    if "configuration" not in card.noise:  # too large for a card: its digest is there instead
        return
    noise, body = noise_from_description(card.noise), body_from_description(card.sensitivity.body)
    if not math.isclose(body.radius, card.sensitivity.l2, rel_tol=1e-9):
        raise VerificationFailed("the sensitivity on the card is not that of its body")
    query = card.query["name"]
    shrink = math.sqrt((card.released.shape[0] + 1) / (2 * card.released.shape[0])) if query == "covariance" else 1.0
    if not math.isclose(noise.entry_std / card.query.get("divisor", 1) * shrink, card.released.noise_std, rel_tol=1e-9):
        raise VerificationFailed("the noise level on the card does not follow from its noise")
    steps = Steps(count=card.composition.steps, sampling_rate=_sampling_rate(card))
    if isinstance(noise, SphericalNoise) and isinstance(profile, SphericalProfile) and steps.single:
        same = profile.law.describe() == noise.law.describe() and profile.dimension == noise.entries
        enough = same and profile.sensitivity >= body.radius * (1 - 1e-12)
    elif isinstance(noise, IidNoise | KroneckerNoise):  # directions found on the way come on top
        mu = gaussian_mu(noise, body) * (1 + _rounding(card) / body.radius)
        needed = steps.compose(GaussianProfile(mu), body.adjacency)
        if isinstance(needed, GaussianProfile) and isinstance(profile, GaussianProfile):
            enough = needed.mu <= profile.mu * (1 + 1e-9)
        else:
            enough = needed.delta(claimed.epsilon) <= profile.delta(claimed.epsilon) * (1 + 1e-6)
    else:
        enough = False
    if not enough:
        raise VerificationFailed("the noise on the card is smaller than its guarantee needs")


def _sampling_rate(card: ReleaseCard) -> float | None:
    """The rate that amplifies, from who was sampled and how many records a privacy unit has."""
    if (card.composition.steps > 1) != (card.composition.steps_are_independent is not None):
        raise VerificationFailed("the card's steps are not declared independent, or a single result says that they are")
    sampling = card.composition.sampling
    if sampling is None:
        return None
    rate = amplified_rate(rate=sampling.rate, of=sampling.of, contributions=card.unit.max_contributions)
    if not math.isclose(rate, sampling.amplified_rate, rel_tol=1e-12):
        raise VerificationFailed("the amplified sampling rate on the card does not follow from who was sampled")
    return rate


def _rounding(card: ReleaseCard) -> float:
    """By how much rounding a finished answer to the grid of i.i.d. noise parts two neighbours, which that noise must cover."""
    step, record_step = card.grid.get("step"), card.grid.get("record_step")
    entries = math.prod(card.query["answer_shape"])
    if card.noise["name"] != "iid" or step is None:
        return 0.0
    if card.query["name"] == "declared":
        return float(math.sqrt(2 * entries / card.composition.steps) * step)
    power = 2 if card.query["name"] == "covariance" else 1
    finer = record_step is not None and record_step**power < step * (1 - 1e-9)
    return float(math.sqrt(entries) * step) if finer else 0.0

"""Release cards as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpdask.queries.people import DISTINCT, NORM, SUBSET_AND_NORM
from dpdask.types import Json
from dpdask.views.bound_rows import chosen_bound_rows
from dpdask.views.rows import Row, query_name, query_text, shape_text, verdict

if TYPE_CHECKING:  # describing a mechanism needs no release
    from dpdask.releases.card import ReleaseCard
    from dpdask.releases.card_sections import Composition, Unit

__all__ = ["card_rows", "clamping_rows"]


def card_rows(card: ReleaseCard) -> list[Row]:
    """Return everything on a card that a reader judges a release by.

    Guarantee: only the card is read, so nothing here depends on the data.
    """
    return [
        Row("release", card.release_id),
        *_optional("description", card.description),
        *_answer_rows(card),
        *_guarantee_rows(card),
        Row("not protected", "; ".join(card.unprotected)),
        *_provenance_rows(card),
    ]


def clamping_rows(bound: Json) -> list[Row]:
    """Return where the entries of a precomputed result are clamped; other queries state a bound."""
    if "clamped_at" not in bound:
        return []
    return [Row("entries", f"clamped at +-{bound['clamped_at']:.6g}")]


def _optional(label: str, value: str | None) -> list[Row]:
    return [Row(label, value)] if value else []


def _answer_rows(card: ReleaseCard) -> list[Row]:
    """Return what was released, whom it protects and how noise was added."""
    if card.further_variables:
        return _variable_rows(card)
    released = card.released
    return [
        Row("array", f"{released.array}: {shape_text(released.shape)} {released.dtype}"),
        Row("query", query_text(card.query)),
        Row("protects", _protected(card.privacy_unit)),
        *clamping_rows(card.privacy_unit.bound),
        *_bound_rows(card),
        *_composition_rows(card.composition),
        Row("mechanism", card.mechanism["name"]),
        Row("noise", f"{card.noise['name']}, {_spread(card)}"),
        Row("exact", "yes" if card.grid["exact"] else "no: drawn in floating point"),
    ]


def _variable_rows(card: ReleaseCard) -> list[Row]:
    """Return one row for each of several variables, and what they share."""
    variables = card.each_variable()
    rows = [Row("query", query_name(card.query))]
    for own in variables:
        released = own.released
        text = (
            f"{shape_text(released.shape)} {released.dtype}; {_protected(own.privacy_unit)};"
            f" {own.mechanism['name']}: {own.noise['name']}, {_spread(own)}"
        )
        rows.append(Row(released.array, f"{text}; {100 * (own.share or 0):.3g} % of mu^2"))
        rows += [Row(f"{released.array} {row.label}", row.value) for row in _bound_rows(own)]
    exact = all(own.grid["exact"] for own in variables)
    return [*rows, Row("exact", "yes" if exact else "no: drawn in floating point")]


def _bound_rows(card: ReleaseCard) -> list[Row]:
    """Return how the bound of one variable was chosen, if it was."""
    return chosen_bound_rows(None if card.bounds is None else card.bounds.model_dump(mode="json"))


def _spread(card: ReleaseCard) -> str:
    """Return the noise level, or where it is published where it depends on released counts."""
    released = card.released
    if released.noise_std is None:
        return f"standard deviation of every entry in {released.array}_noise_std"
    if released.noise_std_range is None:
        return f"standard deviation {released.noise_std:.6g} per entry"
    least, largest = released.noise_std_range
    return (
        f"standard deviation {least:.6g} to {largest:.6g} per entry"
        f" (root mean square {released.noise_std:.6g})"
    )


def _protected(unit: Unit) -> str:
    """Return whom a release protects: adjacency, bound, contributions."""
    who = "" if unit.people is None else f"one {unit.people.name}: "
    text = f"{who}{unit.adjacency}, {unit.bound['kind']}"
    if "norm" in unit.bound:
        text += f" {unit.bound['norm']:g}"
    if unit.max_contributions > 1 or unit.people is not None:
        text += f", {_contributions_text(unit)} ({unit.contributions})"
    if unit.per is None:
        return text
    if unit.per.axis != unit.record_axis:
        text = f"one {unit.per.dimension} of a record: {text}"
    return f"{text}; each {unit.per.dimension} is in one window (declared)"


def _contributions_text(unit: Unit) -> str:
    """Return how many records of a privacy unit count."""
    by = None if unit.people is None else unit.people.by
    if by == NORM:
        return "all records of each clipped together"
    what = "cells" if by == DISTINCT else "records"
    together = ", clipped together" if by == SUBSET_AND_NORM else ""
    return f"at most {unit.max_contributions} {what} each{together}"


def _composition_rows(composition: Composition) -> list[Row]:
    """Return the steps of a stack or a session, and who was sampled for them."""
    rows, session = [], composition.session
    if session is not None:
        taken = f"{session.released} of {composition.steps}"
        rows.append(Row("steps", f"{taken}, noise added to each before the next was computed"))
    elif composition.steps > 1:
        rows.append(Row("steps", f"{composition.steps}, declared independent of each other"))
    sampling = composition.sampling
    if sampling is not None:
        text = (
            f"{sampling.of} at rate {sampling.rate:g}; a privacy unit takes part with"
            f" probability {sampling.amplified_rate:.6g}"
        )
        text += "" if session is None else "; drawn by dpdask"
        rows.append(Row("sampled", text))
    return rows


def _guarantee_rows(card: ReleaseCard) -> list[Row]:
    """Return claimed, verified and certified, and what the dataset has spent."""
    claimed, verified = card.guarantee.claimed, card.guarantee.verified
    composition = card.composition
    return [
        Row("claimed", f"epsilon {claimed.epsilon:g}, delta {claimed.delta:g}: {claimed.theorem}"),
        Row("verified", f"epsilon {verified.epsilon_at_delta:.6g} at delta {claimed.delta:g}"),
        verdict(card.guarantee.certified),
        Row(
            f"dataset {composition.dataset}",
            f"epsilon {composition.cumulative_epsilon:.6g} of {composition.total.epsilon:g} spent"
            f" at delta {composition.total.delta:g}",
        ),
    ]


def _provenance_rows(card: ReleaseCard) -> list[Row]:
    """Return what ties the card to its bytes, its ledger and its curator."""
    manifest = card.manifest
    objects = None if manifest is None else f"{manifest.objects} objects, {manifest.root}"
    return [
        *_optional("manifest", objects),
        Row("ledger", f"entry {card.ledger.sequence}, {card.ledger.hash}"),
        Row("signed by", card.signed_by or "nobody: it is unsigned"),
    ]

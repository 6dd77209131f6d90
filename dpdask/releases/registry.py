"""A release as an entry of the OpenDP deployments registry."""

from __future__ import annotations

from dpdask.queries import query_rules
from dpdask.queries.people import NORM
from dpdask.releases.card import ReleaseCard
from dpdask.types import Json

__all__ = ["registry_entry"]

_UNKNOWN = "TO BE FILLED IN"
_NEIGHBOURS = {
    "replace-one": "one record replaced",
    "add-remove-one": "one record added or removed",
}


def registry_entry(card: ReleaseCard) -> Json:
    """Return the registry's fields that a card answers; the rest is left for the curator."""
    variables = card.each_variable()
    return {
        "status": "Draft",
        "deployment": _deployment(card),
        "dp_flavor": {
            "name": "Approximate DP",
            "input_metric": card.privacy_unit.adjacency,
            "output_measure": "(epsilon, delta), from an exact privacy profile",
        },
        "privacy_loss": _privacy_loss(card),
        "model": _model(card),
        "accounting": _accounting(card),
        "implementation": {
            "mechanisms": sorted({own.mechanism["name"] for own in variables}),
            "noise": ", ".join(sorted({own.noise["name"] for own in variables})),
            "exact_sampling": all(own.grid["exact"] for own in variables),
            "unprotected_quantities": card.unprotected,
            "software": card.software,
        },
    }


def _deployment(card: ReleaseCard) -> Json:
    return {
        "name": card.description or f"Release {card.release_id[:12]}",
        "data_curator": card.curator or _UNKNOWN,
        "description": card.description or _UNKNOWN,
        "intended_use": _UNKNOWN,
        "data_product_type": "Tensor (Zarr)",
        "data_product_region": _UNKNOWN,
        "publication_date": card.reserved_at[:10],
    }


def _privacy_loss(card: ReleaseCard) -> Json:
    claimed, verified = card.guarantee.claimed, card.guarantee.verified
    records = card.privacy_unit.max_contributions
    neighbours = _NEIGHBOURS[card.privacy_unit.adjacency]
    unit = "record" if records == 1 else f"up to {records} records"
    per = card.privacy_unit.per
    if per is not None and per.axis != card.privacy_unit.record_axis:
        unit = (
            f"one {per.dimension} of a {unit}" if records == 1 else f"one {per.dimension} of {unit}"
        )
    people = card.privacy_unit.people
    if people is not None:
        each = f"at most {records} records each, others left out at random"
        if people.by == NORM:
            each = "all of its records, which were clipped together"
        unit = f"{people.name} ({each})"
        neighbours += f"; its unit is all records of one {people.name}"
    return {
        "privacy_unit": unit,
        "privacy_unit_description": f"neighbouring datasets differ in {neighbours}",
        "privacy_parameters": {"epsilon": claimed.epsilon, "delta": claimed.delta},
        "privacy_parameters_description": (
            f"claimed by {claimed.theorem}; verified epsilon {verified.epsilon_at_delta:.6g}"
            f" at delta {claimed.delta:g};"
            f" {'certified' if card.guarantee.certified else 'NOT certified'}"
        ),
    }


def _model(card: ReleaseCard) -> Json:
    steps = card.composition.steps
    return {
        "model_name": "Central",
        "actors": [
            "curator: trusted with raw values",
            "Dask cluster and ledger: inside the curator's trust boundary",
        ],
        "release_type": "One-off" if steps == 1 else f"{steps} composed steps",
        "access_type": "Non-interactive",
    }


def _accounting(card: ReleaseCard) -> Json:
    composition = card.composition
    symmetrised = query_rules(card.query["name"]).symmetric
    return {
        "composition": (
            f"dataset {composition.dataset}: epsilon {composition.cumulative_epsilon:.6g} of"
            f" {composition.total.epsilon:g} at delta {composition.total.delta:g},"
            " this release included"
        ),
        "post_processing": "symmetrised after noise" if symmetrised else "none",
    }

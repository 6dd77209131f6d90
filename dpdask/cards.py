"""Writing a release card: what a plan, its noise and the ledger say of a release, and nothing of the data."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from dpdask.ledger import ReleaseRecord
from dpdask.metadata import ReleaseCard
from dpdask.planning import Component, ReleasePlan, software_versions
from dpdask.spec.release import ReleaseSpec
from dpdask.store import ChunkRecord, digest_of

__all__ = ["make_card"]

_LARGE = 10_000  # numbers in a noise description that the card repeats in full


def make_card(made: ReleasePlan, data: Component, record: ReleaseRecord, chunks: list[ChunkRecord]) -> ReleaseCard:
    """The card of a release whose chunks are all staged."""
    query, spec = data.query, made.spec
    recipe = data.fitted.recipe
    return ReleaseCard.model_validate(
        {
            "release": record.name,
            "edition": spec.publish.edition,
            "reserved_at": record.reserved_at,
            "description": spec.publish.description,
            "curator": spec.budget.curator,
            "guarantee": made.guarantee.describe(),
            "unit": {
                "adjacency": str(query.body.adjacency),
                "record_axis": query.units_axis,
                "bound": query.describe_bound(data.fitted),
                "max_contributions": query.max_contributions,
                "contributions": "one record per unit" if query.max_contributions == 1 else "at the curator's word",
            },
            "sensitivity": {
                "body": query.body.describe(),
                "l2": query.body.radius,
                "origin": str(query.body.origin),
            },
            "query": query.describe(),
            "mechanism": _mechanism_facts(spec),
            "noise": _short(recipe.noise.describe()),
            "grid": recipe.describe() | data.fitted.describe_records(),
            "directions": None if made.directions is None else _directions(made.directions),
            "composition": {
                "dataset": spec.budget.dataset,
                "steps": spec.composition.steps,
                "sampling_rate": spec.composition.sampling_rate,
                "total": {"epsilon": record.total.epsilon, "delta": record.total.delta},
                "cumulative_epsilon": record.cumulative.epsilon(record.total.delta),
            },
            "released": {
                "array": made.layout.name,
                "shape": list(made.layout.shape),
                "dtype": made.layout.dtype,
                "noise_std": query.released_std(recipe.noise),
                "scale_factor": made.scale_factor,
            },
            "unprotected": _unprotected(made),
            "software": software_versions(),
            "manifest": {"digest": digest_of(chunks), "chunks": len(chunks)},
        }
    )


def _directions(component: Component) -> dict[str, Any]:
    """The covariance that noise directions came from, enough to compute its share of the guarantee again."""
    query, fitted = component.query, component.fitted
    return {
        "query": query.describe(),
        "bound": query.describe_bound(fitted),
        "body": query.body.describe(),
        "noise": fitted.recipe.noise.describe(),
        "grid": fitted.recipe.describe() | fitted.describe_records(),
    }


def _mechanism_facts(spec: ReleaseSpec) -> dict[str, Any]:
    """The mechanism as it was asked for; large matrices are left to the noise description."""
    facts: dict[str, Any] = spec.mechanism.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {name: value for name, value in facts.items() if _numbers(value) <= 100}


def _numbers(value: Any) -> int:
    if isinstance(value, dict):
        return sum(_numbers(inner) for inner in value.values())
    return sum(_numbers(inner) for inner in value) if isinstance(value, list) else 1


def _short(description: dict[str, Any]) -> dict[str, Any]:
    """A noise description in full, or, if it holds very many numbers, by its name and a digest."""
    if _numbers(description) <= _LARGE:
        return description
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()
    return {"name": description["name"], "sha256": digest}


def _unprotected(made: ReleasePlan) -> list[str]:
    """What the release shows as it is."""
    shown = ["the shape, dtype and chunking of the result", "that the release was made, when, and by which spec"]
    if made.data.query.body.adjacency == "replace-one" and made.data.query.name != "declared":
        shown.append("the number of records")
    if made.spec.publish.attributes or made.spec.publish.coordinates:
        named = [*made.spec.publish.attributes, *made.spec.publish.coordinates]
        shown.append(f"attributes and coordinates declared public: {', '.join(named)}")
    return shown

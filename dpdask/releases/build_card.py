"""Build a release card from a plan, its noise and the ledger; nothing of the data is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdask.ledger import LedgerHead
from dpdask.mechanisms import amplified_rate
from dpdask.noise import NoiseLevel
from dpdask.planning import Component, ReleasePlan, Variable, software_versions
from dpdask.planning.coordinates import (
    auxiliary_coordinates,
    grid_mapping,
    public_records,
    window_to_dict,
)
from dpdask.planning.disjoint import dimension_text, one_index_axis
from dpdask.planning.private_bounds import BoundsEstimate
from dpdask.planning.sessions import is_session
from dpdask.planning.verified import mu_shares, recorded_answer
from dpdask.privacy import PrivacyBudget
from dpdask.queries import ChosenBound, RecordedAnswer
from dpdask.releases.card import ReleaseCard
from dpdask.releases.card_arrays import LARGE, count_numbers, noise_arrays
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import Coordinate, Layout
from dpdask.types import Json

__all__ = ["Charge", "make_card"]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What the ledger says of a charged release.

    Args:
        reserved_at: When it was charged.
        total: The total budget of its dataset.
        cumulative_epsilon: What the dataset has spent with it, at the total's delta.
        head: The newest entry of the dataset's hash chain.
    """

    reserved_at: str
    total: PrivacyBudget
    cumulative_epsilon: float
    head: LedgerHead


def make_card(
    plan: ReleasePlan,
    variables: Sequence[Variable],
    charge: Charge,
    *,
    release_id: str,
    attributes: Sequence[Json],
    coordinates: Sequence[Coordinate],
    signed_by: str | None,
) -> ReleaseCard:
    """Return the card of a release, but for its manifest.

    Args:
        plan: What was planned.
        variables: The data as they are released, with the DP directions of their noise.
        charge: What the ledger says of it.
        release_id: Its public random name.
        attributes: The attributes of every variable that were declared public.
        coordinates: The arrays that are published beside the result.
        signed_by: The fingerprint of the curator's public key, None for an unsigned release.
    """
    spec, first = plan.spec, variables[0]
    sections = [
        _variable(variable, own, coordinates)
        for variable, own in zip(variables, attributes, strict=True)
    ]
    shares = _shares(variables)
    return ReleaseCard.model_validate(
        {
            "release_id": release_id,
            "edition": spec.publish.edition,
            "reserved_at": charge.reserved_at,
            "description": spec.publish.description,
            "curator": spec.budget.curator,
            "guarantee": plan.guarantee.to_dict(),
            "privacy_unit": _privacy_unit(first),
            **sections[0],
            "directions": None if plan.directions is None else _drawn_first(plan.directions),
            "composition": _composition(spec, charge, first),
            "share": shares[0] if len(shares) > 1 else None,
            "further_variables": [
                {
                    "share": share,
                    "record_axis": variable.query.units_axis,
                    "per_axis": one_index_axis(variable.spec, variable.source),
                    "bound": variable.query.bound_to_dict(variable.component.discretized),
                    **own,
                }
                for variable, own, share in list(zip(variables, sections, shares, strict=True))[1:]
            ],
            "unprotected": _unprotected(plan, coordinates),
            "software": software_versions(),
            "ledger": {"sequence": charge.head.sequence, "hash": charge.head.hash},
            "signed_by": signed_by,
        }
    )


def _variable(variable: Variable, attributes: Json, coordinates: Sequence[Coordinate]) -> Json:
    """Return what is released of one variable, and how noise was added to it."""
    data, query = variable.component, variable.query
    return {
        "sensitivity": {
            "set": query.sensitivity.to_dict(),
            "l2": query.sensitivity.radius,
            "released_l2": None if query.noise_varies else query.sensitivity.radius / query.divisor,
            "origin": str(query.sensitivity.origin),
        },
        "query": query.to_dict(),
        "mechanism": _mechanism(variable.spec, data),
        "noise": noise_arrays(data.noise.to_dict(), variable.noise_name)[0],
        "grid": data.grid_to_dict(),
        "parts": [
            {
                "name": part.name,
                "noise": part.noise.to_dict(),
                "grid": part.privatizer.to_dict(),
            }
            for part in data.parts
        ],
        "bounds": _bounds(variable),
        "released": _released(variable, attributes, coordinates),
    }


def _shares(variables: Sequence[Variable]) -> list[float]:
    """Return the share of every variable in the squared mu of all of them."""
    if len(variables) == 1:
        return [1.0]
    return mu_shares([_answers(variable) for variable in variables])


def _answers(variable: Variable) -> list[RecordedAnswer]:
    """Return all noisy answers of a variable, the one that chose its bound first."""
    estimate = variable.estimate
    first = [] if estimate is None else [estimate.component]
    return [recorded_answer(component) for component in (*first, variable.component)]


def _privacy_unit(variable: Variable) -> Json:
    """Return whom the release protects."""
    data, source = variable.component, variable.source
    query, per = data.query, one_index_axis(variable.spec, source)
    contributions = "one record per unit" if query.max_contributions == 1 else "declared"
    people = {} if query.people is None else {"people": query.people.to_dict()}
    return {
        "adjacency": str(query.sensitivity.adjacency),
        "record_axis": query.units_axis,
        "bound": query.bound_to_dict(data.discretized),
        "max_contributions": query.max_contributions,
        "per": None if per is None else {"axis": per, "dimension": dimension_text(source, per)},
        "contributions": "enforced" if people else contributions,
        **people,
    }


def _composition(spec: ReleaseSpec, charge: Charge, variable: Variable) -> Json:
    """Return the release among the others of its dataset."""
    steps = spec.composition.steps
    return {
        "dataset": spec.budget.dataset,
        "steps": steps,
        "steps_are_independent": "declared" if steps > 1 and not is_session(spec) else None,
        "sampling": _sampling(spec, variable.query.max_contributions),
        "session": _session(spec, variable),
        "total": {"epsilon": charge.total.epsilon, "delta": charge.total.delta},
        "cumulative_epsilon": charge.cumulative_epsilon,
    }


def _released(variable: Variable, attributes: Json, coordinates: Sequence[Coordinate]) -> Json:
    """Return the published array, enough to build its metadata again."""
    layout = variable.layout
    return {
        "array": layout.name,
        "shape": list(layout.shape),
        "dtype": layout.dtype,
        "chunks": list(layout.chunks),
        "shards": None if layout.shards is None else list(layout.shards),
        "codec": layout.codec,
        "dimension_names": list(layout.dimension_names),
        **_noise_level(variable.component.noise_level),
        "scale_factor": variable.scale_factor,
        "attributes": attributes,
        "coordinates": list(variable.spec.publish.coordinates),
        "beside": [
            _beside(beside, array.attributes(attributes))
            for array, beside in variable.arrays_beside
        ],
        "layers": [layer.to_dict() for layer in variable.component.layers],
        "auxiliary": auxiliary_coordinates(coordinates, layout) or None,
        "grid_mapping": grid_mapping(variable.source, variable.spec.publish.coordinates),
        "window": window_to_dict(variable.source),
    }


def _noise_level(level: NoiseLevel | None) -> Json:
    """Return the noise of released entries; its range where they differ."""
    if level is None:
        return {"noise_std": None}
    extremes = {"noise_std_range": list(level.extremes())} if level.axes else {}
    return {"noise_std": level.rms, **extremes}


def _beside(layout: Layout, attributes: Json) -> Json:
    """Return an array beside the main one, enough to build its metadata again."""
    return {
        "array": layout.name,
        "shape": list(layout.shape),
        "chunks": list(layout.chunks),
        "shards": None if layout.shards is None else list(layout.shards),
        "dtype": layout.dtype,
        "codec": layout.codec,
        "dimension_names": list(layout.dimension_names),
        "attributes": attributes,
    }


def _sampling(spec: ReleaseSpec, contributions: int) -> Json | None:
    """Return who was sampled, and how often a privacy unit therefore takes part."""
    sampling = spec.composition.sampling
    if sampling is None:
        return None
    amplified = amplified_rate(rate=sampling.rate, of=sampling.of, contributions=contributions)
    return {"rate": sampling.rate, "of": sampling.of, "amplified_rate": amplified}


def _session(spec: ReleaseSpec, variable: Variable) -> Json | None:
    """Return how many steps were handed over, and who sampled for them."""
    if not is_session(spec):
        return None
    sampled = spec.composition.sampling is not None
    return {"released": variable.layout.shape[0], "sampled_by": "dpdask" if sampled else None}


def _drawn_first(component: Component) -> Json:
    """Return what was drawn before the data, enough to recompute its privacy cost."""
    query = component.query
    return {
        "query": query.to_dict(),
        "bound": query.bound_to_dict(component.discretized),
        "sensitivity": query.sensitivity.to_dict(),
        "noise": component.noise.to_dict(),
        "grid": component.grid_to_dict(),
    }


def _bounds(variable: Variable) -> Json | None:
    """Return how the bound was chosen; None where the spec says it."""
    estimate = variable.estimate
    if not isinstance(estimate, BoundsEstimate):
        return None
    chosen, between = ChosenBound.of(variable.query.bound), estimate.histogram.pairs
    share, _ = mu_shares([[answer] for answer in _answers(variable)])
    return {
        "chosen": chosen.to_dict(),
        "rule": estimate.rule.to_dict(),
        "between": [list(pair) for pair in between],
        "at_end": chosen.at_end(between),
        "share": share,
        "counts": f"{variable.card_prefix}bounds",
        "edges": f"{variable.card_prefix}bounds_edges",
        "noise_std": estimate.component.noise.entry_std,
        **_drawn_first(estimate.component),
    }


def _mechanism(spec: ReleaseSpec, data: Component) -> Json:
    """Return the mechanism as the spec names it, or as ``auto`` chose it.

    Large matrices are in the noise description.
    """
    if data.choice is not None:
        return {"name": data.choice.name, "chosen_by": spec.mechanism.name}
    options: Json = spec.mechanism.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {name: value for name, value in options.items() if count_numbers(value) <= LARGE}


def _unprotected(plan: ReleasePlan, coordinates: Sequence[Coordinate]) -> list[str]:
    """Return what the release shows without protection."""
    shown = [
        "the shape, dtype and chunking of the result",
        "that the release was made, when, and by which spec",
    ]
    query = plan.variables[0].query
    if is_session(plan.spec):
        shown.append("how many steps were taken")
    elif query.sensitivity.adjacency == "replace-one" and query.name != "precomputed":
        shown.append("the number of records")
        if query.people is not None:
            name = query.people.name
            shown.append(f"how many records one {name} has, where they lie, and which have no id")
    declared = plan.spec.publish.attributes
    copied = declared if isinstance(declared, list) else []
    named = [*copied, *plan.spec.publish.coordinates]
    if named:
        shown.append(f"attributes and coordinates declared public: {', '.join(named)}")
    layers = (layer for variable in plan.variables for layer in variable.component.layers)
    masks = dict.fromkeys(name for layer in layers for name in layer.public_names)
    if masks:
        shown.append(f"masks declared public: {', '.join(masks)}")
    along_records = public_records(plan, coordinates)
    if along_records:
        shown.append(f"coordinates of single records, declared public: {', '.join(along_records)}")
    return shown

"""Steps that are handed over one by one: what a plan decides for all of them before the first.

Every step is the same question, answered with the same noise on the same grid. What is released is
a stack of answers, one write chunk of its own, or several, for each step.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from dpdask.accounting import GaussianProfile
from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.planning.answer import Component
from dpdask.planning.build_query import build_query
from dpdask.planning.naming import released_names
from dpdask.planning.verified import recorded_answer, verified_step
from dpdask.queries import Query
from dpdask.queries.sums import StepSum, Sum
from dpdask.spec.release import ReleaseSpec, StackSection
from dpdask.storage import GivenArray, Layout, SourceArray
from dpdask.types import Json, Shape

if TYPE_CHECKING:
    from dpdask.planning.plan import Variable

__all__ = [
    "check_session",
    "is_session",
    "session_layout",
    "session_query",
    "session_source",
    "slices_of",
    "step_chunks",
    "step_variable",
    "steps_in_words",
    "taken_steps",
]

RECORD_AXIS = 0  # of the records of one step
_QUERIES = ("sum", "precomputed")
_MOST_CHUNKS = 100_000  # so that the names of chunks do not depend on how many steps are taken


def is_session(spec: ReleaseSpec) -> bool:
    """Return whether steps are handed over one by one."""
    return spec.source.steps is not None


def slices_of(spec: ReleaseSpec, steps: int) -> int:
    """Return how many steps one answer holds: all of a finished stack, else one."""
    return 1 if is_session(spec) else steps


def check_session(spec: ReleaseSpec) -> None:
    """Refuse sections of a spec that say something of an array, where steps are handed over.

    Raises:
        InvalidSpec: A section does not go with steps.
    """
    unit, publish = spec.privacy_unit, spec.publish
    refused = {
        "privacy_unit.ids": unit.ids,
        "privacy_unit.per": unit.per,
        "privacy_unit.center": unit.center,
        "privacy_unit.missing": None if unit.missing == "center" else unit.missing,
        "publish.coordinates": publish.coordinates or None,
        "publish.layers": publish.layers or None,
        "composition.steps_are_independent": spec.composition.steps_are_independent or None,
    }
    for key, value in refused.items():
        if value is not None:
            raise InvalidSpec(
                f"{key} does not go with source.steps, where steps are handed over one by one;"
                " drop it"
            )
    if unit.private_bound is not None:
        raise InvalidSpec(
            "privacy_unit: a bound is chosen from all records before the first is released, and"
            " source.steps hands them over one step after the other; state it"
        )
    if unit.record_dim not in (None, RECORD_AXIS):
        raise InvalidSpec(
            f"privacy_unit.record_dim={unit.record_dim!r}: the records of a step lie along its"
            " first axis; drop it"
        )
    if spec.query.name not in _QUERIES:
        raise InvalidSpec(
            f"query {spec.query.name!r} is not one of steps; use sum, of records that are handed"
            " over, or precomputed"
        )


def session_source(spec: ReleaseSpec) -> GivenArray:
    """Return the schema of one step: a record, or a finished result."""
    assert spec.source.steps is not None
    shape = tuple(spec.source.steps.shape)
    return GivenArray.of_shape(shape if spec.query.name == "precomputed" else (1, *shape))


def session_query(spec: ReleaseSpec, source: SourceArray) -> Query:
    """Return the question of every step.

    Raises:
        DpdaskError: It cannot be asked of steps, or what one privacy unit can change is not
            bounded.
    """
    check_session(spec)
    precomputed = spec.query.name == "precomputed"
    update = {"missing": "center", "record_dim": None if precomputed else RECORD_AXIS}
    unit = spec.privacy_unit.model_copy(update=update)
    query = build_query(spec.query, unit, source.shape, StackSection(), counts_beside=False)
    if precomputed:
        return query
    if type(query) is not Sum:
        raise InvalidSensitivity("the steps of a session are plain sums of records; drop query.by")
    fields = {field.name: getattr(query, field.name) for field in dataclasses.fields(query)}
    return StepSum(**{**fields, "norm_bound": None})


def session_layout(spec: ReleaseSpec, query: Query, default_chunks: Shape) -> Layout:
    """Return the form of the stack of all steps, each in write chunks of its own.

    Args:
        spec: The spec.
        query: The question of every step.
        default_chunks: The chunks of one step, where the spec gives none.

    Raises:
        InvalidSpec: A chunk would hold several steps, or there are too many chunks.
    """
    publish, count = spec.publish, spec.composition.steps
    chunks = tuple(publish.chunks or (1, *default_chunks))
    shards = None if publish.shards is None else tuple(publish.shards)
    if (shards or chunks)[0] != 1:
        raise InvalidSpec(
            f"publish: {(shards or chunks)[0]} steps in one chunk or shard cannot be written one"
            " by one; let the first length be 1"
        )
    names = publish.dimension_names or ("step", *released_names(query, None, spec))
    layout = Layout(
        name=spec.output.array,
        shape=(count, *query.answer_shape),
        chunks=chunks,
        shards=shards,
        dtype=spec.noise.output_dtype or "float64",
        codec=publish.codec,
        dimension_names=tuple(names),
    )
    if math.prod(layout.write_chunk_counts) > _MOST_CHUNKS:
        raise InvalidSpec(
            f"{count} steps in {math.prod(layout.write_chunk_counts[1:])} chunks each are more"
            f" than {_MOST_CHUNKS} chunks; use larger publish.chunks, or fewer steps"
        )
    return layout


def step_chunks(layout: Layout, step: int) -> list[tuple[int, ...]]:
    """Return the indices of a step's write chunks."""
    return [(step, *index) for index in np.ndindex(*layout.write_chunk_counts[1:])]


def step_variable(variable: Variable, source: SourceArray) -> Variable:
    """Return the variable of a plan with what one step was given."""
    query = dataclasses.replace(variable.query, source_shape=source.shape)
    component = dataclasses.replace(variable.component, query=query)
    return dataclasses.replace(variable, source=source, component=component)


def taken_steps(variable: Variable, taken: int) -> Variable:
    """Return the variable of a plan with as many steps as were taken."""
    first = variable.layout
    layout = dataclasses.replace(first, shape=(taken, *first.shape[1:]))
    beside = tuple(
        dataclasses.replace(other, shape=layout.shape) if other.shape == first.shape else other
        for other in variable.beside
    )
    return dataclasses.replace(variable, layout=layout, beside=beside)


def steps_in_words(spec: ReleaseSpec, component: Component) -> Json:
    """Return what a plan says of steps; nothing for other releases.

    The noise multiplier is what an accountant takes: the noise of a step over what one privacy unit
    can change of it, rounding included.
    """
    if not is_session(spec):
        return {}
    unit, query, sampling = spec.privacy_unit, component.query, spec.composition.sampling
    profile = verified_step(recorded_answer(component))
    multiplier = 1 / profile.mu if isinstance(profile, GaussianProfile) else None
    whom = "what the caller declares"
    if query.bound is not None:
        records = "one record" if unit.max_contributions == 1 else f"{unit.max_contributions:,}"
        whom = f"one record of the steps; {records} per unit in a step at most"
    return {
        "protects": f"{whom}; {unit.adjacency}",
        "steps": {
            "count": spec.composition.steps,
            "given": "finished results" if query.bound is None else "records",
            "sampling": None if sampling is None else sampling.model_dump(mode="json"),
            "noise_multiplier": multiplier,
        },
    }

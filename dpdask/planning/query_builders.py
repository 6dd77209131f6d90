"""How each query of dpdask is built from its section: bounds, answer shape, sensitivity."""

from __future__ import annotations

import math

from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.planning.build_sensitivity import (
    ROUND_UP,
    largest_norm,
    sensitivity_of_clipped_records,
    sensitivity_of_ranges,
)
from dpdask.planning.query_inputs import QueryInputs
from dpdask.privacy import Adjacency
from dpdask.queries import Clip
from dpdask.queries.identity import Identity
from dpdask.queries.precomputed import Precomputed
from dpdask.sensitivity import L1Ball, L2Ball, Origin, SensitivitySet
from dpdask.spec.query import (
    IdentitySection,
    PrecomputedSection,
)

__all__ = [
    "build_identity",
    "build_precomputed",
]


def build_identity(section: IdentitySection, inputs: QueryInputs) -> Identity:
    """Return the query for the tensor itself, its records clipped or its entries clamped."""
    bound = inputs.bound()
    unit, shape = inputs.privacy_unit, inputs.shape
    if unit.adjacency is Adjacency.ADD_REMOVE_ONE:
        raise InvalidSensitivity(
            "add-remove-one changes how many records a released tensor shows; use"
            " privacy_unit.adjacency: replace-one, or query: sum"
        )
    if isinstance(bound, Clip):
        sensitivity = sensitivity_of_clipped_records(
            bound.norm,
            record_axis=None if inputs.clips_people else bound.record_axis,
            contributions=inputs.bounds_per_unit,
            adjacency=unit.adjacency,
        )
        norm_bound = bound.norm * math.sqrt(shape[bound.record_axis]) * ROUND_UP
    else:
        sensitivity = sensitivity_of_ranges(
            bound.pairs,
            shape,
            record_axis=bound.record_axis,
            axis=bound.feature_axis,
            contributions=unit.max_contributions,
            adjacency=unit.adjacency,
        )
        norm_bound = largest_norm(bound.pairs, shape)
    return Identity(
        source_shape=shape,
        answer_shape=shape,
        sensitivity=sensitivity,
        bound=bound,
        norm_bound=norm_bound,
        max_contributions=unit.max_contributions,
    )


def build_precomputed(section: PrecomputedSection, inputs: QueryInputs) -> Precomputed:
    """Return the query for a finished result whose sensitivity the caller declares."""
    unit, shape, composition = inputs.privacy_unit, inputs.shape, inputs.composition
    bounds = (unit.l2_clip_norm, unit.ranges, unit.record_dim)
    if any(bound is not None for bound in bounds):
        raise InvalidSensitivity(
            "a precomputed result has no records any more; drop privacy_unit.record_dim,"
            " l2_clip_norm and ranges"
        )
    steps = composition.steps
    if steps > 1 and not composition.steps_are_independent:
        raise InvalidSpec(
            f"composition.steps={steps} needs steps_are_independent: true, which says that no"
            " step was computed from another's raw result; the later steps of a finished training"
            " run depend on every record through the weights, which no clip norm bounds: add noise"
            " to each step before the next one is computed"
        )
    if steps > 1 and shape[0] != steps:
        raise InvalidSpec(
            f"composition.steps={steps} is not the length {shape[0]} of the source's first axis;"
            " give that"
        )
    return Precomputed(
        source_shape=shape,
        answer_shape=shape,
        sensitivity=_declared(section, unit.adjacency),
        bound=None,
        norm_bound=None,
        max_contributions=unit.max_contributions,
        steps=steps,
    )


def _declared(section: PrecomputedSection, adjacency: Adjacency) -> SensitivitySet:
    """Return what the caller declares of a whole privacy unit, however many records it has."""
    l1, l2 = section.l1_sensitivity, section.l2_sensitivity
    if l1 is None:
        return L2Ball(l2=l2, adjacency=adjacency, origin=Origin.DECLARED)
    return L1Ball(l1_radius=l1, l2=l2, adjacency=adjacency, origin=Origin.DECLARED)

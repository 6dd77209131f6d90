"""How each query of dpdask is built from its section: bounds, answer shape, sensitivity."""

from __future__ import annotations

import itertools
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
from dpdask.queries.histogram import Histogram
from dpdask.queries.identity import Identity
from dpdask.queries.precomputed import Precomputed
from dpdask.sensitivity import L1Ball, L2Ball, Origin, SensitivitySet
from dpdask.spec.query import (
    Bins,
    HistogramSection,
    IdentitySection,
    PrecomputedSection,
)

__all__ = [
    "build_histogram",
    "build_identity",
    "build_precomputed",
]

_MOST_BINS = 2**20


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
            record_axis=bound.record_axis,
            contributions=unit.max_contributions,
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


def build_histogram(section: HistogramSection, inputs: QueryInputs) -> Histogram:
    """Return the counts of records in public bins."""
    unit, shape = inputs.privacy_unit, inputs.shape
    if unit.l2_clip_norm is not None or unit.ranges is not None:
        raise InvalidSensitivity(
            "a histogram needs no clip norm or ranges, only its public edges; drop them"
        )
    axis = inputs.record_axis()
    if axis is None or len(shape) > 2:
        raise InvalidSensitivity(
            "a histogram counts records of a table: one or two axes and privacy_unit.record_dim;"
            f" the source has {len(shape)}"
        )
    columns = _columns(section, available=1 if len(shape) == 1 else shape[1 - axis])
    edges = tuple(_edges(edges) for edges in section.edges)
    private_count = unit.adjacency is Adjacency.ADD_REMOVE_ONE
    reach = unit.max_contributions if private_count else math.sqrt(2) * unit.max_contributions
    return Histogram(
        source_shape=shape,
        answer_shape=tuple(len(row) - 1 for row in edges),
        sensitivity=L1Ball(
            l1_radius=unit.max_contributions * (1.0 if private_count else 2.0),
            l2=reach * ROUND_UP,
            adjacency=unit.adjacency,
            origin=Origin.CLIPPED,
        ),
        bound=None,
        norm_bound=None if private_count else float(shape[axis]),
        max_contributions=unit.max_contributions,
        record_axis=axis,
        edges=edges,
        columns=columns,
    )


def _columns(section: HistogramSection, *, available: int) -> tuple[int, ...]:
    count = len(section.edges)
    columns = tuple(range(count)) if section.columns is None else tuple(section.columns)
    if len(columns) != count or len(set(columns)) != len(columns):
        raise InvalidSpec(
            f"query.edges: {count} lists of edges for {len(columns)} columns; give one per column"
        )
    if any(not 0 <= column < available for column in columns):
        raise InvalidSpec(
            f"query.columns: {list(columns)} are not all columns of a table of {available};"
            " choose existing ones"
        )
    return columns


def _edges(edges: list[float] | Bins) -> tuple[float, ...]:
    row = _equal_edges(edges) if isinstance(edges, Bins) else tuple(edges)
    finite = all(math.isfinite(edge) for edge in row)
    increasing = all(left < right for left, right in itertools.pairwise(row))
    if len(row) < 2 or not finite or not increasing:
        raise InvalidSpec(
            "query.edges: a list of edges is not finite and increasing, with at least two edges;"
            " correct it"
        )
    return row


def _equal_edges(section: Bins) -> tuple[float, ...]:
    if section.bins > _MOST_BINS:
        raise InvalidSpec(
            f"query.edges: {section.bins} bins are more than the {_MOST_BINS} of one column;"
            " choose fewer"
        )
    width = (section.high - section.low) / section.bins
    return (*(section.low + i * width for i in range(section.bins)), section.high)


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

"""From the sections ``unit`` and ``query`` to a query: the one place that knows queries by name."""

from __future__ import annotations

import itertools
import math

from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.privacy import Adjacency
from dpdask.queries import (
    Clip,
    Covariance,
    Histogram,
    Identity,
    Mean,
    Precomputed,
    Query,
    Ranges,
    Sum,
)
from dpdask.sensitivity import EntrywiseBox, L2Ball, Origin, RecordBall, RecordBox, SensitivitySet
from dpdask.spec import release as s
from dpdask.spec.calibration import range_pairs
from dpdask.types import Json

__all__ = ["build_query"]

_UP = 1 + 1e-14
_MOST_BINS = 2**20


def build_query(
    section: s.QuerySection,
    privacy_unit: s.PrivacyUnitSection,
    shape: tuple[int, ...],
    composition: s.StackSection,
) -> Query:
    """The query of a spec on a source of ``shape``, with what one unit can change of its answer."""
    steps = composition.steps
    if not isinstance(section, s.PrecomputedSection):
        if steps > 1:
            raise InvalidSpec(
                "composition.steps goes with query: precomputed, a stack of per-step results; leave"
                " it out"
            )
        if composition.sampling is not None:
            raise InvalidSpec(
                "composition.sampling amplifies privacy only where records were sampled, and"
                " this query reads them all;"
                " leave it out, or release sampled results as query: precomputed"
            )
    match section:
        case s.PrecomputedSection():
            return _declared(section, privacy_unit, shape, composition)
        case s.HistogramSection():
            return _histogram(section, privacy_unit, shape)
    axis = _record_axis(privacy_unit, shape)
    bound = _bound(privacy_unit, shape, axis)
    match section:
        case s.IdentitySection():
            return _identity(privacy_unit, shape, bound)
        case s.SumSection() | s.MeanSection():
            return _sum(section, privacy_unit, shape, axis, bound)
        case s.CovarianceSection():
            return _covariance(privacy_unit, shape, axis, bound)


def _record_axis(privacy_unit: s.PrivacyUnitSection, shape: tuple[int, ...]) -> int | None:
    if privacy_unit.record_dim is None:
        return None
    if not -len(shape) <= privacy_unit.record_dim < len(shape):
        raise InvalidSensitivity(
            f"privacy_unit.record_dim={privacy_unit.record_dim} is none of the source's axes;"
            " choose one from"
            f" 0 to {len(shape) - 1}"
        )
    return privacy_unit.record_dim % len(shape)


def _bound(
    privacy_unit: s.PrivacyUnitSection, shape: tuple[int, ...], axis: int | None
) -> Clip | Ranges:
    if (privacy_unit.l2_clip_norm is None) == (privacy_unit.ranges is None):
        raise InvalidSensitivity(
            "unit needs exactly one of l2_clip_norm and ranges, which bound one record; give one"
            " of them"
        )
    if privacy_unit.l2_clip_norm is not None:
        if privacy_unit.feature_dim is not None:
            raise InvalidSensitivity(
                "privacy_unit.feature_dim goes with ranges; drop it, or give ranges instead of"
                " l2_clip_norm"
            )
        if axis is None:
            raise InvalidSensitivity(
                "privacy_unit.l2_clip_norm clips records; say along which axis they lie:"
                " privacy_unit.record_dim"
            )
        if not 1e-100 <= privacy_unit.l2_clip_norm <= 1e100:
            raise InvalidSensitivity(
                f"privacy_unit.l2_clip_norm={privacy_unit.l2_clip_norm:g} bounds nothing; give a"
                " finite number > 0"
            )
        return Clip(norm=privacy_unit.l2_clip_norm, record_axis=axis)
    pairs = range_pairs(privacy_unit.ranges or [])
    if not pairs:
        raise InvalidSensitivity(
            "privacy_unit.ranges is empty; give one [low, high] or one per feature"
        )
    feature = _feature_axis(privacy_unit, shape, axis, len(pairs))
    if len(pairs) not in (1, shape[feature]):
        raise InvalidSensitivity(
            f"privacy_unit.ranges: {len(pairs)} ranges do not fit axis {feature} of length"
            f" {shape[feature]};"
            f" give one range for all or {shape[feature]} of them"
        )
    return Ranges(pairs=tuple(pairs), feature_axis=feature, record_axis=axis)


def _feature_axis(
    privacy_unit: s.PrivacyUnitSection, shape: tuple[int, ...], axis: int | None, count: int
) -> int:
    others = [i for i in range(len(shape)) if i != axis]
    if privacy_unit.feature_dim is not None:
        if (
            not -len(shape) <= privacy_unit.feature_dim < len(shape)
            or privacy_unit.feature_dim % len(shape) == axis
        ):
            raise InvalidSensitivity(
                f"privacy_unit.feature_dim={privacy_unit.feature_dim} is no axis of the source"
                " besides the"
                " record axis; choose another"
            )
        return privacy_unit.feature_dim % len(shape)
    if count == 1:
        return others[0] if others else 0
    if len(others) != 1:
        raise InvalidSensitivity(
            f"ranges per feature could lie along any of the axes {others}; name one:"
            " privacy_unit.feature_dim"
        )
    return others[0]


def _identity(
    privacy_unit: s.PrivacyUnitSection, shape: tuple[int, ...], bound: Clip | Ranges
) -> Identity:
    if privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE:
        raise InvalidSensitivity(
            "add-remove-one changes how many records a released tensor shows; use"
            " privacy_unit.adjacency: replace-one, or query: sum"
        )
    k = privacy_unit.max_contributions
    common: Json = {"adjacency": privacy_unit.adjacency}
    sensitivity: SensitivitySet
    if isinstance(bound, Clip):
        reach = 2 * bound.norm * math.sqrt(k) * _UP
        if k == 1:
            sensitivity = RecordBall(
                l2=reach, record_axis=bound.record_axis, origin=Origin.CLIPPED, **common
            )
        else:
            sensitivity = L2Ball(l2=reach, origin=Origin.CLIPPED, **common)
        norm_bound = bound.norm * math.sqrt(shape[bound.record_axis]) * _UP
    else:
        widths = tuple((high - low) * math.sqrt(k) * _UP for low, high in bound.pairs)
        if bound.record_axis is None:
            sensitivity = EntrywiseBox(
                shape=shape,
                feature_axis=bound.feature_axis,
                widths=widths,
                origin=Origin.PUBLIC_RANGE,
                **common,
            )
        elif len(shape) == 1 and k == 1:
            sensitivity = RecordBall(
                l2=widths[0], record_axis=0, origin=Origin.PUBLIC_RANGE, **common
            )
        elif len(shape) == 1:
            sensitivity = L2Ball(l2=widths[0], origin=Origin.PUBLIC_RANGE, **common)
        else:
            sensitivity = RecordBox(
                shape=shape,
                record_axis=bound.record_axis,
                feature_axis=bound.feature_axis,
                widths=widths,
                origin=Origin.PUBLIC_RANGE,
                **common,
            )
        norm_bound = _largest_norm(bound, shape)
    return Identity(
        source_shape=shape,
        answer_shape=shape,
        sensitivity=sensitivity,
        bound=bound,
        norm_bound=norm_bound,
        max_contributions=k,
    )


def _largest_norm(bound: Ranges, shape: tuple[int, ...]) -> float:
    squares = [max(abs(low), abs(high)) ** 2 for low, high in bound.pairs]
    return math.sqrt(math.fsum(squares) / len(squares) * math.prod(shape)) * _UP


def _sum(
    section: s.SumSection | s.MeanSection,
    privacy_unit: s.PrivacyUnitSection,
    shape: tuple[int, ...],
    axis: int | None,
    bound: Clip | Ranges,
) -> Sum:
    if axis is None:
        raise InvalidSensitivity(
            f"query {section.name} sums over records; say along which axis they lie:"
            " privacy_unit.record_dim"
        )
    private = privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE
    mean = isinstance(section, s.MeanSection)
    if mean and private:
        raise InvalidSensitivity(
            "a mean under add-remove-one divides by a private number; release query: sum, or use"
            " replace-one"
        )
    k, records = privacy_unit.max_contributions, shape[axis]
    answer_shape = tuple(n for i, n in enumerate(shape) if i != axis) or (1,)
    common: Json = {"adjacency": privacy_unit.adjacency}
    sensitivity: SensitivitySet
    if isinstance(bound, Clip):
        sensitivity = L2Ball(
            l2=(1 if private else 2) * bound.norm * k * _UP, origin=Origin.CLIPPED, **common
        )
        norm_bound = records * bound.norm * _UP
    else:
        moved = [max(abs(low), abs(high)) if private else high - low for low, high in bound.pairs]
        feature = bound.feature_axis - (bound.feature_axis > axis) if len(shape) > 1 else 0
        sensitivity = EntrywiseBox(
            shape=answer_shape,
            feature_axis=feature,
            widths=tuple(width * k * _UP for width in moved),
            origin=Origin.PUBLIC_RANGE,
            **common,
        )
        norm_bound = records * _largest_norm(bound, answer_shape)
    return (Mean if mean else Sum)(
        source_shape=shape,
        answer_shape=answer_shape,
        sensitivity=sensitivity,
        bound=bound,
        norm_bound=None if private else norm_bound,
        max_contributions=k,
        divisor=records if mean else 1,
        record_axis=axis,
    )


def _covariance(
    privacy_unit: s.PrivacyUnitSection,
    shape: tuple[int, ...],
    axis: int | None,
    bound: Clip | Ranges,
) -> Covariance:
    if len(shape) != 2 or axis is None:
        raise InvalidSensitivity(
            "a covariance needs a matrix of records and features, and privacy_unit.record_dim; the"
            f" source has {len(shape)} axes"
        )
    if not isinstance(bound, Clip):
        raise InvalidSensitivity(
            "a covariance is bounded by privacy_unit.l2_clip_norm; give that instead of ranges"
        )
    private = privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE
    k, records, features = privacy_unit.max_contributions, shape[axis], shape[1 - axis]
    reach = (1.0 if private else math.sqrt(2)) * bound.norm**2 * k * _UP
    return Covariance(
        source_shape=shape,
        answer_shape=(features, features),
        sensitivity=L2Ball(l2=reach, adjacency=privacy_unit.adjacency, origin=Origin.CLIPPED),
        bound=bound,
        norm_bound=None if private else records * bound.norm**2 * _UP,
        max_contributions=k,
        divisor=1 if private else records,
        record_axis=axis,
    )


def _histogram(
    section: s.HistogramSection, privacy_unit: s.PrivacyUnitSection, shape: tuple[int, ...]
) -> Histogram:
    if privacy_unit.l2_clip_norm is not None or privacy_unit.ranges is not None:
        raise InvalidSensitivity(
            "a histogram needs no clip norm or ranges, only its public edges; drop them"
        )
    axis = _record_axis(privacy_unit, shape)
    if axis is None or len(shape) > 2:
        raise InvalidSensitivity(
            "a histogram counts records of a table: one or two axes and privacy_unit.record_dim;"
            " the"
            f" source has {len(shape)}"
        )
    available = 1 if len(shape) == 1 else shape[1 - axis]
    columns = (
        tuple(section.columns) if section.columns is not None else tuple(range(len(section.edges)))
    )
    if len(columns) != len(section.edges) or len(set(columns)) != len(columns):
        raise InvalidSpec(
            f"query.edges: {len(section.edges)} lists of edges for {len(columns)} columns; give"
            " one per column"
        )
    if any(not 0 <= column < available for column in columns):
        raise InvalidSpec(
            f"query.columns: {list(columns)} are not all columns of a table of {available};"
            " choose existing ones"
        )
    edges = tuple(_edges(given) for given in section.edges)
    k = privacy_unit.max_contributions
    reach = (k if privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE else math.sqrt(2) * k) * _UP
    return Histogram(
        source_shape=shape,
        answer_shape=tuple(len(row) - 1 for row in edges),
        sensitivity=L2Ball(l2=reach, adjacency=privacy_unit.adjacency, origin=Origin.CLIPPED),
        bound=None,
        norm_bound=None
        if privacy_unit.adjacency is Adjacency.ADD_REMOVE_ONE
        else float(shape[axis]),
        max_contributions=k,
        record_axis=axis,
        edges=edges,
        columns=columns,
    )


def _edges(given: list[float] | s.Bins) -> tuple[float, ...]:
    if isinstance(given, s.Bins):
        if given.bins > _MOST_BINS:
            raise InvalidSpec(
                f"query.edges: {given.bins} bins are more than the {_MOST_BINS} of one column;"
                " choose fewer"
            )
        width = (given.high - given.low) / given.bins
        row = (*(given.low + i * width for i in range(given.bins)), given.high)
    else:
        row = tuple(given)
    if (
        len(row) < 2
        or any(not math.isfinite(e) for e in row)
        or any(b <= a for a, b in itertools.pairwise(row))
    ):
        raise InvalidSpec(
            "query.edges: a list of edges is not finite and increasing, with two edges at least;"
            " mend it"
        )
    return row


def _declared(
    section: s.PrecomputedSection,
    privacy_unit: s.PrivacyUnitSection,
    shape: tuple[int, ...],
    composition: s.StackSection,
) -> Precomputed:
    if (
        privacy_unit.l2_clip_norm is not None
        or privacy_unit.ranges is not None
        or privacy_unit.record_dim is not None
    ):
        raise InvalidSensitivity(
            "a declared result has no records any more; drop privacy_unit.record_dim,"
            " l2_clip_norm and"
            " ranges"
        )
    steps = composition.steps
    if steps > 1 and not composition.steps_are_independent:
        raise InvalidSpec(
            f"composition.steps={steps} needs steps_are_independent: true, which says that no"
            " step was computed from another's"
            " raw result; the later steps of a finished training run depend on every record"
            " through the weights, which no clip"
            " norm bounds: add noise to each step before the next one is computed"
        )
    if steps > 1 and shape[0] != steps:
        raise InvalidSpec(
            f"composition.steps={steps} is not the length {shape[0]} of the source's first axis;"
            " give that"
        )
    return Precomputed(  # the sensitivity is that of a whole unit, however many records it has
        source_shape=shape,
        answer_shape=shape,
        sensitivity=L2Ball(
            l2=section.l2_sensitivity, adjacency=privacy_unit.adjacency, origin=Origin.DECLARED
        ),
        bound=None,
        norm_bound=None,
        max_contributions=privacy_unit.max_contributions,
        steps=steps,
    )

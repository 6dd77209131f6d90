"""From bounds to sensitivity sets: the only place that turns clip norms and ranges into what one
privacy unit can change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpdask.errors import InvalidSensitivity
from dpdask.privacy import Adjacency
from dpdask.sensitivity import (
    EntrywiseBox,
    L1Ball,
    L2Ball,
    Origin,
    RecordBall,
    RecordBox,
    SensitivitySet,
)
from dpdask.spec.calibration import SensitivitySection
from dpdask.types import Shape

__all__ = [
    "ROUND_UP",
    "build_sensitivity",
    "feature_axis",
    "largest_norm",
    "norm_bound",
    "range_pairs",
    "sensitivity_of_clipped_records",
    "sensitivity_of_ranges",
]

ROUND_UP = 1 + 1e-14
"""Above the rounding of a few floating-point operations: a sensitivity is never rounded down."""


def build_sensitivity(section: SensitivitySection, shape: Shape) -> SensitivitySet:
    """Return the sensitivity set of a calibration spec, for a tensor of ``shape``."""
    if section.origin == "measured":
        raise InvalidSensitivity(
            "a bound measured on the data is not a sensitivity; clip the records, or give public"
            " ranges or a declared bound"
        )
    norms = section.l1 is not None or section.l2 is not None
    if norms == (section.ranges is not None):
        raise InvalidSensitivity(
            "sensitivity needs a norm bound, l1 or l2 or both, or ranges; give one of these"
        )
    if section.l1 is not None:
        return _from_l1(section, section.l1)
    if section.l2 is not None:
        return _from_l2(section, section.l2, shape)
    return _from_ranges(section, section.ranges or [], shape)


def norm_bound(section: SensitivitySection, shape: Shape) -> float | None:
    """Return sup ||f|| by the ranges of a calibration spec (MVG's gamma), None for an l2 bound."""
    if section.ranges is None:
        return None
    return largest_norm(range_pairs(section.ranges), shape)


def _from_l1(section: SensitivitySection, l1: float) -> SensitivitySet:
    if section.origin == "public-range" or (section.record_dim, section.feature_dim) != (None,) * 2:
        raise InvalidSensitivity(
            "an l1 bound is clipped or declared, of the whole tensor; drop record_dim, feature_dim"
            " and origin: public-range"
        )
    return L1Ball(
        l1_radius=l1,
        l2=l1 if section.l2 is None else section.l2,
        adjacency=section.adjacency,
        origin=Origin(section.origin or "declared"),
    )


def _from_l2(section: SensitivitySection, l2: float, shape: Shape) -> SensitivitySet:
    if section.origin == "public-range":
        raise InvalidSensitivity(
            "an l2 bound is clipped or declared, not a public range; give ranges for that"
        )
    if section.feature_dim is not None:
        raise InvalidSensitivity(
            "feature_dim goes with ranges; an l2 bound takes record_dim at most"
        )
    origin = Origin(section.origin or "declared")
    if section.record_dim is None:
        return L2Ball(l2=l2, adjacency=section.adjacency, origin=origin)
    if section.adjacency is Adjacency.ADD_REMOVE_ONE:
        raise InvalidSensitivity(
            "add-remove-one changes how many records a released tensor has, so it has no"
            " sensitivity along record_dim; use replace-one, or release a sum with its l2 bound"
        )
    return RecordBall(
        l2=l2,
        record_axis=_record_axis(section.record_dim, shape),
        adjacency=section.adjacency,
        origin=origin,
    )


def _from_ranges(
    section: SensitivitySection, ranges: list[list[float]], shape: Shape
) -> SensitivitySet:
    if section.origin not in (None, "public-range"):
        raise InvalidSensitivity(
            f"origin: {section.origin} does not go with ranges, which are public; leave origin out"
        )
    if section.adjacency is Adjacency.ADD_REMOVE_ONE:
        raise InvalidSensitivity(
            "add-remove-one changes the shape of a released tensor, so ranges have no sensitivity"
            " under it; use replace-one, or release a sum with its l2 bound"
        )
    widths = tuple(high - low for low, high in range_pairs(ranges))
    if section.record_dim is not None and len(shape) < 2:
        raise InvalidSensitivity(
            f"shape={shape} has no axis besides the records'; give l2 or ranges without record_dim"
        )
    record_axis = None if section.record_dim is None else _record_axis(section.record_dim, shape)
    axis = section.feature_dim
    if axis is None:
        axis = feature_axis(shape, record_axis, count=len(widths), key="feature_dim")
    return _box(
        shape, record_axis=record_axis, axis=axis, widths=widths, adjacency=section.adjacency
    )


def _record_axis(record_dim: int, shape: Shape) -> int:
    if not -len(shape) <= record_dim < len(shape):
        raise InvalidSensitivity(
            f"record_dim={record_dim} is not an axis of shape {shape}; choose one from 0 to"
            f" {len(shape) - 1}"
        )
    return record_dim % len(shape)


def range_pairs(ranges: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    """Return the ranges as pairs, each finite and not empty."""
    pairs = []
    for row in ranges:
        if len(row) != 2:
            raise InvalidSensitivity(f"range {row!r} is not a valid interval; give [low, high]")
        low, high = row
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InvalidSensitivity(
                f"range [{low:g}, {high:g}] is empty or unbounded; give finite low < high"
            )
        pairs.append((low, high))
    return pairs


def largest_norm(pairs: Sequence[tuple[float, float]], shape: Shape) -> float:
    """Return the largest l2 norm of a tensor whose entries lie in ``pairs``, rounded up."""
    squares = [max(abs(low), abs(high)) ** 2 for low, high in pairs]
    return math.sqrt(math.fsum(squares) / len(squares) * math.prod(shape)) * ROUND_UP


def feature_axis(shape: Shape, record_axis: int | None, *, count: int, key: str) -> int:
    """Return the axis of ``count`` ranges where the spec names none.

    Args:
        shape: The shape of the tensor.
        record_axis: The axis of the records, which is not a feature axis.
        count: How many ranges there are; one holds for all features, whatever the axis.
        key: The key of the spec that names the axis, for the error text.

    Raises:
        InvalidSensitivity: If several axes are possible.
    """
    others = [axis for axis in range(len(shape)) if axis != record_axis]
    if count == 1:
        return others[0] if others else 0
    if len(others) != 1:
        raise InvalidSensitivity(
            f"ranges per feature could lie along any of the axes {others} of shape {shape}; name"
            f" one: {key}"
        )
    return others[0]


def sensitivity_of_clipped_records(
    norm: float, *, record_axis: int | None, contributions: int, adjacency: Adjacency
) -> SensitivitySet:
    """Return what one privacy unit can change of a tensor of clipped records.

    Args:
        norm: The l2 norm to which every record is clipped.
        record_axis: The axis along which records lie; None where the norm is that of several
            records together.
        contributions: How many records a privacy unit has at most.
        adjacency: Which data sets are neighbours.

    Returns:
        A ball of radius ``2 norm sqrt(contributions)``; of one record, where a unit has only one.
    """
    radius = 2 * norm * math.sqrt(contributions) * ROUND_UP
    if contributions == 1 and record_axis is not None:
        return RecordBall(
            l2=radius, record_axis=record_axis, adjacency=adjacency, origin=Origin.CLIPPED
        )
    return L2Ball(l2=radius, adjacency=adjacency, origin=Origin.CLIPPED)


def sensitivity_of_ranges(
    pairs: Sequence[tuple[float, float]],
    shape: Shape,
    *,
    record_axis: int | None,
    axis: int,
    contributions: int,
    adjacency: Adjacency,
) -> SensitivitySet:
    """Return what one privacy unit can change of a tensor whose entries lie in public ranges.

    Args:
        pairs: One range for all features, or one for each index of ``axis``.
        shape: The shape of the tensor.
        record_axis: The axis along which records lie; None where a unit may change every entry.
        axis: The axis along which the ranges lie.
        contributions: How many records a privacy unit has at most.
        adjacency: Which data sets are neighbours.

    Returns:
        A box of widths ``(high - low) sqrt(contributions)``; a ball where records are numbers.
    """
    widths = tuple((high - low) * math.sqrt(contributions) * ROUND_UP for low, high in pairs)
    if record_axis is None or len(shape) > 1:
        return _box(
            shape,
            record_axis=record_axis,
            axis=axis,
            widths=widths,
            adjacency=adjacency,
            records=contributions,
        )
    low, high = pairs[0]
    return L1Ball(
        l1_radius=(high - low) * contributions * ROUND_UP**2,
        l2=widths[0],
        record_axis=0 if contributions == 1 else None,
        adjacency=adjacency,
        origin=Origin.PUBLIC_RANGE,
    )


def _box(
    shape: Shape,
    *,
    record_axis: int | None,
    axis: int,
    widths: tuple[float, ...],
    adjacency: Adjacency,
    records: int = 1,
) -> SensitivitySet:
    """Return the box of changes: of one record, or of every entry where there is no record axis."""
    if record_axis is None:
        return EntrywiseBox(
            shape=shape,
            feature_axis=axis,
            widths=widths,
            adjacency=adjacency,
            origin=Origin.PUBLIC_RANGE,
        )
    return RecordBox(
        shape=shape,
        record_axis=record_axis,
        feature_axis=axis,
        widths=widths,
        records=records,
        adjacency=adjacency,
        origin=Origin.PUBLIC_RANGE,
    )

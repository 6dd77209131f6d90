"""How sums and means are built: bounds, groups, and what has to be counted beside them."""

from __future__ import annotations

import math

from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.planning.build_sensitivity import ROUND_UP, largest_norm
from dpdask.planning.query_inputs import QueryInputs
from dpdask.privacy import Adjacency
from dpdask.queries import Clip, CountedMean, CountedSum, Ranges
from dpdask.queries.grouping import GroupKey, Groups
from dpdask.queries.joint import Counting, SumShape, best_scale, joint_square
from dpdask.queries.sums import Mean, Sum
from dpdask.sensitivity import EntrywiseBox, L2Ball, Origin, SensitivitySet
from dpdask.spec.query import GroupBySection, MeanSection, SumSection
from dpdask.types import Shape

__all__ = ["build_mean", "build_sum"]

_MOST_GROUPS = 2**20


def build_sum(section: SumSection, inputs: QueryInputs) -> Sum:
    """Return the sum over records; from a centred sum and counts where that is less noisy."""
    return _sum_over_records(inputs, groups_of(section.by), mean=False)


def build_mean(section: MeanSection, inputs: QueryInputs) -> Sum:
    """Return the mean over records; counts are released with it where they are private."""
    return _sum_over_records(inputs, groups_of(section.by), mean=True)


def groups_of(by: GroupBySection | list[GroupBySection] | None) -> Groups | None:
    """Return the groups that a query's ``by`` names, None without one."""
    if by is None:
        return None
    sections = by if isinstance(by, list) else [by]
    keys = []
    for section in sections:
        values = tuple(section.groups)
        if len(set(values)) != len(values):
            raise InvalidSpec(
                f"query.by: a group of {section.array!r} is there twice; name each group once"
            )
        if len({isinstance(value, str) for value in values}) > 1:
            raise InvalidSpec(
                f"query.by: the groups of {section.array!r} are text and numbers; give one kind"
            )
        keys.append(GroupKey(section.array, values))
    names = [key.array for key in keys]
    if len(set(names)) != len(names):
        raise InvalidSpec("query.by: an array is there twice; name each array of labels once")
    groups = Groups(tuple(keys))
    if groups.count > _MOST_GROUPS:
        raise InvalidSpec(
            f"query.by: {groups.count} groups are more than {_MOST_GROUPS}; choose fewer"
        )
    return groups


def _sum_over_records(inputs: QueryInputs, groups: Groups | None, *, mean: bool) -> Sum:
    axis, bound = inputs.record_axis(), inputs.bound()
    name = "mean" if mean else "sum"
    if axis is None:
        raise InvalidSensitivity(
            f"query {name} sums over records; name the dimension along which they lie:"
            " privacy_unit.record_dim"
        )
    counting = _counting(inputs, bound, grouped=groups is not None, mean=mean)
    if counting is not Counting.NONE:
        inputs.check_counted()
    plain = counting is Counting.NONE and groups is None
    if plain and (isinstance(bound, Ranges) or bound.center.zero):
        return _plain(inputs, axis, bound, mean=mean)
    return _counted(inputs, axis, bound, groups, counting, mean=mean)


def _counting(inputs: QueryInputs, bound: Clip | Ranges, *, grouped: bool, mean: bool) -> Counting:
    """Return what has to be counted: present entries if asked for, else private numbers of records
    where the result depends on them.

    A sum of entries in ranges can do without: around 0 it costs more noise, but none for records
    of one entry, and any mechanism may add it.
    """
    unit = inputs.privacy_unit
    if unit.missing == "count":
        return Counting.ENTRIES
    private = grouped or unit.adjacency is Adjacency.ADD_REMOVE_ONE
    # how many records are kept: what a mean is divided by, and how often a sum has the centre
    private = private or (inputs.leaves_out and (mean or isinstance(bound, Clip)))
    # what is counted never depends on a middle that is chosen from the data
    around_zero = bound.center.zero and not inputs.chooses_ranges
    if not private or (around_zero and not mean):
        return Counting.NONE
    if mean or grouped or isinstance(bound, Clip):
        return Counting.RECORDS
    # a product over the other axes: no records must give the plan of one
    others = (size for axis, size in enumerate(inputs.shape) if axis != bound.record_axis)
    one_entry = math.prod(others) == 1
    return Counting.NONE if one_entry or not inputs.counts_beside else Counting.RECORDS


def _counted(
    inputs: QueryInputs,
    axis: int,
    bound: Clip | Ranges,
    groups: Groups | None,
    counting: Counting,
    *,
    mean: bool,
) -> CountedSum:
    """Return a centred sum with its counts, their noise in the best proportion."""
    unit, shape = inputs.privacy_unit, inputs.shape
    record = tuple(size for i, size in enumerate(shape) if i != axis)
    entries = math.prod(record)
    sums = SumShape.of(
        bound,
        entries=entries,
        counting=counting,
        grouped=groups is not None,
        adjacency=unit.adjacency,
        together=unit.max_contributions if inputs.clips_people else None,
    )
    scale = None
    if counting is not Counting.NONE:
        scale = best_scale(sums, weight=_weight(inputs, bound, entries, mean=mean))
    radius = inputs.bounds_per_unit * math.sqrt(joint_square(sums, scale)) * ROUND_UP
    kind = CountedMean if mean else CountedSum
    origin = Origin.CLIPPED if isinstance(bound, Clip) else Origin.PUBLIC_RANGE
    leading = () if groups is None else groups.shape
    return kind(
        source_shape=shape,
        answer_shape=(*leading, *record) or (1,),
        sensitivity=L2Ball(l2=radius, adjacency=unit.adjacency, origin=origin),
        bound=bound,
        norm_bound=None,
        max_contributions=unit.max_contributions,
        record_axis=axis,
        counting=counting,
        count_scale=scale,
        groups=groups,
    )


def _weight(inputs: QueryInputs, bound: Clip | Ranges, entries: int, *, mean: bool) -> float:
    """Return by how much an error of a count counts: how far the result lies from the centre.

    For sums that is the centre itself; for means half the bound, unless the spec says more.
    """
    hint = inputs.privacy_unit.expected_distance
    if hint is not None:
        return hint
    if not mean and not bound.center.zero:
        return math.sqrt(bound.center.mean_square(inputs.shape))
    return bound.typical_distance(entries)


def _plain(inputs: QueryInputs, axis: int, bound: Clip | Ranges, *, mean: bool) -> Sum:
    """Return a sum without counts, divided by the public number of records for a mean."""
    unit, shape = inputs.privacy_unit, inputs.shape
    private_count = unit.adjacency is Adjacency.ADD_REMOVE_ONE
    records = shape[axis]
    answer_shape: Shape = tuple(size for i, size in enumerate(shape) if i != axis) or (1,)
    sensitivity: SensitivitySet
    if isinstance(bound, Clip):
        norms = 1 if private_count else 2
        sensitivity = L2Ball(
            l2=norms * bound.norm * inputs.bounds_per_unit * ROUND_UP,
            adjacency=unit.adjacency,
            origin=Origin.CLIPPED,
        )
        norm_bound = records * bound.norm * ROUND_UP
    else:
        feature = bound.feature_axis - (bound.feature_axis > axis) if len(shape) > 1 else 0
        changes = [
            max(abs(low), abs(high)) if private_count else high - low for low, high in bound.pairs
        ]
        sensitivity = EntrywiseBox(
            shape=answer_shape,
            feature_axis=feature,
            widths=tuple(change * unit.max_contributions * ROUND_UP for change in changes),
            adjacency=unit.adjacency,
            origin=Origin.PUBLIC_RANGE,
        )
        norm_bound = records * largest_norm(bound.pairs, answer_shape)
    kind = Mean if mean else Sum
    return kind(
        source_shape=shape,
        answer_shape=answer_shape,
        sensitivity=sensitivity,
        bound=bound,
        norm_bound=None if private_count else norm_bound,
        max_contributions=unit.max_contributions,
        divisor=records if mean else 1,
        record_axis=axis,
    )

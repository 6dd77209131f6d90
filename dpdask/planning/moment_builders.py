"""How second moments are built: bounds, sensitivity, and where records are measured from."""

from __future__ import annotations

import math

from dpdask.errors import InvalidSensitivity
from dpdask.planning.build_sensitivity import ROUND_UP, largest_norm
from dpdask.planning.query_inputs import QueryInputs
from dpdask.privacy import Adjacency
from dpdask.queries import Clip, Ranges, SecondMoment
from dpdask.sensitivity import L2Ball, Origin
from dpdask.spec.query import SecondMomentSection

__all__ = ["build_second_moment", "second_moment"]


def build_second_moment(section: SecondMomentSection, inputs: QueryInputs) -> SecondMoment:
    """Return X'X of bounded records, divided by their number where that is public."""
    bound = inputs.bound()
    if isinstance(bound, Clip) and not bound.center.zero:
        raise InvalidSensitivity(
            "query second-moment is taken around 0, and privacy_unit.center clips records around"
            " another point; drop it"
        )
    return second_moment(inputs, bound)


def second_moment(inputs: QueryInputs, bound: Clip | Ranges) -> SecondMoment:
    """Return the second moment of records bounded by ``bound``; clipped ones around its centre."""
    axis, features = table_of(inputs)
    unit, shape = inputs.privacy_unit, inputs.shape
    private_count = unit.adjacency is Adjacency.ADD_REMOVE_ONE
    clipped = isinstance(bound, Clip)
    norm = bound.norm if isinstance(bound, Clip) else largest_norm(bound.pairs, (features,))
    reach = 1.0 if private_count else math.sqrt(2)
    return SecondMoment(
        source_shape=shape,
        answer_shape=(features, features),
        sensitivity=L2Ball(
            l2=reach * norm**2 * unit.max_contributions * ROUND_UP,
            adjacency=unit.adjacency,
            origin=Origin.CLIPPED if clipped else Origin.PUBLIC_RANGE,
        ),
        bound=bound,
        norm_bound=None if private_count else shape[axis] * norm**2 * ROUND_UP,
        max_contributions=unit.max_contributions,
        divisor=1 if private_count else shape[axis],
        record_axis=axis,
    )


def table_of(inputs: QueryInputs) -> tuple[int, int]:
    """Return the record axis of a matrix of records and features, and how many features it has."""
    axis, shape = inputs.record_axis(), inputs.shape
    if len(shape) != 2 or axis is None:
        raise InvalidSensitivity(
            "second moments and covariances need a matrix of records and features, and"
            f" privacy_unit.record_dim; the source has {len(shape)} axes"
        )
    return axis, shape[1 - axis]

"""How second moments and covariances are built: bounds, sensitivity, and what is released beside
them.
"""

from __future__ import annotations

import dataclasses
import math

from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.planning.build_sensitivity import ROUND_UP
from dpdask.planning.query_inputs import QueryInputs
from dpdask.privacy import Adjacency
from dpdask.queries import Clip, Covariance, JointCovariance, Ranges, SecondMoment
from dpdask.queries.joint_moments import MomentShape, best_scales, joint_square
from dpdask.sensitivity import L2Ball, Origin
from dpdask.spec.query import CovarianceSection, SecondMomentSection

__all__ = ["build_covariance", "build_second_moment", "second_moment"]

MOST_FEATURES = 4096  # of a covariance around a private mean, which is one tile


def build_second_moment(section: SecondMomentSection, inputs: QueryInputs) -> SecondMoment:
    """Return X'X of bounded records, divided by their number where that is public.

    Those that ids leave out are not counted, so it is not divided where there may be some.
    """
    bound = inputs.bound()
    if isinstance(bound, Clip) and not bound.center.zero:
        raise InvalidSensitivity(
            "query second-moment is taken around 0, and privacy_unit.center clips records around"
            " another point; drop it, or release query: {name: covariance, center: ...}"
        )
    return second_moment(inputs, bound)


def build_covariance(section: CovarianceSection, inputs: QueryInputs) -> SecondMoment:
    """Return second moments around a public centre, or around a mean that is released with them."""
    around_mean = section.center == "private"
    if not around_mean:
        inputs = _around(section, inputs)
    _, features = table_of(inputs)
    bound, unit = inputs.bound(), inputs.privacy_unit
    counted = unit.adjacency is Adjacency.ADD_REMOVE_ONE or inputs.leaves_out
    if counted:
        inputs.check_counted()
    elif not around_mean:
        return second_moment(inputs, bound, Covariance)
    if around_mean and features > MOST_FEATURES:
        raise InvalidSpec(
            f"query covariance: {features} features are more than the {MOST_FEATURES} that are"
            " released around their mean; choose fewer features, or a public query.center"
        )
    plain = second_moment(inputs, bound, Covariance)
    moments = MomentShape(
        reach=plain.reach,
        features=features,
        summed=around_mean,
        counted=counted,
        adjacency=unit.adjacency,
        together=unit.max_contributions if inputs.clips_people else None,
    )
    distance = unit.expected_distance or bound.typical_distance(features)
    sum_scale, count_scale = best_scales(moments, distance=distance)
    square = joint_square(moments, sum_scale=sum_scale, count_scale=count_scale)
    return JointCovariance(
        source_shape=plain.source_shape,
        answer_shape=plain.answer_shape,
        sensitivity=_ball(
            bound, unit.adjacency, radius=inputs.bounds_per_unit * math.sqrt(square) * ROUND_UP
        ),
        bound=bound,
        norm_bound=None,
        max_contributions=plain.max_contributions,
        divisor=plain.divisor,
        record_axis=plain.record_axis,
        sum_scale=sum_scale,
        count_scale=count_scale,
    )


def _around(section: CovarianceSection, inputs: QueryInputs) -> QueryInputs:
    """Return the inputs with the query's public centre as that of the bound."""
    unit, center = inputs.privacy_unit, section.center
    if unit.center is not None:
        raise InvalidSensitivity(
            "query.center and privacy_unit.center are both there; give one: query.center for"
            " moments around a public point, privacy_unit.center with center: private"
        )
    _, features = table_of(inputs)
    if isinstance(center, list) and len(center) != features:
        raise InvalidSensitivity(
            f"query.center: {len(center)} numbers do not fit {features} features; give one number,"
            " or one per feature"
        )
    changes: dict[str, object] = {"center": center}
    if isinstance(center, list) and isinstance(unit.ranges, list) and len(unit.ranges) == 1:
        changes["ranges"] = unit.ranges * len(center)
    unit = unit.model_copy(update=changes)
    return dataclasses.replace(inputs, privacy_unit=unit, center_key="query.center")


def _ball(bound: Clip | Ranges, adjacency: Adjacency, *, radius: float) -> L2Ball:
    origin = Origin.CLIPPED if isinstance(bound, Clip) else Origin.PUBLIC_RANGE
    return L2Ball(l2=radius, adjacency=adjacency, origin=origin)


def second_moment(
    inputs: QueryInputs, bound: Clip | Ranges, kind: type[SecondMoment] = SecondMoment
) -> SecondMoment:
    """Return the second moment of records bounded by ``bound``.

    Args:
        inputs: The privacy unit on the source.
        bound: The bound on one record; clipped ones are measured from its centre.
        kind: ``SecondMoment``, around 0, or ``Covariance``, around the centre of the bound.
    """
    axis, features = table_of(inputs)
    unit, shape = inputs.privacy_unit, inputs.shape
    private_count = unit.adjacency is Adjacency.ADD_REMOVE_ONE
    plain = kind(
        source_shape=shape,
        answer_shape=(features, features),
        sensitivity=_ball(bound, unit.adjacency, radius=1.0),
        bound=bound,
        norm_bound=None,
        max_contributions=unit.max_contributions,
        divisor=1 if private_count or inputs.leaves_out else shape[axis],
        record_axis=axis,
    )
    reach = plain.reach if isinstance(bound, Clip) else plain.reach * ROUND_UP
    of_one = (1.0 if private_count else math.sqrt(2)) * reach**2
    radius = of_one * inputs.bounds_per_unit * ROUND_UP
    return dataclasses.replace(
        plain,
        sensitivity=_ball(bound, unit.adjacency, radius=radius),
        norm_bound=None if private_count else shape[axis] * reach**2 * ROUND_UP,
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

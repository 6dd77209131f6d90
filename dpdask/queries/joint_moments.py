"""What one record can change of second moments, of the sum and of the count beside them, together.

The answer is M = sum x x' with noise of standard deviation sigma on every entry, the sum T = sum x
with noise of ``sum_scale * sigma``, and the number of records with noise of ``count_scale *
sigma``. Records are distances from a public centre, of norm C at most. Measured in sigmas, one
privacy unit moves all of it by at most the joint radius, in units of M. With p = 1/sum_scale^2 and
q = 1/count_scale^2 (0 for what is not released), the square of the joint radius of one record is

- add-remove-one: C^4 + p C^2 + q
- replace-one, where the number of records is public:
  2 (C^2 + p/2)^2 if p <= 2 C^2, else 4 p C^2.

Replace-one: for an old record x and a new one y, with z = -x'y,

    ||x x' - y y'||^2 + p ||x - y||^2 = |x|^4 + |y|^4 - 2 z^2 + p (|x|^2 + |y|^2 + 2 z).

For a fixed z it grows with both norms, and any z that shorter records have is also that of two
records of norm C. So both have norm C, and the best z, between -C^2 and C^2, is min(p/2, C^2). A
single feature leaves only z = -|x||y| and z = |x||y|: then |x| = C, |y| = u C, of opposite signs,

    C^4 (1 - u^2)^2 + p C^2 (1 + u)^2,

whose largest value is at u = 1 or, if r = C^2/p > 2, possibly at u = (1 - sqrt(1 - 2/r))/2.

Records are counted under replace-one where ids leave some out. Of k and j records, j of each move
together and k - j alone: by the triangle inequality no more than k times the larger of both, so
the square of one is the larger of replace-one and add-remove-one, above.

Where C is the norm of all records of a person together, k of which are counted, the norms of these
records add up to C (where no sum is released their squares to C^2, which bounds M alone). The
square of the joint radius of a person is

- add-remove-one: C^4 + p C^2 + k^2 q
- replace-one: max(R, C^4 + 4 p C^2), R that of one record; C^4 + 4 p C^2 for a single feature
- replace-one, counted: the larger of that + (k - 1)^2 q and add-remove-one

A person's (M, T) is a convex combination of pairs (s u u', u), |u| = C and 0 <= s <= 1: the record
x has the weight |x|/C, with u along it and s = |x|/C. The distance of two pairs is convex in each,
so it is largest between two of these, and convex in both s, so that these are 0 or 1: with 1 and 1
it is that of two records; with 1 and 0 it is C^4 + 2 p (C^2 - u'v), largest at v = -u. Many small
records have s near 0, so a person may reach further than one record does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import minimize_scalar

from dpdask.privacy import Adjacency

__all__ = ["MomentShape", "best_scales", "joint_square"]


@dataclass(frozen=True, kw_only=True)
class MomentShape:
    """All that the joint radius depends on, except the scales of the noise.

    Args:
        reach: The largest norm of a record.
        features: How many numbers a record holds.
        summed: Whether the sum is released, too.
        counted: Whether the number of records is released, too: always under add-remove-one.
        adjacency: Which data sets are neighbours.
        together: Where the norm is that of all records of a person, how many of them are counted
            at most; None where it is that of one record.
    """

    reach: float
    features: int
    summed: bool
    counted: bool
    adjacency: Adjacency
    together: int | None = None

    @property
    def added(self) -> bool:
        """Whether neighbours differ by the presence of a unit."""
        return self.adjacency is Adjacency.ADD_REMOVE_ONE


def joint_square(
    shape: MomentShape, *, sum_scale: float | None, count_scale: float | None
) -> float:
    """Return the square of the joint radius of one record, or of one person's where they are
    clipped together.

    Args:
        shape: The moments, and what is released beside them.
        sum_scale: The noise of the sum over that of the moments; None without one.
        count_scale: The noise of the count over that of the moments; None without one.
    """
    square = shape.reach**2
    p = 0.0 if sum_scale is None else sum_scale**-2
    q = 0.0 if count_scale is None else count_scale**-2
    most = shape.together or 1
    added = square**2 + p * square + most**2 * q
    if shape.added:
        return added
    replaced = _replaced(shape, square, p) + (most - 1) ** 2 * q
    return max(replaced, added) if shape.counted else replaced


def _replaced(shape: MomentShape, square: float, p: float) -> float:
    """Return the square under replace-one, without a count."""
    of_record = 2 * (square + p / 2) ** 2 if p <= 2 * square else 4 * p * square
    if shape.features == 1:
        of_record = _of_one_feature(square, p)
    return of_record if shape.together is None else max(of_record, square**2 + 4 * p * square)


def _of_one_feature(square: float, p: float) -> float:
    if p == 0:
        return square**2
    ratio = square / p
    if ratio <= 2:
        return 4 * p * square
    u = (1 - math.sqrt(1 - 2 / ratio)) / 2
    inner = square**2 * (1 - u**2) ** 2 + p * square * (1 + u) ** 2
    return max(4 * p * square, inner)


def best_scales(shape: MomentShape, *, distance: float) -> tuple[float | None, float | None]:
    """Return the scales of the sum's and of the count's noise with the least error of M/n - m m'.

    An entry of it, up to second order and on average over all of them, has a variance of
    (d + 1)/(2 d) (sigma / n)^2 (1 + w^2 sum_scale^2 + v^2 count_scale^2), w = 2 ``distance`` and
    v^2 the mean square of an entry of m m' - M/n times 2 d/(d + 1), for which half of C^2 in norm
    is taken. It is minimised at a fixed privacy cost, that is times the square of the joint radius.

    Args:
        shape: The moments, and what is released beside them.
        distance: How far an entry of the mean is expected from the centre.
    """
    w, d = 2 * distance, shape.features
    v = shape.reach**2 / math.sqrt(2 * d * (d + 1))
    if shape.together is not None or (shape.counted and not shape.added):
        return _searched_scales(shape, w, v)
    if shape.counted:
        count_scale = 1 / math.sqrt(v * shape.reach**2)
        return (1 / math.sqrt(w * shape.reach) if shape.summed else None), count_scale
    if not shape.summed:
        return None, None
    share = w**2 / (2 * shape.reach**2)
    # the root of 2 t^2 + share t - share, which minimises (1 + t)^2 (1 + share / t)
    t = 2 * share / (share + math.sqrt(share**2 + 8 * share))
    scale = 1 / math.sqrt(2 * t) / shape.reach
    return (scale if d > 1 else _best_of_one_feature(shape, w, scale)), None


def _searched_scales(shape: MomentShape, w: float, v: float) -> tuple[float | None, float | None]:
    """Return the scales of the least error where no formula is known.

    In the logarithms of both scales the error is a maximum of convex functions.
    """

    def error(sum_scale: float | None, count_scale: float | None) -> float:
        square = joint_square(shape, sum_scale=sum_scale, count_scale=count_scale)
        of_sum = 0.0 if sum_scale is None else (w * sum_scale) ** 2
        of_count = 0.0 if count_scale is None else (v * count_scale) ** 2
        return math.log(square) + math.log1p(of_sum + of_count)

    def best_count(sum_scale: float | None) -> float | None:
        if not shape.counted:
            return None
        return _least(lambda scale: error(sum_scale, scale), 1 / v)

    if not shape.summed:
        return None, best_count(None)
    scale = _least(lambda scale: error(scale, best_count(scale)), 1 / w)
    return scale, best_count(scale)


def _least(error: Callable[[float], float], start: float) -> float:
    """Return the scale of the least error, within a factor of e^12 of ``start``."""
    middle = math.log(start)
    best = minimize_scalar(
        lambda log_scale: error(math.exp(log_scale)),
        bounds=(middle - 12, middle + 12),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return math.exp(float(best.x))


def _best_of_one_feature(shape: MomentShape, weight: float, start: float) -> float:
    """Return the best scale of the sum's noise for one feature, near that for several."""

    def error(log_scale: float) -> float:
        scale = math.exp(log_scale)
        square = joint_square(shape, sum_scale=scale, count_scale=None)
        return math.log(square) + math.log1p((weight * scale) ** 2)

    middle = math.log(start)
    best = minimize_scalar(
        error, bounds=(middle - 3, middle + 3), method="bounded", options={"xatol": 1e-9}
    )
    return math.exp(float(best.x))

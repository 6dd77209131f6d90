"""Exact sums of many records, and how they meet the noise's grid.

Records are whole numbers of a step so fine that rounding them, all in the same direction at worst,
does not add up to more than the noise; their sum is exact in integers. Before noise is added the
sum is rounded, once, to the noise's own coarser grid: that parts two neighbours by at most one more
step in every entry, and the noise grows by as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpdask.errors import InvalidMechanism, InvalidSensitivity, OutOfReach
from dpdask.noise import IidNoise, KroneckerNoise, Noise, SphericalNoise
from dpdask.privatizers.grid import CLIP_LIMIT, DEFAULT_RATIO, Grid, fine_clip_grid
from dpdask.privatizers.recipes import LARGEST_RATIO, IidRecipe, fit_kronecker, fit_spherical
from dpdask.queries.base import Fitted, Ranges, RecordRule, known_mu
from dpdask.sensitivity import SensitivitySet

__all__ = ["Total", "fit_total"]

_SUM_BITS = 62  # of a sum, in an int64; of products there are two
_ANSWER_BITS = 49  # of an answer, in steps of the noise's grid, which must be exact in a double
_GROWTH = 2.0**-14  # of the noise: as little as we like it to be
_MOST_GROWTH = 0.01


@dataclass(frozen=True, kw_only=True)
class Total:
    """A sum over ``records`` records of entries (``power`` 1) or of their products (2), each of at
    most ``largest`` ** power.

    One unit moves it by at most what ``body`` holds, in some of its ``entries``.
    """

    largest: float
    power: int
    records: int
    sensitivity: SensitivitySet
    entries: int
    record_axis: int
    ranges: Ranges | None = None

    @property
    def entry_bits(self) -> int:
        """Of an entry's bound, in steps: as many as leave squares and products exact in doubles, a
        thousand of them added.
        """
        if self.ranges is not None:
            return 50
        return 25 if self.power == 1 else 21

    def room(self, bits: int) -> int:
        """What a sum of so many bits leaves for one record."""
        return bits - (self.records - 1).bit_length()

    @property
    def reach(self) -> float:
        """No entry is larger."""
        return self.largest**self.power * self.records

    def rule(self, step: float) -> RecordRule:
        """Records in steps, bounded inwards."""
        bound = math.floor(Fraction(self.largest) / Fraction(step))
        if bound < 1:
            raise InvalidSensitivity(
                f"a bound of {self.largest:g} is below one grid step {step:.3g}; raise"
                " noise.steps_per_sigma"
            )
        if self.ranges is None and bound > CLIP_LIMIT:
            raise OutOfReach(
                f"a bound of {self.largest:g} is above 2^31 grid steps; use a smaller"
                " noise.steps_per_sigma"
            )
        grid = Grid(step=step, ratio=DEFAULT_RATIO, low=-bound, high=bound)
        for low, high in (
            () if self.ranges is None else self.ranges.pairs
        ):  # every range must hold a point of the grid
            Grid.for_range(sigma=step * DEFAULT_RATIO, low=low, high=high)
        return RecordRule(grid=grid, record_axis=self.record_axis, ranges=self.ranges)


def fit_total(noise: Noise, total: Total, *, mu: float | None, asked: int | None) -> Fitted:
    """The noise on its grid, and the grid of the records."""
    match noise:
        case IidNoise():
            return _fit_iid(noise, total, mu, asked)
        case KroneckerNoise():
            rule, answer_step, shift = _fine(total, total.room(_SUM_BITS * total.power))
            order = len(noise.factors)
            recipe, real = fit_kronecker(
                noise,
                mu=known_mu(mu),
                low=[-total.reach - answer_step] * order,
                high=[total.reach + answer_step] * order,
                record_axis=None,
                clipping=None,
                asked=asked,
                sensitivity=total.sensitivity,
                parted=math.sqrt(total.entries) * answer_step if shift else 0.0,
            )
            return Fitted(
                recipe=recipe,
                mu=real,
                records=rule,
                answer_step=answer_step,
                shift=shift,
                words=total.power,
            )
        case SphericalNoise():  # whose sum with the answer is rounded: the answer itself is not
            rule, answer_step, _ = _fine(total, total.room(_ANSWER_BITS))
            spherical = fit_spherical(
                noise, low=-total.reach, high=total.reach, record_axis=None, clipping=None
            )
            return Fitted(
                recipe=spherical, mu=None, records=rule, answer_step=answer_step, words=total.power
            )
    raise InvalidMechanism(
        f"noise {type(noise).__name__} cannot be fitted; use i.i.d., Kronecker or spherical noise"
    )


def _fit_iid(noise: IidNoise, total: Total, mu: float | None, asked: int | None) -> Fitted:
    """The sum is rounded to the noise's grid; where that would cost too much, the records lie on
    that very grid.
    """

    def fits(ratio: float) -> bool:
        return total.reach * ratio / noise.sigma < 2.0**_ANSWER_BITS

    def growth(ratio: float) -> float:
        return noise.sigma / ratio * math.sqrt(total.entries) / total.sensitivity.radius

    ratio = float(asked or DEFAULT_RATIO)
    while asked is None and ratio > 2**6 and not fits(ratio):
        ratio /= 2
    if not fits(ratio):
        raise OutOfReach(
            f"the answer may reach {total.reach * ratio / noise.sigma:.3g} grid steps, more than"
            f" 2^{_ANSWER_BITS}; release"
            " fewer records or use a smaller noise.steps_per_sigma"
        )
    while asked is None and growth(ratio) > _GROWTH and ratio < LARGEST_RATIO and fits(2 * ratio):
        ratio *= 2
    sigma, shift = noise.sigma, 0
    if growth(ratio) <= _MOST_GROWTH:
        grown = sigma / (1 - growth(ratio)) * (1 + 1e-14)
        shift = _finer(total, grown / ratio)
        sigma = grown if shift else sigma
    while not shift and asked is None and ratio < LARGEST_RATIO and fits(2 * ratio):
        if total.ranges is None and total.largest * 2 * ratio / sigma > CLIP_LIMIT:
            break
        ratio *= 2
    answer_step = sigma / ratio
    fine = math.ldexp(answer_step, -shift)
    rule = total.rule(fine if total.power == 1 else math.nextafter(math.sqrt(fine), math.inf))
    grid = Grid(
        step=answer_step, ratio=ratio, low=-(2**50), high=2**50
    )  # bounds that tell nothing of the data
    recipe = IidRecipe(noise=IidNoise(noise.shape, sigma), grid=grid)
    return Fitted(
        recipe=recipe, mu=mu, records=rule, answer_step=answer_step, shift=shift, words=total.power
    )


def _finer(total: Total, answer_step: float) -> int:
    """By how many bits the unit of the sum may be finer than that of the answer."""
    steps = math.log2(total.largest) * total.power - math.log2(answer_step)
    wanted = math.floor(
        min(total.power * total.entry_bits, total.room(_SUM_BITS * total.power)) - steps
    )
    return max(0, min(wanted, _SUM_BITS - 2))


def _fine(total: Total, room: int) -> tuple[RecordRule, float, int]:
    """Records of ``room`` bits at most on a grid of powers of two; the unit of the answer, and how
    far it is rounded.
    """
    bits = min(total.entry_bits, room // total.power) - 1
    if bits < 8:
        raise OutOfReach(f"{total.records} records are too many for an exact sum; release fewer")
    rule = total.rule(fine_clip_grid(total.largest, bits=bits).step)
    shift = max(0, (rule.grid.high**total.power * total.records).bit_length() - _ANSWER_BITS)
    return rule, math.ldexp(rule.grid.step**total.power, shift), shift

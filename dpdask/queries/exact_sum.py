"""Exact sums of many records, and how they meet the noise's grid.

Records are whole numbers of a step so fine that rounding them, all in the same direction at worst,
does not add up to more than the noise; their sum is exact in integers. Before noise is added the
sum is rounded, once, to the noise's own coarser grid: that increases the distance between
neighbouring answers by at most one step in every entry, and the noise grows by as much.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdask.errors import InvalidMechanism, InvalidSensitivity, OutOfReach
from dpdask.noise import IidNoise, KroneckerNoise, LaplaceNoise, Noise, SphericalNoise
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.privatizers.clipping import fine_clip_grid
from dpdask.privatizers.discretize import discretize
from dpdask.privatizers.grid import (
    CLIP_LIMIT,
    DEFAULT_STEPS_PER_SIGMA,
    MAX_STEPS_PER_SIGMA,
    MIN_STEPS_PER_SIGMA,
    SUM_LIMIT,
    Grid,
)
from dpdask.privatizers.iid import IidPrivatizer, LaplacePrivatizer
from dpdask.queries.center import ORIGIN, Center
from dpdask.queries.records import Ranges, RecordRule
from dpdask.sensitivity import SensitivitySet, known_l1
from dpdask.types import Floats, Integers, Json, Shape

__all__ = ["ExactSum", "SumBounds", "discretize_sum"]

_SUM_BITS = 62  # of a sum, in an int64; of products there are two
_ANSWER_BITS = 49  # of an answer, in steps of the noise's grid, which must be exact in a double
_LITTLE_GROWTH = 2.0**-14  # of the noise: a finer grid is not worth its bits
_MOST_GROWTH = 0.01
_WORD = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class ExactSum:
    """How an exact sum of integers is computed and becomes values on the grid of the answer.

    Args:
        records: How records become integers; None where they are counted.
        answer_step: The value of an answer's integer 1.
        shift: How many of the sum's last bits are rounded away.
        words: 1 for a sum of 64 bits; 2 for one of two words, high * 2^32 + low, along a first axis
            of its own.
        own_grid: Whether the answer is rounded to a grid that is not the noise's.
    """

    records: RecordRule | None = None
    answer_step: float = 1.0
    shift: int = 0
    words: int = 1
    own_grid: bool = False

    def answer(self, total: Integers) -> Floats:
        """Return an exact sum as values on the grid of the answer."""
        half = (1 << self.shift) >> 1
        if self.words == 1:
            rounded = (total + half) >> self.shift
        else:
            low = total[1] + (half & _WORD)
            high = total[0] + (half >> 32) + (low >> 32)
            low &= _WORD
            if self.shift < 32:
                rounded = (high << 32 - self.shift) + (low >> self.shift)
            else:
                rounded = high >> self.shift - 32
        return rounded.astype(np.float64) * self.answer_step

    def rule(self) -> RecordRule:
        """Return how records become integers; a sum of counts has no such rule."""
        if self.records is None:
            raise InvalidSensitivity(
                "summed records have no rule that bounds them; discretize the query first"
            )
        return self.records

    def to_dict(self) -> Json:
        """Return the grid of the records, and that of their sum where it has one of its own."""
        if self.records is None:
            return {}
        own = {"answer_step": self.answer_step} if self.own_grid else {}
        return {"record_step": self.records.grid.step, **own}


@dataclass(frozen=True, kw_only=True)
class SumBounds:
    """A sum over records of their entries (``power`` 1) or of products of two of them (2).

    Args:
        largest: The bound of an entry of a record; a product is at most its square.
        power: 1 for sums of entries, 2 for sums of products.
        records: How many records there are, or may be where that is private.
        sensitivity: What one privacy unit can change of the sum.
        shape: The shape of the sum.
        record_axis: The axis of the source along which records lie.
        ranges: The ranges of the records' entries; None where records are clipped.
        center: What is subtracted from records before they are bounded.
    """

    largest: float
    power: int
    records: int
    sensitivity: SensitivitySet
    shape: Shape
    record_axis: int
    ranges: Ranges | None = None
    center: Center = ORIGIN

    @property
    def entries(self) -> int:
        """How many numbers the sum holds."""
        return math.prod(self.shape)

    @property
    def entry_bits(self) -> int:
        """Bits of an entry's bound, in steps.

        As many as leave squares and products exact in doubles, a thousand of them added.
        """
        if self.power == 2:
            return 21
        return 25 if self.ranges is None else 50

    def record_bits(self, bits: int) -> int:
        """Return how many bits a sum of ``bits`` bits leaves for one record."""
        return bits - (self.records - 1).bit_length()

    @property
    def reach(self) -> float:
        """No entry of the sum is larger."""
        return self.largest**self.power * self.records

    def answer_bounds(self, margin: float = 0.0, prior_rounding: float = 0.0) -> AnswerBounds:
        """Return the bounds of the answer, ``margin`` wider than the sum's."""
        reach = self.reach + margin
        if not math.isfinite(reach):
            raise OutOfReach(
                f"a sum of {self.records} records of up to {self.largest:g} leaves the range of"
                " doubles; rescale the data"
            )
        return AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-reach,) * len(self.shape),
            high=(reach,) * len(self.shape),
            rounded_entries=self.entries,
            prior_rounding=prior_rounding,
        )

    def rule(self, step: float) -> RecordRule:
        """Return how records become integers of ``step``, bounded inwards."""
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
        steps_per_sigma = DEFAULT_STEPS_PER_SIGMA
        grid = Grid(step=step, steps_per_sigma=steps_per_sigma, low=-bound, high=bound)
        pairs = () if self.ranges is None else self.ranges.pairs
        for low, high in pairs:  # every range must hold a point of the grid
            Grid.for_range(sigma=step * steps_per_sigma, low=low, high=high)
        return RecordRule(
            grid=grid, record_axis=self.record_axis, ranges=self.ranges, center=self.center
        )

    def fine_sum(self, record_bits: int) -> ExactSum:
        """Return the sum of records of at most ``record_bits`` bits, on a grid of powers of two."""
        bits = min(self.entry_bits, record_bits // self.power) - 1
        if bits < 8:
            raise OutOfReach(f"{self.records} records are too many for an exact sum; release fewer")
        rule = self.rule(fine_clip_grid(self.largest, bits=bits).step)
        largest_sum = rule.grid.high**self.power * self.records
        shift = max(0, largest_sum.bit_length() - _ANSWER_BITS)
        answer_step = math.ldexp(rule.grid.step**self.power, shift)
        return ExactSum(records=rule, answer_step=answer_step, shift=shift, words=self.power)

    def finer_bits(self, answer_step: float) -> int:
        """Return by how many bits the step of the sum may be finer than that of the answer."""
        steps = math.log2(self.largest) * self.power - math.log2(answer_step)
        most = min(self.power * self.entry_bits, self.record_bits(_SUM_BITS * self.power))
        return max(0, min(math.floor(most - steps), _SUM_BITS - 2))


@functools.singledispatch
def discretize_sum(
    noise: Noise, bounds: SumBounds, *, mu: float | None, steps_per_sigma: int | None
) -> tuple[Discretized, ExactSum]:
    """Return the noise on its grid, and how the exact sum meets it.

    Args:
        noise: The noise as it was calibrated.
        bounds: What is known of the sum.
        mu: The mu of Gaussian noise as it was calibrated; None for other noise.
        steps_per_sigma: The user's choice of a grid; None lets discretization choose.

    Raises:
        OutOfReach: No grid holds the sum exactly.
        InvalidMechanism: Noise of this distribution cannot be added to a sum.
    """
    raise InvalidMechanism(
        f"noise {type(noise).__name__} has no grid; use i.i.d., Laplace, Kronecker or spherical"
        " noise"
    )


@discretize_sum.register(KroneckerNoise)
def _sum_on_whitened_grid(
    noise: KroneckerNoise, bounds: SumBounds, *, mu: float | None, steps_per_sigma: int | None
) -> tuple[Discretized, ExactSum]:
    """Round the sum to a grid of powers of two, then its whitened entries to the noise's grid."""
    exact_sum = bounds.fine_sum(bounds.record_bits(_SUM_BITS * bounds.power))
    step = exact_sum.answer_step
    prior_rounding = math.sqrt(bounds.entries) * step if exact_sum.shift else 0.0
    answer = bounds.answer_bounds(margin=step, prior_rounding=prior_rounding)
    discretized = discretize(noise, answer, mu=mu, steps_per_sigma=steps_per_sigma)
    return discretized, dataclasses.replace(exact_sum, own_grid=exact_sum.shift > 0)


@discretize_sum.register(SphericalNoise)
def _sum_of_spherical(
    noise: SphericalNoise, bounds: SumBounds, *, mu: float | None, steps_per_sigma: int | None
) -> tuple[Discretized, ExactSum]:
    """Leave the sum as it is: its own sum with the noise is rounded."""
    exact_sum = dataclasses.replace(bounds.fine_sum(bounds.record_bits(_ANSWER_BITS)), shift=0)
    answer = bounds.answer_bounds()
    return discretize(noise, answer, mu=mu, steps_per_sigma=steps_per_sigma), exact_sum


@discretize_sum.register(IidNoise)
def _sum_on_iid_grid(
    noise: IidNoise, bounds: SumBounds, *, mu: float | None, steps_per_sigma: int | None
) -> tuple[Discretized, ExactSum]:
    """Round the sum to the grid of Gaussian noise, at the cost of sqrt(entries) steps in l2."""
    scaled = _Scaled(
        scale=noise.sigma,
        sensitivity=bounds.sensitivity.radius,
        moved_steps=math.sqrt(bounds.entries),
        bounds=bounds,
    )

    def privatizer(sigma: float, grid: Grid) -> IidPrivatizer:
        return IidPrivatizer(noise=IidNoise(noise.shape, sigma), grid=grid)

    return _sum_on_one_grid(scaled, privatizer, mu=mu, steps_per_sigma=steps_per_sigma)


@discretize_sum.register(LaplaceNoise)
def _sum_on_laplace_grid(
    noise: LaplaceNoise, bounds: SumBounds, *, mu: float | None, steps_per_sigma: int | None
) -> tuple[Discretized, ExactSum]:
    """Round the sum to the grid of Laplace noise, at the cost of a step per entry in l1."""
    scaled = _Scaled(
        scale=noise.scale,
        sensitivity=known_l1(bounds.sensitivity),
        moved_steps=float(bounds.entries),
        bounds=bounds,
    )

    def privatizer(scale: float, grid: Grid) -> IidPrivatizer:
        return LaplacePrivatizer(noise=LaplaceNoise(noise.shape, scale), grid=grid)

    return _sum_on_one_grid(scaled, privatizer, mu=None, steps_per_sigma=steps_per_sigma)


@dataclass(frozen=True, kw_only=True)
class _Scaled:
    """Noise of one scale on a sum, and what rounding the sum costs it.

    Args:
        scale: The sigma of Gaussian noise, the scale of Laplace noise.
        sensitivity: The sensitivity of the sum, in the norm of the noise.
        moved_steps: By how many steps rounding increases the distance between neighbouring sums.
        bounds: What is known of the sum.
    """

    scale: float
    sensitivity: float
    moved_steps: float
    bounds: SumBounds

    def fits(self, steps: float) -> bool:
        """Return whether a sum in so many steps per scale is exact in a double."""
        return self.bounds.reach * steps / self.scale < 2.0**_ANSWER_BITS

    def growth(self, steps: float) -> float:
        """Return by which share of the sensitivity rounding the sum increases distances."""
        return self.scale / steps * self.moved_steps / self.sensitivity

    def sum_steps(self, steps_per_sigma: int | None) -> float:
        """Return steps that hold the sum and, if the user leaves the choice, cost little."""
        steps = float(steps_per_sigma or DEFAULT_STEPS_PER_SIGMA)
        chosen = steps_per_sigma is not None
        while not chosen and steps > MIN_STEPS_PER_SIGMA and not self.fits(steps):
            steps /= 2
        if not self.fits(steps):
            raise OutOfReach(
                f"the answer may reach {self.bounds.reach * steps / self.scale:.3g} grid steps,"
                f" more than 2^{_ANSWER_BITS}; release fewer records or use a smaller"
                " noise.steps_per_sigma"
            )
        if chosen:
            return steps
        while self.growth(steps) > _LITTLE_GROWTH and self.may_double(steps):
            steps *= 2
        return steps

    def finest_record_steps(self, steps: float) -> float:
        """Return the most steps at which records can lie on the noise's own grid."""
        bounds = self.bounds
        while self.may_double(steps):
            if bounds.ranges is None and bounds.largest * 2 * steps / self.scale > CLIP_LIMIT:
                break
            steps *= 2
        return steps

    def may_double(self, steps: float) -> bool:
        """Return whether a grid of twice as many steps holds the sum too."""
        return steps < MAX_STEPS_PER_SIGMA and self.fits(2 * steps)


def _sum_on_one_grid(
    noise: _Scaled,
    privatizer: Callable[[float, Grid], IidPrivatizer],
    *,
    mu: float | None,
    steps_per_sigma: int | None,
) -> tuple[Discretized, ExactSum]:
    """Round the sum to the noise's grid; where that costs too much, records lie on that grid.

    Args:
        noise: The scale of the noise, and what rounding costs.
        privatizer: Builds the privatizer from the scale that is really added, and its grid.
        mu: The mu of Gaussian noise as it was calibrated; None for other noise.
        steps_per_sigma: The user's choice of a grid; None chooses.
    """
    bounds, scale, shift = noise.bounds, noise.scale, 0
    steps = noise.sum_steps(steps_per_sigma)
    growth = noise.growth(steps)
    if growth <= _MOST_GROWTH:
        grown = scale / (1 - growth) * (1 + 1e-14)
        shift = bounds.finer_bits(grown / steps)
        scale = grown if shift else scale
    if not shift and steps_per_sigma is None:
        steps = noise.finest_record_steps(steps)
    answer_step = scale / steps
    fine = math.ldexp(answer_step, -shift)
    rule = bounds.rule(fine if bounds.power == 1 else math.nextafter(math.sqrt(fine), math.inf))
    # bounds of the grid that tell nothing of the data
    grid = Grid(step=answer_step, steps_per_sigma=steps, low=-SUM_LIMIT, high=SUM_LIMIT)
    discretized = Discretized(
        privatizer=privatizer(scale, grid),
        mu=mu,
        rounding=noise.moved_steps * answer_step / scale if shift else 0.0,
    )
    return discretized, ExactSum(
        records=rule, answer_step=answer_step, shift=shift, words=bounds.power
    )

"""Covariances: second moments around a public centre, or around a mean that is released with them.

M is the sum of products of the records' distances from a public centre, T the sum of the distances
and n the number of records; each is a noisy part of one answer where it is private
(:mod:`~dpdask.queries.joint_moments` has their common sensitivity). What is published follows from
the noisy parts:

    m = T / n,    mean = centre + m,    covariance = M / n - m m' + (s / n)^2 I,

s being the standard deviation of the noise of T: the last term takes back what its square adds to
m m' on average. Around a public centre m is 0 and no sum is released.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np

from dpdask.errors import OutOfReach
from dpdask.noise import Deviations, IidNoise, Noise, Tail
from dpdask.noise.rounding import product_rounding
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.queries.base import COUNT, DATA, NOISE_STD, BesideArray, Reader, SidePart
from dpdask.queries.exact_sum import ExactSum
from dpdask.queries.joint_moments import MomentShape, joint_square
from dpdask.queries.people import first_codes
from dpdask.queries.records import Ranges
from dpdask.queries.second_moment import SecondMoment, SecondMomentRules
from dpdask.queries.verification import RecordedAnswer, RecordedPart, register_query_rules
from dpdask.sensitivity import L2Ball, SensitivitySet
from dpdask.types import Floats, Integers, Json, Region, Shape

__all__ = ["Covariance", "JointCovariance"]

SUM = "sum"
MEAN = "mean"
MEAN_NOISE_STD = f"{MEAN}_{NOISE_STD}"
_EXACT = 2**53  # integers up to it are exact in doubles


@dataclass(frozen=True, kw_only=True)
class Covariance(SecondMoment):
    """Second moments around a public centre, divided by the public number of records."""

    name: ClassVar[str] = "covariance"

    def moment_ranges(self) -> Ranges:
        """Return the ranges of distances from the centre."""
        assert isinstance(self.bound, Ranges)
        return Ranges(
            pairs=self.bound.centered(),
            feature_axis=self.bound.feature_axis,
            record_axis=self.bound.record_axis,
        )


@dataclass(frozen=True, kw_only=True)
class JointCovariance(Covariance):
    """A covariance with the mean it is around, or with the number of records, or with both.

    Args:
        sum_scale: The noise of the sum over that of the moments; None around a public centre.
        count_scale: The noise of the count over that of the moments; None where it is public.
    """

    name: ClassVar[str] = "joint-covariance"
    sum_scale: float | None
    count_scale: float | None

    @property
    def spec_name(self) -> str:
        """A covariance, whatever is released with it."""
        return "covariance"

    @property
    def whole(self) -> bool:
        """All features at once, since every entry depends on two means."""
        return self.sum_scale is not None

    @property
    def norm_power(self) -> int:
        """Norms of records, where these are added up for a mean."""
        return 2 if self.sum_scale is None else 1

    @property
    def divided_by_count(self) -> bool:
        """Unless the number of records is public."""
        return self.count_scale is not None

    def deviations(self, noises: Mapping[str, Noise], *, distance: float) -> Deviations:
        """Return those of the covariance, times a private count, at a mean so far from the centre
        and a covariance of half the norm that a record allows; the diagonal's first.
        """
        stds = {name: noise.entry_std for name, noise in noises.items()}
        moments, of_mean = stds[DATA] ** 2, (distance * stds.get(SUM, 0.0)) ** 2
        of_count = (self.reach**2 / (2 * self.features) * stds.get(COUNT, 0.0)) ** 2
        variances = np.array([moments + 4 * of_mean, moments / 2 + 2 * of_mean]) + of_count
        on_diagonal = 1 / self.features
        shares = np.array([on_diagonal, 1 - on_diagonal])
        kept = shares > 0
        deviations = Deviations(np.sqrt(variances)[kept], shares[kept], Tail.GAUSSIAN)
        return deviations.scaled(1 / self.divisor)

    @property
    def beside(self) -> tuple[SidePart, ...]:
        """The sum and the count."""
        records = float(self.public_records)
        parts = []
        if self.sum_scale is not None:
            largest = self.sum_bounds().largest * records
            parts.append(self._part(SUM, (self.features,), self.sum_scale, largest))
        if self.count_scale is not None:
            parts.append(self._part(COUNT, (1,), self.count_scale, records))
        return tuple(parts)

    def _part(self, name: str, shape: Shape, scale: float, largest: float) -> SidePart:
        bounds = AnswerBounds(
            sensitivity=self.sensitivity,
            low=(-largest,),
            high=(largest,),
            rounded_entries=math.prod(shape),
        )
        return SidePart(
            name=name,
            shape=shape,
            scale=scale,
            aligned=False,
            bounds=bounds,
            in_record_steps=name == SUM,
        )

    def discretize(
        self, noise: Noise, *, mu: float | None, steps_per_sigma: int | None
    ) -> tuple[Discretized, ExactSum]:
        """Bound records in steps so coarse that their sum is exact in a double, too."""
        discretized, exact_sum = super().discretize(noise, mu=mu, steps_per_sigma=steps_per_sigma)
        if exact_sum.rule().grid.high * self.public_records >= _EXACT:
            raise OutOfReach(
                f"{self.public_records} records are too many for an exact mean beside their"
                " covariance; release fewer"
            )
        return discretized, exact_sum

    def partials(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> dict[str, Integers]:
        """Return the sums of products, of records and of ones over some records."""
        words, total = self.moments(source, exact_sum, answer_box, records, factors)
        sums = {DATA: words}
        if self.sum_scale is not None:
            sums[SUM] = total
        if self.count_scale is not None:
            sums[COUNT] = np.array([np.sum(first_codes(source, records) + 1)], np.int64)
        return sums

    @property
    def arrays_beside(self) -> tuple[BesideArray, ...]:
        """The mean, the count, and the standard deviation of every entry's noise."""
        arrays = []
        if self.sum_scale is not None:
            row = (self.features,)
            mean = BesideArray(suffix=MEAN, shape=row, aligned=False, long_name="noisy mean")
            std = BesideArray.noise_std(row, aligned=False)
            arrays += [mean, dataclasses.replace(std, suffix=MEAN_NOISE_STD)]
        if self.count_scale is not None:
            arrays.append(BesideArray.count((), aligned=False))
        return (*arrays, BesideArray.noise_std(self.answer_shape, aligned=True))

    def release(
        self, noisy: Mapping[str, Floats], stds: Mapping[str, float], box: Region
    ) -> dict[str, Floats]:
        """Return the covariance, from noisy parts; see the module's docstring.

        The standard deviations are those of the first order in the noise of all parts.
        """
        count = float(np.max(noisy[COUNT], initial=1.0)) if COUNT in noisy else self.records
        with np.errstate(all="ignore"):  # no value may be told from another by a warning
            return self._published(
                noisy, {name: std / count for name, std in stds.items()}, count, box
            )

    def _published(
        self, noisy: Mapping[str, Floats], stds: Mapping[str, float], count: float, box: Region
    ) -> dict[str, Floats]:
        """Return what is published, by operations that every machine rounds alike.

        Args:
            noisy: The noisy parts.
            stds: The standard deviations of their noise, over the count.
            count: What they are divided by.
            box: The region of the answer.
        """
        diagonal = np.equal.outer(*(np.arange(part.start, part.stop) for part in box))
        covariance = noisy[DATA] / count
        variance = (1 + diagonal) / 2 * _square(stds[DATA])
        of_count = _square(stds.get(COUNT, 0.0))
        released: dict[str, Floats] = {}
        means: Floats | float = 0.0  # the products of two of them
        if SUM in noisy:
            mean, of_mean = noisy[SUM] / count, _square(stds[SUM])
            left, right = mean[box[0]][:, None], mean[box[1]][None, :]
            means = left * right
            covariance += diagonal * of_mean - means
            variance += of_mean * (_square(left) + _square(right) + 2 * diagonal * means)
            center = self.bound.center.without(self.record_axis, mean.shape)
            released[MEAN] = center + mean
            released[MEAN_NOISE_STD] = np.sqrt(of_mean + of_count * _square(mean))
        if COUNT in noisy:
            variance += of_count * _square(means - covariance)
            released[COUNT] = noisy[COUNT]
        return {**released, DATA: covariance, NOISE_STD: np.sqrt(variance)}

    def to_dict(self) -> Json:
        """Return also whether the centre is private, and whether records are counted."""
        return {
            **super().to_dict(),
            "center": "public" if self.sum_scale is None else "private",
            "counts": "none" if self.count_scale is None else "records",
        }


_Numbers = TypeVar("_Numbers", float, Floats)


def _square(numbers: _Numbers) -> _Numbers:
    """Return squares as products: powers may be rounded otherwise elsewhere."""
    return numbers * numbers


class CovarianceRules(SecondMomentRules):
    """Products of distances from a public centre, symmetrised."""

    def moment_ranges(self, answer: RecordedAnswer) -> tuple[tuple[float, float], ...]:
        """Return the ranges of distances from the centre."""
        pairs = super().moment_ranges(answer)
        centers = np.broadcast_to(np.asarray(answer.bound["center"], dtype=float), len(pairs))
        return tuple((low - c, high - c) for (low, high), c in zip(pairs, centers, strict=True))


class JointCovarianceRules(CovarianceRules):
    """The joint radius of second moments, of a sum and of a count."""

    noise_varies = True

    def published_parts(self, query: Json) -> tuple[str, ...]:
        """The mean with its noise, and the count."""
        mean = (MEAN, MEAN_NOISE_STD) if query["center"] == "private" else ()
        return mean if query["counts"] == "none" else (*mean, COUNT)

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records move all parts together."""
        shape = MomentShape(
            reach=self.reach(answer),
            features=answer.shape[0],
            summed=answer.query["center"] == "private",
            counted=answer.query["counts"] == "records",
            adjacency=answer.sensitivity.adjacency,
            together=answer.contributions if answer.together else None,
        )
        scales = {part.name: _sigma(part) / _sigma(answer) for part in answer.parts}
        square = joint_square(shape, sum_scale=scales.get(SUM), count_scale=scales.get(COUNT))
        return answer.bounds_per_unit * math.sqrt(square)

    def covers(self, sensitivity: SensitivitySet, answer: RecordedAnswer) -> bool:
        """Allow a ball, for i.i.d. noise on the parts that follow from the query."""
        features, columns = answer.shape
        expected = [(SUM, (features,))] if answer.query["center"] == "private" else []
        counted = answer.query["counts"] == "records"
        if counted:
            expected.append((COUNT, (1,)))
        parts = [(part.name, part.noise.tensor_shape) for part in answer.parts]
        private = answer.private_count or (counted and answer.enforced)
        follows = features == columns and bool(expected) and parts == expected
        return isinstance(sensitivity, L2Ball) and counted == private and follows

    def part_rounding(self, answer: RecordedAnswer, name: str) -> float:
        """Return the cost of rounding every entry of a part."""
        [part] = (part for part in answer.parts if part.name == name)
        most = max(abs(part.grid["low"]), abs(part.grid["high"]))
        entries = math.prod(part.noise.tensor_shape)
        return product_rounding(step=float(part.grid["step"]), entries=entries, most=most)


def _sigma(answer: RecordedAnswer | RecordedPart) -> float:
    if not isinstance(answer.noise, IidNoise):
        raise TypeError("the parts of a joint answer take i.i.d. noise")
    return answer.noise.sigma


register_query_rules(Covariance.name, CovarianceRules())
register_query_rules(JointCovariance.name, JointCovarianceRules())

"""What every query knows: the shape of its answer, what one privacy unit can change, its bounds."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dpdask.errors import InvalidSpec
from dpdask.noise import Deviations, Noise, NoiseLevel
from dpdask.privacy import Adjacency
from dpdask.privatizers.base import Discretized
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.privatizers.discretize import discretize
from dpdask.queries.axes import AnswerAxis
from dpdask.queries.beside import COUNT, DATA, NOISE_STD, BesideArray
from dpdask.queries.exact_sum import ExactSum, SumBounds, discretize_sum
from dpdask.queries.people import People
from dpdask.queries.reader import Reader
from dpdask.queries.records import Clip, Ranges
from dpdask.sensitivity import SensitivitySet
from dpdask.types import Floats, Integers, Json, Region, Shape

__all__ = [
    "COUNT",
    "DATA",
    "NOISE_STD",
    "BesideArray",
    "Query",
    "Reader",
    "RecordSumQuery",
    "SidePart",
    "SummedQuery",
]

PRIVATE_COUNT = 2**30  # stands for the number of records where that is private; more are refused


@dataclass(frozen=True, kw_only=True)
class SidePart:
    """A further noisy sum of an answer: counts beside a sum, a sum beside second moments.

    Args:
        name: Its name, and the ending of the array that it is published as.
        shape: Its shape.
        scale: The standard deviation of its noise over that of the main part.
        aligned: Whether it has the shape, and so the tiles, of the main part; else it is one tile.
        bounds: What is known of it before noise is added.
        in_record_steps: Whether its integers are those of the records; else they are counts.
    """

    name: str
    shape: Shape
    scale: float
    aligned: bool
    bounds: AnswerBounds
    in_record_steps: bool = False


@dataclass(frozen=True, kw_only=True)
class Query(abc.ABC):
    """A question to the source.

    A query is registered for verification under its ``name``
    (:func:`dpdask.queries.verification.register_query_rules`).

    Args:
        source_shape: The shape of the source.
        answer_shape: The shape of the answer.
        sensitivity: What one privacy unit can change of the answer.
        bound: How records are bounded; None for a finished result, or for counts.
        norm_bound: A public bound on the norm of the answer, where mechanisms need one.
        max_contributions: How many records one privacy unit has at most; 1 if clipped together.
        divisor: What the noisy answer is divided by: post-processing.
        people: Who the privacy units are, so that their contributions are enforced; None where
            they are declared.
    """

    name: ClassVar[str]
    symmetric: ClassVar[bool] = False
    summed: ClassVar[bool] = False
    source_shape: Shape
    answer_shape: Shape
    sensitivity: SensitivitySet
    bound: Clip | Ranges | None
    norm_bound: float | None
    max_contributions: int = 1
    divisor: int = 1
    people: People | None = None

    @property
    def spec_name(self) -> str:
        """The query as a spec names it; one name there may lead to several queries."""
        return self.name

    @property
    def units_axis(self) -> int | None:
        """The axis of the source along which the protected records lie; None where it has none."""
        return None if self.bound is None else self.bound.record_axis

    @property
    def norm_power(self) -> int:
        """What the clip norm of a person bounds: the sum of norms of records (1), or of squares."""
        return 2

    @property
    def most_records(self) -> int:
        """How many records one privacy unit may have in the answer."""
        axis = self.units_axis
        if axis is None or self.people is None or self.people.limited:
            return self.max_contributions
        return self.source_shape[axis]

    @property
    def missing_values(self) -> str:
        """What missing values do, in words."""
        return "count as the centre"

    @property
    def values_per_record(self) -> int:
        """How many values of the source one record has."""
        axes = enumerate(self.source_shape)
        return math.prod(length for axis, length in axes if axis != self.units_axis)

    @property
    def labels(self) -> dict[str, tuple[int | str, ...] | None]:
        """The arrays of one entry per record that the query reads beside the source: their groups,
        None for numbers.
        """
        return {}

    @property
    def new_axes(self) -> tuple[AnswerAxis, ...]:
        """The leading axes of the answer that the source does not have: groups and bins."""
        return ()

    @property
    def beside(self) -> tuple[SidePart, ...]:
        """Further noisy sums, drawn beside the main part and charged with it."""
        return ()

    @property
    def arrays_beside(self) -> tuple[BesideArray, ...]:
        """Arrays that are published beside the main one."""
        return ()

    @property
    def noise_varies(self) -> bool:
        """Whether the noise of an entry depends on released numbers, and is published with them."""
        return any(array.suffix == NOISE_STD for array in self.arrays_beside)

    @property
    def records_in_entry(self) -> int | None:
        """How many records an entry of the answer adds up, 1 for a mean; None where that is
        private, or entries are not sums of records.
        """
        return None

    @property
    def whole(self) -> bool:
        """Whether what is published of an entry depends on all of the answer: it is one tile."""
        return False

    def offset(self, box: Region) -> Floats | None:
        """Return what is added to a region of the noisy answer after it was divided; None for
        nothing.
        """
        return None

    def release(
        self, noisy: Mapping[str, Floats], stds: Mapping[str, float], box: Region
    ) -> dict[str, Floats]:
        """Return what is published, computed from noisy parts alone: post-processing.

        Args:
            noisy: A region of every part, by name, with its noise; that of a symmetric answer is
                averaged with its transpose.
            stds: The standard deviation of every part's noise.
            box: The region of the answer.
        """
        return {DATA: noisy[DATA] / self.divisor}

    @abc.abstractmethod
    def bounds(self) -> AnswerBounds:
        """Return what is known of the answer before noise is added."""

    def discretize(
        self, noise: Noise, *, mu: float | None, steps_per_sigma: int | None
    ) -> tuple[Discretized, ExactSum | None]:
        """Return the noise on its grid, and how an exact sum meets it, where the answer is a sum.

        Args:
            noise: The noise as it was calibrated.
            mu: The mu of Gaussian noise as it was calibrated; None for other noise.
            steps_per_sigma: The user's choice of a grid; None lets discretization choose.
        """
        return discretize(noise, self.bounds(), mu=mu, steps_per_sigma=steps_per_sigma), None

    def noise_level(self, noise: Noise) -> NoiseLevel:
        """Return the noise of released entries, given that of the answer."""
        return NoiseLevel(noise=noise, divisor=self.divisor, symmetric=self.symmetric)

    def released_std(self, noise: Noise) -> float:
        """Return the root mean square of a released entry's noise."""
        return self.noise_level(noise).rms

    def deviations(self, noises: Mapping[str, Noise], *, distance: float) -> Deviations:
        """Return the standard deviations of released entries, before any division by a count that
        is released with them (:attr:`divided_by_count`).

        Args:
            noises: The noise of every part, by name.
            distance: How far a mean may lie from the centre, where its noise depends on that.
        """
        noise = noises[DATA]
        deviations = noise.deviations()
        if self.symmetric and deviations.least == deviations.largest:
            deviations = deviations.symmetrised(self.answer_shape[0])
        elif self.symmetric:
            deviations = Deviations.same(noise.symmetrised_std, deviations.tail)
        return deviations.scaled(1 / self.divisor)

    @property
    def public_count(self) -> float | None:
        """The count of an entry, if nothing is missing and groups are equally large.

        None where nothing is counted, or the number of records is private.
        """
        return None

    @property
    def public_count_if(self) -> str:
        """Under what condition an entry has the public count, in words."""
        return ""

    @property
    def divided_by_count(self) -> bool:
        """Whether entries are divided by a noisy count, so that their noise depends on it."""
        return False

    def entry_widths(self) -> tuple[float, ...] | None:
        """Return how far apart two possible values of a released entry lie, without noise.

        One number for all entries or one per feature of the ranges; None where it is not known, or
        depends on a private number of records.
        """
        if self.bound is None or self.records_in_entry is None:
            return None
        return tuple(width * self.records_in_entry for width in self.bound.widths)

    def to_dict(self) -> Json:
        """Return the query as it is recorded on the release card; nothing of the data."""
        description: Json = {"name": self.name, "answer_shape": list(self.answer_shape)}
        if self.divisor != 1:
            description["divisor"] = self.divisor
        return description

    def bound_to_dict(self, discretized: Discretized) -> Json:
        """Return how far one record reaches, and how that is enforced."""
        match self.bound:
            case Clip(norm=norm, center=center):
                where = {} if center.zero else center.to_dict()
                return {"kind": "l2-clip", "norm": norm, **where, "enforced": True}
            case Ranges(pairs=pairs, center=center):
                ranges = [list(pair) for pair in pairs]
                return {"kind": "ranges", "ranges": ranges, **center.to_dict(), "enforced": True}
            case _:
                return {"kind": "none", "enforced": False}


@dataclass(frozen=True, kw_only=True)
class SummedQuery(Query):
    """A query whose answer is an integer sum over records, partial sums added in any order."""

    summed: ClassVar[bool] = True
    one_pass: ClassVar[bool] = False  # whether one pass over the records computes all of the answer
    record_axis: int

    @property
    def units_axis(self) -> int:
        """The axis that is summed over."""
        return self.record_axis

    @property
    def records(self) -> int:
        """How many records there are."""
        return self.source_shape[self.record_axis]

    @property
    def public_records(self) -> int:
        """The number of records where it is public, else one number for all.

        Guarantee: no published figure depends on a private number of records.
        """
        if self.count_is_public:
            return self.records
        if self.records > PRIVATE_COUNT:
            raise InvalidSpec(
                "the source has more than the 2^30 records that add-remove-one releases allow;"
                " release parts of it"
            )
        return PRIVATE_COUNT

    def discretize(
        self, noise: Noise, *, mu: float | None, steps_per_sigma: int | None
    ) -> tuple[Discretized, ExactSum]:
        """Round exact counts to the noise's grid."""
        discretized = discretize(noise, self.bounds(), mu=mu, steps_per_sigma=steps_per_sigma)
        return discretized, ExactSum()

    @property
    def count_is_public(self) -> bool:
        """Whether the number of records is public."""
        return self.sensitivity.adjacency is Adjacency.REPLACE_ONE

    def region(self, records: int) -> Shape:
        """Return the shape of what :meth:`partial` reads of so many records, at most."""
        return tuple(
            records if axis == self.record_axis else size
            for axis, size in enumerate(self.source_shape)
        )

    def summing_bytes(self, records: int) -> int:
        """Return what :meth:`partial` holds beside what it read: entries in steps, and a mask."""
        return 9 * math.prod(self.region(records))

    def partials(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> dict[str, Integers]:
        """Return the sums of all parts over some records; arguments as for :meth:`partial`."""
        return {DATA: self.partial(source, exact_sum, answer_box, records, factors)}

    def bias(self, exact_sum: ExactSum) -> float:
        """Return the most that bounding and rounding all records may move an entry."""
        return 0.0

    @abc.abstractmethod
    def partial(
        self,
        source: Reader,
        exact_sum: ExactSum,
        answer_box: Region,
        records: slice,
        factors: Floats | None,
    ) -> Integers:
        """Return the sum over some records of a region of the answer, in integers.

        Args:
            source: Where records are read.
            exact_sum: How they become integers.
            answer_box: The region of the answer.
            records: The range of records.
            factors: What clipped records are multiplied by; None where they are read whole.
        """


@dataclass(frozen=True, kw_only=True)
class RecordSumQuery(SummedQuery):
    """A sum of bounded records: integers of a grid so fine that rounding them is never seen."""

    @abc.abstractmethod
    def sum_bounds(self) -> SumBounds:
        """Return what is known of the sum."""

    def bounds(self) -> AnswerBounds:
        """Return the bounds of the sum."""
        return self.sum_bounds().answer_bounds()

    def discretize(
        self, noise: Noise, *, mu: float | None, steps_per_sigma: int | None
    ) -> tuple[Discretized, ExactSum]:
        """Bound records in fine steps, round their exact sum to the noise's grid."""
        return discretize_sum(noise, self.sum_bounds(), mu=mu, steps_per_sigma=steps_per_sigma)

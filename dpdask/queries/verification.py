"""What a verifier must know of a query, registered under the name that cards record.

Planning and ``dpdask verify`` compute the guarantee of a release from the same values, those on
the card, by the same rules. A new query registers its rules and needs no change elsewhere.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dpdask.errors import InvalidMechanism, VerificationFailed
from dpdask.noise import Noise, NoiseLevel
from dpdask.privacy import Adjacency
from dpdask.sensitivity import EntrywiseBox, L1Ball, L2Ball, Origin, RecordBox, SensitivitySet
from dpdask.types import Json, Shape

__all__ = [
    "QueryRules",
    "RecordedAnswer",
    "RecordedPart",
    "holds_ranges",
    "is_ball",
    "is_registered",
    "l1_of_ranges",
    "query_rules",
    "radius_of_ranges",
    "register_query_rules",
    "sum_rounding",
    "unregister_query_rules",
]

_CLOSE = 1 - 1e-12  # relative; floats survive JSON, but products may be taken in another order


@dataclass(frozen=True, kw_only=True)
class RecordedPart:
    """A further noisy sum of an answer, as a card describes it."""

    name: str
    noise: Noise
    grid: Json


@dataclass(frozen=True, kw_only=True)
class RecordedAnswer:
    """One noisy answer as a card describes it.

    Args:
        noise: The noise, its factors included.
        sensitivity: What one privacy unit can change of the answer.
        query: The query as recorded: its name, the shape of its answer, its own parameters.
        bound: How records are bounded, as recorded.
        grid: The grid, as recorded.
        record_axis: The axis of the source along which records lie.
        contributions: How many records one privacy unit has at most.
        steps: How many slices of the answer compose.
        parts: Further noisy sums that one privacy unit changes together with the answer.
        enforced: Whether ids enforce the contributions of a privacy unit.
        distinct: Whether all records of a privacy unit that count are in different cells.
        together: Whether the clip norm is that of all records of a privacy unit together.
        limited: Whether contributions are the most records of a privacy unit; else it may have any
            number of them, of one norm together.
    """

    noise: Noise
    sensitivity: SensitivitySet
    query: Json
    bound: Json
    grid: Json
    record_axis: int | None
    contributions: int
    steps: int = 1
    parts: tuple[RecordedPart, ...] = ()
    enforced: bool = False
    distinct: bool = False
    together: bool = False
    limited: bool = True

    @property
    def bounds_per_unit(self) -> int:
        """How many times the bound of a record one privacy unit may reach."""
        return 1 if self.together else self.contributions

    @property
    def most_records(self) -> int:
        """How many records one privacy unit may have in an answer that keeps records."""
        if self.limited or self.record_axis is None:
            return self.contributions
        return self.shape[self.record_axis]

    @property
    def name(self) -> str:
        """The name of the query."""
        return str(self.query["name"])

    @property
    def rules(self) -> QueryRules:
        """The rules of the query."""
        return query_rules(self.name)

    @property
    def shape(self) -> Shape:
        """The shape of the answer."""
        return tuple(self.query["answer_shape"])

    @property
    def entries(self) -> int:
        """How many numbers one slice of it holds."""
        return math.prod(self.shape) // self.steps

    @property
    def step(self) -> float:
        """The step of the grid."""
        return float(self.grid["step"])

    @property
    def grid_bound(self) -> float:
        """The largest absolute bound of the grid: steps for i.i.d. noise, else values."""
        return float(max(abs(self.grid["low"]), abs(self.grid["high"])))

    @property
    def private_count(self) -> bool:
        """Whether neighbours differ by the presence of a record."""
        return self.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE

    def range_widths(self) -> list[float]:
        """Return how far one record moves an entry of every feature, by the ranges recorded."""
        return [
            max(abs(low), abs(high)) if self.private_count else high - low
            for low, high in self.bound["ranges"]
        ]

    def mismatch(self) -> VerificationFailed:
        """Return the error of a bound that does not belong to its query."""
        return VerificationFailed(
            f"a bound of kind {self.bound['kind']!r} does not go with query {self.name!r}"
        )


class QueryRules(abc.ABC):
    """What a verifier must know of a query.

    Attributes:
        keeps_records: Whether records keep their places in the answer.
        symmetric: Whether the noisy answer is averaged with its transpose.
        noise_varies: Whether the query publishes the noise of every entry beside it.
        origins: Where the sensitivity comes from, by the kind of the bound.
    """

    keeps_records: ClassVar[bool] = False
    symmetric: ClassVar[bool] = False
    noise_varies: ClassVar[bool] = False
    origins: ClassVar[Mapping[str, Origin]] = {
        "l2-clip": Origin.CLIPPED,
        "count": Origin.CLIPPED,
        "ranges": Origin.PUBLIC_RANGE,
        "declared": Origin.DECLARED,
    }

    @abc.abstractmethod
    def least_radius(self, answer: RecordedAnswer) -> float:
        """Return the l2 sensitivity that follows from the recorded bound."""

    @abc.abstractmethod
    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return by how much rounding to the grid of i.i.d. noise increases the l2 distance."""

    def values_per_record(self, answer: RecordedAnswer) -> int:
        """Return how many values one record has, where the answer tells."""
        raise answer.mismatch()

    def part_rounding(self, answer: RecordedAnswer, name: str) -> float:
        """Return by how much rounding a further part increases its l2 distance."""
        raise answer.mismatch()

    def published_parts(self, query: Json) -> tuple[str, ...]:
        """Return the suffixes of the arrays that hold further noisy parts, or are divided by them.

        Args:
            query: The query as recorded.
        """
        return ()

    def least_l1(self, answer: RecordedAnswer) -> float:
        """Return the l1 sensitivity that follows from the recorded bound, or more.

        Here that of any difference of the l2 sensitivity.
        """
        return self.least_radius(answer) * math.sqrt(answer.entries)

    def rounding_l1(self, answer: RecordedAnswer) -> float:
        """Return by how much rounding to the grid of Laplace noise increases the l1 distance.

        Here that of any difference of the l2 distance.
        """
        return self.rounding_l2(answer) * math.sqrt(answer.entries)

    def covers(self, sensitivity: SensitivitySet, answer: RecordedAnswer) -> bool:
        """Return whether a sensitivity set of sufficient radius holds all differences."""
        return is_ball(sensitivity) and not answer.parts

    def noise_level(self, noise: Noise, query: Json) -> NoiseLevel:
        """Return the noise of released entries, given that of the answer and the query recorded."""
        return NoiseLevel(noise=noise, divisor=query.get("divisor", 1), symmetric=self.symmetric)


_RULES: dict[str, QueryRules] = {}


def register_query_rules(name: str, rules: QueryRules) -> None:
    """Register what a verifier must know of the query that cards record as ``name``."""
    if name in _RULES:
        raise InvalidMechanism(f"query {name!r} is registered already; choose another name")
    _RULES[name] = rules


def unregister_query_rules(name: str) -> None:
    """Forget a query: its releases can no longer be planned or verified."""
    _RULES.pop(name, None)


def is_registered(name: str) -> bool:
    """Return whether a query of this name is known to verifiers."""
    return name in _RULES


def query_rules(name: str) -> QueryRules:
    """Return the rules of a query.

    Raises:
        InvalidMechanism: The query is not registered.
    """
    if name not in _RULES:
        raise InvalidMechanism(
            f"query {name!r} is unknown: the rounding of its answer cannot be computed; register"
            " its rules with dpdask.queries.register_query_rules"
        )
    return _RULES[name]


def is_ball(sensitivity: SensitivitySet) -> bool:
    """Return whether a set holds any difference of sufficiently small norms, wherever it lies."""
    if isinstance(sensitivity, L1Ball):
        return sensitivity.record_axis is None
    return isinstance(sensitivity, L2Ball)


def holds_ranges(
    sensitivity: EntrywiseBox | RecordBox, answer: RecordedAnswer, least_widths: list[float]
) -> bool:
    """Return whether a box lets every feature move as far as its own range does.

    Args:
        sensitivity: The box.
        answer: The answer, whose bound must be ranges.
        least_widths: How far one privacy unit moves an entry of every feature.
    """
    if answer.bound["kind"] != "ranges" or tuple(sensitivity.shape) != answer.shape:
        return False
    size = sensitivity.shape[sensitivity.feature_axis]
    if len(sensitivity.widths) != len(least_widths) or len(least_widths) not in (1, size):
        return False
    pairs = zip(sensitivity.widths, least_widths, strict=True)
    return all(width >= least * _CLOSE for width, least in pairs)


def radius_of_ranges(widths: list[float], entries: int) -> float:
    """Return the norm of ``entries`` differences, as many of every width."""
    return math.sqrt(math.fsum(width**2 for width in widths) * entries / len(widths))


def l1_of_ranges(widths: list[float], entries: int) -> float:
    """Return the l1 norm of ``entries`` differences, as many of every width."""
    return math.fsum(widths) * entries / len(widths)


def sum_rounding(answer: RecordedAnswer, *, power: int) -> float:
    """Return the cost of rounding an exact sum once: one step in every entry.

    Nothing where records lie on the grid of the noise itself.

    Args:
        answer: The answer.
        power: 1 for sums of entries, 2 for sums of products.
    """
    fine: float = float(answer.grid["record_step"]) ** power
    on_the_grid = math.isclose(fine, answer.step, rel_tol=1e-9)  # never coarser
    return 0.0 if on_the_grid else math.sqrt(answer.entries) * answer.step

"""What a verifier must know of sums and means with counts beside them."""

from __future__ import annotations

import math

import numpy as np

from dpdask.noise.rounding import product_rounding
from dpdask.privacy import Adjacency
from dpdask.queries.beside import COUNT
from dpdask.queries.joint import Counting, SumShape, joint_square
from dpdask.queries.verification import QueryRules, RecordedAnswer, sum_rounding
from dpdask.sensitivity import L2Ball, SensitivitySet
from dpdask.types import Json

__all__ = ["CountedSumRules", "moved_counts"]


def moved_counts(
    *, counting: Counting, entries: int, grouped: bool, contributions: int, counts: int
) -> int:
    """Return how many counts one privacy unit can change.

    Args:
        counting: What is counted.
        entries: How many numbers a record holds.
        grouped: Whether a record can move from one group to another.
        contributions: How many records one privacy unit has at most.
        counts: How many counts there are.
    """
    per_record = entries if counting is Counting.ENTRIES else 1
    return min(counts, per_record * contributions * (2 if grouped else 1))


class CountedSumRules(QueryRules):
    """The joint radius of a centred sum and its counts."""

    noise_varies = True

    def published_parts(self, query: Json) -> tuple[str, ...]:
        """The counts."""
        return () if query["counts"] == Counting.NONE else (COUNT,)

    def least_radius(self, answer: RecordedAnswer) -> float:
        """k records move sum and counts together."""
        scale = None
        counting = Counting(answer.query["counts"])
        if counting is not Counting.NONE:
            [count] = answer.parts
            scale = count.noise.sigma / answer.noise.sigma  # type: ignore[attr-defined]
        shape = self._shape(answer, counting)
        return answer.bounds_per_unit * math.sqrt(joint_square(shape, scale))

    def _shape(self, answer: RecordedAnswer, counting: Counting) -> SumShape:
        bound = answer.bound
        widths: tuple[float, ...] = ()
        reaches: tuple[float, ...] = ()
        if bound["kind"] == "ranges":
            pairs = bound["ranges"]
            centers = np.broadcast_to(np.asarray(bound["center"], dtype=float), len(pairs))
            widths = tuple(high - low for low, high in pairs)
            reaches = tuple(
                max(high - c, c - low) for (low, high), c in zip(pairs, centers, strict=True)
            )
        elif bound["kind"] != "l2-clip":
            raise answer.mismatch()
        return SumShape(
            widths=widths,
            reaches=reaches,
            clip_norm=None if widths else float(bound["norm"]),
            entries=int(answer.query["record_entries"]),
            counting=counting,
            grouped="groups" in answer.query,
            adjacency=answer.sensitivity.adjacency,
            together=answer.contributions if answer.together else None,
        )

    def covers(self, sensitivity: SensitivitySet, answer: RecordedAnswer) -> bool:
        """Allow a ball, for i.i.d. noise on answers of the shapes that follow from the query."""
        return isinstance(sensitivity, L2Ball) and self._shapes_follow(answer)

    def _shapes_follow(self, answer: RecordedAnswer) -> bool:
        groups = tuple(len(key["groups"]) for key in answer.query.get("groups", ()))
        entries = answer.query["record_entries"]
        counting = Counting(answer.query["counts"])
        counts = {Counting.NONE: None, Counting.ENTRIES: math.prod(groups) * entries}.get(
            counting, math.prod(groups)
        )
        if math.prod(answer.shape) != math.prod(groups) * entries:
            return False
        recorded = [(part.name, math.prod(part.noise.tensor_shape)) for part in answer.parts]
        public = (
            counting is Counting.RECORDS
            and not groups
            and answer.sensitivity.adjacency is Adjacency.REPLACE_ONE
            and not answer.enforced
        )
        return recorded == ([] if counts is None else [(COUNT, counts)]) and not public

    def rounding_l2(self, answer: RecordedAnswer) -> float:
        """Return the cost of rounding the exact sum, in units of the sum."""
        return sum_rounding(answer, power=1)

    def part_rounding(self, answer: RecordedAnswer, name: str) -> float:
        """Return the cost of rounding the counts that one privacy unit can change."""
        [count] = (part for part in answer.parts if part.name == name)
        entries = moved_counts(
            counting=Counting(answer.query["counts"]),
            entries=int(answer.query["record_entries"]),
            grouped="groups" in answer.query,
            contributions=answer.contributions,
            counts=math.prod(count.noise.tensor_shape),
        )
        most = max(abs(count.grid["low"]), abs(count.grid["high"]))
        return product_rounding(step=float(count.grid["step"]), entries=entries, most=most)

"""Clip factors by person: one for all records of a person, opaque on the workers.

What every record adds to its person's norm is computed by ranges of records. As records are
selected (:mod:`dpdask.execution.selection`), they are then distributed to buckets by the digests
of their ids, so that one task holds all records of the people in its bucket; the factors go back to
the ranges. The rules of :mod:`dpdask.execution.exact_tasks` hold here too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpdask.execution.exact_tasks import Opaque, SquaredNorms, added_norms, norms_part, redacted
from dpdask.execution.executors import Executor, Handle
from dpdask.execution.kept import Kept, left_out
from dpdask.execution.selection import record_digests
from dpdask.keystream import ReleaseKey, TransferableKey, Words
from dpdask.planning import ReleasePlan, Variable
from dpdask.planning.partition import SelectionRounds, person_batches
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.person_clipping import person_factors, record_measures
from dpdask.privatizers.selection import in_buckets, person_codes
from dpdask.queries import Clip, People
from dpdask.storage import LabelArray
from dpdask.types import Floats, Integers, Region

__all__ = ["clip_people"]


@dataclass(frozen=True, repr=False)
class Measured:
    """Records of some people, and what each adds to its person's norm."""

    digests: Words
    indices: Integers
    measures: Floats

    def __repr__(self) -> str:
        return "<Measured>"

    @property
    def nbytes(self) -> int:
        """The bytes that they take."""
        return self.digests.nbytes + self.indices.nbytes + self.measures.nbytes


@dataclass(frozen=True, repr=False)
class Factors:
    """The clip factors of some records."""

    indices: Integers
    factors: Floats

    def __repr__(self) -> str:
        return "<Factors>"

    @property
    def nbytes(self) -> int:
        """The bytes that they take."""
        return self.indices.nbytes + self.factors.nbytes


def clip_people(
    executor: Executor,
    plan: ReleasePlan,
    variable: Variable,
    grid: Grid,
    key: ReleaseKey,
    kept: Handle | None,
) -> list[tuple[slice, Handle]]:
    """Return ranges of records with their clip factors, one factor for all records of a person.

    Guarantee: the kept records of a person, shrunk by its factor, obey the clip norm together. A
    factor is 0 where a record is left out.

    Args:
        executor: Where tasks run.
        plan: What was planned.
        variable: The source whose records are clipped.
        grid: The grid on which they are.
        key: The release key, by which ids are compared.
        kept: The bitmap of the records that count; None for all.
    """
    ids, query = plan.ids, variable.query
    bound, people = query.bound, query.people
    assert isinstance(bound, Clip) and ids is not None and people is not None  # noqa: PT018
    ranges = person_batches(plan, variable, bound.record_axis)
    measures = [_measures(executor, plan, variable, bound, grid, records) for records in ranges]
    executor.wait(measures)
    rounds = SelectionRounds.of(plan, ids)
    shared = (ids, people, key.to_transferable(), plan.fingerprint)
    factors: list[Handle | None] = [None] * len(ranges)
    for buckets in rounds.rounds:
        parts = [
            executor.submit(_people_part, *shared, records, own, kept, rounds.buckets, buckets)
            for records, own in zip(ranges, measures, strict=True)
        ]
        of_buckets = []
        for bucket in range(len(buckets)):
            some = [executor.submit(_of_bucket, part, bucket) for part in parts]
            of_buckets.append(executor.submit(_factors_of_bucket, grid, query.norm_power, *some))
        for position, records in enumerate(ranges):
            some = [executor.submit(_of_range, part, position) for part in of_buckets]
            earlier = factors[position]
            factors[position] = executor.submit(_factors_of_range, records, earlier, *some)
        executor.wait([handle for handle in factors if handle is not None])
        del parts, some, of_buckets  # workers forget them before the next round
    return list(zip(ranges, factors, strict=True))


def _measures(
    executor: Executor,
    plan: ReleasePlan,
    variable: Variable,
    bound: Clip,
    grid: Grid,
    records: slice,
) -> Handle:
    """Submit what computes the norms of some records."""
    shape = variable.source.shape
    region: Region = tuple(
        records if axis == bound.record_axis else slice(0, size) for axis, size in enumerate(shape)
    )
    parts = [
        executor.submit(norms_part, variable.source, part, bound, grid)
        for part in variable.source.regions(region, plan.spec.compute.task_size)
    ]
    return executor.submit(_measure, variable.query.norm_power, records, *parts)


@redacted
def _measure(
    power: int, records: slice, *parts: Opaque[tuple[int, SquaredNorms]]
) -> Opaque[Floats]:
    """Return what every record of a range adds to its person."""
    return Opaque(record_measures(added_norms(records, *parts), power=power))


@redacted
def _people_part(
    ids: LabelArray,
    people: People,
    key: TransferableKey,
    fingerprint: str,
    records: slice,
    measures: Opaque[Floats],
    kept: Opaque[Kept] | None,
    bucket_count: int,
    buckets: range,
) -> Opaque[list[Measured]]:
    """Return the records of a range that count, for each of some buckets."""
    stream = key.from_transferable().selection(fingerprint=bytes.fromhex(fingerprint))
    digests, absent = record_digests(ids, people, records, stream)
    if kept is not None:
        absent = absent | left_out(kept.value, records)
    order, ends = in_buckets(digests, ~absent, modulus=bucket_count, buckets=buckets)
    digests, measured = np.take(digests, order, axis=0), np.take(measures.value, order)
    ranges = [slice(*pair) for pair in zip([0, *ends[:-1]], ends, strict=True)]
    return Opaque([Measured(digests[part], order[part], measured[part]) for part in ranges])


@redacted
def _of_bucket(part: Opaque[list[Measured]], bucket: int) -> Opaque[Measured]:
    """Return the records of one bucket."""
    return Opaque(part.value[bucket])


@redacted
def _factors_of_bucket(grid: Grid, power: int, *parts: Opaque[Measured]) -> Opaque[list[Factors]]:
    """Return the factors of a bucket's records, by the ranges that they lie in."""
    every = [part.value for part in parts]
    codes, people = person_codes(np.concatenate([part.digests for part in every]))
    measures = np.concatenate([part.measures for part in every])
    factors = person_factors(codes, people, measures, grid=grid, power=power)
    ends = np.cumsum([part.indices.size for part in every])
    of_parts = np.split(factors, ends[:-1])
    return Opaque([Factors(part.indices, own) for part, own in zip(every, of_parts, strict=True)])


@redacted
def _of_range(bucket: Opaque[list[Factors]], position: int) -> Opaque[Factors]:
    """Return the factors of the records in one range."""
    return Opaque(bucket.value[position])


@redacted
def _factors_of_range(
    records: slice, earlier: Opaque[Floats] | None, *parts: Opaque[Factors]
) -> Opaque[Floats]:
    """Return the factors of a range, 0 where a record is left out or in a later bucket."""
    if earlier is None:
        factors: Floats = np.zeros(records.stop - records.start)
    else:
        factors = earlier.value.copy()
    for part in parts:
        factors[part.value.indices] = part.value.factors
    return Opaque(factors)

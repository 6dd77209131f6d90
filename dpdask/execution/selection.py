"""Which records of every person a release keeps: an opaque bitmap on the workers.

Ids are read in ranges of records, digested under the release key, and distributed to buckets by
their digests, so that one task holds all records of the people in its bucket. The rules of
:mod:`dpdask.execution.exact_tasks` hold here too: no id, in clear or digested, reaches the driver.
"""

from __future__ import annotations

import functools

import numpy as np

from dpdask.execution.exact_tasks import Opaque, redacted
from dpdask.execution.executors import Executor, Handle
from dpdask.execution.kept import Kept
from dpdask.execution.progress import OnProgress, Progress
from dpdask.keystream import ReleaseKey, SelectionStream, TransferableKey, Words
from dpdask.planning import FAN_IN, ReleasePlan
from dpdask.planning.partition import SelectionRounds
from dpdask.privatizers.selection import (
    Candidates,
    bitmap,
    in_buckets,
    indices_of_smallest,
    smallest_of_each,
)
from dpdask.queries import Histogram, People
from dpdask.storage import LabelArray, SourceArray
from dpdask.storage.unit_ids import id_digests
from dpdask.types import Mask

__all__ = ["check_ids", "record_digests", "select_records"]


def check_ids(executor: Executor, plan: ReleasePlan) -> None:
    """Read all ids once, so that damaged ones are refused before anything is charged.

    Raises:
        StoreError: They cannot be read.
    """
    ids = plan.ids
    if ids is None:
        return
    rounds = SelectionRounds.of(plan, ids)
    for _ in executor.map_unordered(_check_part, ((ids, part) for part in rounds.ranges)):
        pass


def select_records(
    executor: Executor, plan: ReleasePlan, key: ReleaseKey, on_progress: OnProgress
) -> Handle | None:
    """Return the bitmap of the records that are kept; None where their number is not limited.

    Guarantee: it follows from the release key, the fingerprint, the ids and their order alone, so a
    retry keeps the same records, whatever the workers, chunks and tasks are.

    Args:
        executor: Where tasks run.
        plan: What was planned.
        key: The release key.
        on_progress: Called when all is done; the number of records may be private.
    """
    ids, people = plan.ids, plan.variables[0].query.people
    if ids is None or people is None or not people.limited:
        return None
    rounds = SelectionRounds.of(plan, ids)
    most = plan.variables[0].query.max_contributions
    counted = _counted(plan, people)
    shared = (ids, people, counted, most, key.to_transferable(), plan.fingerprint)
    kept: list[Handle] = []
    for buckets in rounds.rounds:
        parts = [
            executor.submit(_candidates_part, *shared, records, rounds.buckets, buckets)
            for records in rounds.ranges
        ]
        for bucket in range(len(buckets)):
            some = [executor.submit(_of_bucket, part, bucket) for part in parts]
            kept.append(executor.submit(_kept_of_bucket, most, ids.length, *some))
        kept = [_united(executor, kept)]
        executor.wait(kept)
        del parts, some  # workers forget them before the next round
    on_progress(Progress("people", 1, 1))
    return kept[0]


def _counted(plan: ReleasePlan, people: People) -> tuple[Histogram, SourceArray] | None:
    """Return the histogram whose cells matter, and its source; None where they do not."""
    query = plan.variables[0].query
    return (query, plan.source) if people.distinct and isinstance(query, Histogram) else None


def _united(executor: Executor, parts: list[Handle]) -> Handle:
    while len(parts) > 1:
        groups = [parts[start : start + FAN_IN] for start in range(0, len(parts), FAN_IN)]
        parts = [executor.submit(_unite, *group) for group in groups]
    return parts[0]


@redacted
def _check_part(ids: LabelArray, records: slice) -> None:
    ids.stored(records)


@redacted
def _candidates_part(
    ids: LabelArray,
    people: People,
    counted: tuple[Histogram, SourceArray] | None,
    most: int,
    key: TransferableKey,
    fingerprint: str,
    records: slice,
    bucket_count: int,
    buckets: range,
) -> Opaque[list[Candidates]]:
    """Return the records of a range that may be kept, for each of some buckets.

    A record without an id is a person of its own, or counts nowhere; one in no cell of a histogram
    takes nothing from its person where cells matter.
    """
    stream = key.from_transferable().selection(fingerprint=bytes.fromhex(fingerprint))
    digests, missing = record_digests(ids, people, records, stream)
    indices = np.arange(records.start, records.stop)
    cells = None
    if counted is not None:
        query, source = counted
        cells = query.cells(source, records)
        missing = missing | (cells < 0)
    priorities = stream.priorities(records.start, records.stop)
    candidates = Candidates(digests, priorities, indices, cells)
    order, ends = in_buckets(digests, ~missing, modulus=bucket_count, buckets=buckets)
    sorted_out = candidates.at(order).parts(ends)
    return Opaque([smallest_of_each(part, most) for part in sorted_out])


def record_digests(
    ids: LabelArray, people: People, records: slice, stream: SelectionStream
) -> tuple[Words, Mask]:
    """Return the digests of the people whose some records are, and which are nobody's.

    Args:
        ids: The array of ids.
        people: Whom they tell apart: a record without an id may be a person of its own.
        records: Which records.
        stream: What ids are digested with.
    """
    digests, missing = id_digests(ids, records, stream)
    if people.missing == "own":  # an index instead of an id: numbers of another kind
        indices = records.start + np.flatnonzero(missing)
        digests[missing] = stream.number_digests(indices.astype(np.uint64), 2)
        missing = np.zeros_like(missing)
    return digests, missing


@redacted
def _of_bucket(part: Opaque[list[Candidates]], bucket: int) -> Opaque[Candidates]:
    """Return the records of one bucket, which may then be on another worker than the others."""
    return Opaque(part.value[bucket])


@redacted
def _kept_of_bucket(most: int, length: int, *parts: Opaque[Candidates]) -> Opaque[Kept]:
    """Return the bitmap of the kept records among those of a bucket."""
    candidates = Candidates.together(*(part.value for part in parts))
    return Opaque(bitmap(indices_of_smallest(candidates, most), length))


@redacted
def _unite(*parts: Opaque[Kept]) -> Opaque[Kept]:
    """Return the bitmap of the records that any part keeps."""
    return Opaque(functools.reduce(np.bitwise_or, (part.value for part in parts)))

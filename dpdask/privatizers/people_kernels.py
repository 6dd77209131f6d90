"""Compiled passes over the records of people: numbering, selecting and adding up by person."""

# Compiled code is typed by its arguments at run time: these functions carry no annotations.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"

from __future__ import annotations

import numba
import numpy as np

__all__ = ["add_measures", "keep_smallest", "number_people", "order_by_bucket", "set_bits"]


@numba.njit(nogil=True, cache=True)
def number_people(digests, table, codes):
    """Number people by their first records: open addressing by the second word of their digests.

    The first one chose the bucket, so it is not random among the records of one.
    """
    last = np.uint64(table.size - 1)
    people = 0
    for i in range(codes.size):
        slot = digests[i, 1] & last
        while True:
            first = table[slot]
            if first < 0:
                table[slot] = i
                codes[i] = people
                people += 1
                break
            if digests[first, 0] == digests[i, 0] and digests[first, 1] == digests[i, 1]:
                codes[i] = codes[first]
                break
            slot = (slot + np.uint64(1)) & last
    return people


@numba.njit(nogil=True, cache=True)
def order_by_bucket(digests, present, modulus, first, ends):
    """Return the positions of the records in some buckets, those of each together and in order.

    ``ends`` takes where every bucket ends; the first one is ``first``, of ``modulus`` in all. Only
    records that are ``present`` count.
    """
    buckets = ends.size
    ends[:] = 0
    for i in range(present.size):
        bucket = digests[i, 0] % modulus - first  # wraps around below the first one
        if present[i] and bucket < buckets:
            ends[bucket] += 1
    total = 0
    for bucket in range(buckets):
        total += ends[bucket]
        ends[bucket] = total - ends[bucket]  # where it begins, until it is filled
    order = np.empty(total, np.int64)
    for i in range(present.size):
        bucket = digests[i, 0] % modulus - first
        if present[i] and bucket < buckets:
            order[ends[bucket]] = i
            ends[bucket] += 1
    return order


@numba.njit(nogil=True, cache=True)
def set_bits(indices, bits):
    """Set the bits of some records in a bitmap, the highest bit of a byte first."""
    for i in range(indices.size):
        bits[indices[i] >> 3] |= np.uint8(128 >> (indices[i] & 7))


@numba.njit(nogil=True, cache=True)
def _before(priorities, indices, one, other):
    """Return whether a record comes before another one of its person."""
    if priorities[one] != priorities[other]:
        return priorities[one] < priorities[other]
    return indices[one] < indices[other]


@numba.njit(nogil=True, cache=True)
def keep_smallest(codes, people, priorities, indices, count, kept):
    """Mark the ``count`` first records of every person: each has a heap, the last one on top."""
    sizes = np.zeros(people, np.int64)
    for i in range(codes.size):
        sizes[codes[i]] += 1
    starts = np.empty(people, np.int64)  # of heaps; -1 where all are kept
    total = 0
    for person in range(people):
        starts[person] = -1
        if sizes[person] > count:
            starts[person] = total
            total += count
    heaps = np.empty(total, np.int64)
    sizes[:] = 0
    for i in range(codes.size):
        person = codes[i]
        if starts[person] < 0:
            kept[i] = True
            continue
        heap = heaps[starts[person] : starts[person] + count]
        size = sizes[person]
        if size < count:  # add it at the end, and let it rise
            at = size
            sizes[person] += 1
            while at > 0 and _before(priorities, indices, heap[(at - 1) // 2], i):
                heap[at] = heap[(at - 1) // 2]
                at = (at - 1) // 2
            heap[at] = i
        elif _before(priorities, indices, i, heap[0]):  # it replaces the last one, and sinks
            at = 0
            while True:
                child = 2 * at + 1
                if child >= count:
                    break
                if child + 1 < count and _before(priorities, indices, heap[child], heap[child + 1]):
                    child += 1
                if not _before(priorities, indices, i, heap[child]):
                    break
                heap[at] = heap[child]
                at = child
            heap[at] = i
    for record in heaps:
        kept[record] = True


@numba.njit(nogil=True, cache=True, error_model="numpy")
def add_measures(codes, measures, units, sums):
    """Add integers, as doubles, to the sums of their people, in words of 32 bits: of ``units``."""
    for i in range(codes.size):
        words = sums[codes[i]]
        rest = measures[i]
        for word in range(units.size - 1, 0, -1):
            part = np.floor(rest / units[word])
            words[word] += np.uint64(part)
            rest -= part * units[word]
        words[0] += np.uint64(rest)

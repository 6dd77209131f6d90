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
def _before(tops, heaps, indices, one, other):
    """Return whether a record of a heap comes before another one; equal priorities are rare."""
    if tops[one] != tops[other]:
        return tops[one] < tops[other]
    return indices[heaps[one]] < indices[heaps[other]]


@numba.njit(nogil=True, cache=True)
def keep_smallest(codes, people, priorities, indices, count, kept):
    """Mark the ``count`` first records of every person: each has a heap, the last one on top.

    A heap holds priorities beside positions, so that it is compared where it lies.
    """
    sizes = np.zeros(people, np.int64)
    for i in range(codes.size):
        sizes[codes[i]] += 1
    total = 0
    for person in range(people):  # where its heap begins and how full it is; -1 where all are kept
        large = sizes[person] > count
        sizes[person] = total if large else -1
        total += count + 1 if large else 0
    if total == 0:
        kept[:] = True
        return
    heaps, tops = np.full(total, -1, np.int64), np.zeros(total, np.uint64)
    for i in range(codes.size):
        start = sizes[codes[i]]
        if start < 0:
            kept[i] = True
            continue
        first, priority = start + 1, priorities[i]
        size = np.int64(tops[start])  # the entry before a heap counts its records
        if size < count:  # add it at the end, and let it rise
            tops[start] += np.uint64(1)
            at = int(size)
            heaps[first + at], tops[first + at] = i, priority
            while at > 0 and _before(tops, heaps, indices, first + (at - 1) // 2, first + at):
                above = first + (at - 1) // 2
                heaps[above], heaps[first + at] = heaps[first + at], heaps[above]
                tops[above], tops[first + at] = tops[first + at], tops[above]
                at = (at - 1) // 2
            continue
        if priority > tops[first]:
            continue
        if priority == tops[first] and indices[i] > indices[heaps[first]]:
            continue
        heaps[first], tops[first] = i, priority  # the last one goes, and this one sinks
        at = 0
        while 2 * at + 1 < count:
            child = 2 * at + 1
            second = first + child + 1
            if child + 1 < count and _before(tops, heaps, indices, second - 1, second):
                child += 1
            if not _before(tops, heaps, indices, first + at, first + child):
                break
            below, here = first + child, first + at
            heaps[below], heaps[here] = heaps[here], heaps[below]
            tops[below], tops[here] = tops[here], tops[below]
            at = child
    for record in heaps:
        if record >= 0:
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

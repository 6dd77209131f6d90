"""Which records of every person are kept, against a plain sort of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpdask.privatizers.selection import (
    Candidates,
    bitmap,
    in_buckets,
    indices_of_smallest,
    person_codes,
    smallest_of_each,
)

Anything = np.ndarray[Any, Any]


def some(people: Anything, priorities: Anything, cells: Anything | None = None) -> Candidates:
    """Records of people with random digests, in an order that is not that of their indices."""
    digests = np.random.default_rng(1).integers(0, 2**64, (int(people.max()) + 1, 2), np.uint64)
    indices = np.random.default_rng(2).permutation(len(people))
    return Candidates(digests[people], priorities.astype(np.uint64), indices, cells)


def expected(people: Anything, candidates: Candidates, count: int) -> set[int]:
    """The records of the smallest priorities; of equal ones, those of the smallest indices."""
    rows = zip(
        people.tolist(), candidates.priorities.tolist(), candidates.indices.tolist(),
        range(len(people)) if candidates.cells is None else candidates.cells.tolist(), strict=True,
    )  # fmt: skip
    kept: dict[int, dict[int, int]] = {}
    for person, _, index, cell in sorted(rows, key=lambda row: row[:3]):
        cells = kept.setdefault(person, {})
        if len(cells) < count and cell not in cells:
            cells[cell] = index
    return {index for cells in kept.values() for index in cells.values()}


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 2)), min_size=1),
    st.integers(1, 9),
    st.booleans(),
)
def test_the_smallest_priorities_of_every_person_are_kept(
    rows: list[tuple[int, int, int]], count: int, of_cells: bool
) -> None:
    """Priorities are few, so that many are equal."""
    people, priorities, cells = np.array(rows).T
    candidates = some(people, priorities, cells if of_cells else None)
    wanted = expected(people, candidates, count)
    assert set(smallest_of_each(candidates, count).indices.tolist()) == wanted
    assert set(indices_of_smallest(candidates, count).tolist()) == wanted


@pytest.mark.parametrize("people", [1, 7, 30_000, 100_000])
@pytest.mark.parametrize("count", [1, 2, 5, 6, 1000])
def test_many_records_of_few_or_many_people(people: int, count: int) -> None:
    rng = np.random.default_rng(3)
    owners = rng.integers(0, people, 100_000)
    candidates = some(owners, rng.integers(0, 2**63, owners.size))
    kept = smallest_of_each(candidates, count)
    order = np.lexsort((candidates.indices, candidates.priorities, owners))
    starts = np.searchsorted(owners[order], owners[order])
    wanted = candidates.indices[order[np.arange(order.size) - starts < count]]
    assert np.array_equal(np.sort(kept.indices), np.sort(wanted))


def test_people_of_one_word_in_common_are_told_apart() -> None:
    words = np.array([[5, 7], [5, 8], [6, 7], [5, 7], [6, 7], [0, 0]], np.uint64)
    codes, people = person_codes(words)
    assert codes.tolist() == [0, 1, 2, 0, 2, 3]
    assert people == 4
    assert person_codes(np.empty((0, 2), np.uint64))[1] == 0


@pytest.mark.parametrize("buckets", [range(7), range(2, 5), range(6, 7), range(1)])
def test_records_are_sorted_out_to_their_buckets(buckets: range) -> None:
    rng = np.random.default_rng(4)
    digests = rng.integers(0, 2**64, (500, 2), np.uint64)
    present = rng.random(500) < 0.8
    order, ends = in_buckets(digests, present, modulus=7, buckets=buckets)
    bucket_of = digests[:, 0] % np.uint64(7)
    parts = np.split(order, ends[:-1])
    assert ends[-1] == order.size
    for bucket, part in zip(buckets, parts, strict=True):
        assert part.tolist() == np.flatnonzero(present & (bucket_of == bucket)).tolist()


def test_a_bitmap_has_the_bits_that_numpy_unpacks() -> None:
    indices = np.array([0, 9, 8, 23, 22, 30])
    assert np.flatnonzero(np.unpackbits(bitmap(indices, 31))).tolist() == sorted(indices)

"""Exact answers before noise, through the real tasks of a release: for tests alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from dpdask import execution
from dpdask.execution import person_clips, selection
from dpdask.execution.exact_tasks import Opaque
from dpdask.execution.kept import Kept, left_out
from dpdask.keystream import ReleaseKey, SelectionStream
from dpdask.planning import ReleasePlan
from dpdask.privatizers.selection import Candidates
from dpdask.queries.base import DATA
from tests.support.workspace import KEY

Anything = np.ndarray[Any, Any]


def kept_records(plan: ReleasePlan, key: bytes = KEY) -> Anything:
    """Which records a release with this key keeps, as a mask."""
    axis = plan.data.query.units_axis or 0
    with execution.connect(plan.spec.compute) as executor:
        handle: Any = execution.select_records(executor, plan, ReleaseKey(key), lambda _: None)
    opaque = handle.value if hasattr(handle, "value") else handle.result()
    return ~left_out(opaque.value, slice(0, plan.source.shape[axis]))


def exact_answer(plan: ReleasePlan, key: bytes = KEY) -> Anything:
    """All parts of an answer without noise, each measured in the noise of the main part.

    The fingerprint is fixed, as the key is: what follows from both is one and the same random
    choice for all data.
    """
    plan = dataclasses.replace(plan, fingerprint="ab" * 32)
    component = plan.data
    with execution.connect(plan.spec.compute) as executor:
        kept = execution.select_records(executor, plan, ReleaseKey(key), lambda _: None)
        prepared = execution.prepare(
            executor, plan, plan.only, lambda _: None, kept, ReleaseKey(key)
        )
    [answer] = prepared.answers.values()
    sums = answer.value.value  # type: ignore[attr-defined]
    assert component.exact_sum is not None
    main = component.noise.entry_std
    measured = [component.exact_sum.answer(sums[DATA]).ravel()]
    for part in component.parts:
        exact = part.exact_sum.answer(sums[part.name]).ravel()
        measured.append(exact * (main / part.noise.entry_std))
    return np.concatenate(measured)


@contextmanager
def priorities_of(patch: pytest.MonkeyPatch, records: Anything) -> Iterator[None]:
    """Let records have the priorities that they have at other places: those of ``records``."""
    original = SelectionStream.priorities

    def coupled(self: SelectionStream, start: int, stop: int) -> Any:
        return original(self, 0, int(records.max(initial=0)) + 1)[records[start:stop]]

    with patch.context() as inner:
        inner.setattr(SelectionStream, "priorities", coupled)
        yield


def keep_in_every_range(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: as many records of a person are kept in every range as should be in all."""

    def all_candidates(most: int, length: int, *parts: Opaque[Candidates]) -> Opaque[Kept]:
        mask = np.zeros(length, bool)
        for part in parts:
            mask[part.value.indices] = True
        return Opaque(np.packbits(mask))

    patch.setattr(selection, "_kept_of_bucket", all_candidates)


def clip_in_every_range(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a person has a factor of its own in every range of records."""
    whole = person_clips._factors_of_bucket

    def one_by_one(grid: Any, power: int, *parts: Any) -> Opaque[list[Any]]:
        return Opaque([whole(grid, power, part).value[0] for part in parts])

    patch.setattr(person_clips, "_factors_of_bucket", one_by_one)

"""The noisy parts of a joint answer, as the real tasks compute them from a source, in integers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdask import execution
from dpdask.execution import InlineExecutor
from dpdask.keystream import ReleaseKey
from dpdask.planning import ReleasePlan
from dpdask.planning.verified import recorded_answer, verified_step
from dpdask.queries.base import DATA, Query
from dpdask.storage import Publisher, open_storage

Values = np.ndarray[Any, Any]
Parts = dict[str, Values]
KEY = bytes(range(32))


def noisy_parts(plan: ReleasePlan) -> Parts:
    """The integers of every part with its noise, drawn with one fixed key.

    Of a symmetric answer the two halves as the noise meets them, before they are averaged.
    """
    seen: list[tuple[Any, Mapping[str, Values]]] = []
    component = dataclasses.replace(
        plan.data,
        query=_recording(plan.data.query, seen),
        tiling=dataclasses.replace(plan.data.tiling, symmetric=False),
    )
    variable = plan.only.answering(component)
    plan = dataclasses.replace(plan, variables=(variable,), fingerprint="ab" * 32)
    place = open_storage(f"memory://parts-{id(plan)}")
    executor, quiet = InlineExecutor(), lambda _progress: None
    intermediates = execution.prepare(executor, plan, variable, quiet)
    work = execution.TileWork(plan, variable, intermediates, Publisher.of(place, "audit"))
    for written in execution.write(executor, [work], ReleaseKey(KEY), set(), quiet):
        assert not written.conflicts
    place.delete()
    found = {name: values for name, values in seen[0][1].items() if name != DATA}
    found[DATA] = np.empty(component.query.answer_shape)
    for box, noisy in seen:
        found[DATA][box] = noisy[DATA]
        for name in found.keys() - {DATA}:  # every tile draws the same noise of the others
            np.testing.assert_array_equal(noisy[name], found[name])
    return {name: _integers(values, _grid(plan, name)["step"]) for name, values in found.items()}


def _recording(query: Query, seen: list[tuple[Any, Mapping[str, Values]]]) -> Query:
    """The query, which also keeps the noisy parts that it computes its release from."""

    class Recorder(type(query)):  # type: ignore[misc]
        symmetric = False

        def release(
            self, noisy: Mapping[str, Values], stds: Mapping[str, float], box: Any
        ) -> dict[str, Values]:
            seen.append((box, {name: values.copy() for name, values in noisy.items()}))
            released: dict[str, Values] = super().release(noisy, stds, box)
            return released

    fields = {field.name: getattr(query, field.name) for field in dataclasses.fields(query)}
    recorder: Query = Recorder(**fields)
    return recorder


def _grid(plan: ReleasePlan, name: str) -> Any:
    parts = {part.name: part.privatizer for part in plan.data.parts}
    return parts.get(name, plan.data.privatizer).to_dict()


def _integers(values: Values, step: float) -> Values:
    integers = np.rint(values / step)
    np.testing.assert_allclose(values / step, integers, atol=0.2)
    return integers


def distance(plan: ReleasePlan, one: Parts, two: Parts) -> float:
    """The distance of two outputs in standard deviations of each part's noise."""
    squares = [
        float(np.sum(((one[name] - two[name]) / _grid(plan, name)["steps_per_sigma"]) ** 2))
        for name in one
    ]
    return math.sqrt(math.fsum(squares))


def verified_mu(plan: ReleasePlan) -> float:
    """The mu of all parts together, as a card states it."""
    profile = verified_step(recorded_answer(plan.data))
    mu: float = profile.mu  # type: ignore[union-attr]
    return mu

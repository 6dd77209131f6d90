"""Run the real tasks of a variable with one fixed key, and read the integers of every part."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpdask import execution
from dpdask.execution import InlineExecutor
from dpdask.keystream import ReleaseKey
from dpdask.planning import ReleasePlan, Variable
from dpdask.queries import CountedMean, CountedSum, Query
from dpdask.queries.base import COUNT, DATA, NOISE_STD
from dpdask.storage import Publisher, open_storage
from tests.privacy.audit import _decoded, _integers

__all__ = ["noisy_integers", "squared_distance"]

Values = np.ndarray[Any, Any]
KEY = bytes(range(32))


class _Parts(CountedMean):
    """The noisy parts themselves, before anything is computed from them."""

    def release(
        self, noisy: Mapping[str, Values], stds: Mapping[str, float], box: Any
    ) -> dict[str, Values]:
        whole = {NOISE_STD: np.zeros_like(noisy[DATA]), **noisy}
        return {name: whole[name] for name in (DATA, COUNT, NOISE_STD) if name in whole}


def _showing_parts(query: Query) -> Query:
    """The query, its parts released as they are; a plain sum has one and is only divided."""
    if not isinstance(query, CountedSum):
        return query
    fields = {field.name: getattr(query, field.name) for field in dataclasses.fields(query)}
    return _Parts(**fields)


def noisy_integers(plan: ReleasePlan, variable: Variable) -> dict[str, Values]:
    """The integers of every part, noise included; plain answers up to what all outputs share."""
    query = variable.query
    component = dataclasses.replace(variable.component, query=_showing_parts(query))
    variable = variable.answering(component)
    plan = dataclasses.replace(plan, fingerprint="ab" * 32)
    place = open_storage(f"memory://parts-{id(variable)}")
    staging = Publisher.of(place, "audit")
    executor, quiet = InlineExecutor(), lambda _progress: None
    intermediates = execution.prepare(executor, plan, variable, quiet)
    work = execution.TileWork(plan, variable, intermediates, staging)
    for written in execution.write(executor, [work], ReleaseKey(KEY), set(), quiet):
        assert not written.conflicts
    steps = {DATA: component.privatizer.step} | {
        part.name: part.privatizer.step for part in component.parts
    }
    found = {}
    suffixes = (array.suffix for array in query.arrays_beside)
    for name, layout in zip((DATA, *suffixes), variable.layouts, strict=True):
        if name == NOISE_STD:
            continue
        out = np.empty(layout.shape)
        for index in layout.indices():
            out[layout.region(index)] = _decoded(
                layout, index, staging.data.read(layout.key(index)) or b""
            )
        step = steps[name]
        if step is None:  # entries have grids of their own
            found[name] = _integers(component.privatizer, out)
            continue
        scaled = out * component.query.divisor / step
        found[name] = np.rint(scaled)
        if component.parts:
            np.testing.assert_allclose(scaled, found[name], atol=0.2)
    place.delete()
    return found


def squared_distance(variable: Variable, one: dict[str, Values], two: dict[str, Values]) -> float:
    """The squared distance of two outputs in standard deviations of each part's noise."""
    component = variable.component
    per_sigma = {DATA: component.privatizer.to_dict()["steps_per_sigma"]} | {
        part.name: part.privatizer.to_dict()["steps_per_sigma"] for part in component.parts
    }
    return sum(float(np.sum(((one[n] - two[n]) / per_sigma[n]) ** 2)) for n in one)

"""What is drawn before the data, with a fixed key, and the data as that decides."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from dpdask import execution
from dpdask.execution import InlineExecutor, TileWork
from dpdask.keystream import ReleaseKey
from dpdask.planning import ReleasePlan
from dpdask.storage import Publisher
from tests.support.workspace import KEY

Anything = np.ndarray[Any, Any]


def quiet(_progress: Any) -> None:
    """No progress is shown."""


def fixed(plan: ReleasePlan) -> ReleasePlan:
    """The same plan under a fixed fingerprint, so that one key draws the same for all data."""
    return dataclasses.replace(plan, fingerprint="ab" * 32)


def noisy_estimates(plan: ReleasePlan, key: bytes = KEY) -> list[Anything]:
    """The noisy answers that are drawn first, one for each variable that has one."""
    plan, executor = fixed(plan), InlineExecutor()
    kept = execution.select_records(executor, plan, ReleaseKey(key), quiet)
    staging = Publisher.of(plan.output, "fixed")
    return [
        execution.noisy_estimate(
            executor,
            TileWork(
                plan, variable, execution.prepare(executor, plan, variable, quiet, kept), staging
            ),
            ReleaseKey(key),
            quiet,
        )
        for variable in plan.estimated
    ]


def settled_plan(plan: ReleasePlan, chosen: Any = None, key: bytes = KEY) -> ReleasePlan:
    """The plan with what its noisy answers decide, or what ``chosen`` says for every variable."""
    plan = fixed(plan)
    noisy = iter(noisy_estimates(plan, key)) if chosen is None else iter(())
    variables = []
    for variable in plan.variables:
        estimate = variable.estimate
        if estimate is not None:
            text = estimate.choose(next(noisy)) if chosen is None else json.dumps(chosen)
            variable = estimate.settle(plan, variable, text)
        variables.append(variable)
    return dataclasses.replace(plan, variables=tuple(variables))

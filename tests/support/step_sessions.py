"""Specs and records of sessions: steps that are handed over one by one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.workspace import Workspace

__all__ = ["SHAPE", "STEPS", "records", "session_spec"]

SHAPE, STEPS = (5, 4), 6

Values = np.ndarray[Any, Any]


def session_spec(space: Workspace, **changes: Any) -> dict[str, Any]:
    """A session of six sums of clipped records; change one thing at a time."""
    spec = space.spec(
        source={"steps": {"shape": list(SHAPE)}},
        privacy_unit={"adjacency": "add-remove-one", "l2_clip_norm": 1.0},
        query="sum",
        privacy={"epsilon": 2.0, "delta": 1e-5},
        composition={"steps": STEPS},
    )
    if "privacy_unit" not in changes:
        spec["privacy_unit"].pop("missing", None)
    return {**spec, **changes}


def records(step: int, count: int = 30, seed: int = 7) -> Values:
    """The records of one step, some of them beyond the clip norm."""
    return np.random.default_rng([seed, step]).normal(0, 0.3, (count, *SHAPE))

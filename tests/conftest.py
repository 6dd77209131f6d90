from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dpdask import Adjacency, L2Ball, Origin, PrivacyBudget

VECTORS = json.loads((Path(__file__).parent / "vectors" / "calibration.json").read_text())


def budget_of(vector: dict[str, Any]) -> PrivacyBudget:
    return PrivacyBudget(epsilon=vector["epsilon"], delta=vector["delta"])


def ball(radius: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> L2Ball:
    return L2Ball(l2=radius, adjacency=adjacency, origin=Origin.DECLARED)


@pytest.fixture
def vectors() -> dict[str, Any]:
    return VECTORS

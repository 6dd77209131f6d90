from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from dpdask import Adjacency, L2Ball, Origin, PrivacyBudget
from tests.support.databases import postgres, url
from tests.support.workspace import space

__all__ = ["postgres", "space", "url"]

# Ledgers of tests, and of the processes they start, make their master key here and not in the
# user's own folder.
_CONFIGURATION = tempfile.mkdtemp(prefix="dpdask-tests-")
atexit.register(shutil.rmtree, _CONFIGURATION, ignore_errors=True)
os.environ["XDG_CONFIG_HOME"] = _CONFIGURATION
for _name in ("DPDASK_MASTER_KEY", "DPDASK_MASTER_KEY_FILE"):
    os.environ.pop(_name, None)

VECTORS = json.loads((Path(__file__).parent / "vectors" / "calibration.json").read_text())


def budget_of(vector: dict[str, Any]) -> PrivacyBudget:
    return PrivacyBudget(epsilon=vector["epsilon"], delta=vector["delta"])


def ball(radius: float, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> L2Ball:
    return L2Ball(l2=radius, adjacency=adjacency, origin=Origin.DECLARED)


@pytest.fixture
def vectors() -> dict[str, Any]:
    return VECTORS

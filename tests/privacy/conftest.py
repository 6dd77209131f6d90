"""A folder with a source, a ledger and a spec that works, as for the release's own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpdask import PrivacyBudget
from tests.release.conftest import Workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    made = Workspace(tmp_path)
    made.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.1))
    return made

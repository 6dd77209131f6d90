"""The noise of the papers, step by step: type I of MGM, IDN on stacks, R1SMG for every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpdask
from dpdask import PrivacyBudget
from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace

CLIP = {"l2_clip_norm": 1.0}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "mgm": ({"name": "mgm"}, CLIP, True),
    "idn": ({"name": "idn", "axis": 0}, {"ranges": [-1, 1]}, True),
    "r1smg": ({"name": "r1smg", "calibration": "paper"}, CLIP, False),
    "rank-one": ({"name": "rank-one"}, CLIP, False),
}


@pytest.mark.parametrize("case", CASES)
def test_steps_take_the_noise_of_the_papers(tmp_path: Path, case: str) -> None:
    mechanism, unit, certified = CASES[case]
    space = Workspace(tmp_path)
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.4))
    spec = space.spec(
        source={"steps": {"shape": [5, 4]}},
        privacy_unit=unit,
        query="sum",
        privacy={"epsilon": 0.01, "delta": 1e-5},
        mechanism=mechanism,
        composition={"steps": 3},
        accept_uncertified=not certified,
    )
    with dpdask.steps(spec) as session:
        released = [session.step(np.ones((10, 5, 4))) for _ in session]
    assert not np.array_equal(released[0], released[1])
    card = verify_release(str(tmp_path / "out.zarr"), ledger=space.ledger)
    assert card.guarantee.certified is certified
    assert card.composition.steps == 3
    assert np.array_equal(dpdask.open_release(str(tmp_path / "out.zarr")).values, released)


@pytest.mark.parametrize(
    "case", [case for case, (_, _, certified) in CASES.items() if not certified]
)
def test_steps_that_are_not_certified_are_refused_unless_accepted(
    tmp_path: Path, case: str
) -> None:
    mechanism, unit, _ = CASES[case]
    space = Workspace(tmp_path)
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=1e6, delta=0.4))
    spec = space.spec(
        source={"steps": {"shape": [5, 4]}},
        privacy_unit=unit,
        query="sum",
        privacy={"epsilon": 0.01, "delta": 1e-5},
        mechanism=mechanism,
        composition={"steps": 3},
    )
    with pytest.raises(dpdask.DpdaskError, match="not certified"):
        dpdask.steps(spec)
    assert space.spent() == 0

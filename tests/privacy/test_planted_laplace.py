"""The exact audit in l1 catches bugs of Laplace releases; each part as it is passes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask.accounting import PureProfile
from dpdask.planning import build_sensitivity
from dpdask.privatizers.iid import IidPrivatizer, RangesLaplacePrivatizer
from tests.privacy.audit import Group, audit_group
from tests.privacy.test_planted_bugs import subject_of, with_recipe, worst

RANGE = {"privacy_unit": {"record_dim": 0, "ranges": [[0.0, 1.0]]}}
RANGES = {"privacy_unit": {"record_dim": 0, "ranges": [[0.0, i + 1.0] for i in range(6)]}}


@pytest.mark.parametrize("sections", [RANGE, RANGES, {**RANGE, "query": "sum"}])
def test_half_the_scale(sections: dict[str, Any], tmp_path: Path) -> None:
    subject = subject_of(tmp_path, mechanism="laplace", **sections)
    recipe = subject.component.privatizer
    assert isinstance(recipe, IidPrivatizer)
    assert 0.99 < worst(subject) <= 1
    quieter = dataclasses.replace(recipe.grid, steps_per_sigma=recipe.grid.steps_per_sigma / 2)
    assert worst(with_recipe(subject, dataclasses.replace(recipe, grid=quieter))) > 1.9


def test_ranges_rounded_outwards(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, mechanism="laplace", **RANGES)
    recipe = subject.component.privatizer
    assert isinstance(recipe, RangesLaplacePrivatizer)
    assert worst(subject) <= 1
    wider = dataclasses.replace(recipe, highs=tuple(high + 4 for high in recipe.highs))
    assert worst(with_recipe(subject, wider)) > 1


def test_several_records_of_a_unit_are_not_one_wider_record_in_l1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A box of sqrt(k) wider records has the l2 norm of k records, but not their l1 norm."""
    unit = {"privacy_unit": {**RANGE["privacy_unit"], "max_contributions": 3}}
    subject = subject_of(tmp_path, mechanism="laplace", **unit)
    assert 0.99 < worst(subject, contributions=3) <= 1
    real = build_sensitivity.RecordBox

    def one_record(**fields: Any) -> Any:
        return real(**fields | {"records": 1})

    monkeypatch.setattr(build_sensitivity, "RecordBox", one_record)
    planted = subject_of(tmp_path, name="planted", mechanism="laplace", **unit)
    assert worst(planted, contributions=3) == pytest.approx(math.sqrt(3), rel=1e-2)


@pytest.mark.parametrize("entries", [1, 6, 400])
def test_declared_results_and_their_rounding(entries: int, tmp_path: Path) -> None:
    """Half-points of the grid in every entry: all of them are rounded away from each other."""
    declared = {"name": "precomputed", "l2_sensitivity": 1.0, "l1_sensitivity": 1.0}
    subject = subject_of(tmp_path, (entries,), query=declared, privacy_unit={}, mechanism="laplace")
    step = subject.component.privatizer.step
    assert step is not None
    loss = subject.component.guarantee.verified
    assert isinstance(loss, PureProfile)
    rng = np.random.default_rng(2)
    base = (rng.integers(-1000, 1000, entries) + 0.499_999) * step
    other, single = base + 1.0 / entries, base.copy()
    single[0] += 1.0
    up = np.round((other / step) + 0.5) * step - 0.499_999 * step  # just above a half-point
    up = base + np.minimum(up - base, 1.0 / entries)
    group = Group(
        sources=(base, other, single, up), names=("base", "all", "one", "up"), clique=False
    )
    assert 0.9 < audit_group([subject], group).ratio <= 1
    subject.check_noise(np.zeros(entries))

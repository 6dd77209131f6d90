"""``dpdask plan`` and ``dpdask plan --epsilon``: nothing is written, nothing is charged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import dpdask
from dpdask.cli import main
from dpdask.errors import DpdaskError, InvalidBudget, InvalidSpec
from dpdask.ledger import Ledger
from dpdask.privacy import PrivacyBudget
from tests.support.workspace import Workspace


@pytest.fixture
def spec_path(space: Workspace) -> Path:
    space.source(np.zeros((5000, 4)))
    unit = {"record_dim": 0, "l2_clip_norm": 2.0}
    return space.write_spec(query="mean", privacy_unit=unit)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def test_a_plan_prints_what_people_need(spec_path: Path) -> None:
    result = run(str(spec_path))
    assert result.exit_code == 0, result.output
    assert "one record of 5,000 along axis 0 (4 values each)" in result.stdout
    assert "95 % of entries within ±0.00585" in result.stdout
    assert result.stderr == ""


def test_json_keeps_all_digits(spec_path: Path) -> None:
    error = json.loads(run(str(spec_path), "--json").stdout)["expected_error"]
    std = dpdask.plan(str(spec_path)).entry_std
    assert error["entry_std"] == std
    assert error["entry_std_range"] == [std, std]
    assert error["within_95"] == pytest.approx(1.959963984540054 * std, rel=1e-12)
    assert error["counts"] is None
    assert error["at_public_count"] is None


def test_epsilons_are_a_table(spec_path: Path) -> None:
    result = run(str(spec_path), "--epsilon", "0.25,0.5,1,2")
    assert result.exit_code == 0, result.output
    lines = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line[:1] == "│"]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert [line[0] for line in cells] == ["0.25", "0.5", "1", "2"]
    assert cells[2][2:4] == ["0.00298", "±0.00585"]


def test_epsilons_as_json_are_the_plans_of_those_epsilons(spec_path: Path) -> None:
    result = run(str(spec_path), "--epsilon", "0.5,1", "--json")
    half, one = json.loads(result.stdout)["choices"]
    plan = dpdask.plan(str(spec_path))  # its own epsilon is 1
    assert one["expected_error"] == plan.to_dict()["expected_error"]
    assert plan.forecast is not None
    assert one["spent_after"] == plan.forecast.after
    assert half["expected_error"]["entry_std"] > one["expected_error"]["entry_std"]


def test_nothing_is_written_or_charged(space: Workspace, spec_path: Path) -> None:
    head = space.ledger.state("people")
    assert run(str(spec_path), "--epsilon", "1,2").exit_code == 0
    assert run(str(spec_path)).exit_code == 0
    assert space.left_behind() == []
    assert space.ledger.state("people") == head
    space.release(query="mean", privacy_unit={"record_dim": 0, "l2_clip_norm": 2.0})
    assert space.ledger.state("people") != head  # the twin: a release is charged


def test_an_epsilon_beyond_the_budget_is_a_line_of_the_table(space: Workspace) -> None:
    space.source(np.zeros((5000, 4)))
    Ledger(space.ledger_url).open_dataset("few", PrivacyBudget(epsilon=1.5, delta=1e-5))
    unit = {"record_dim": 0, "l2_clip_norm": 2.0}
    budget = {"ledger": space.ledger_url, "dataset": "few"}
    path = space.write_spec(query="mean", privacy_unit=unit, budget=budget)
    result = run(str(path), "--epsilon", "1,2", "--json")
    first, second = json.loads(result.stdout)["choices"]
    assert first["spent_after"] == pytest.approx(1.0, abs=1e-3)
    assert second["spent_after"] is None
    assert "refused: more than the total" in run(str(path), "--epsilon", "1,2").stdout


@pytest.mark.parametrize("text", ["", "1,", "one", "0", "-1", "nan", "inf", "1;2", "1,0"])
def test_nonsense_is_refused_in_one_line(spec_path: Path, text: str) -> None:
    result = run(str(spec_path), f"--epsilon={text}")
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "epsilon" in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_nonsense_is_refused_in_python(spec_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="0 epsilons cannot be compared; give 1 to 100"):
        dpdask.plan_epsilons(str(spec_path), [])
    with pytest.raises(InvalidSpec, match="101 epsilons"):
        dpdask.plan_epsilons(str(spec_path), [1.0] * 101)
    with pytest.raises(InvalidBudget):
        dpdask.plan_epsilons(str(spec_path), [1.0, -1.0])


def test_a_release_that_cannot_be_planned_is_refused_with_epsilons_too(spec_path: Path) -> None:
    broken = spec_path.read_text().replace("l2_clip_norm: 2.0", "l2_clip_norm: -2.0")
    spec_path.write_text(broken)
    with pytest.raises(DpdaskError, match="l2_clip_norm"):
        dpdask.plan_epsilons(str(spec_path), [1.0])

"""From a source to a release of one's own: ``dpdask inspect``, ``init``, ``list``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml
from click.testing import CliRunner, Result

import dpdask
from dpdask.cli import main
from dpdask.spec import load_release_spec
from dpdask.spec.mechanism import MECHANISMS
from dpdask.spec.query import QUERIES

CANARY = 0.123456789


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    values = np.full((60, 4), CANARY)
    xr.Dataset(
        {
            "use": (("person", "month"), values, {"units": "kWh"}),
            "meter": (("person",), np.arange(60)),
            "town": (("person",), np.array(["A", "B"] * 30)),
        },
        coords={"month": [1, 2, 3, 4], "person": np.arange(60)},
    ).to_zarr(tmp_path / "source.zarr", consolidated=False)
    return tmp_path


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def _init(*arguments: str) -> Result:
    return _run("init", "source.zarr", "--ledger", "sqlite:///ledger.db", *arguments)


def test_the_commands_that_init_prints_release_the_array(folder: Path) -> None:
    result = _init("--array", "use", "--record-dim", "person", "--range", "0,1")
    assert result.exit_code == 0, result.output
    commands = re.findall(r"^    dpdask (.*)$", result.output, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["ledger", "plan", "run"]
    for command in commands:
        ran = _run(*command.split())
        assert ran.exit_code == 0, ran.output
    released = dpdask.open_release("released-use.zarr")
    assert released.dims == ("month",)
    assert released.month.values.tolist() == [1, 2, 3, 4]
    assert released.attrs["units"] == "kWh"


def test_a_first_spec_says_what_was_chosen(folder: Path) -> None:
    result = _init(
        *("--array", "use", "--record-dim", "person", "--range", "0,1", "--query", "sum"),
        *("--ids", "meter", "--max-contributions", "3", "--epsilon", "0.5", "--delta", "1e-7"),
        *("--output", "out.zarr", "--dataset", "meters", "--spec", "other.yaml"),
    )
    assert result.exit_code == 0, result.output
    spec = load_release_spec("other.yaml")
    assert spec.privacy_unit.ids == "meter"
    assert spec.privacy_unit.max_contributions == 3
    assert spec.query.name == "sum"
    assert (spec.privacy.epsilon, spec.privacy.delta) == (0.5, 1e-7)
    assert (spec.output.url, spec.budget.dataset) == ("out.zarr", "meters")
    assert spec.privacy_unit.missing == "center"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--clip-norm", "2.5", "--array", "use", "--record-dim", "0"),
        ("--range", "0,100", "--array", "meter", "--query", "histogram"),
        ("--range", "0,1", "--array", "use", "--record-dim", "person", "--query", "identity"),
    ],
)
def test_every_first_spec_can_be_planned(folder: Path, arguments: tuple[str, ...]) -> None:
    assert _init(*arguments).exit_code == 0
    _run("ledger", "init", "people", "--epsilon=3", "--delta=1e-5", "--ledger=sqlite:///ledger.db")
    planned = _run("plan", "release.yaml")
    assert planned.exit_code == 0, planned.output


def test_names_that_yaml_would_read_otherwise_are_quoted(folder: Path) -> None:
    result = _init(
        *("--array", "use", "--record-dim", "person", "--range", "0,1"),
        *("--dataset", "yes", "--output", "a: b.zarr"),
    )
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = yaml.safe_load(Path("release.yaml").read_text())
    assert content["budget"]["dataset"] == "yes"
    assert content["output"]["url"] == "a: b.zarr"


def test_a_coordinate_of_the_records_is_not_proposed(folder: Path) -> None:
    _init("--array", "use", "--record-dim", "person", "--range", "0,1", "--query", "identity")
    assert load_release_spec("release.yaml").publish.coordinates == ["month"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--array is missing"),
        (("--array", "none"), "there is no such array"),
        (("--array", "town"), "only real numbers"),
        (("--array", "use"), "--record-dim is missing"),
        (("--array", "use", "--record-dim", "day"), "is not a dimension"),
        (("--array", "use", "--record-dim", "person"), "--range is missing"),
        (("--array", "use", "--record-dim", "person", "--range", "3,1"), "LOW < HIGH"),
        (("--array", "use", "--record-dim", "person", "--range", "a,b"), "is not a number"),
        (
            ("--array", "use", "--record-dim", "person", "--range", "0,1", "--clip-norm", "1"),
            "both",
        ),
        (
            ("--array", "use", "--record-dim", "person", "--range", "0,1", "--epsilon", "-1"),
            "epsilon",
        ),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = _init(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.output
    assert len(result.output.splitlines()) == 1
    assert not Path("release.yaml").exists()


def test_a_file_is_never_replaced(folder: Path) -> None:
    Path("release.yaml").write_text("mine")
    result = _init("--array", "use", "--record-dim", "person", "--range", "0,1")
    assert result.exit_code == 2
    assert "replaces nothing" in result.output
    assert Path("release.yaml").read_text() == "mine"


def test_inspect_shows_schemas_and_no_value(folder: Path) -> None:
    result = _run("inspect", "source.zarr")
    assert result.exit_code == 0
    for word in ("use", "person: 60, month: 4", "kWh", "labels, ids or a coordinate"):
        assert word in result.output
    assert "0.1234" not in result.output
    described = json.loads(_run("inspect", "source.zarr", "--json").output)
    by_path = {array["path"]: array for array in described["arrays"]}
    assert by_path["use"]["shape"] == [60, 4]
    assert by_path["town"]["refusal"] is not None


def test_inspect_of_nothing_is_one_line(folder: Path) -> None:
    result = _run("inspect", "missing.zarr")
    assert result.exit_code == 2
    assert "does not exist" in result.output


def test_every_query_and_mechanism_is_listed_with_what_it_is() -> None:
    for kind, registry in (("queries", QUERIES), ("mechanisms", MECHANISMS)):
        lines = _run("list", kind).output.splitlines()
        assert [line.split()[0] for line in lines] == list(registry)
        assert all(len(line.split()) > 2 for line in lines)


def test_the_flows_are_listed() -> None:
    lines = _run("list", "flows").output.splitlines()
    assert {"privatize", "privatize_series", "privatize_batch"} <= {x.split()[0] for x in lines}

"""The commands as users meet them: JSON for programs, tables for people, one line for mistakes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result

from dpdask import GaussianProfile
from dpdask.cli import main
from dpdask.ledger import Ledger

SPEC: dict[str, Any] = {
    "shape": [41, 205],
    "privacy": {"epsilon": 3.87, "delta": 1e-8},
    "sensitivity": {"l2": 1.954},
    "mechanism": {"name": "mvg", "theorem": "general", "gamma": 37.264},
}


def calibrate(tmp_path: Path, changes: dict[str, Any], *options: str) -> Result:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump({**SPEC, **changes}))
    return CliRunner().invoke(main, ["calibrate", str(path), *options])


def test_calibrate_prints_json_for_programs(tmp_path: Path) -> None:
    result = calibrate(tmp_path, {}, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts["noise"]["name"] == "kronecker"
    assert set(facts["guarantee"]) == {"claimed", "verified", "certified", "reason"}
    assert facts["guarantee"]["claimed"] == {"epsilon": 3.87, "delta": 1e-8, "theorem": "MVG Thm 2"}
    assert set(facts["guarantee"]["verified"]) == {
        "name",
        "configuration",
        "epsilon_at_delta",
        "delta_at_epsilon",
    }
    assert facts["guarantee"]["certified"] is True
    assert math.isclose(facts["quantities"]["bound"], 2.713215110554935e-11, rel_tol=1e-9)


MECHANISMS: list[dict[str, Any]] = [
    {"mechanism": {"name": "analytic-gaussian"}},
    {"mechanism": {"name": "classic-gaussian"}, "privacy": {"epsilon": 0.5, "delta": 1e-5}},
    {"mechanism": {"name": "classic-gaussian"}},
    {"mechanism": {"name": "imgm", "factors": ["identity", {"scaled": 2.0}]}},
    {
        "mechanism": {
            "name": "imgm",
            "factors": [{"diagonal": [1, 2]}, {"covariance": [[2, 1], [1, 2]]}],
        },
        "shape": [2, 2],
    },
    {
        "mechanism": {
            "name": "imgm",
            "factors": [
                {"low_rank": {"base": 1, "directions": [[0.6, 0.8, 0]], "scales": [2]}},
                "identity",
            ],
        },
        "shape": [3, 2],
    },
    {
        "mechanism": {"name": "imgm", "factors": [{"dense": [[1, 2], [0, 4]]}, "identity"]},
        "shape": [2, 3],
        "sensitivity": {"ranges": [0, 1]},
    },
    {"mechanism": {"name": "mvg", "theorem": "psd", "gamma": 40}, "shape": [41, 41]},
    {
        "mechanism": {
            "name": "mvg",
            "gamma": 40,
            "allocation": "binary",
            "tau": 0.9,
            "chosen": [0, 1],
        }
    },
    {
        "mechanism": {"name": "mvg", "allocation": "max-pnr", "eigenvalues": [3, 2]},
        "shape": [2, 3],
        "sensitivity": {"ranges": [-1, 1]},
    },
    {"mechanism": {"name": "mgm", "weights": [[1, 2], None]}, "shape": [2, 3]},
    {"mechanism": {"name": "udn", "utility": [[1, 2], [3, 4]]}, "shape": [2, 3]},
    {"mechanism": {"name": "idn"}, "sensitivity": {"ranges": [-1, 1]}},
    {
        "mechanism": {"name": "directional", "weights": [1, 4]},
        "shape": [2, 9],
        "sensitivity": {"ranges": [[0, 1], [0, 5]], "record_dim": 1},
    },
    {"mechanism": {"name": "rank-one"}},
    {"mechanism": {"name": "k-norm"}},
    {"mechanism": {"name": "analytic-gaussian"}, "composition": {"steps": 7}},
    {
        "mechanism": {"name": "analytic-gaussian"},
        "sensitivity": {"l2": 1, "adjacency": "add-remove-one"},
    },
]


@pytest.mark.parametrize("changes", MECHANISMS, ids=lambda c: c["mechanism"]["name"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_every_mechanism_calibrates_from_a_spec(
    tmp_path: Path, changes: dict[str, Any], options: tuple[str, ...]
) -> None:
    result = calibrate(tmp_path, changes, *options)
    assert result.exit_code == 0, result.output
    if options:
        spherical = changes["mechanism"]["name"] in ("rank-one", "k-norm")
        assert json.loads(result.stdout)["guarantee"]["certified"] is not spherical
    else:
        assert "certified" in result.stdout


def test_the_papers_rank_one_calibration_is_shown_with_its_true_delta(tmp_path: Path) -> None:
    result = calibrate(
        tmp_path, {"mechanism": {"name": "rank-one", "calibration": "paper"}}, "--json"
    )
    facts = json.loads(result.stdout)
    assert facts["guarantee"]["certified"] is False
    assert facts["guarantee"]["verified"]["delta_at_epsilon"] > 0.1
    assert "above the claimed" in facts["guarantee"]["reason"]
    assert any("1/M" in warning for warning in facts["warnings"])
    assert "warning: " in result.stderr


BAD: list[tuple[dict[str, Any], str]] = [
    ({"privacy": {"epsilon": 0, "delta": 1e-5}}, "epsilon=0"),
    ({"privacy": {"epsilon": -1, "delta": 1e-5}}, "epsilon=-1"),
    ({"privacy": {"epsilon": math.nan, "delta": 1e-5}}, "epsilon=nan"),
    ({"privacy": {"epsilon": math.inf, "delta": 1e-5}}, "epsilon=inf"),
    ({"privacy": {"epsilon": True, "delta": 1e-5}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": "much", "delta": 1e-5}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": 1, "delta": 0}}, "delta=0"),
    ({"privacy": {"epsilon": 1, "delta": 1}}, "delta=1"),
    ({"privacy": {"epsilon": 1, "delta": math.nan}}, "delta=nan"),
    ({"privacy": {"epsilon": 1}}, "privacy.delta is missing"),
    ({"privcy": {"epsilon": 1, "delta": 1e-5}}, "did you mean 'privacy'"),
    ({"mechanism": {"name": "mvg", "gama": 3}}, "did you mean 'gamma'"),
    ({"mechanism": {"name": "mgv"}}, "choose one of classic-gaussian"),
    ({"mechanism": {"name": "k-norm"}, "shape": [1]}, "use analytic-gaussian"),
    ({"mechanism": {"name": "mvg"}}, "gamma"),
    ({"mechanism": {"name": "rank-one"}, "shape": [2]}, "M > 2"),
    (
        {
            "mechanism": {"name": "mvg", "gamma": 40, "allocation": "given", "shares": [0.6, 0.6]},
            "shape": [2, 3],
        },
        "sum to 1.2",
    ),
    (
        {
            "mechanism": {
                "name": "mvg",
                "gamma": 40,
                "allocation": "binary",
                "tau": 0.5,
                "directions": [[1, 1]],
            },
            "shape": [2, 3],
        },
        "not orthonormal",
    ),
    (
        {
            "mechanism": {"name": "imgm", "factors": [{"dense": [[1, 2], [2, 4]]}, "identity"]},
            "shape": [2, 3],
        },
        "singular",
    ),
    (
        {
            "mechanism": {
                "name": "imgm",
                "factors": [{"covariance": [[1, 2], [2, 1]]}, "identity"],
            },
            "shape": [2, 3],
        },
        "positive definite",
    ),
    ({"sensitivity": {"ranges": [0, 1], "adjacency": "add-remove-one"}}, "use replace-one"),
    (
        {"sensitivity": {"l2": 1, "record_dim": 0, "adjacency": "add-remove-one"}},
        "use replace-one",
    ),
    ({"sensitivity": {"l2": 1, "origin": "measured"}}, "not a sensitivity"),
    ({"sensitivity": {"ranges": [0, 1], "origin": "declared"}}, "leave origin out"),
    ({"sensitivity": {"ranges": [[0, 1], [0, 2]]}, "shape": [2, 2]}, "feature_dim"),
    ({"sensitivity": {"ranges": ["a", 1]}}, "sensitivity.ranges.0.0"),
    ({"sensitivity": {"l2": 1e200}}, "1e-100 to 1e100"),
    ({"sensitivity": {"ranges": [0, 1e200]}}, "1e-100 to 1e100"),
    ({"privacy": {"epsilon": 1e160, "delta": 1e-5}}, "at most 1e6"),
    ({"privacy": {"epsilon": 1, "delta": 1e-305}}, "delta >= 1e-300"),
    ({"mechanism": {"name": "mvg", "gamma": 40, "tau": 0.5}}, "goes with allocation: binary"),
    ({"mechanism": {"name": "mvg", "gamma": 1e200}}, "gamma=1e+200"),
    (
        {
            "mechanism": {"name": "imgm", "factors": [{"dense": [[1, 2], [3]]}, "identity"]},
            "shape": [2, 3],
        },
        "different lengths",
    ),
    (
        {"mechanism": {"name": "udn", "utility": [[1, 2]], "directions": [[1]]}, "shape": [2, 3]},
        "does not fit",
    ),
    (
        {
            "mechanism": {"name": "imgm", "factors": [{"diagonal": [1e-200, 1]}, "identity"]},
            "shape": [2, 3],
        },
        "singular",
    ),
    ({"mechanism": {"name": "analytic-gaussian"}, "shape": [10**400]}, "1e18"),
    ({"mechanism": {"name": "k-norm"}, "composition": {"steps": 10**30}}, "more than the"),
    ({"sensitivity": {"l2": -1}}, "-1"),
    ({"sensitivity": {}}, "needs a norm bound, l1 or l2 or both, or ranges"),
    ({"sensitivity": {"ranges": [1, 0]}}, "empty or unbounded"),
    ({"sensitivity": {"ranges": [[0, 1], [0, 1]], "record_dim": 1}}, "2 ranges do not fit"),
    ({"sensitivity": {"l2": 1, "record_dim": 5}}, "record_dim=5"),
    ({"shape": []}, "shape"),
    ({"shape": [0, 3]}, "shape"),
    ({"composition": {"steps": 0}}, "steps=0"),
    (
        {"composition": {"steps": 3, "sampling_rate": 0.1}},
        "sampling: {rate: ..., of: privacy-units}",
    ),
    (
        {"composition": {"steps": 3, "sampling": {"rate": 2, "of": "records"}}},
        "rate: 2 is not a probability",
    ),
    (
        {"composition": {"steps": 3, "sampling": {"rate": 0.1}}},
        "composition.sampling.of is missing",
    ),
    (
        {"composition": {"steps": 3, "sampling": {"rate": 0.1, "of": "people"}}},
        "composition.sampling.of",
    ),
    (
        {"composition": {"steps": 3, "sampling": {"rate": 0.1, "of": "records"}}},
        "sensitivity.max_contributions",
    ),
    ({"composition": {"steps": 3, "steps_are_independent": True}}, "steps_are_independent"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_a_mistake_is_one_line_with_a_way_out(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    result = calibrate(tmp_path, changes)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr


@pytest.mark.parametrize("text", ["shape: [1", "- a\n- b\n", "", "{}"])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    result = CliRunner().invoke(main, ["calibrate", str(path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["calibrate", str(tmp_path / "nowhere.yaml")])
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_scientific_notation_without_a_dot_is_a_number(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC).replace("1.0e-08", "1e-8"))
    assert "delta: 1e-8" in path.read_text()
    assert CliRunner().invoke(main, ["calibrate", str(path)]).exit_code == 0


def compare(*options: str) -> Result:
    return CliRunner().invoke(main, ["compare", "--epsilon", "1", "--delta", "1e-5", *options])


def test_compare_puts_the_best_certified_mechanism_first() -> None:
    result = compare("--shape", "1000x100", "--l2-sensitivity", "1", "--json")
    rows = json.loads(result.stdout)["mechanisms"]
    assert rows[0]["mechanism"].startswith("analytic-gaussian")
    assert rows[0]["relative_loss"] == 1.0
    by_name = {row["mechanism"]: row for row in rows}
    assert 1e8 < by_name["rank-one exact"]["relative_loss"] < 3e8
    assert by_name["rank-one exact"]["guarantee"]["certified"] is False
    assert by_name["k-norm"]["guarantee"]["certified"] is False
    assert by_name["rank-one paper"]["guarantee"]["certified"] is False
    assert by_name["rank-one paper"]["guarantee"]["verified"]["delta_at_epsilon"] > 0.9
    assert "unavailable" in by_name["idn"]


def test_compare_on_ranges_prefers_directional_noise() -> None:
    options = ["--shape", "3x50", "--record-dim", "1", "--weights", "1,1,9"]
    for pair in ("0,1", "0,10", "-1,1"):
        options += ["--range", pair]
    rows = json.loads(compare(*options, "--json").stdout)["mechanisms"]
    # three entries are so few that Laplace noise comes first
    assert [row["mechanism"] for row in rows[:2]] == ["laplace", "directional"]
    plain = next(row for row in rows if row["mechanism"].startswith("analytic"))
    assert plain["relative_loss"] > 1


def test_compare_shows_the_figures_of_the_papers() -> None:
    """R1SMG's kurtosis, skewness and constants in its first case study (studies of counts)."""
    options = ("--shape", "89x89", "--l2-sensitivity", repr(math.sqrt(2)), "--json")
    result = CliRunner().invoke(main, ["compare", "--epsilon", "0.5", "--delta", "1e-7", *options])
    facts = json.loads(result.stdout)
    by_name = {row["mechanism"]: row for row in facts["mechanisms"]}
    stds = {
        "classic-gaussian": 16.1697,
        "analytic-gaussian (= imgm)": 12.7218,
        "mgm": 23437,
        "udn": 2484,
        "mvg general": 1.107e7,
        "rank-one exact": 8.9e6,
    }
    for name, std in stds.items():
        assert by_name[name]["entry_std"] == pytest.approx(std, rel=2e-3)
    assert by_name["rank-one paper"]["kurtosis"] == pytest.approx(35 / 3)
    assert by_name["rank-one paper"]["skewness"] == pytest.approx(5 * math.sqrt(3) / 3)
    assert by_name["analytic-gaussian (= imgm)"]["kurtosis"] == pytest.approx(1.00101, abs=1e-5)
    assert by_name["analytic-gaussian (= imgm)"]["skewness"] == pytest.approx(1.00038, abs=1e-5)
    constants = facts["constants"]
    assert constants["C_A"] * 2 == pytest.approx(1_744_718, rel=1e-6)
    classic = by_name["classic-gaussian"]["expected_squared_loss"]
    assert constants["C_C"] * 2 == pytest.approx(classic, rel=1e-9)
    paper = by_name["rank-one paper"]["expected_squared_loss"]
    assert constants["C_R"] * 2 == pytest.approx(paper, rel=1e-9)
    analytic = by_name["analytic-gaussian (= imgm)"]["expected_squared_loss"]
    assert analytic == pytest.approx(1_281_971, rel=1e-6)
    assert analytic < constants["C_A"] * 2  # which the paper calls a lower bound
    assert constants["C_M"] * 2 < by_name["mvg general"]["expected_squared_loss"]


def test_compare_takes_directions_and_eigenvalues(tmp_path: Path) -> None:
    """Weighted losses and the ratio are along the directions; max-PNR has the largest of MVG."""
    c, s = math.cos(0.3), math.sin(0.3)
    rows = [[c, s, 0.0], [-s, c, 0.0], [0.0, 0.0, 1.0]]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "rows.txt").write_text("\n".join(",".join(map(repr, row)) for row in rows))
    options = ["--shape", "3x5", "--l2-sensitivity", "1", "--weights", "9,1,0", "--floor", "0.1"]
    options += ["--eigenvalues", "100,10,1", "--json"]
    printed = [
        compare(*options, "--directions", str(tmp_path / name)).stdout
        for name in ("rows.json", "rows.txt")
    ]
    assert printed[0] == printed[1]
    by_name = {row["mechanism"]: row for row in json.loads(printed[0])["mechanisms"]}
    plain = by_name["analytic-gaussian (= imgm)"]
    assert plain["weighted_squared_loss"] == pytest.approx(plain["entry_std"] ** 2 * 10 * 5)
    expected = sum(math.log1p(k / plain["entry_std"] ** 2) for k in (100, 10, 1))
    assert plain["log_pnr"] == pytest.approx(expected)
    udn = by_name["udn"]
    [factor] = [f for f in udn["noise"]["configuration"]["factors"] if f["name"] == "dense"]
    u = np.array(factor["configuration"]["matrix"])
    along = np.sum((np.array(rows) @ u) ** 2, axis=1)
    assert udn["weighted_squared_loss"] == pytest.approx(float(along @ [9, 1, 0]) * 5)
    assert np.allclose(1 / along / np.sum(1 / along), 0.9 * np.array([3, 1, 0]) / 4 + 0.1 / 3)
    assert by_name["mvg max-pnr"]["log_pnr"] > by_name["mvg general"]["log_pnr"]


def test_weighted_precisions_of_mvg_are_the_best() -> None:
    """sum P_i v_i with v_i = (theta_i P)^-1/2 is least for theta proportional to P^(2/3)."""
    weights = np.array([9.0, 1.0, 0.2])
    options = ["--shape", "3x5", "--l2-sensitivity", "1", "--gamma", "1", "--json"]
    text = compare(*options, "--weights", ",".join(map(str, weights))).stdout
    by_name = {row["mechanism"]: row for row in json.loads(text)["mechanisms"]}
    best = by_name["mvg general"]["weighted_squared_loss"]
    precision = by_name["mvg general"]["quantities"]["bound"] ** 2 / 5
    shares = np.random.default_rng(0).dirichlet(np.ones(3), size=2000)
    others = 5 * np.sum(weights / np.sqrt(shares * precision), axis=1)
    assert best <= np.min(others) * (1 + 1e-9)
    assert np.min(others) < 1.05 * best  # of so many some are near it


def test_the_list_of_mechanisms_tells_the_names_that_people_know() -> None:
    result = CliRunner().invoke(main, ["list", "mechanisms"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "r1smg" in lines["rank-one"]
    assert "agm" in lines["analytic-gaussian"]
    assert "matrix-variate-gaussian" in lines["mvg"]


def test_compare_takes_steps_and_samples() -> None:
    """One step of T has sqrt(T) times the noise; a sample less than that."""
    one, many, sampled = (
        {
            row["mechanism"]: row
            for row in json.loads(
                compare("--shape", "3x4", "--l2-sensitivity", "1", "--json", *options).stdout
            )["mechanisms"]
        }
        for options in ((), ("--steps", "16"), ("--steps", "4", "--sampling-rate", "0.1"))
    )
    name = "analytic-gaussian (= imgm)"
    assert many[name]["entry_std"] == pytest.approx(4 * one[name]["entry_std"])
    assert sampled[name]["entry_std"] < 2 * one[name]["entry_std"] / 2
    assert "16 steps by strong composition" in many["mgm"]["guarantee"]["claimed"]["theorem"]


def test_compare_prints_a_table_for_people() -> None:
    result = compare("--shape", "4x4", "--l2-sensitivity", "1")
    assert result.exit_code == 0
    assert "mvg psd" in result.stdout
    assert "not certified" in result.stdout


@pytest.mark.parametrize(
    "options",
    [
        ("--shape", "4xq", "--l2-sensitivity", "1"),
        ("--shape", "4x4"),
        ("--shape", "4x4", "--range", "a,b"),
        ("--shape", "4x4", "--l2-sensitivity", "nan"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--gamma", "0"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--gamma", "nan"),
        ("--shape", "4x4", "--range", "0,1", "--weights", "1,2"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--adjacency", "swap"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--steps", "0"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--sampling-rate", "2"),
        ("--shape", "4", "--l2-sensitivity", "1", "--sampling-rate", "0.1", "--sampling-of", "all"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--directions", "no-such-file"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--eigenvalues", "1,2"),
        ("--shape", "4x4", "--l2-sensitivity", "1", "--weights", "1,1,1,0"),
    ],
)
def test_compare_refuses_mistakes_in_one_line(options: tuple[str, ...]) -> None:
    result = compare(*options)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_ten_billion_entries_are_compared_without_a_tensor() -> None:
    result = compare("--shape", "1000000x10000", "--l2-sensitivity", "1", "--json")
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["mechanisms"]) == 13


@pytest.mark.parametrize(
    ("kind", "file"), [("spec", "release-spec.schema.json"), ("card", "dp-release.schema.json")]
)
def test_the_schemas_in_the_docs_are_those_of_the_models(kind: str, file: str) -> None:
    result = CliRunner().invoke(main, ["schema", kind])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    jsonschema.Draft202012Validator.check_schema(printed)
    stored = Path(__file__).parents[3] / "docs" / file
    assert json.loads(stored.read_text()) == printed, f"run `dpdask schema {kind} > docs/{file}`"


EXAMPLES = sorted((Path(__file__).parents[3] / "docs" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_of_the_docs_calibrates(path: Path) -> None:
    result = CliRunner().invoke(main, ["calibrate", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["guarantee"]["certified"] is (
        not path.stem.startswith(("rank-one", "k-norm"))
    )


def test_the_ledger_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"

    def run(*options: str) -> Result:
        return CliRunner().invoke(main, ["ledger", *options, "--ledger", url])

    assert run("init", "people", "--epsilon", "2", "--delta", "1e-6").exit_code == 0
    assert run("init", "people", "--epsilon", "3", "--delta", "1e-6").exit_code == 2
    book = Ledger(url)
    book.reserve("people", "ab" * 32, GaussianProfile(0.25))
    facts = json.loads(run("show", "people", "--json").stdout)
    assert facts["total"] == {"epsilon": 2.0, "delta": 1e-6}
    assert 0.5 < facts["spent_epsilon"] < 2
    assert [release["last_step"] for release in facts["releases"]] == ["reserve"]
    assert "abab" not in str(facts)  # the fingerprint stays inside
    assert json.loads(run("list", "--json").stdout)["datasets"] == [facts]
    assert "people" in run("list").stdout
    assert "ab" * 32 in run("show", "people").stdout
    assert "2 entries, every chain, charge and sum intact" in run("verify").stdout
    assert json.loads(run("verify", "--json").stdout) == {"entries": 2, "intact": True}
    missing = run("show", "nobody")
    assert missing.exit_code == 2
    assert missing.stderr.startswith("error: dataset 'nobody'")


def test_commands_do_not_repeat_what_zarr_says_of_text(tmp_path: Path) -> None:
    import warnings

    from dpdask.cli import _warnings_as_lines

    with warnings.catch_warnings(record=True) as caught, _warnings_as_lines():
        warnings.warn("The data type (x) does not have a Zarr V3 specification.", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["something else"]

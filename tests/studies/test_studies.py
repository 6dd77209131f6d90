"""Every study, run quickly: what it prints, what it draws, and what must come out of it.

Noise is new in every run, so thresholds on measured values are at least seven standard deviations
away, or where a handful of random directions would have to agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from dpdask.cli import main
from dpdask.errors import InvalidSpec
from dpdask_studies import registry
from dpdask_studies.data import packaged
from dpdask_studies.registry import NAMES
from dpdask_studies.study import Verdict
from dpdask_studies.summary import write_page
from dpdask_studies.unreproduced import UNREPRODUCED, unreproduced_records

DOCS = Path(__file__).parents[2] / "docs"
Lines = dict[str, dict[str, Any]]


def study(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["study", *arguments])


def check_counts(lines: Lines) -> None:
    published = lines["loss, R1SMG as published, epsilon 1e-05"]
    assert published["formula"] == pytest.approx(402_110.0976)
    assert published["verdict"] == Verdict.NOT_PRIVATE
    assert lines["R1SMG: delta at epsilon 1e-5"]["formula"] == pytest.approx(0.21664, rel=1e-4)
    for label in ("classic Gaussian", "analytic Gaussian", "MVG", "MGM", "UDN", "Laplace (auto)"):
        line = lines[f"loss, {label}, epsilon 0.5"]
        assert line["measured"] == pytest.approx(line["formula"], rel=0.2)


def check_loss(lines: Lines) -> None:
    sizes = {"100": 3.36864e7, "10,000": 2.01118e7, "1,000,000": 2.00012e7}
    for size, loss in sizes.items():
        line = lines[f"R1SMG as published, epsilon 1e-07, M = {size}"]
        assert line["formula"] == pytest.approx(loss, rel=1e-5)
        assert line["verdict"] == Verdict.NOT_PRIVATE
    for label in ("classic", "analytic"):
        line = lines[f"{label} Gaussian, epsilon 1e-07, M = 1,000"]
        assert line["measured"] == pytest.approx(line["formula"], rel=0.2)
        assert line["verdict"] == Verdict.HOLDS


def check_pca(lines: Lines) -> None:
    bound = lines["MVG's bound at (1.6, 1e-7), 2400 x 2400"]
    assert bound["formula"] == pytest.approx(2.29e-17, rel=0.01)
    verdicts = {
        "R1SMG as published": Verdict.NOT_PRIVATE,
        "Wishart": Verdict.NOT_PRIVATE,
        "analytic Gaussian": Verdict.CERTIFIED,
        "MOD-SULQ": Verdict.HOLDS,
    }
    for label, verdict in verdicts.items():
        assert lines[f"deviation, {label}, epsilon 1.6"]["verdict"] == verdict
    noisy = lines["deviation, MVG, Thm 3, epsilon 1.6"]["measured"]
    assert lines["deviation, analytic Gaussian, epsilon 1.6"]["measured"] < noisy / 4


def check_regression(lines: Lines) -> None:
    zero, constant = lines["zero"]["measured"], lines["constant (mean of drinks)"]["measured"]
    assert lines["non-private"]["measured"] < constant < zero
    assert lines["MVG binary {ALT, drinks}"]["measured"] == pytest.approx(zero, rel=0.05)
    assert lines["MVG binary {ALT, drinks}"]["verdict"] == Verdict.DIFFERS
    assert lines["ours: second moments, 10,000 records"]["measured"] < constant


def check_component(lines: Lines) -> None:
    for label in ("Gaussian (analytic)", "Laplace"):
        assert lines[label]["measured"] < 0.1
        assert lines[label]["verdict"] == Verdict.DIFFERS
    assert lines["MVG, Thm 2"]["measured"] > 0.02  # five random directions are never that good
    assert lines["MVG, Thm 2"]["formula"] == "std 11.7"


def check_covariance(lines: Lines) -> None:
    assert lines["ours: query second-moment"]["measured"] < 0.05
    assert lines["ours: query second-moment"]["verdict"] == Verdict.CERTIFIED
    for label in ("MVG binary", "Gaussian (analytic)", "Laplace"):
        assert lines[label]["measured"] > 0.3


def check_errors(lines: Lines) -> None:
    losses = {"analytic-gaussian": 1.989e4, "idn": 2.179e6, "udn": 2.288e8, "mvg": 4.03e13}
    for name, loss in losses.items():
        line = lines[f"Adult gradient: loss, {name}"]
        assert line["formula"] == pytest.approx(loss, rel=1e-3)
        assert line["measured"] == pytest.approx(loss, rel=0.3)
    orders = [line for label, line in lines.items() if label.endswith("order of the table")]
    assert len(orders) == 8
    assert {line["verdict"] for line in orders} == {Verdict.REPRODUCED}


def check_time(lines: Lines) -> None:
    printed = lines["MVG: release in units of the Gaussian's"]["paper"]
    assert printed == pytest.approx(311.9, rel=1e-3)


def check_imgm(lines: Lines) -> None:
    roots = {"0.001": 0.000580, "0.1": 0.032521, "1": 0.268051, "10": 2.000446}
    for epsilon, root in roots.items():
        line = lines[f"B at epsilon {epsilon}"]
        assert float(line["formula"]) == pytest.approx(root, abs=1e-6)
        assert line["verdict"] == Verdict.REPRODUCED
    assert lines["noise of 100 steps / of one (Thm 4)"]["formula"] == pytest.approx(10)
    for name in ("imgm", "analytic-gaussian"):
        line = lines[f"standard deviation, {name}, epsilon 1"]
        assert line["measured"] == pytest.approx(line["formula"], rel=0.1)


def check_gradients(lines: Lines) -> None:
    ours = lines["ours: mean of clipped gradients"]
    assert ours["measured"] > 0.2
    assert ours["formula"] == "std 0.052"
    stds = {"analytic Gaussian": "9.51", "IDN": "74.3", "UDN": "599", "MVG": "1.62e+05"}
    for label, std in stds.items():  # on entries that are clamped to 0.05
        assert lines[label]["formula"] == f"std {std}"
        assert lines[label]["verdict"] == Verdict.CERTIFIED


def check_features(lines: Lines) -> None:
    assert lines["accuracy, non-private"]["measured"] > 0.7
    for label in ("analytic Gaussian", "IDN", "UDN", "MVG"):
        line = lines[f"accuracy, {label}, epsilon 10"]
        assert line["measured"] == pytest.approx(0.5, abs=0.1)  # odd or even: a coin


def check_best(lines: Lines) -> None:
    for label, line in lines.items():
        if "R1SMG" in label:
            assert line["paper"] < line["formula"] / 1000  # small because it is not private
            continue
        assert line["measured"] == pytest.approx(line["formula"], rel=0.15)
        assert line["verdict"] == Verdict.CERTIFIED
    for task, ours in (("counts", "auto (Laplace)"), ("liver", "directional"), ("digits", "auto")):
        best = lines[f"{task}: ours: {ours}"]["formula"]
        others = [line["formula"] for label, line in lines.items() if label.startswith(task)]
        assert best <= min(others) * (1 + 1e-9)


def check_training(lines: Lines) -> None:
    for sigma, epsilon, step in (("1.1", 1.7933, 0.7125), ("0.5", 16.9558, 5.4252)):
        total, one = lines[f"MNIST, sigma {sigma}: epsilon"], f"MNIST, sigma {sigma}: epsilon_0"
        assert float(total["formula"]) == pytest.approx(epsilon, abs=1e-3)
        amortised = lines[f"{one} of eq. 16"]
        assert float(amortised["formula"]) == pytest.approx(step, abs=1e-4)
        assert {total["verdict"], amortised["verdict"]} == {Verdict.REPRODUCED}
        attack = lines[f"R1SMG, nearest-point attack on one step, MNIST, sigma {sigma}"]
        assert attack["measured"] > 0.99
    assert lines["CIFAR-10, sigma 1.1: epsilon"]["verdict"] == Verdict.DIFFERS
    total = "after 15 steps, epsilon 2, delta 1e-05"
    assert lines[f"accuracy, DPSGD by dpdask.steps, {total}"]["measured"] > 0.4
    assert lines[f"accuracy, R1SMG as published, {total}"]["verdict"] == Verdict.NOT_PRIVATE


CHECKS: dict[str, Callable[[Lines], None]] = {
    "r1-counts": check_counts,
    "r1-pca": check_pca,
    "r1-training": check_training,
    "r1-loss": check_loss,
    "mvg-regression": check_regression,
    "mvg-component": check_component,
    "mvg-covariance": check_covariance,
    "mgm-errors": check_errors,
    "mgm-time": check_time,
    "mgm-gradients": check_gradients,
    "mgm-features": check_features,
    "imgm": check_imgm,
    "best": check_best,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_study_runs_and_shows_what_it_must(name: str, tmp_path: Path) -> None:
    plot = tmp_path / "study.svg"
    result = study(name, "--quick", "--json", "--plot", str(plot))
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["study"] == name
    assert content["quick"] is True
    assert content["data"]
    lines = {line["label"]: line for line in content["lines"]}
    assert len(lines) == len(content["lines"])  # labels tell lines apart
    for line in lines.values():
        assert set(line) >= {"label", "paper", "formula", "measured", "verdict", "why"}
        assert line["verdict"] in set(Verdict)
        assert any(line[key] is not None for key in ("paper", "formula", "measured"))
    assert plot.read_text().count("<svg") == 1
    CHECKS[name](lines)
    for claim in UNREPRODUCED:
        if claim.study == name:
            shown = [line for label, line in lines.items() if label.startswith(claim.line)]
            assert shown, claim


def test_what_cannot_be_reproduced_is_shown_by_a_study() -> None:
    assert {claim.study for claim in UNREPRODUCED} <= set(NAMES)
    assert len(unreproduced_records()) == len(UNREPRODUCED) >= 12


def test_all_studies_are_listed() -> None:
    result = study("--list")
    assert result.exit_code == 0
    for name in NAMES:
        assert name in result.stdout
    listed = json.loads(study("--list", "--json").stdout)["studies"]
    assert [each["study"] for each in listed] == list(NAMES)
    assert all(each["paper"] for each in listed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a study"),
        (("r1",), "choose one of"),
        (("r1-loss", "--data", "x.csv"), "takes no data"),
        (("r1-counts", "--data", "absent.csv"), "is not a file"),
        (("r1-loss", "--plot", "x.jpg"), ".svg"),
        (("r1-loss", "--plot", "no/such/folder/x.svg"), "folder that exists"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(arguments: tuple[str, ...], words: str) -> None:
    result = study(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr


def test_the_page_is_written_from_a_run(tmp_path: Path) -> None:
    page = tmp_path / "studies.md"
    mark = "<!-- written by python -m dpdask_studies.summary -->"
    page.write_text(f"# Studies\n\nBy hand.\n\n{mark}\n\nold results\n")
    write_page(page, [registry.study("imgm")], quick=True)
    text = page.read_text()
    assert text.startswith(f"# Studies\n\nBy hand.\n\n{mark}\n\nRun `--quick` on ")
    assert "old results" not in text
    assert "## imgm" in text
    assert "dpdask study r1-counts" in text  # what cannot be reproduced, with its command
    assert "(studies/imgm.svg)" in text
    assert (tmp_path / "studies" / "imgm.svg").stat().st_size > 5_000
    page.write_text("# Studies\n")
    with pytest.raises(click.UsageError, match="has no line"):
        write_page(page, [], quick=True)


def test_the_published_page_has_every_study_and_its_plot() -> None:
    text = (DOCS / "studies.md").read_text()
    for name in NAMES:
        assert f"\n## {name}\n" in text
        assert f"(studies/{name}.svg)" in text
        assert (DOCS / "studies" / f"{name}.svg").exists()


def test_a_file_of_the_user_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "pickups.csv"
    rows = "".join(f"{40.6 + 0.001 * i},{-74 + 0.001 * i},B02512\n" for i in range(200))
    file.write_text("Lat,Lon,Base\n" + rows)
    from dpdask_studies.r1_counts import load

    place = load(file)
    assert "pickups.csv" in place.text
    assert place.counts.sum() == 200
    assert place.counts.shape == (89, 89)
    file.write_text("Latitude,Lon\n1,2\n")
    refused = study("r1-counts", "--quick", "--data", str(file))
    assert refused.exit_code == 2
    assert "'lat'" in refused.stderr


def test_a_package_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidSpec, match=r"no_such_package; install it by: pip install 'dpdask\["):
        packaged("no_such_package", "file.csv")


def test_numbers_that_json_cannot_carry_are_null() -> None:
    from dpdask_studies.study import Line, Measured

    line = Line(label="x", measured=Measured(1.0), verdict=Verdict.CONTEXT)
    assert math.isnan(line.to_dict()["half_width_95"])
    assert str(Measured(1.0)) == "1"
    assert str(Measured.of([1.0, 3.0])) == "2 ± 1.96"

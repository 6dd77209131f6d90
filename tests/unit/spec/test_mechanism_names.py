"""Mechanisms by the names that people know."""

from __future__ import annotations

from typing import Any

import pytest

from dpdask.errors import InvalidSpec
from dpdask.spec import MECHANISMS, parse_calibration_spec
from dpdask.spec import mechanism as sections

BASE: dict[str, Any] = {
    "shape": [4],
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "sensitivity": {"l2": 1.0},
}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("r1smg", "rank-one"),
        ("R1SMG", "rank-one"),
        ("Rank-1", "rank-one"),
        ("Rank-1 Singular Multivariate Gaussian", "rank-one"),
        ("agm", "analytic-gaussian"),
        ("AGM", "analytic-gaussian"),
        ("gaussian", "analytic-gaussian"),
        ("Gaussian", "analytic-gaussian"),
        ("analytic_gaussian", "analytic-gaussian"),
        ("Analytic Gaussian", "analytic-gaussian"),
        ("classical-gaussian", "classic-gaussian"),
        ("matrix-variate-gaussian", "mvg"),
        ("Matrix-Variate Gaussian", "mvg"),
        ("MVG", "mvg"),
        ("matrix-gaussian-mechanism", "mgm"),
        ("IMGM", "imgm"),
        ("UDN", "udn"),
        ("IDN", "idn"),
        ("Laplacian", "laplace"),
        ("K-Norm", "k-norm"),
    ],
)
def test_known_names_resolve_to_ours(written: str, name: str) -> None:
    assert MECHANISMS.resolve(written) == name
    assert MECHANISMS.resolve(name) == name
    needed = {"gamma": 1.0} if name == "mvg" else {}
    for mechanism in (written, {"name": written, **needed}):
        assert parse_calibration_spec({**BASE, "mechanism": mechanism}).mechanism.name == name


def test_every_alias_leads_to_a_mechanism_and_hides_none() -> None:
    for alias, name in sections._ALIASES.items():
        assert name in MECHANISMS
        assert alias not in MECHANISMS
        assert MECHANISMS.resolve(alias) == name
    assert set(sections._MEANINGS.values()) <= set(MECHANISMS)


def test_an_alias_keeps_the_options_of_the_section() -> None:
    spec = parse_calibration_spec({**BASE, "mechanism": {"name": "R1SMG", "calibration": "paper"}})
    assert isinstance(spec.mechanism, sections.RankOneSection)
    assert spec.mechanism.calibration == "paper"
    with pytest.raises(InvalidSpec, match="did you mean 'calibration'"):
        parse_calibration_spec({**BASE, "mechanism": {"name": "R1SMG", "calibraton": "paper"}})


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("gausian", "analytic-gaussian"),
        ("r1sm", "rank-one"),
        ("matrix-variate-normal", "mvg"),
        ("anisotropic-gauss", "directional"),
        ("gauss-noise", "analytic-gaussian"),
        ("normal", "analytic-gaussian"),
        ("low-rank-noise", "rank-one"),
        ("pure-dp", "laplace"),
        ("mgv", "mvg"),
    ],
)
def test_other_names_are_answered_by_what_they_mean(written: str, name: str) -> None:
    with pytest.raises(InvalidSpec, match=f"did you mean '{name}'.*choose one of"):
        parse_calibration_spec({**BASE, "mechanism": written})


def test_a_name_without_a_meaning_gets_the_list_alone() -> None:
    with pytest.raises(InvalidSpec, match="not a valid mechanism; choose one of"):
        parse_calibration_spec({**BASE, "mechanism": "xyzzy"})

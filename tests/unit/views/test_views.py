"""Every renderer shows the same rows, and no row depends on the data."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from rich.console import Console, RenderableType

import dpdask
from dpdask.accounting import GaussianProfile
from dpdask.ledger import Ledger
from dpdask.mechanisms import analytic_gaussian
from dpdask.mechanisms.compare import compare_mechanisms
from dpdask.privacy import PrivacyBudget
from dpdask.releases.card import ReleaseCard
from dpdask.views import terminal
from dpdask.views.card_rows import card_rows
from dpdask.views.ledger_rows import ledger_rows, release_rows
from dpdask.views.markdown import (
    card_markdown,
    records_markdown,
    records_to_objects,
    rows_markdown,
    rows_to_objects,
)
from dpdask.views.mechanism_rows import calibration_rows, comparison_notes, comparison_rows
from dpdask.views.plan_rows import plan_rows, public_plan_rows
from dpdask.views.rows import (
    Emphasis,
    Record,
    Row,
    query_text,
    shape_text,
    size_text,
    verdict,
)
from tests.conftest import ball

GOLDEN = Path(__file__).parents[2] / "golden"
pytestmark = pytest.mark.filterwarnings("ignore::dpdask.errors.BareKeysWarning")
TOTAL = PrivacyBudget(epsilon=3.0, delta=1e-5)


def card(**changes: Any) -> ReleaseCard:
    facts: dict[str, Any] = {
        "release_id": "5f0c9f5e3a1d4f7c8b2a6e9d0c1b2a3f",
        "edition": 1,
        "reserved_at": "2026-01-02T03:04:05+00:00",
        "description": "Mean load by hour",
        "curator": "Energy Office",
        "guarantee": {
            "claimed": {"epsilon": 1.0, "delta": 1e-6, "theorem": "Balle-Wang 8"},
            "verified": {
                "name": "gaussian",
                "configuration": {"mu": 0.2},
                "epsilon_at_delta": 0.9999991,
                "delta_at_epsilon": 9.9e-7,
            },
            "certified": True,
            "reason": "the verified profile is at least as strong as the claim",
        },
        "privacy_unit": {
            "adjacency": "replace-one",
            "record_axis": 0,
            "bound": {"kind": "clip", "norm": 12.0},
            "max_contributions": 3,
            "contributions": "declared",
        },
        "sensitivity": {"set": {"name": "l2-ball"}, "l2": 72.0, "origin": "clipped"},
        "query": {"name": "mean"},
        "mechanism": {"name": "analytic-gaussian"},
        "noise": {"name": "iid"},
        "grid": {"exact": True},
        "composition": {
            "dataset": "people",
            "steps": 1,
            "steps_are_independent": None,
            "sampling": None,
            "total": {"epsilon": 3.0, "delta": 1e-5},
            "cumulative_epsilon": 1.25,
        },
        "released": {
            "array": "readings",
            "shape": [24, 7],
            "dtype": "float64",
            "chunks": [24, 7],
            "shards": None,
            "codec": "none",
            "dimension_names": ["hour", "day"],
            "noise_std": 0.125,
            "attributes": {},
            "coordinates": [],
        },
        "unprotected": ["the shape of the result", "the spec"],
        "software": {"dpdask": "0.1.0"},
        "ledger": {"sequence": 7, "hash": "ab" * 32},
        "signed_by": None,
        "manifest": {"root": "cd" * 32, "objects": 12},
    }
    return ReleaseCard.model_validate(facts | changes)


def plan_of(value: float, folder: Path) -> dict[str, Any]:
    """Plan the sum of 1234 records that all hold ``value``."""
    source = zarr.create_array(folder / "in.zarr", shape=(1234, 8), dtype="f8", chunks=(100, 8))
    source[:] = np.full((1234, 8), value)
    ledger = f"sqlite:///{folder}/ledger.db"
    Ledger(ledger, bare_keys=True).open_dataset("people", TOTAL)
    spec = {
        "source": {"url": str(folder / "in.zarr")},
        "output": {"url": str(folder / "out.zarr"), "array": "data"},
        "privacy_unit": {
            "record_dim": 0,
            "l2_clip_norm": 1.0,
            "adjacency": "add-remove-one",
            "missing": "center",
        },
        "query": "sum",
        "privacy": {"epsilon": 1.0, "delta": 1e-6},
        "mechanism": "analytic-gaussian",
        "budget": {"ledger": ledger, "dataset": "people"},
    }
    return dpdask.plan(spec).to_dict()


@pytest.fixture
def plan(tmp_path: Path) -> dict[str, Any]:
    return plan_of(1.0, tmp_path)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db", bare_keys=True)
    ledger.open_dataset("people", TOTAL)
    ledger.open_dataset("trips", TOTAL)
    ledger.reserve("people", "ab" * 32, GaussianProfile(0.25))
    return ledger


def printed(table: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=400, color_system=None).print(table)
    return out.getvalue()


def terminal_cells(table: RenderableType) -> list[list[str]]:
    lines = [line for line in printed(table).splitlines() if line[:1] in ("│", "┃")]
    return [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]


def markdown_cells(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|") and "|---|" not in line]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[unescaped(cell.strip()) for cell in line] for line in cells if "---" not in line[0]]


def unescaped(cell: str) -> str:
    return re.sub(r"\\(.)", r"\1", re.sub(r"(?<!\\)\*\*", "", cell))


def assert_rows_are_shown_alike(rows: list[Row]) -> None:
    pairs = [[row.label, row.value] for row in rows]
    assert terminal_cells(terminal.rows_table("title", rows)) == pairs
    assert markdown_cells(rows_markdown(rows))[1:] == pairs
    assert [[each["label"], each["value"]] for each in rows_to_objects(rows)] == pairs


def assert_records_are_shown_alike(records: list[Record]) -> None:
    lines = [[row.label for row in records[0]], *([row.value for row in r] for r in records)]
    assert terminal_cells(terminal.records_table(records)) == lines
    assert markdown_cells(records_markdown(records)) == lines
    objects = records_to_objects(records)
    assert [list(objects[0]), *(list(each.values()) for each in objects)] == lines


def test_terminal_and_markdown_show_the_same_card() -> None:
    assert_rows_are_shown_alike(card_rows(card()))


def test_terminal_and_markdown_show_the_same_plan(plan: dict[str, Any]) -> None:
    assert_rows_are_shown_alike(plan_rows(plan))


def test_terminal_and_markdown_show_the_same_ledger(ledger: Ledger) -> None:
    states = [ledger.state(name) for name in ledger.datasets()]
    assert [record[0].value for record in ledger_rows(states)] == ["people", "trips"]
    assert_records_are_shown_alike(ledger_rows(states))
    assert_records_are_shown_alike(release_rows(states[0]))


def test_terminal_and_markdown_show_the_same_mechanisms() -> None:
    budget = PrivacyBudget(epsilon=1.0, delta=1e-5)
    comparison = compare_mechanisms(budget=budget, sensitivity=ball(1.0), shape=(4, 4))
    assert_records_are_shown_alike(comparison_rows(comparison))
    calibration = analytic_gaussian(budget=budget, sensitivity=ball(1.0), shape=(4, 4))
    assert_rows_are_shown_alike(calibration_rows(calibration))
    lines = [f"{note.label}: {note.value}" for note in comparison_notes(comparison)]
    assert terminal.notes(comparison).plain.splitlines() == lines
    assert any("not certified" in line for line in lines)


def test_a_card_for_people_is_the_golden_text() -> None:
    assert printed(terminal.card_table(card())) == (GOLDEN / "card.txt").read_text()
    assert card_markdown(card()) + "\n" == (GOLDEN / "card.md").read_text()


def test_a_card_that_is_not_certified_says_so_loudly() -> None:
    uncertified = card(guarantee=card().guarantee.model_dump() | {"certified": False})
    assert verdict(False) in card_rows(uncertified)
    assert "| certified | **NO** |" in card_markdown(uncertified)


def test_clamping_steps_and_sampling_are_on_a_card_that_has_them() -> None:
    composition = card().composition.model_dump() | {
        "steps": 9,
        "steps_are_independent": "declared",
        "sampling": {"rate": 0.01, "of": "records", "amplified_rate": 0.0297},
    }
    unit = card().privacy_unit.model_dump() | {"bound": {"kind": "none", "clamped_at": 1e8}}
    values = {row.label: row.value for row in card_rows(card(composition=composition))}
    assert values["steps"].startswith("9, declared")
    assert "0.0297" in values["sampled"]
    assert "entries" not in values
    assert Row("entries", "clamped at +-1e+08") in card_rows(card(privacy_unit=unit))


def test_text_of_a_card_is_never_markup() -> None:
    hostile = "[red]x[/red] | y\n| **z** | <script>"
    shown = card(description=hostile)
    assert "[red]x[/red] | y" in printed(terminal.card_table(shown))
    text = card_markdown(shown)
    assert "<script>" not in text.replace(r"\<script\>", "")
    assert markdown_cells(text)[2] == ["description", hostile.replace("\n", " ")]


def test_rows_that_leave_the_trust_boundary_do_not_tell_how_many_records_there_are(
    plan: dict[str, Any],
) -> None:
    inside, outside = plan_rows(plan), public_plan_rows(plan)
    assert any("1234" in row.value for row in inside)
    assert [row for row in outside if "1234" in row.value] == []
    assert set(outside) < set(inside)


def test_rows_of_a_plan_do_not_depend_on_values(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    small, huge = (plan_of(v, f) for v, f in zip((0.0, 1e300), folders, strict=True))
    assert plan_rows(small) == plan_rows(huge)


def test_a_dataset_that_spent_too_much_is_marked(ledger: Ledger) -> None:
    state = ledger.state("people")
    [record] = ledger_rows([state])
    assert {row.emphasis for row in record} == {Emphasis.PLAIN}
    object.__setattr__(state, "spent", GaussianProfile(50.0))
    [record] = ledger_rows([state])
    assert [row.label for row in record if row.emphasis is Emphasis.BAD] == ["spent epsilon"]


def test_an_empty_ledger_is_said_to_be_empty() -> None:
    assert "none" in printed(terminal.ledger_table([]))
    assert records_markdown([]) == "none"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.5e9, "2.5 GB"), (1e15, "1000 TB")],
)
def test_sizes_have_decimal_prefixes(count: float, text: str) -> None:
    assert size_text(count) == text


def test_shapes_are_products() -> None:
    assert shape_text((3, 4)) == "3 x 4"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"name": "mean"}, "mean"),
        ({"name": "counted-mean", "counts": "none"}, "mean"),
        ({"name": "counted-mean", "counts": "entries"}, "mean, with counts"),
        ({"name": "counted-mean", "counts": "records"}, "mean, with the count"),
        ({"name": "counted-sum", "counts": "records", "groups": []}, "sum, with counts"),
        (
            {"name": "joint-covariance", "center": "private", "counts": "none"},
            "covariance, with the mean",
        ),
        (
            {"name": "joint-covariance", "center": "private", "counts": "records"},
            "covariance, with the mean and the count",
        ),
        (
            {"name": "joint-covariance", "center": "public", "counts": "records"},
            "covariance, with the count",
        ),
    ],
)
def test_queries_are_called_as_in_specs(query: dict[str, Any], text: str) -> None:
    assert query_text(query) == text

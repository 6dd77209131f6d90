"""Windows of a dimension where every privacy unit has one index are charged as much as the largest:
from the spec over the plan and the card to the ledger.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from dpdask import GaussianProfile, PrivacyBudget
from dpdask.cli import main
from dpdask.errors import BudgetExceeded, DpdaskError, InvalidSensitivity, VerificationFailed
from dpdask.planning import make_plan
from dpdask.releases.api import release_or_resume
from dpdask.releases.batch import check_batch
from dpdask.releases.card import ReleaseCard
from dpdask.releases.read import read_card
from dpdask.releases.recompute import check_guarantee
from dpdask.releases.series import Series, next_release
from dpdask.spec import parse_release_spec
from dpdask.views.card_rows import card_rows
from tests.support.workspace import Workspace, people

FLIGHT = {"record_dim": "flight", "l2_clip_norm": 1.0}
MEAN = {"query": "mean", "privacy_unit": FLIGHT}
PER_FLIGHT = {"query": "mean", "privacy_unit": {**FLIGHT, "per": "flight"}}
ONE = GaussianProfile.meeting(PrivacyBudget(epsilon=1.0, delta=1e-5)).mu


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    space = Workspace(tmp_path)
    space.ledger.open_dataset("people", PrivacyBudget(epsilon=2.0, delta=1e-5))
    space.source(people(20, 3), chunks=(10, 3), dimension_names=("flight", "feature"))
    return space


def mu(space: Workspace) -> float:
    spent: Any = space.ledger.state("people").spent
    return float(spent.mu)


def grow(space: Workspace, records: int, file: str = "source.zarr") -> None:
    array = zarr.open_array(space.folder / file / "x", mode="r+")
    before, features = array.shape
    array.resize((before + records, features))
    array[before:] = people(records, features)


def windowed(space: Workspace, start: int, stop: int, axis: Any = "flight", **changes: Any) -> Any:
    source = {
        "url": str(space.folder / "source.zarr"),
        "array": "x",
        "window": {"axis": axis, "start": start, "stop": stop},
    }
    output = {"url": str(space.folder / f"out-{start}-{stop}.zarr")}
    return parse_release_spec(space.spec(**{"source": source, "output": output, **changes}))


def run_series(space: Workspace, **changes: Any) -> str | None:
    url = f"{space.folder}/a-{{start:d}}-{{stop:d}}.zarr"
    template = parse_release_spec(space.spec(**{"output": {"url": url}, **changes}))
    spec = next_release(space.ledger, template, Series("daily", 0))
    return None if spec is None else release_or_resume(spec).output.rpartition("/")[2]


def test_a_daily_series_of_new_records_costs_what_one_day_does(space: Workspace) -> None:
    outputs = []
    for _ in range(6):
        outputs.append(run_series(space, **PER_FLIGHT))
        assert run_series(space, **PER_FLIGHT) is None
        grow(space, 20)
    assert outputs[-1] == "a-100-120.zarr"
    card = read_card(f"{space.folder}/a-100-120.zarr")
    first = read_card(f"{space.folder}/a-0-20.zarr")
    assert space.spent() <= 1.0
    assert card.composition.cumulative_epsilon == first.composition.cumulative_epsilon
    [axis] = space.ledger.state("people").axes
    assert (axis.start, axis.stop, axis.segments) == (0, 120, 1)
    space.ledger.verify()


def test_a_series_without_the_promise_adds_up(space: Workspace) -> None:
    """The twin: the same days without `per`."""
    for _ in range(3):
        run_series(space, **MEAN)
        grow(space, 20)
    assert mu(space) == pytest.approx(math.sqrt(3) * ONE, rel=1e-3)
    with pytest.raises(BudgetExceeded):
        run_series(space, **MEAN)


def test_the_card_says_that_each_record_is_in_one_window_and_verify_checks_it(
    space: Workspace,
) -> None:
    release_or_resume(windowed(space, 0, 20, **PER_FLIGHT))
    url = f"{space.folder}/out-0-20.zarr"
    card = read_card(url)
    assert card.privacy_unit.per is not None
    assert card.privacy_unit.per.model_dump() == {"axis": 0, "dimension": "flight"}
    [protects] = [row.value for row in card_rows(card) if row.label == "protects"]
    assert protects.endswith("; each flight is in one window (declared)")
    assert CliRunner().invoke(main, ["verify", url]).exit_code == 0
    document = card.model_dump(mode="json")
    for changes in (
        {"max_contributions": 2, "contributions": "declared"},
        {"adjacency": "add-remove-one"},
    ):
        forged = {**document, "privacy_unit": {**document["privacy_unit"], **changes}}
        with pytest.raises(VerificationFailed):
            check_guarantee(ReleaseCard.model_validate(forged))


def test_cards_without_the_promise_do_not_speak_of_it(space: Workspace) -> None:
    release_or_resume(windowed(space, 0, 20, **MEAN))
    card = read_card(f"{space.folder}/out-0-20.zarr")
    assert "per" not in card.model_dump(mode="json")["privacy_unit"]


def test_the_plan_says_what_a_window_costs_and_what_is_left(space: Workspace) -> None:
    release_or_resume(windowed(space, 0, 10, **PER_FLIGHT))
    path = space.folder / "plan.yaml"
    spec = windowed(space, 10, 20, **PER_FLIGHT)
    path.write_text(json.dumps(json.loads(spec.model_dump_json(exclude_defaults=True))))
    told = json.loads(CliRunner().invoke(main, ["plan", str(path), "--json"]).stdout)
    ledger = told["ledger"]
    assert ledger["spent_before"] == ledger["spent_after"] == pytest.approx(1.0, rel=1e-3)
    assert ledger["window"]["spent"] == ledger["spent_after"]
    assert ledger["window"]["left"] == pytest.approx(2.0, rel=1e-3)
    assert told["protects"].endswith("one record per unit; each flight is in one window")
    text = CliRunner().invoke(main, ["plan", str(path)]).stdout
    assert f"{ledger['more']} more like this one of this window" in text
    again = [windowed(space, 10, 20, **PER_FLIGHT, publish={"edition": n}) for n in range(1, 9)]
    fitting = 0
    for number, edition in enumerate(again):
        changed = edition.model_copy(
            update={"output": edition.output.model_copy(update={"url": f"{space.folder}/{number}"})}
        )
        try:
            release_or_resume(changed)
        except BudgetExceeded:
            break
        fitting += 1
    assert fitting == 1 + ledger["more"]


def test_the_ledger_shows_what_windows_were_charged(space: Workspace) -> None:
    release_or_resume(windowed(space, 0, 20, **PER_FLIGHT))
    arguments = ["ledger", "show", "people", "--ledger", space.ledger_url]
    [axis] = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)["axes"]
    assert (axis["axis"], axis["start"], axis["stop"], axis["segments"]) == (0, 0, 20, 1)
    assert "windows along axis" in CliRunner().invoke(main, arguments).stdout


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"privacy_unit": {"max_contributions": 2}}, "a unit of up to 2 records may have as many"),
        (
            {"privacy_unit": {"adjacency": "add-remove-one"}, "query": "sum"},
            "under add-remove-one indices shift",
        ),
        ({"privacy_unit": {"per": "nowhere"}}, "nowhere"),
        ({"privacy_unit": {"per": 7}}, "privacy_unit.per"),
    ],
)
def test_a_promise_that_cannot_hold_is_refused_at_planning(
    space: Workspace, changes: Any, problem: str
) -> None:
    unit = {**FLIGHT, "per": "flight", **changes["privacy_unit"]}
    spec = parse_release_spec(space.spec(**{**PER_FLIGHT, **changes, "privacy_unit": unit}))
    with pytest.raises(DpdaskError, match=problem):
        make_plan(spec)
    assert space.spent() == 0


def test_steps_that_compose_are_not_apart(space: Workspace) -> None:
    changes: dict[str, Any] = {
        "query": {"name": "precomputed", "l2_sensitivity": 1.0},
        "composition": {"steps": 10, "steps_are_independent": True},
    }
    for start in (0, 10):
        make_plan(windowed(space, start, start + 10, **changes, privacy_unit={}))
        with pytest.raises(InvalidSensitivity, match="a unit may be in every step"):
            make_plan(windowed(space, start, start + 10, **changes, privacy_unit={"per": 0}))


# Units that are one day of a person.


@pytest.fixture
def days(space: Workspace) -> Workspace:
    values = np.random.default_rng(5).normal(size=(40, 12))
    space.source(values, chunks=(40, 4), dimension_names=("person", "day"))
    return space


PERSON = {"record_dim": "person", "l2_clip_norm": 1.0}
PERSON_DAY = {"query": "mean", "privacy_unit": {**PERSON, "per": "day"}}


def test_person_days_are_charged_once_and_overlapping_days_twice(days: Workspace) -> None:
    for start in (0, 4, 8):
        release_or_resume(windowed(days, start, start + 4, axis="day", **PERSON_DAY))
    once = mu(days)
    release_or_resume(windowed(days, 2, 6, axis="day", **PERSON_DAY))
    assert mu(days) == pytest.approx(math.sqrt(2) * once, rel=1e-12)
    card = read_card(f"{days.folder}/out-2-6.zarr")
    [protects] = [row.value for row in card_rows(card) if row.label == "protects"]
    assert protects.startswith("one day of a record: replace-one")
    plan = make_plan(windowed(days, 0, 3, axis="day", **PERSON_DAY)).to_dict()
    assert plan["protects"].startswith("one day of one person of 40")


def test_units_of_days_and_of_persons_are_not_mixed_in_one_dataset(days: Workspace) -> None:
    release_or_resume(windowed(days, 0, 4, axis="day", **PERSON_DAY))
    whole = windowed(days, 4, 8, axis="day", query="mean", privacy_unit=PERSON)
    with pytest.raises(DpdaskError, match=r"use privacy_unit\.per: day"):
        make_plan(whole, ledger=days.ledger)
    with pytest.raises(DpdaskError, match=r"differ in privacy_unit\.per"):
        check_batch([whole, windowed(days, 8, 12, axis="day", **PERSON_DAY)])


def test_windows_along_another_dimension_add_up(days: Workspace) -> None:
    """Days of a person are disjoint along days only: persons in both windows lose twice."""
    unit = {**PERSON, "per": "person"}
    for start in (0, 4):
        release_or_resume(
            windowed(days, start, start + 4, axis="day", query="mean", privacy_unit=unit)
        )
    assert mu(days) == pytest.approx(math.sqrt(2) * ONE, rel=1e-3)


def test_labels_of_whole_persons_are_not_days_of_them(days: Workspace) -> None:
    zarr.create_array(
        days.folder / "source.zarr",
        name="group",
        data=np.arange(40) % 2,
        dimension_names=("person",),
    )
    by = {"name": "mean", "by": {"array": "group", "groups": [0, 1]}}
    spec = windowed(days, 0, 4, axis="day", **{**PERSON_DAY, "query": by})
    with pytest.raises(InvalidSensitivity, match="a label of the whole record"):
        make_plan(spec)


def test_several_variables_of_one_series_are_charged_once(space: Workspace) -> None:
    zarr.create_array(
        space.folder / "source.zarr",
        name="y",
        data=people(20, 3),
        chunks=(10, 3),
        dimension_names=("flight", "feature"),
    )
    for start in (0, 10):
        source = {
            "url": str(space.folder / "source.zarr"),
            "arrays": {"x": {}, "y": {}},
            "window": {"axis": "flight", "start": start, "stop": start + 10},
        }
        release_or_resume(windowed(space, start, start + 10, **{**PER_FLIGHT, "source": source}))
        assert mu(space) == pytest.approx(ONE, rel=1e-3)
    alone = {"url": f"{space.folder}/x.zarr"}
    release_or_resume(windowed(space, 0, 10, **PER_FLIGHT, output=alone))
    assert mu(space) == pytest.approx(math.sqrt(2) * ONE, rel=1e-3)  # another set of arrays
    space.ledger.verify()


def test_a_window_along_the_units_of_one_variable_alone_is_refused(space: Workspace) -> None:
    """Axis -1 of the second array is not that of its records: it would be read whole each time."""
    space.source(people(100, 1)[:, 0], chunks=(10,))
    zarr.create_array(space.folder / "source.zarr", name="y", data=people(10, 100))
    changes: dict[str, Any] = {
        "query": "identity",
        "privacy_unit": {"record_dim": 0, "per": 0, "ranges": [[-1.0, 1.0]]},
        "source": {
            "url": str(space.folder / "source.zarr"),
            "arrays": {"x": {}, "y": {}},
            "window": {"axis": -1, "start": 10, "stop": 20},
        },
    }
    with pytest.raises(InvalidSensitivity, match=r"along privacy_unit\.per in 'x' or in 'y'"):
        make_plan(parse_release_spec(space.spec(**changes)))


@pytest.mark.slow
def test_months_of_daily_windows_of_many_records_cost_what_one_does(space: Workspace) -> None:
    """Real releases of 100,000 new records a day: the total never passes one window's mu."""
    days, many = 40, 100_000
    space.source(
        np.zeros((days * many, 1), np.float32),
        chunks=(many, 1),
        dimension_names=("flight", "feature"),
    )
    mu_of_one = 0.0
    for day in range(days):
        release_or_resume(windowed(space, day * many, (day + 1) * many, **PER_FLIGHT))
        mu_of_one = mu_of_one or mu(space)
        assert mu(space) <= mu_of_one
    assert mu_of_one <= ONE * (1 + 1e-9)
    # seven records that were released before are charged twice
    release_or_resume(windowed(space, many // 2, many // 2 + 7, **PER_FLIGHT))
    assert mu(space) == pytest.approx(math.sqrt(2) * mu_of_one, rel=1e-3)
    space.ledger.verify()

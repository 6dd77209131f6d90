"""What a plan prints of its noise: rounded for people, and only what is public."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

import dpdask
from dpdask.types import Json
from dpdask.views.accuracy_rows import epsilon_rows
from dpdask.views.plan_rows import plan_rows, public_plan_rows
from dpdask.views.rows import Emphasis
from tests.support.workspace import Workspace


def rows(space: Workspace, **changes: Any) -> dict[str, str]:
    plan = dpdask.plan(space.spec(**changes)).to_dict()
    return {row.label: row.value for row in plan_rows(plan)}


@pytest.fixture
def table(space: Workspace) -> Workspace:
    space.source(np.zeros((5000, 4)))
    return space


CLIP: Json = {"record_dim": 0, "l2_clip_norm": 2.0}
RANGES: Json = {"record_dim": 0, "ranges": [250, 310]}
COUNTED: Json = RANGES | {"missing": "count"}


def test_a_plan_states_the_half_width_and_what_is_not_in_it(table: Workspace) -> None:
    found = rows(table, privacy_unit=CLIP, query="mean")
    assert found["noise"] == "iid, standard deviation 0.00298 per entry"
    text = "95 % of entries within ±0.00585; noise only: what clipping removes is not in it"
    assert found["accuracy"] == text
    clamped = rows(table, privacy_unit=RANGES, query="mean")["accuracy"]
    assert clamped.endswith("; noise only: what clamping removes is not in it")


def test_counts_lose_nothing_to_clipping(table: Workspace) -> None:
    query = {"name": "histogram", "edges": [[0, 1, 2]]}
    found = rows(table, privacy_unit={"record_dim": 0}, query=query, mechanism="laplace")
    assert found["noise"] == "laplace, standard deviation 2.83 per entry"
    assert found["accuracy"] == "95 % of entries within ±5.99"
    assert "centre" not in found
    assert "groups" not in found


def test_noise_that_differs_by_feature_is_a_span(table: Workspace) -> None:
    unit = {"record_dim": 0, "ranges": [[0, 1], [0, 1], [0, 1], [0, 100]]}
    found = rows(table, privacy_unit=unit, query="mean", mechanism="directional")
    text = "kronecker, standard deviation 0.00758 to 0.0758 per entry (root mean square 0.0385)"
    assert found["noise"] == text


def test_a_mean_of_a_public_number_of_records_states_its_noise_at_that_number(
    table: Workspace,
) -> None:
    found = rows(table, privacy_unit=COUNTED, query="mean")
    assert found["noise"].endswith(" / n per entry of count n")
    assert " / n (±0.183 at n = 5,000 if nothing is missing)" in found["accuracy"]
    assert "for means up to 15 from the centre" in found["accuracy"]
    assert found["counts"] == "95 % within ±16.9"


def test_a_mean_of_a_private_number_of_records_states_examples(table: Workspace) -> None:
    unit = COUNTED | {"adjacency": "add-remove-one"}
    found = rows(table, privacy_unit=unit, query="mean")
    assert "/ n (±6.59 at n = 100, ±0.659 at n = 1,000), for means up to 15" in found["accuracy"]


@pytest.mark.parametrize("query", ["sum", "mean"])
@pytest.mark.parametrize("unit", [CLIP, RANGES, COUNTED])
def test_rows_outside_the_trust_boundary_do_not_depend_on_a_private_number_of_records(
    space: Workspace, query: str, unit: Json
) -> None:
    def outside(records: int, adjacency: str) -> list[Any]:
        space.source(np.zeros((records, 4)))
        spec = space.spec(query=query, privacy_unit=unit | {"adjacency": adjacency})
        plan = dpdask.plan(spec)
        return [*public_plan_rows(plan.to_dict()), *plan.warnings]

    assert outside(40, "add-remove-one") == outside(900, "add-remove-one")
    assert outside(40, "replace-one") != outside(900, "replace-one")  # the twin


def test_packing_numbers_stay_inside_the_trust_boundary(table: Workspace) -> None:
    table.source(np.zeros((60, 4), "i2"), attributes={"scale_factor": 0.0125})
    plan = dpdask.plan(table.spec(privacy_unit=CLIP, query="mean")).to_dict()
    assert any("0.0125" in row.value for row in plan_rows(plan))
    assert [row for row in public_plan_rows(plan) if "0.0125" in row.value] == []


def test_epsilons_are_one_record_each(table: Workspace) -> None:
    spec = table.spec(privacy_unit=CLIP, query="mean")
    choices = [choice.to_dict() for choice in dpdask.plan_epsilons(spec, [0.5, 1.0])]
    first, second = epsilon_rows(choices)
    assert [row.label for row in first] == [
        "epsilon",
        "mechanism",
        "standard deviation",
        "95 % of entries within",
        "spent after, of 1e+06 at delta 0.1",
    ]
    assert [row.value for row in second[:4]] == ["1", "analytic-gaussian", "0.00298", "±0.00585"]
    assert first[2].value == "0.00563"


def test_epsilons_of_a_counted_mean_are_divided_by_its_count(table: Workspace) -> None:
    spec = table.spec(privacy_unit=COUNTED, query="mean")
    [record] = epsilon_rows([choice.to_dict() for choice in dpdask.plan_epsilons(spec, [1.0])])
    values = {row.label: row.value for row in record}
    assert values["95 % of entries within"] == "±914 / n"
    assert values["at n = 5,000"] == "±0.183"


@pytest.fixture
def two_variables(space: Workspace) -> Json:
    group = zarr.open_group(space.folder / "source.zarr")
    for name, columns in (("x", 4), ("y", 3)):
        data, names = np.zeros((5000, columns)), ("person", f"{name}_column")
        group.create_array(name, data=data, dimension_names=names)
    arrays = {"x": {"ranges": [0, 1], "missing": "center"}, "y": {"ranges": [0, 9]}}
    arrays["y"]["missing"] = "count"
    source = {"url": str(space.folder / "source.zarr"), "arrays": arrays}
    return space.spec(source=source, query="mean", privacy_unit={"record_dim": 0}) | {
        "mechanism": "auto"
    }


def test_epsilons_of_several_variables_are_one_record_each(two_variables: Json) -> None:
    choices = [choice.to_dict() for choice in dpdask.plan_epsilons(two_variables, [0.5, 1.0])]
    records = epsilon_rows(choices)
    cells = [{row.label: row.value for row in record} for record in records]
    assert [(each["epsilon"], each["variable"]) for each in cells] == [
        ("0.5", "x"),
        ("0.5", "y"),
        ("1", "x"),
        ("1", "y"),
    ]
    assert len({tuple(each) for each in cells}) == 1  # the same columns
    assert cells[2]["at n = 5,000"] == ""
    assert cells[3]["95 % of entries within"].endswith(" / n")
    assert cells[3]["at n = 5,000"].startswith("±")


def test_what_several_variables_have_in_common_is_told_once(two_variables: Json) -> None:
    found = {row.label: row.value for row in plan_rows(dpdask.plan(two_variables).to_dict())}
    assert found["decodes"] == "float64 as stored; NaN is missing"
    assert "x decodes" not in found
    assert found["x protects"].startswith("one person of 5,000 (4 values each)")
    assert found["y protects"].startswith("one person of 5,000 (3 values each)")
    assert "protects" not in found


def test_an_epsilon_that_the_budget_does_not_hold_is_marked(table: Workspace) -> None:
    spec = table.spec(privacy_unit=CLIP, query="mean")
    [choice] = [choice.to_dict() for choice in dpdask.plan_epsilons(spec, [1.0])]
    [record] = epsilon_rows([choice | {"spent_after": None}])
    assert record[-1].value == "refused: more than the total"
    assert record[-1].emphasis is Emphasis.BAD

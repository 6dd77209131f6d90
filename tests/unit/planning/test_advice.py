"""A plan warns of a release that is private but of little use; each warning has a twin without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdask.planning import ReleasePlan, make_plan
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace


def planned(space: Workspace, records: int = 1000, **changes: Any) -> ReleasePlan:
    space.source(np.zeros((records, 8)))
    return make_plan(parse_release_spec(space.spec(**changes)))


def warnings(space: Workspace, about: str, **changes: Any) -> list[str]:
    return [text for text in planned(space, **changes).warnings if about in text]


WIDE = "exceeds the width of the bound"
FEW = "are protected"
UNEQUAL = "mechanism: directional"
COUNTS = "the noise of a count"
EIGHT = {"record_dim": 0, "ranges": [0, 1]}


def test_noise_that_is_wider_than_the_bound_is_warned_of(space: Workspace) -> None:
    [text] = warnings(space, WIDE, privacy_unit=EIGHT, query="identity")
    assert "standard deviation 10.6 is 10.6 times the 1 that an entry can vary by" in text
    assert warnings(space, WIDE, privacy_unit=EIGHT, query="mean") == []


def test_noise_that_is_wider_than_some_ranges_names_how_many(space: Workspace) -> None:
    unit = {"record_dim": 0, "ranges": [[0, 1]] * 6 + [[0, 5000]] * 2}
    [text] = warnings(space, WIDE, privacy_unit=unit, query="mean")
    assert "in 6 of 8 features" in text
    assert "times the 1 that" in text


@pytest.mark.parametrize("query", ["sum", "mean", "second-moment"])
def test_few_records_are_warned_of_by_the_noise_of_their_sums(space: Workspace, query: str) -> None:
    unit = {"record_dim": 0, "l2_clip_norm": 1.0}
    assert len(warnings(space, WIDE, records=1, privacy_unit=unit, query=query)) == 1
    assert warnings(space, WIDE, records=1000, privacy_unit=unit, query=query) == []


def test_counts_are_compared_with_the_number_of_records(space: Workspace) -> None:
    query = {"name": "histogram", "edges": [[0, 1, 2]]}
    assert len(warnings(space, WIDE, records=4, privacy_unit={"record_dim": 0}, query=query)) == 1
    assert warnings(space, WIDE, records=40, privacy_unit={"record_dim": 0}, query=query) == []


@pytest.mark.parametrize(("records", "few"), [(49, True), (50, False)])
def test_few_units_are_warned_of(space: Workspace, records: int, few: bool) -> None:
    unit = {"record_dim": 0, "l2_clip_norm": 1.0}
    found = warnings(space, FEW, records=records, privacy_unit=unit, query="mean")
    assert len(found) == few
    if few:
        assert "only 49 records along axis 0 are protected: among fewer than about 50" in found[0]


def test_several_records_of_one_unit_make_few_units(space: Workspace) -> None:
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "max_contributions": 30}
    [text] = warnings(space, FEW, privacy_unit=unit, query="mean")
    assert "1,000 records along axis 0 are protected, up to 30 of them those of one unit" in text
    assert warnings(space, FEW, privacy_unit={**unit, "max_contributions": 20}, query="mean") == []


@pytest.mark.parametrize("query", ["sum", "mean", "second-moment"])
@pytest.mark.parametrize("records", [1, 7, 900])
def test_no_warning_tells_a_private_number_of_records(
    space: Workspace, query: str, records: int
) -> None:
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"}
    assert planned(space, records=records, privacy_unit=unit, query=query).warnings == ()


def test_one_wide_range_is_warned_of_with_what_directional_would_give(space: Workspace) -> None:
    unit = {"record_dim": 0, "ranges": [[0, 1]] * 7 + [[0, 1000]]}
    [text] = warnings(space, UNEQUAL, privacy_unit=unit, query="mean")
    assert "the widest range (1000) decides on the noise of every feature" in text
    plain = planned(space, privacy_unit=unit, query="mean")
    other = planned(space, privacy_unit=unit, query="mean", mechanism="directional")
    times = plain.accuracy.deviations.least / other.accuracy.deviations.least
    assert 30 < times < 33
    assert f"would give the narrowest (1) {times:.1f} times less" in text


@pytest.mark.parametrize("mechanism", ["directional", "auto"])
def test_noise_that_follows_the_ranges_is_not_warned_of(space: Workspace, mechanism: str) -> None:
    unit = {"record_dim": 0, "ranges": [[0, 1]] * 7 + [[0, 1000]]}
    assert warnings(space, UNEQUAL, privacy_unit=unit, query="mean", mechanism=mechanism) == []


def test_ranges_of_similar_widths_are_not_warned_of(space: Workspace) -> None:
    unit = {"record_dim": 0, "ranges": [[0, 1]] * 4 + [[0, 2]] * 4}
    assert warnings(space, UNEQUAL, privacy_unit=unit, query="mean") == []


def test_one_wide_range_beside_counts_is_warned_of(space: Workspace) -> None:
    unit = {"record_dim": 0, "ranges": [[0, 1]] * 7 + [[0, 1000]], "missing": "count"}
    [text] = warnings(space, "the widest range (1000)", privacy_unit=unit, query="mean")
    assert text.endswith(
        "; scale features to similar ranges, or release them apart from each other"
    )
    unit["ranges"] = [[0, 1]] * 7 + [[0, 9]]
    assert warnings(space, "the widest range", privacy_unit=unit, query="mean") == []


def test_counts_that_are_mostly_noise_are_warned_of(space: Workspace) -> None:
    unit = {"record_dim": 0, "ranges": [0, 1], "missing": "count"}
    [text] = warnings(space, COUNTS, records=60, privacy_unit=unit, query="mean")
    assert "large against the 60 records of an entry if nothing is missing, so" in text
    assert warnings(space, COUNTS, records=6000, privacy_unit=unit, query="mean") == []

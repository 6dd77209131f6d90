"""What a plan says of its noise is what the released entries have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.planning import ReleasePlan, make_plan
from dpdask.queries.base import COUNT, DATA, NOISE_STD
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

RANGES = {"record_dim": 0, "ranges": [250, 310]}
CLIP = {"record_dim": 0, "l2_clip_norm": 3.0}


def planned(space: Workspace, query: Any, unit: dict[str, Any], **changes: Any) -> ReleasePlan:
    return make_plan(parse_release_spec(space.spec(query=query, privacy_unit=unit, **changes)))


def whole(plan: ReleasePlan) -> tuple[slice, ...]:
    return tuple(slice(0, size) for size in plan.layout.shape)


@pytest.fixture
def temperatures(space: Workspace) -> Workspace:
    space.source(np.full((400, 3), 280.0))
    return space


@pytest.mark.parametrize(
    ("query", "unit"),
    [("identity", RANGES), ("sum", RANGES), ("mean", RANGES), ("identity", CLIP), ("mean", CLIP)],
)
def test_plain_answers_have_the_noise_of_their_component(
    temperatures: Workspace, query: str, unit: dict[str, Any]
) -> None:
    plan = planned(temperatures, query, unit)
    accuracy, divisor = plan.accuracy, plan.data.query.divisor
    assert divisor == (400 if query == "mean" else 1)
    assert accuracy.std == pytest.approx(plan.data.noise.entry_std / divisor)
    assert accuracy.to_dict()["within_95"] == pytest.approx(1.959963985 * accuracy.std)
    assert not accuracy.divided_by_count
    assert accuracy.expected is accuracy.deviations


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("unit", [RANGES, CLIP, CLIP | {"center": [280, 270, 260]}])
def test_sums_with_counts_state_the_deviation_that_is_published(
    temperatures: Workspace, unit: dict[str, Any], adjacency: str
) -> None:
    plan = planned(temperatures, "sum", unit | {"missing": "count", "adjacency": adjacency})
    stds = {name: noise.entry_std for name, noise in plan.data.noises.items()}
    parts = {DATA: np.zeros(plan.layout.shape), COUNT: np.full(plan.layout.shape, 77.0)}
    published = plan.data.query.release(parts, stds, whole(plan))[NOISE_STD]
    assert plan.accuracy.std == pytest.approx(float(np.sqrt(np.mean(published**2))))
    assert plan.accuracy.deviations.least == pytest.approx(published.min())
    assert plan.accuracy.deviations.largest == pytest.approx(published.max())


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("unit", [RANGES, CLIP, RANGES | {"expected_distance": 4.0}])
@pytest.mark.parametrize("count", [60.0, 9000.0])
def test_means_with_counts_state_the_deviation_that_is_published_at_a_count(
    temperatures: Workspace, unit: dict[str, Any], adjacency: str, count: float
) -> None:
    plan = planned(temperatures, "mean", unit | {"missing": "count", "adjacency": adjacency})
    accuracy = plan.accuracy
    assert accuracy.distance is not None
    stds = {name: noise.entry_std for name, noise in plan.data.noises.items()}
    shape = plan.layout.shape
    parts = {DATA: np.full(shape, accuracy.distance * count), COUNT: np.full(shape, count)}
    published = plan.data.query.release(parts, stds, whole(plan))[NOISE_STD]
    assert accuracy.divided_by_count
    assert accuracy.std / count == pytest.approx(published[0])
    closer = {**parts, DATA: parts[DATA] / 2}  # nearer to the centre there is less noise
    assert plan.data.query.release(closer, stds, whole(plan))[NOISE_STD][0] < accuracy.std / count


def test_a_hint_is_the_distance_and_half_the_bound_is_the_default(temperatures: Workspace) -> None:
    unit = RANGES | {"missing": "count"}
    assert planned(temperatures, "mean", unit).accuracy.distance == 15.0
    hinted = planned(temperatures, "mean", unit | {"expected_distance": 4.0})
    assert hinted.accuracy.distance == 4.0
    clipped = planned(temperatures, "mean", CLIP | {"missing": "count"})
    assert clipped.accuracy.distance == pytest.approx(3.0 / (2 * np.sqrt(3)))


def test_a_public_count_is_shared_out_to_groups_and_a_private_one_is_not_told(
    temperatures: Workspace,
) -> None:
    group = zarr.open_group(temperatures.folder / "source.zarr")
    group.create_array("region", data=np.arange(400) % 5)
    unit = RANGES | {"missing": "count"}
    public = planned(temperatures, "mean", unit).accuracy
    assert (public.public_count, public.public_count_if) == (400, "nothing is missing")
    query = {"name": "mean", "by": {"array": "region", "groups": [0, 1, 2, 3, 4]}}
    grouped = planned(temperatures, query, unit).accuracy
    both = "nothing is missing and groups are equally large"
    assert (grouped.public_count, grouped.public_count_if) == (80, both)
    of_records = planned(temperatures, query, RANGES).accuracy
    assert (of_records.public_count, of_records.public_count_if) == (80, "groups are equally large")
    assert public.expected is not None
    assert public.expected.rms == pytest.approx(public.std / 400)
    private = planned(temperatures, "mean", unit | {"adjacency": "add-remove-one"}).accuracy
    assert private.public_count is None
    assert private.expected is None


@pytest.mark.parametrize("query", ["sum", "mean", "second-moment", "histogram"])
def test_no_figure_depends_on_a_private_number_of_records(space: Workspace, query: str) -> None:
    unit: dict[str, Any] = CLIP | {"adjacency": "add-remove-one"}
    question: Any = query
    if query == "histogram":
        unit = {"record_dim": 0, "adjacency": "add-remove-one"}
        question = {"name": "histogram", "edges": [[0, 1, 2]]}

    def figures(records: int) -> Any:
        space.source(np.zeros((records, 3)))
        return planned(space, question, unit).accuracy.to_dict()

    assert figures(7) == figures(900)


def test_a_public_number_of_records_shows_in_the_figures(space: Workspace) -> None:
    """The twin."""

    def figures(records: int) -> Any:
        space.source(np.zeros((records, 3)))
        return planned(space, "mean", CLIP).accuracy.to_dict()

    assert figures(7) != figures(900)

"""The names of released dimensions, and the axis that a name stands for."""

from __future__ import annotations

from typing import Any

import pytest

from dpdask.errors import InvalidSpec
from dpdask.planning.build_query import build_query
from dpdask.planning.naming import axis_of, released_axis, released_names
from dpdask.queries import Query
from dpdask.spec import parse_release_spec
from dpdask.spec.release import ReleaseSpec

NAMES = ("time", "person", "feature")
HISTOGRAM = {"name": "histogram", "edges": [[0, 1, 2]], "columns": [0]}


def spec_of(query: Any, record_dim: Any = "person", **publish: Any) -> ReleaseSpec:
    bound = {} if query == HISTOGRAM else {"l2_clip_norm": 1.0}
    return parse_release_spec(
        {
            "source": {"url": "a"},
            "output": {"url": "b"},
            "privacy_unit": {"record_dim": record_dim, **bound},
            "query": query,
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "mechanism": "analytic-gaussian",
            "budget": {"dataset": "d"},
            "publish": publish,
        }
    )


def query_of(spec: ReleaseSpec, names: tuple[str, ...] | None, order: int) -> Query:
    shape = (5, 6, 7)[:order]
    return build_query(spec.query, spec.privacy_unit, shape, spec.composition, names)


@pytest.mark.parametrize(
    ("query", "names", "released"),
    [
        ("identity", NAMES, NAMES),
        ("sum", NAMES, ("time", "feature")),
        ("mean", NAMES, ("time", "feature")),
        ("mean", ("person", "feature"), ("feature",)),
        ("mean", ("feature", "person"), ("feature",)),
        ("mean", ("person",), ("dim_0",)),
        ("second-moment", ("person", "feature"), ("feature", "feature_2")),
        ("second-moment", ("feature", "person"), ("feature", "feature_2")),
        ("sum", ("same", "person", "same"), ("dim_0", "dim_1")),
        (HISTOGRAM, ("person", "feature"), ("column_0_bin",)),
        (HISTOGRAM, ("person",), ("value_bin",)),
    ],
)
def test_axes_that_remain_keep_their_names(
    query: Any, names: tuple[str, ...], released: tuple[str, ...]
) -> None:
    spec = spec_of(query)
    assert released_names(query_of(spec, names, len(names)), names, spec) == released


def test_unnamed_axes_are_numbered_and_the_spec_has_the_last_word() -> None:
    spec = spec_of("mean", 0)
    assert released_names(query_of(spec, None, 3), None, spec) == ("dim_0", "dim_1")
    for chosen, released in ((["a", "b"], ("a", "b")), ([], ("dim_0", "dim_1"))):
        spec = spec_of("mean", 0, dimension_names=chosen)
        assert released_names(query_of(spec, NAMES, 3), NAMES, spec) == released


def test_an_axis_is_followed_into_the_answer() -> None:
    mean = query_of(spec_of("mean"), NAMES, 3)
    assert [released_axis(mean, axis) for axis in range(3)] == [0, None, 1]
    identity = query_of(spec_of("identity"), NAMES, 3)
    assert [released_axis(identity, axis) for axis in range(3)] == [0, 1, 2]
    moments = query_of(spec_of("second-moment"), ("person", "feature"), 2)
    assert [released_axis(moments, axis) for axis in range(2)] == [None, 0]
    histogram = query_of(spec_of(HISTOGRAM), ("person", "feature"), 2)
    assert [released_axis(histogram, axis) for axis in range(2)] == [None, None]


@pytest.mark.parametrize(("dimension", "axis"), [("person", 1), (0, 0), (-1, 2), (2, 2)])
def test_an_axis_has_a_name_or_an_index(dimension: int | str, axis: int) -> None:
    assert axis_of("key", dimension, shape=(5, 6, 7), names=NAMES) == axis


@pytest.mark.parametrize(
    ("dimension", "names", "text"),
    [
        (3, NAMES, "key=3 is not an axis of the source; choose one from 0 to 2"),
        (-4, NAMES, "key=-4 is not an axis"),
        ("hour", NAMES, "choose one of time, person, feature"),
        ("hour", None, "have no names; give an index from 0 to 2"),
        ("a", ("a", "a", "b"), "names 2 dimensions of the source"),
    ],
)
def test_an_axis_that_is_not_there_is_refused(
    dimension: int | str, names: tuple[str, ...] | None, text: str
) -> None:
    with pytest.raises(InvalidSpec, match=text):
        axis_of("key", dimension, shape=(5, 6, 7), names=names)

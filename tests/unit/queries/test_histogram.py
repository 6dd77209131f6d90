"""Histograms: cells by the definition, sensitivities by all neighbours, cards that follow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest

from dpdask.errors import InvalidSpec
from dpdask.planning.build_query import build_query
from dpdask.privacy import Adjacency
from dpdask.queries import AnswerAxis, ExactSum, Histogram, RecordedAnswer
from dpdask.queries.histogram import HistogramRules
from dpdask.spec import parse_release_spec

EDGES = {"delay": [0.0, 1.0, 2.0], "origin": {"values": ["E", "J"]}, "month": {"values": [7, 3]}}


def query_of(query: dict[str, Any], shape: tuple[int, ...], **unit: Any) -> Histogram:
    spec = parse_release_spec(
        {
            "source": {"url": "a"},
            "output": {"url": "b"},
            "privacy_unit": {"record_dim": 0, **unit},
            "query": {"name": "histogram", **query},
            "privacy": {"epsilon": 1.0, "delta": 1e-6},
            "budget": {"dataset": "d"},
        }
    )
    built = build_query(spec.query, spec.privacy_unit, shape, spec.composition, None)
    assert isinstance(built, Histogram)
    return built


@dataclasses.dataclass
class Table:
    """Arrays of one entry per record, by name; and a table of numbers."""

    arrays: dict[str, list[Any]]
    block: Any = None

    def read(self, box: Any) -> Any:
        return np.asarray(self.block)[box]

    def numbers(self, name: str, records: slice) -> Any:
        return np.asarray(self.arrays[name][records], dtype=float)

    def left_out(self, records: slice) -> None:
        return None

    def codes(self, name: str, records: slice, groups: tuple[Any, ...]) -> Any:
        found = [groups.index(v) if v in groups else -1 for v in self.arrays[name][records]]
        return np.asarray(found, dtype=np.int64)


def counts(query: Histogram, table: Table, records: slice) -> Any:
    whole = tuple(slice(0, n) for n in query.answer_shape)
    return query.partial(table, ExactSum(), whole, records, None)


def by_definition(rows: list[tuple[Any, ...]]) -> Any:
    """Delay, origin, month of every record, counted one by one."""
    found = np.zeros((2, 2, 2), np.int64)
    for delay, origin, month in rows:
        if not 0 <= delay <= 2 or origin not in ("E", "J") or month not in (7, 3):
            continue
        found[min(int(delay), 1), ("E", "J").index(origin), (7, 3).index(month)] += 1
    return found


VALUES = [0.0, 0.5, 1.0, 2.0, -0.1, 2.1, math.nan, math.inf]
ROWS = list(itertools.product(VALUES, ["E", "J", "?", None], [3, 7, 8]))


def table_of(rows: list[tuple[Any, ...]]) -> Table:
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], []]
    return Table(dict(zip(("delay", "origin", "month"), columns, strict=True)))


def test_a_record_is_counted_once_or_nowhere() -> None:
    query = query_of({"edges": EDGES}, (len(ROWS),))
    assert query.answer_shape == (2, 2, 2)
    total = counts(query, table_of(ROWS), slice(0, len(ROWS)))
    np.testing.assert_array_equal(total, by_definition(ROWS))
    for row in ROWS:
        assert counts(query, table_of([row]), slice(0, 1)).sum() in (0, 1)
    parts = [counts(query, table_of(ROWS), slice(a, a + 12)) for a in range(0, len(ROWS), 12)]
    np.testing.assert_array_equal(np.sum(parts, axis=0), total)
    assert not counts(query, table_of([]), slice(0, 0)).any()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("contributions", [1, 2])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_sensitivities_by_all_neighbours(
    adjacency: Adjacency, contributions: int, grouped: bool
) -> None:
    """All changes of up to k records: category, bin and group at once."""
    by = {"by": {"array": "month", "groups": [7, 3]}} if grouped else {}
    edges = {name: EDGES[name] for name in ("delay", "origin", *(() if grouped else ("month",)))}
    query = query_of(
        {"edges": edges, **by}, (4,), adjacency=adjacency, max_contributions=contributions
    )
    records = list(itertools.product([0.5, 1.5, math.nan], ["E", "J", "?"], [7, 3, 8]))
    rest = [records[0], records[4]]
    outcomes = {}
    for changed in itertools.product(records, repeat=contributions):
        rows = [*changed, *rest]
        outcomes[changed] = counts(query, table_of(rows), slice(0, len(rows)))
    bases = list(outcomes.values())
    if adjacency is Adjacency.ADD_REMOVE_ONE:
        bases = [counts(query, table_of(rest), slice(0, len(rest)))]
    bases = bases[:: max(1, len(bases) // 40)]
    differences = [one - two for one in outcomes.values() for two in bases]
    l1 = max(np.abs(difference).sum() for difference in differences)
    l2 = max(np.sqrt((difference**2).sum()) for difference in differences)
    moved = max(np.count_nonzero(difference) for difference in differences)
    assert l1 == query.sensitivity.l1
    assert l2 == pytest.approx(query.sensitivity.radius, rel=1e-12)
    assert l2 <= query.sensitivity.radius
    assert moved <= query.bounds().rounded_entries
    answer = answer_of(query)
    assert HistogramRules().least_radius(answer) == pytest.approx(l2)
    assert HistogramRules().least_l1(answer) == l1


def answer_of(query: Histogram, **changes: Any) -> RecordedAnswer:
    return RecordedAnswer(
        noise=None,  # type: ignore[arg-type]  # rules of sensitivity do not look at it
        sensitivity=query.sensitivity,
        query={**query.to_dict(), **changes},
        bound={"kind": "count", "enforced": True},
        grid={},
        record_axis=0,
        contributions=query.max_contributions,
    )


def test_groups_come_first_and_the_order_of_arrays_is_kept() -> None:
    by = [{"array": "day", "groups": [1, 2, 3]}, {"array": "kind", "groups": ["x"]}]
    query = query_of({"edges": EDGES, "by": by}, (9,))
    assert query.answer_shape == (3, 1, 2, 2, 2)
    assert query.new_axes == (
        AnswerAxis(name="day", groups=(1, 2, 3)),
        AnswerAxis(name="kind", groups=("x",)),
        AnswerAxis(name="delay_bin", edges=(0.0, 1.0, 2.0)),
        AnswerAxis(name="origin", groups=("E", "J")),
        AnswerAxis(name="month", groups=(7, 3)),
    )
    assert query.labels == {
        "day": (1, 2, 3), "kind": ("x",), "delay": None, "origin": ("E", "J"), "month": (7, 3),
    }  # fmt: skip


def test_columns_of_a_table_by_group() -> None:
    rng = np.random.default_rng(5)
    block, labels = rng.normal(size=(200, 4)), rng.choice(["a", "b", "c"], 200).tolist()
    query = query_of(
        {"edges": [[-1, 0, 1], [0, 2]], "columns": [3, 1],
         "by": {"array": "kind", "groups": ["b", "a"]}},
        (200, 4),
    )  # fmt: skip
    assert query.answer_shape == (2, 2, 1)
    assert query.region(10) == (10, 3)
    found = counts(query, Table({"kind": labels}, block), slice(0, 200))
    for place, group in enumerate(("b", "a")):
        there = np.array(labels) == group
        wanted = np.histogramdd(block[there][:, [3, 1]], bins=[[-1, 0, 1], [0, 2]])[0]
        np.testing.assert_array_equal(found[place], wanted)
    assert query.to_dict()["axes"] == [
        {"array": "kind", "groups": ["b", "a"]},
        {"column": 3, "edges": [-1.0, 0.0, 1.0]},
        {"column": 1, "edges": [0.0, 2.0]},
    ]


def test_a_card_of_columns_keeps_its_form() -> None:
    query = query_of({"edges": [[0, 1, 2]], "columns": [1]}, (9, 3))
    assert query.to_dict() == {
        "name": "histogram", "answer_shape": [2], "edges": [[0.0, 1.0, 2.0]], "columns": [1],
    }  # fmt: skip


@pytest.mark.parametrize(
    "query", [{"edges": EDGES}, {"edges": [[0, 1, 2]]}, {"edges": {"month": {"values": [1]}}}]
)
def test_an_answer_has_the_shape_of_its_bins_and_categories(query: dict[str, Any]) -> None:
    built = query_of(query, (9,))
    rules = HistogramRules()
    assert rules.covers(built.sensitivity, answer_of(built))
    larger = [*built.answer_shape[:-1], built.answer_shape[-1] + 1]
    assert not rules.covers(built.sensitivity, answer_of(built, answer_shape=larger))
    assert not rules.covers(built.sensitivity, answer_of(built, answer_shape=[*larger, 1]))


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"edges": EDGES, "by": {"array": "origin", "groups": ["E"]}}, "among query.edges, too"),
        ({"edges": EDGES, "by": [{"array": "a", "groups": [1]}] * 2}, "there twice"),
        ({"edges": EDGES, "by": {"array": "a", "groups": [1, 1]}}, "there twice"),
        ({"edges": EDGES, "by": {"array": "a", "groups": []}}, "at least 1 item"),
        ({"edges": {"a": {"values": list(range(2**20 + 1))}}}, "of one array"),
        ({"edges": {"a": np.arange(2**20 + 2.0).tolist()}}, "of one column"),
        (
            {
                "edges": {"a": {"low": 0, "high": 1, "bins": 2**20}},
                "by": {"array": "b", "groups": list(range(65))},
            },
            "cells are more than the 67108864",
        ),
    ],
)
def test_wrong_groups_and_too_many_cells_are_refused(query: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSpec, match=text):
        query_of(query, (9,))

"""Every query gives its answer plus noise: at a huge epsilon, nearly the answer itself."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from dpdask.errors import InvalidMechanism, InvalidSensitivity, InvalidSpec
from dpdask.planning import make_plan
from dpdask.planning.build_query import build_query
from dpdask.releases.api import release, resume
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.spec.calibration import CompositionSection
from dpdask.spec.query import QUERIES
from dpdask.spec.release import PrivacyUnitSection
from tests.support.workspace import Workspace, people

LOUD = {"epsilon": 9e4, "delta": 1e-2}


def clipped(x: np.ndarray[Any, Any], norm: float, axis: int = 0) -> np.ndarray[Any, Any]:
    others = tuple(i for i in range(x.ndim) if i != axis)
    norms = np.sqrt(np.sum(x**2, axis=others, keepdims=True))
    return x * np.minimum(1, norm / np.maximum(norms, 1e-300))


def near(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], std: float) -> None:
    assert found.shape == wanted.shape
    assert np.max(np.abs(found - wanted)) < 8 * std + 1e-3 * np.max(np.abs(wanted))
    assert np.max(np.abs(wanted)) > 20 * std  # else the comparison says nothing


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("chunks", [(4, 5, 6), (3, 2, 4), (2, 5, 1)])
def test_identity_clips_records_that_span_chunks(
    space: Workspace, axis: int, chunks: tuple[int, ...]
) -> None:
    x = np.random.default_rng(3).standard_normal((4, 5, 6))
    space.source(x, chunks=chunks)
    receipt = space.release(privacy_unit={"record_dim": axis, "l2_clip_norm": 2.5}, privacy=LOUD)
    near(space.values(), clipped(x, 2.5, axis), receipt.card.released.noise_std)


def test_identity_clamps_each_feature_to_its_range(space: Workspace) -> None:
    x = people() * 10
    space.source(x, chunks=(13, 3))
    ranges = [[-0.1 * (i + 1), 0.2 * (i + 1)] for i in range(8)]
    receipt = space.release(privacy_unit={"record_dim": 0, "ranges": ranges}, privacy=LOUD)
    bounds = np.array(ranges)
    near(space.values(), np.clip(x, bounds[:, 0], bounds[:, 1]), receipt.card.released.noise_std)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("chunks", [(60, 8), (7, 3)])
def test_sum_adds_clipped_records(
    space: Workspace, adjacency: str, chunks: tuple[int, int]
) -> None:
    x = people() + 0.3
    space.source(x, chunks=chunks)
    unit = {"record_dim": 0, "l2_clip_norm": 0.9, "adjacency": adjacency}
    receipt = space.release(privacy_unit=unit, query="sum", privacy=LOUD, publish={"chunks": [5]})
    near(space.values(), clipped(x, 0.9).sum(axis=0), receipt.card.released.noise_std)


def test_sum_clamps_ranges_along_the_other_axis(space: Workspace) -> None:
    x = people().T.copy() + 0.5  # records along axis 1
    space.source(x, chunks=(3, 17))
    unit = {"record_dim": 1, "ranges": [[0.0, 0.1 * (i + 1)] for i in range(8)]}
    receipt = space.release(privacy_unit=unit, query="sum", privacy=LOUD)
    highs = 0.1 * (np.arange(8) + 1)[:, None]
    near(space.values(), np.clip(x, 0, highs).sum(axis=1), receipt.card.released.noise_std)


def test_mean_divides_by_the_public_number_of_records(space: Workspace) -> None:
    x = people() + 1
    space.source(x, chunks=(16, 8))
    receipt = space.release(
        privacy_unit={"record_dim": 0, "l2_clip_norm": 5.0}, query="mean", privacy=LOUD
    )
    near(space.values(), x.mean(axis=0), receipt.card.released.noise_std)
    assert receipt.card.query["divisor"] == 60


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("chunks", [None, [3, 3]])
def test_second_moment_is_symmetric_and_chunked_both_ways(
    space: Workspace, axis: int, chunks: list[int] | None
) -> None:
    x = people() + 0.5
    space.source(x if axis == 0 else x.T.copy(), chunks=(11, 5) if axis == 0 else (5, 11))
    publish = {} if chunks is None else {"chunks": chunks}
    unit = {"record_dim": axis, "l2_clip_norm": 1.5}
    receipt = space.release(privacy_unit=unit, query="second-moment", privacy=LOUD, publish=publish)
    bounded = clipped(x, 1.5)
    near(space.values(), bounded.T @ bounded / 60, receipt.card.released.noise_std)
    assert np.array_equal(space.values(), space.values().T)


@pytest.mark.parametrize("axis", [0, 1])
def test_second_moment_of_ranges_clamps_entries(space: Workspace, axis: int) -> None:
    x = people(400, 5) * 4 + 0.5
    x[3, 2] = np.nan  # counts as the middle of its range
    space.source(x if axis == 0 else x.T.copy(), chunks=(60, 2) if axis == 0 else (2, 60))
    ranges = [[-1, 1], [0, 2], [0.25, 0.75], [-3, 1], [-0.5, 0.5]]
    unit = {"record_dim": axis, "ranges": ranges}
    publish = {"chunks": [2, 2]}
    receipt = space.release(privacy_unit=unit, query="second-moment", privacy=LOUD, publish=publish)
    lows, highs = np.array(ranges, dtype=float).T
    bounded = np.where(np.isnan(x), (lows + highs) / 2, np.clip(x, lows, highs))
    near(space.values(), bounded.T @ bounded / 400, receipt.card.released.noise_std)
    assert receipt.card.sensitivity.origin == "public-range"


def test_histogram_counts_records_in_public_bins(space: Workspace) -> None:
    x = np.vstack([people(5000, 3), [[0.0, 1.0, np.nan]], [[1.0, 1.0, 9.0]]])
    space.source(x, chunks=(700, 2))
    edges = [[-1.0, 0.0, 0.5, 1.0], [-1.0, 0.0, 1.0]]
    query = {"name": "histogram", "edges": edges, "columns": [0, 2]}
    receipt = space.release(
        privacy_unit={"record_dim": 0}, query=query, privacy=LOUD, publish={"chunks": [2, 1]}
    )
    wanted = np.histogramdd(x[:5000, [0, 2]], bins=[np.array(row) for row in edges])[0]
    assert np.max(np.abs(space.values() - wanted)) < 8 * receipt.card.released.noise_std < 1


def test_declared_results_are_released_as_they_are(space: Workspace) -> None:
    x = people() * 100
    space.source(x)
    receipt = space.release(
        query={"name": "precomputed", "l2_sensitivity": 1.0}, privacy_unit={}, privacy=LOUD
    )
    near(space.values(), x, receipt.card.released.noise_std)
    assert receipt.card.sensitivity.origin == "declared"
    assert receipt.card.privacy_unit.bound["enforced"] is False


def test_a_declared_result_far_above_its_sensitivity_is_not_cut(space: Workspace) -> None:
    """Many entries need a fine grid, which reaches less far: plan and card say how far."""
    x = np.ones((1000, 1000))
    x[0, 0] = 1e9
    space.source(x)
    spec = space.spec(query={"name": "precomputed", "l2_sensitivity": 1e-7}, privacy_unit={})
    facts = make_plan(parse_release_spec(spec)).to_dict()
    receipt = release(spec)
    assert receipt.card.privacy_unit.bound == facts["bound"]
    cut = facts["bound"]["clamped_at"]
    assert cut > 2e8 * 1e-7
    found = space.values()
    near(found[1:], x[1:], receipt.card.released.noise_std)
    near(found[:1, 0], np.array([cut]), receipt.card.released.noise_std)


@pytest.mark.parametrize("mechanism", ["analytic-gaussian", "udn"])
@pytest.mark.parametrize("query", ["identity", "sum", "mean", "second-moment"])
@pytest.mark.parametrize("times", [10.0, 1e5])
def test_outliers_keep_their_direction(
    space: Workspace, query: str, mechanism: str, times: float
) -> None:
    """Records far outside the clip norm are shortened, not turned."""
    direction = np.array([8.0, 1.0, 1.0, 1.0]) / math.sqrt(67)
    space.source(np.tile(times * direction, (400, 1)), chunks=(100, 2))
    receipt = space.release(query=query, mechanism=mechanism, privacy=LOUD)
    found, std = space.values(), receipt.card.released.noise_std
    if query == "identity":
        found, std = found.mean(axis=0), std / 20
    expected = {"sum": 400 * direction, "second-moment": np.outer(direction, direction)}.get(
        query, direction
    )
    near(found, expected, std)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize(
    ("query", "unit"),
    [
        ("sum", {"ranges": [-1, 1]}),
        ("sum", {"l2_clip_norm": 1.0}),
        ("second-moment", {"l2_clip_norm": 1.0}),
    ],
)
def test_rounding_a_hundred_thousand_records_does_not_show(
    space: Workspace, adjacency: str, query: str, unit: dict[str, Any]
) -> None:
    """All are cut the same way: on the noise's own grid that would be many times the noise."""
    count = 100_000
    space.source(np.full((count, 2), 1.0), chunks=(25_000, 2))
    spec = space.spec(query=query, privacy_unit={"record_dim": 0, "adjacency": adjacency, **unit})
    plan = make_plan(parse_release_spec(spec))
    exact_sum = plan.data.exact_sum
    assert exact_sum is not None
    answers = plan.data.query.partial(  # type: ignore[attr-defined]
        plan.source,
        exact_sum,
        (slice(0, 2),) * len(plan.layout.shape),
        slice(0, count),
        None,
    )
    bounded = np.full((count, 2), 1.0 if "ranges" in unit else math.sqrt(0.5))
    exact = bounded.sum(axis=0) if query == "sum" else bounded.T @ bounded
    error = float(np.max(np.abs(exact_sum.answer(answers) - exact)))
    std = plan.data.privatizer.noise.entry_std
    assert error < 0.1 * std
    bias = plan.data.query.bias(exact_sum)  # type: ignore[attr-defined]
    assert error <= bias + exact_sum.answer_step
    assert plan.warnings == () or query == "second-moment"


def test_a_one_dimensional_source_has_scalar_records(space: Workspace) -> None:
    x = np.linspace(-3, 3, 50)
    space.source(x, chunks=(7,))
    receipt = space.release(privacy_unit={"record_dim": 0, "ranges": [-2, 2]}, privacy=LOUD)
    near(space.values(), np.clip(x, -2, 2), receipt.card.released.noise_std)
    space.release(
        privacy_unit={"record_dim": 0, "ranges": [-2, 2]},
        query="sum",
        privacy=LOUD,
        output={"url": f"{space.folder}/s"},
    )
    assert space.values("s").shape == (1,)


def test_integer_sources_and_missing_chunks_are_read_as_everywhere(space: Workspace) -> None:
    for dtype in ("int8", "uint16", "int32", "uint64", "float16", ">f8"):
        x = np.zeros((40, 4), dtype)
        x[:20] = 3
        space.source(x, chunks=(10, 4))  # all-fill chunks are not stored
        receipt = space.release(
            privacy_unit={"record_dim": 0, "ranges": [0, 9]},
            privacy=LOUD,
            output={"url": f"{space.folder}/{dtype.strip('>')}.zarr"},
        )
        near(
            space.values(f"{dtype.strip('>')}.zarr"),
            x.astype(float),
            receipt.card.released.noise_std,
        )


@pytest.mark.parametrize("output_dtype", ["int32", "int64"])
def test_packed_integers_unpack_to_the_same_grid(space: Workspace, output_dtype: str) -> None:
    import xarray

    x = people()
    space.source(x)
    receipt = space.release(privacy=LOUD, noise={"output_dtype": output_dtype})
    assert space.values().dtype == output_dtype
    unpacked = xarray.open_zarr(space.folder / "out.zarr")["data"]
    near(unpacked.values, clipped(x, 1.0), receipt.card.released.noise_std)
    assert receipt.card.released.scale_factor == receipt.card.grid["step"]


SENSITIVITIES: list[tuple[str, dict[str, Any], dict[str, Any], float]] = [
    ("identity", {"l2_clip_norm": 3.0}, {}, 6.0),
    ("identity", {"l2_clip_norm": 3.0, "max_contributions": 4}, {}, 12.0),
    ("identity", {"ranges": [-1, 2]}, {}, 3 * np.sqrt(8)),
    ("identity", {"ranges": [-1, 2], "record_dim": None}, {}, 3 * np.sqrt(480)),
    ("sum", {"l2_clip_norm": 3.0}, {}, 6.0),
    ("sum", {"l2_clip_norm": 3.0, "adjacency": "add-remove-one"}, {}, 3.0),
    ("sum", {"l2_clip_norm": 3.0, "max_contributions": 5}, {}, 30.0),
    ("sum", {"ranges": [-1, 2]}, {}, 3 * np.sqrt(8)),
    ("sum", {"ranges": [-2, 2], "adjacency": "add-remove-one"}, {}, 2 * np.sqrt(8)),
    ("mean", {"l2_clip_norm": 3.0}, {}, 6.0),
    ("second-moment", {"l2_clip_norm": 3.0}, {}, 9 * np.sqrt(2)),
    ("second-moment", {"l2_clip_norm": 3.0, "adjacency": "add-remove-one"}, {}, 9.0),
    ("second-moment", {"ranges": [-1, 3]}, {}, 8 * 9 * np.sqrt(2)),
    ("histogram", {}, {"edges": [[0.0, 1.0, 2.0]]}, np.sqrt(2)),
    (
        "histogram",
        {"adjacency": "add-remove-one", "max_contributions": 3},
        {"edges": [[0.0, 1.0, 2.0]]},
        3.0,
    ),
]


@pytest.mark.parametrize(("name", "unit", "query", "wanted"), SENSITIVITIES)
def test_sensitivities_are_those_of_the_table(
    name: str, unit: dict[str, Any], query: dict[str, Any], wanted: float
) -> None:
    section = QUERIES[name](name=name, **query)
    built = build_query(
        section, PrivacyUnitSection(**{"record_dim": 0, **unit}), (60, 8), CompositionSection()
    )  # type: ignore[arg-type]
    assert built.sensitivity.radius == pytest.approx(wanted, rel=1e-12)


def neighbours_reach(
    space: Workspace, query: str, unit: dict[str, Any], pairs: list[tuple[Any, Any]]
) -> float:
    """The furthest that exact answers of neighbours lie apart, in units of the recorded
    sensitivity.
    """
    worst = 0.0
    for before, after in pairs:
        answers = []
        for x in (before, after):
            space.source(np.asarray(x, dtype=float))
            spec = parse_release_spec(
                space.spec(
                    query=query, privacy_unit=unit, output={"url": f"{space.folder}/never.zarr"}
                )
            )
            plan = make_plan(spec)
            query_, exact_sum = plan.data.query, plan.data.exact_sum
            assert exact_sum is not None
            records = slice(0, x.shape[0])
            box = tuple(slice(0, n) for n in query_.answer_shape)
            total = query_.partial(plan.source, exact_sum, box, records, None)  # type: ignore[attr-defined]
            answers.append(exact_sum.answer(total))
        calibrated_std = query_.sensitivity.radius / (plan.data.mu or 0.0)
        grown = plan.data.noise.entry_std / calibrated_std  # to cover rounding
        worst = max(
            worst,
            float(np.linalg.norm(answers[0] - answers[1])) / query_.sensitivity.radius / grown,
        )
    return worst


def test_exact_answers_of_neighbours_never_pass_the_sensitivity(space: Workspace) -> None:
    base = people(20, 3)
    hard = [
        np.full(3, 1e300),
        np.full(3, -1e300),
        [np.inf, -np.inf, np.nan],
        [1e-310, 5e-324, -1e-320],
        [1.0, 1.0, 1.0],
    ]
    pairs = []
    for first in hard:
        for second in hard:
            before, after = base.copy(), base.copy()
            before[7], after[7] = first, second
            pairs.append((before, after))
    for query, unit in [
        ("sum", {"record_dim": 0, "l2_clip_norm": 0.7}),
        ("sum", {"record_dim": 0, "ranges": [-0.3, 0.4]}),
        ("second-moment", {"record_dim": 0, "l2_clip_norm": 0.7}),
    ]:
        reach = neighbours_reach(space, query, unit, pairs)
        assert 0.5 < reach <= 1 + 1e-12


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"privacy_unit": {"record_dim": 5, "l2_clip_norm": 1.0}}, InvalidSensitivity, "record_dim=5"),
    ({"privacy_unit": {"l2_clip_norm": 1.0}}, InvalidSensitivity, "privacy_unit.record_dim"),
    ({"privacy_unit": {"record_dim": 0}}, InvalidSensitivity, "exactly one"),
    (
        {"privacy_unit": {"record_dim": 0, "l2_clip_norm": -1.0}},
        InvalidSensitivity,
        "l2_clip_norm=-1",
    ),
    (
        {"privacy_unit": {"record_dim": 0, "ranges": [[0, 1]] * 3}},
        InvalidSensitivity,
        "3 ranges do not fit",
    ),
    (
        {"privacy_unit": {"record_dim": 0, "ranges": [1, 0]}},
        InvalidSensitivity,
        "empty or unbounded",
    ),
    (
        {"privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"}},
        InvalidSensitivity,
        "add-remove-one",
    ),
    (
        {
            "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1, "adjacency": "add-remove-one"},
            "query": "mean",
            "mechanism": "rank-one",
        },
        InvalidMechanism,
        "analytic-gaussian",
    ),
    (
        {
            "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1, "center": 2.0},
            "query": "second-moment",
        },
        InvalidSensitivity,
        "around 0",
    ),
    (
        {"query": {"name": "histogram", "edges": [[1, 0]]}, "privacy_unit": {"record_dim": 0}},
        InvalidSpec,
        "increasing",
    ),
    (
        {
            "query": {"name": "histogram", "edges": [[0, 1]], "columns": [9]},
            "privacy_unit": {"record_dim": 0},
        },
        InvalidSpec,
        "columns",
    ),
    (
        {"query": {"name": "precomputed", "l2_sensitivity": 1.0}},
        InvalidSensitivity,
        "no records any more",
    ),
    (
        {"mechanism": {"name": "rank-one", "calibration": "paper"}},
        InvalidMechanism,
        "not certified",
    ),
    ({"noise": {"output_dtype": "int32"}, "mechanism": "mgm"}, InvalidSpec, "one grid for all"),
    ({"composition": {"steps": 3}}, InvalidSpec, "precomputed"),
    ({"publish": {"chunks": [3]}}, InvalidSpec, "do not fit"),
    ({"publish": {"chunks": [4, 4], "shards": [6, 8]}}, InvalidSpec, "multiple"),
    ({"publish": {"dimension_names": ["a"]}}, InvalidSpec, "do not fit"),
    ({"compute": {"memory": "1 MB"}}, InvalidSpec, "more than the 0.001 GB allowed"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), REFUSED)
def test_what_has_no_guarantee_is_refused(
    space: Workspace, changes: dict[str, Any], kind: type[Exception], text: str
) -> None:
    space.source(people())
    with pytest.raises(kind, match=text):
        space.release(**changes)
    assert space.spent() == 0
    assert space.left_behind() == []


def test_an_uncertified_mechanism_is_released_only_at_the_callers_word(space: Workspace) -> None:
    space.source(people())
    receipt = space.release(
        mechanism={"name": "rank-one", "calibration": "paper"}, accept_uncertified=True
    )
    assert receipt.card.guarantee.certified is False
    charged = space.spent()
    assert (
        charged > receipt.card.guarantee.claimed.epsilon
    )  # the verified cost, not the claimed one


@pytest.mark.parametrize("mechanism", ["mvg", "udn"])
def test_directions_from_a_dp_covariance_are_found_once_and_charged(
    space: Workspace, mechanism: str
) -> None:
    x = people(400, 6)
    x[:, 2] += 3 * np.random.default_rng(5).standard_normal(400)  # one strong direction
    space.source(x, chunks=(100, 3))
    options: dict[str, Any] = (
        {"allocation": "binary", "tau": 0.9, "chosen": [0]} if mechanism == "mvg" else {}
    )
    asked = {
        "name": mechanism,
        "axis": 1,
        "directions": {"from": "dp-covariance", "share": 0.2},
        **options,
    }
    seen: list[Any] = []

    def watch(progress: Any) -> None:
        if progress.stage == "tiles" and not seen:
            [release] = space.ledger.state("people").releases
            seen.append(json.loads(space.ledger.get_once(release, "directions") or ""))
            raise KeyboardInterrupt

    changes: dict[str, Any] = {
        "mechanism": asked,
        "privacy": LOUD,
        "privacy_unit": {"record_dim": 0, "l2_clip_norm": 3.0},
    }
    with pytest.raises(KeyboardInterrupt):
        space.release(on_progress=watch, **changes)
    charged = space.spent()
    rows = np.array(seen[0])
    assert np.allclose(rows @ rows.T, np.eye(6), atol=1e-9)
    assert abs(rows[0, 2]) > 0.9  # the strongest comes first
    receipt = resume(space.spec(**changes))
    assert space.spent() == charged
    assert "for the directions, then" in receipt.card.guarantee.claimed.theorem
    assert receipt.card.guarantee.verified.name == "gaussian"
    verify_release(f"{space.folder}/out.zarr", ledger=space.ledger)


def test_directions_from_a_dp_covariance_need_features_of_bounded_records(
    space: Workspace,
) -> None:
    space.source(people(40, 6))
    asked = {"name": "udn", "axis": 1, "directions": {"from": "dp-covariance"}}
    with pytest.raises(InvalidMechanism, match="public directions"):
        space.release(mechanism=asked, privacy_unit={"ranges": [-1, 1]})
    with pytest.raises(InvalidMechanism, match="an axis of features"):
        space.release(mechanism={**asked, "axis": 0})

"""Layers are computed from what is published alone, beside a main array that stays as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import xarray

from dpdask import open_release, open_release_dataset
from dpdask.errors import InvalidSpec, VerificationFailed
from dpdask.execution import driver
from dpdask.planning import make_plan
from dpdask.planning.build_layers import MOST_WHOLE_ENTRIES, register_layer, unregister_layer
from dpdask.queries import BesideArray, Layer
from dpdask.queries.base import DATA
from dpdask.queries.layers import base as layer_base
from dpdask.queries.layers import register_layer_class
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.spec.layers import LayerSection
from dpdask.types import Array, Floats, Region, Shape
from tests.support.forging import edit_chunk, edit_json, reseal, rewrite_card
from tests.support.workspace import Workspace, people, staged_bytes

RANGES = {"record_dim": 0, "ranges": [-0.3, 0.4]}
FEATURES = {"record_dim": 0, "ranges": [[-0.1 * i, 0.2 * i] for i in range(1, 9)]}
COUNTED = {"record_dim": 0, "ranges": [-0.3, 0.4], "missing": "count"}
HISTOGRAM = {"name": "histogram", "edges": [[-0.5, 0, 0.1, 0.5]], "columns": [2]}

QUERIES: dict[str, dict[str, Any]] = {
    "identity": {"query": "identity", "privacy_unit": RANGES},
    "clipped": {"query": "identity"},
    "features": {"query": "identity", "privacy_unit": FEATURES, "mechanism": "directional"},
    "float32": {"query": "identity", "noise": {"output_dtype": "float32"}},
    "int32": {
        "query": "identity",
        "privacy_unit": RANGES,
        "noise": {"output_dtype": "int32"},
    },
    "sharded": {"query": "identity", "publish": {"chunks": [7, 3], "shards": [14, 6]}},
    "zstd": {"query": "identity", "publish": {"chunks": [7, 3], "codec": "zstd"}},
    "sum": {"query": "sum", "privacy_unit": RANGES},
    "mean": {"query": "mean", "privacy_unit": RANGES, "publish": {"chunks": [3]}},
    "mean-int64": {
        "query": "mean",
        "privacy_unit": RANGES,
        "noise": {"output_dtype": "int64"},
    },
    "counted-mean": {"query": "mean", "privacy_unit": COUNTED, "publish": {"chunks": [3]}},
    "laplace": {"query": "mean", "privacy_unit": RANGES, "mechanism": "laplace"},
    "dp-directions": {
        "query": "identity",
        "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0},
        "mechanism": {
            "name": "udn",
            "axis": 1,
            "weights": [1, 2, 3, 4, 5, 6, 7, 8],
            "directions": {"from": "dp-covariance", "share": 0.2},
        },
    },
    "rank-one": {"query": "mean", "mechanism": "rank-one", "accept_uncertified": True},
    "histogram": {"query": HISTOGRAM, "privacy_unit": {"record_dim": 0}},
    "second-moment": {"query": "second-moment", "publish": {"chunks": [3, 3]}},
    "precomputed": {
        "query": {"name": "precomputed", "l2_sensitivity": 0.5},
        "privacy_unit": {},
    },
}


def with_layers(case: dict[str, Any], layers: list[Any]) -> dict[str, Any]:
    return {**case, "publish": {**case.get("publish", {}), "layers": layers}}


@pytest.mark.parametrize("case", QUERIES)
def test_layers_follow_from_what_is_published(space: Workspace, case: str) -> None:
    space.source(people(), chunks=(16, 8))
    changes = with_layers(QUERIES[case], ["non-negative", "integer", ["non-negative", "integer"]])
    space.release(**changes)
    released = open_release_dataset(str(space.folder / "out.zarr"))
    main = released.data.values.astype(np.float64)
    if main.size > 100:  # of which not all are above zero by chance
        assert (main < 0).any()
    assert np.array_equal(released.data_nonnegative, np.maximum(main, 0))
    assert np.array_equal(released.data_integer, np.rint(main))
    assert np.array_equal(released.data_nonnegative_integer, np.rint(np.maximum(main, 0)))
    named = released.data.attrs["ancillary_variables"].split()
    assert named[-3:] == ["data_nonnegative", "data_integer", "data_nonnegative_integer"]
    assert released.data_nonnegative.dims == released.data.dims
    verify_release(str(space.folder / "out.zarr"))


@pytest.mark.parametrize("case", QUERIES)
def test_layers_change_no_byte_of_the_main_array(space: Workspace, case: str) -> None:
    space.source(people(), chunks=(16, 8))
    plain = space.staged(**QUERIES[case])
    layered = space.staged(**with_layers(QUERIES[case], ["non-negative"]))
    assert plain == {name: layered[name] for name in plain}
    assert {name.split("/")[0] for name in set(layered) - set(plain)} == {"data_nonnegative"}


def test_a_clamped_mean_lies_in_the_public_range(space: Workspace) -> None:
    space.source(people(20), chunks=(16, 8))
    changes = {
        "query": "mean",
        "privacy_unit": FEATURES,
        "privacy": {"epsilon": 0.01, "delta": 1e-6},
    }
    space.release(**with_layers({**changes, "mechanism": "laplace"}, ["clamped"]))
    released = open_release_dataset(str(space.folder / "out.zarr"))
    low, high = np.array(FEATURES["ranges"]).T
    assert ((released.data < low) | (released.data > high)).any()
    assert np.array_equal(released.data_clamped, np.clip(released.data, low, high))


def test_clamped_ranges_lie_along_the_features_of_every_tile(space: Workspace) -> None:
    space.source(people(), chunks=(16, 3))
    pairs = FEATURES["ranges"]
    identity = {"query": "identity", "privacy_unit": FEATURES, "publish": {"chunks": [7, 3]}}
    space.release(**with_layers(identity, ["clamped"]))
    released = open_release_dataset(str(space.folder / "out.zarr"))
    low, high = np.array(pairs).T
    assert np.array_equal(released.data_clamped, np.clip(released.data, low, high))


def test_a_clamped_sum_lies_within_as_many_ranges_as_there_are_records(space: Workspace) -> None:
    space.source(people(20))
    changes = {"query": "sum", "privacy_unit": RANGES, "privacy": {"epsilon": 0.01, "delta": 1e-6}}
    space.release(**with_layers(changes, ["clamped"]))
    released = open_release_dataset(str(space.folder / "out.zarr"))
    assert np.array_equal(released.data_clamped, np.clip(released.data, 20 * -0.3, 20 * 0.4))
    assert (released.data_clamped != released.data).any()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"query": "identity"}, "its bound is not ranges"),
        (
            {"query": "sum", "privacy_unit": {**RANGES, "adjacency": "add-remove-one"}},
            "private number of records",
        ),
        ({"query": "sum", "privacy_unit": COUNTED}, "private number of records"),
        ({"query": HISTOGRAM, "privacy_unit": {"record_dim": 0}}, "its bound is not ranges"),
    ],
)
def test_clamped_without_a_public_range_is_refused(
    space: Workspace,
    changes: dict[str, Any],
    text: str,
) -> None:
    space.source(people())
    with pytest.raises(InvalidSpec, match=text):
        space.staged(**with_layers(changes, ["clamped"]))


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        (["nonnegative"], "not a valid layer; did you mean 'non-negative'"),
        ([{"name": "integer", "digits": 2}], "digits is not a valid key"),
        (["integer", "integer"], "two arrays would be data_integer"),
        ([[]], "publish.layers"),
        ("integer", "publish.layers"),
    ],
)
def test_wrong_layers_are_refused(space: Workspace, layers: Any, text: str) -> None:
    space.source(people())
    with pytest.raises(InvalidSpec, match=text):
        space.staged(publish={"layers": layers})


def test_an_array_of_a_layer_is_never_also_a_dimension(space: Workspace) -> None:
    space.source(people())
    names = ["data_integer", "feature"]
    with pytest.raises(InvalidSpec, match="'data_integer' is published beside the result"):
        space.staged(publish={"layers": ["integer"], "dimension_names": names})


def test_layers_have_the_units_of_the_result(space: Workspace) -> None:
    space.source(people())
    attributes = {"units": "K", "standard_name": "air_temperature"}
    space.release(publish={"layers": ["integer"], "attributes": attributes})
    layer = open_release_dataset(str(space.folder / "out.zarr")).data_integer
    assert layer.attrs == {
        "units": "K",
        "standard_name": "air_temperature",
        "long_name": "rounded to whole numbers",
    }


def test_a_lost_chunk_of_a_layer_is_written_again_with_the_same_bytes(
    space: Workspace,
) -> None:
    space.source(people(), chunks=(16, 8))
    spec = space.spec(query="second-moment", publish={"chunks": [3, 3], "layers": ["integer"]})
    plan = make_plan(parse_release_spec(spec))
    first = staged_bytes(plan)
    work = driver.TileWork(plan, plan.only, None, None)  # type: ignore[arg-type]
    assert sorted(key for index in work.missing(set()) for key in work.owned_keys(index)) == sorted(
        first
    )
    assert work.missing(set(first) - {"data_integer/c.2.0"}) == [(0, 2)]
    assert staged_bytes(plan) == first


def _released(space: Workspace) -> Path:
    space.source(people(), chunks=(16, 8))
    space.release(publish={"layers": ["non-negative"], "chunks": [16, 8]})
    group = space.folder / "out.zarr"
    verify_release(str(group))
    return group


def test_a_changed_layer_does_not_verify(space: Workspace) -> None:
    group = _released(space)
    edit_chunk(group / "data_nonnegative/c.0.0")
    with pytest.raises(VerificationFailed, match=r"data_nonnegative/c\.0\.0"):
        verify_release(str(group))


@pytest.mark.parametrize(
    "name",
    ["integer", "clamped", "no-such-layer"],
)
def test_another_layer_on_the_card_does_not_verify(space: Workspace, name: str) -> None:
    group = _released(space)
    rewrite_card(group, lambda card: card["released"]["layers"][0].update(name=name))
    with pytest.raises(VerificationFailed, match="layers"):
        verify_release(str(group))


def test_another_description_of_a_layer_does_not_verify(space: Workspace) -> None:
    group = _released(space)
    said = {"long_name": "unbiased"}
    edit_json(group / "data_nonnegative/zarr.json", lambda d: d.update(attributes=said))
    rewrite_card(group, lambda card: card["released"]["beside"][-1].update(attributes=said))
    reseal(group)
    with pytest.raises(VerificationFailed, match="not those that its noise and layers add"):
        verify_release(str(group))


class LargestSection(LayerSection):
    """``largest``: the largest entry along the last axis, and over all."""

    name: Literal["largest"]


@dataclass(frozen=True, kw_only=True)
class Largest(Layer):
    """A layer that needs the whole answer, with an array of its own dimensions."""

    name: ClassVar[str] = "largest"
    whole: ClassVar[bool] = True

    def arrays(self, shape: Shape, dimension_names: tuple[str, ...]) -> tuple[BesideArray, ...]:
        return (
            BesideArray(
                suffix="largest",
                shape=(2, shape[-1]),
                aligned=False,
                long_name="largest",
                dimension_names=("end", dimension_names[-1]),
            ),
        )

    def apply(self, released: Mapping[str, Floats], box: Region) -> dict[str, Array]:
        values = np.atleast_2d(released[DATA])
        return {"largest": np.stack([values.min(axis=0), values.max(axis=0)])}


@pytest.fixture
def largest() -> Iterator[None]:
    register_layer_class(Largest)
    register_layer(LargestSection, lambda section, inputs: Largest())
    yield
    unregister_layer(LargestSection)
    del layer_base._CLASSES[Largest.name]


@pytest.mark.usefixtures("largest")
@pytest.mark.parametrize(
    "case", ["identity", "second-moment", "rank-one", "sharded", "counted-mean"]
)
def test_a_layer_may_see_the_whole_answer(space: Workspace, case: str) -> None:
    space.source(people(), chunks=(16, 8))
    space.release(**with_layers(QUERIES[case], ["largest", "integer"]))
    released = open_release_dataset(str(space.folder / "out.zarr"))
    main = np.atleast_2d(released.data.values)
    assert np.array_equal(released.data_largest, [main.min(axis=0), main.max(axis=0)])
    assert released.data_largest.dims == ("end", released.data.dims[-1])
    assert np.array_equal(released.data_integer, np.rint(released.data))
    verify_release(str(space.folder / "out.zarr"))


@pytest.mark.usefixtures("largest")
def test_a_layer_of_the_whole_answer_is_refused_where_that_is_large(space: Workspace) -> None:
    columns = MOST_WHOLE_ENTRIES // 4 + 1
    space.source(np.zeros((4, 1)), chunks=(4, 1))
    space.source(np.broadcast_to(np.float32(0), (4, columns)), chunks=(4, columns // 64))
    with pytest.raises(InvalidSpec, match="needs all 33554436 entries"):
        make_plan(parse_release_spec(space.spec(publish={"layers": ["largest"]})))


def test_open_release_and_netcdf_hold_layers(space: Workspace, tmp_path: Path) -> None:
    space.source(people())
    space.release(publish={"layers": ["non-negative"]})
    dataset = open_release_dataset(str(space.folder / "out.zarr"))
    dataset.to_netcdf(tmp_path / "out.nc")
    with xarray.open_dataset(tmp_path / "out.nc") as read:
        assert np.array_equal(read.data_nonnegative, dataset.data_nonnegative)
    assert open_release(str(space.folder / "out.zarr")).name == "data"

"""Row 13: what can be refused is refused before the charge, and nothing tells a source without
records from one with a record.

On 0.1.0 a scalar coordinate such as ``crs`` passed the plan, was charged and then failed for ever,
as did a coordinate that was named twice; a source without records was an error under
add-remove-one, and one with a single record was not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner

from dpdask.cli import main
from dpdask.errors import DpdaskError
from dpdask.privacy import PrivacyBudget
from dpdask.releases.api import plan, release
from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace, people

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.core.dtype.common.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]

ROWS, COLUMNS = 4, 3
SUMMED: dict[str, dict[str, Any]] = {
    "sum of clipped records": {"query": "sum"},
    "sum of clamped records": {"query": "sum", "privacy_unit": {"ranges": [-1, 1]}},
    "sum in several tiles, with a pass over norms": {"query": "sum", "publish": {"chunks": [2]}},
    "second-moment": {"query": "second-moment"},
    "second-moment in several tiles": {"query": "second-moment", "publish": {"chunks": [2, 2]}},
    "histogram": {"query": {"name": "histogram", "edges": [[0, 1, 2], [0, 1]]}, "privacy_unit": {}},
    "sum with spherical noise": {"query": "sum", "mechanism": "k-norm", "accept_uncertified": True},
    "sum with Kronecker noise": {
        "query": "sum",
        "mechanism": {"name": "mgm", "weights": [[1, 2, 3]]},
    },
}


def private(changes: dict[str, Any]) -> dict[str, Any]:
    bound = changes.get("privacy_unit", {"l2_clip_norm": 1.0})
    return {**changes, "privacy_unit": {"adjacency": "add-remove-one", "record_dim": 0, **bound}}


def matrix(space: Workspace, shape: tuple[int, ...]) -> None:
    zarr.create_array(
        space.folder / "source.zarr",
        name="x",
        shape=shape,
        chunks=(4, 3),
        dtype="f8",
        overwrite=True,
    )  # every record is zero: what differs can only come from their number


@pytest.mark.parametrize("name", SUMMED)
def test_no_records_release_noise_as_one_record_does(space: Workspace, name: str) -> None:
    """Outcome, progress and card are the same for none and for one, and so are the staged bytes but
    for the record itself.
    """
    seen: dict[int, Any] = {}
    for records in (0, 1):
        matrix(space, (records, COLUMNS))
        dataset = f"with {records}"
        space.ledger.open_dataset(dataset, PrivacyBudget(epsilon=10, delta=1e-4))
        budget = {"ledger": space.ledger_url, "dataset": dataset, "array_in_other_dataset": True}
        changes = {
            **private(SUMMED[name]),
            "output": {"url": str(space.folder / f"{records}.zarr")},
            "budget": budget,
        }
        progress: list[Any] = []
        receipt = release(space.spec(**changes), on_progress=progress.append)
        card = verify_release(str(space.folder / f"{records}.zarr"), ledger=space.ledger)
        assert card == receipt.card
        facts = card.model_dump(mode="json")
        for changing in ("release_id", "reserved_at", "ledger", "manifest"):
            facts.pop(changing)
        assert facts["composition"].pop("dataset") == dataset
        stages = list(
            dict.fromkeys((step.stage, step.total) for step in progress)
        )  # tiles end in any order
        assert card.manifest is not None
        seen[records] = (stages, facts, card.manifest.objects)
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["sum of clipped records", "second-moment in several tiles"])
def test_without_records_the_answer_is_that_of_records_of_zeros(
    space: Workspace, name: str
) -> None:
    """By one fixed key, the noise cancels: the twin with a record that is not zero differs."""
    staged = []
    for records in (0, 1, 1):
        matrix(space, (records, COLUMNS))
        if len(staged) == 2:
            zarr.open_array(space.folder / "source.zarr" / "x")[...] = 0.5
        staged.append(space.staged_values(**private(SUMMED[name])))
    assert np.array_equal(staged[0], staged[1])
    assert not np.array_equal(staged[0], staged[2])


EMPTY: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((0, 3), {"query": "identity"}),
    ((0, 3), {"query": "mean"}),
    ((0, 3), {"query": "sum"}),
    ((0, 3), {"query": "second-moment"}),
    ((0, 3), {"query": {"name": "precomputed", "l2_sensitivity": 1.0}, "privacy_unit": {}}),
    ((4, 0), private({"query": "sum"})),
    ((0, 0), private({"query": "sum"})),
]


@pytest.mark.parametrize(("shape", "changes"), EMPTY)
def test_an_empty_source_without_an_answer_is_refused_at_plan(
    space: Workspace, shape: tuple[int, ...], changes: dict[str, Any]
) -> None:
    matrix(space, shape)
    path = space.write_spec(**changes)
    for command in ("plan", "run"):
        result = CliRunner().invoke(main, [command, str(path)])
        assert result.exit_code == 2, result.output
        assert len(result.stderr.strip().splitlines()) == 1
        assert "no entries along axis" in result.stderr
    assert space.spent() == 0
    assert space.left_behind() == []


COORDINATES: dict[str, Any] = {
    "integers": np.arange(ROWS),
    "floats with NaN and infinities": np.array([0.0, np.nan, np.inf, -2.5]),
    "booleans": np.array([True, False, True, True]),
    "text of fixed length": np.array(["ab", "c", "dé", ""], dtype="U3"),
    "bytes of fixed length": np.array([b"ab", b"c", b"d", b"e"], dtype="S3"),
    "text of any length": np.array(["a" * 40, "", "dé", "e"], dtype=np.dtypes.StringDType()),
    "times": np.array(["2020-01-01", "NaT", "2021-01-01", "1969-07-20"], dtype="M8[s]"),
    "spans of time": np.arange(ROWS).astype("m8[ns]"),
    "big-endian floats": np.arange(ROWS).astype(">f8"),
    "big-endian integers": np.arange(ROWS).astype(">i2"),
    "half floats": np.arange(ROWS).astype("f2"),
    "a scalar number": np.array(7),
    "a scalar text": np.array("EPSG:4326"),
    "a scalar float": np.array(np.nan),
    "a matrix": np.arange(12.0).reshape(ROWS, COLUMNS),
}


def beside(
    space: Workspace,
    name: str,
    values: Any,
    version: int,
    dimensions: tuple[str, ...],
    **attributes: Any,
) -> None:
    group = zarr.open_group(space.folder / "source.zarr", mode="a", zarr_format=version)
    names = {} if version == 2 else {"dimension_names": dimensions}
    array = group.create_array(name, data=np.asarray(values), **names)
    array.attrs.update(
        attributes | ({"_ARRAY_DIMENSIONS": list(dimensions)} if version == 2 else {})
    )


def source_with(space: Workspace, version: int = 3) -> None:
    zarr.open_group(space.folder / "source.zarr", mode="w", zarr_format=version)
    beside(space, "x", people(ROWS, COLUMNS), version, ("row", "column"), units="kWh")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", COORDINATES)
def test_every_coordinate_that_the_plan_takes_is_published(
    space: Workspace, kind: str, version: int
) -> None:
    source_with(space, version)
    values = COORDINATES[kind]
    beside(space, "label", values, version, ("row", "column")[: values.ndim])
    space.release(publish={"coordinates": ["label"], "records_are_public": True})
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    stored = zarr.open_group(space.folder / "out.zarr", mode="r")["label"]
    assert isinstance(stored, zarr.Array)
    assert stored.shape == values.shape
    assert repr(np.asarray(stored[...]).tolist()) == repr(values.tolist())  # NaN is written as NaN
    opened = xarray.open_zarr(space.folder / "out.zarr")
    assert opened["label"].dims == ("row", "column")[: values.ndim]
    assert opened["label"].shape == values.shape


def test_times_of_the_cf_conventions_are_read_as_times(space: Workspace) -> None:
    source_with(space)
    beside(
        space,
        "row",
        np.arange(ROWS),
        3,
        ("row",),
        units="days since 2020-02-28",
        calendar="standard",
        comment="copied",
    )
    space.release(publish={"coordinates": ["row"], "records_are_public": True})
    row = xarray.open_zarr(space.folder / "out.zarr")["row"]
    assert row.values.astype("M8[D]").astype(str).tolist()[:2] == ["2020-02-28", "2020-02-29"]
    assert row.attrs == {"comment": "copied"}


def test_a_grid_mapping_is_a_scalar_and_is_published_with_what_it_says(space: Workspace) -> None:
    """0.1.0: charged, then "`dimension_names` and `shape` need to have the same number of
    dimensions", at every resume.
    """
    source_with(space)
    beside(
        space,
        "crs",
        0,
        3,
        (),
        grid_mapping_name="latitude_longitude",
        semi_major_axis=6378137.0,
        history="copied",
    )
    space.release(publish={"coordinates": ["crs"]})
    crs = xarray.open_zarr(space.folder / "out.zarr")["crs"]
    assert crs.dims == ()
    assert crs.attrs == {
        "grid_mapping_name": "latitude_longitude",
        "semi_major_axis": 6378137.0,
        "history": "copied",
    }


def _named_twice(space: Workspace) -> dict[str, Any]:
    beside(space, "row", np.arange(ROWS), 3, ("row",))
    return {"publish": {"coordinates": ["row", "row"]}}


def _the_source_itself(space: Workspace) -> dict[str, Any]:
    return {"publish": {"coordinates": ["x"]}}


def _a_scalar_named_as_a_dimension(space: Workspace) -> dict[str, Any]:
    beside(space, "row", 1, 3, ())
    return {"publish": {"coordinates": ["row"]}}


def _along_another_dimension_than_its_name(space: Workspace) -> dict[str, Any]:
    beside(space, "column", np.arange(ROWS), 3, ("row",))
    return {"publish": {"coordinates": ["column"], "records_are_public": True}}


def _complex(space: Workspace) -> dict[str, Any]:
    beside(space, "z", np.zeros(ROWS, "c16"), 3, ("row",))
    return {"publish": {"coordinates": ["z"]}}


def _in_a_group_of_its_own(space: Workspace) -> dict[str, Any]:
    zarr.open_group(space.folder / "source.zarr", mode="a").create_group("inner").create_array(
        "z", data=np.arange(ROWS)
    )
    return {"publish": {"coordinates": ["inner/z"]}}


def _with_units_that_are_no_json(space: Workspace) -> dict[str, Any]:
    beside(space, "row", np.arange(ROWS), 3, ("row",))
    path = space.folder / "source.zarr" / "row" / "zarr.json"
    document = json.loads(path.read_text())
    document["attributes"]["units"] = float("nan")
    path.write_text(json.dumps(document))
    return {"publish": {"coordinates": ["row"]}}


def _names_of_records(space: Workspace) -> dict[str, Any]:
    beside(space, "person", np.array([f"P{i}" for i in range(ROWS)]), 3, ("row",))
    return {"publish": {"coordinates": ["person"]}}


def _names_of_records_of_a_sum(space: Workspace) -> dict[str, Any]:
    beside(space, "person", np.array([f"P{i}" for i in range(ROWS)]), 3, ("row",))
    return {"query": "sum", "publish": {"coordinates": ["person"], "records_are_public": True}}


def _called_as_the_array(space: Workspace) -> dict[str, Any]:
    beside(space, "data", np.arange(ROWS), 3, ("row",))
    return {"publish": {"coordinates": ["data"]}}


def _larger_than_a_driver_holds(space: Workspace) -> dict[str, Any]:
    group = zarr.open_group(space.folder / "source.zarr", mode="a")
    sizes = {
        "shape": (40_000, 40_000),
        "chunks": (40_000, 1000),
        "dimension_names": ("row", "column"),
    }
    group.create_array("big", dtype="f4", **sizes)
    group.create_array("where", dtype="f8", **sizes)
    return {
        "source": {"url": str(space.folder / "source.zarr"), "array": "big"},
        "publish": {"coordinates": ["where"], "records_are_public": True},
    }


def _an_array_called_as_its_dimension(space: Workspace) -> dict[str, Any]:
    return {"output": {"url": str(space.folder / "out.zarr"), "array": "row"}}


def _an_attribute_that_decodes(space: Workspace) -> dict[str, Any]:
    zarr.open_array(space.folder / "source.zarr" / "x").attrs["_FillValue"] = 0.0
    return {"publish": {"attributes": ["_FillValue"]}}


def _an_attribute_with_nan(space: Workspace) -> dict[str, Any]:
    path = space.folder / "source.zarr" / "x" / "zarr.json"
    path.write_text(path.read_text().replace('"kWh"', '{"scale": [NaN]}'))
    return {"publish": {"attributes": ["units"]}}


def _chunks_that_no_worker_holds(space: Workspace) -> dict[str, Any]:
    return {"publish": {"chunks": [10**8, COLUMNS]}, "compute": {"threads": 2, "memory": "1 GB"}}


def _a_name_without_room_for_staging(space: Workspace) -> dict[str, Any]:
    return {"output": {"url": str(space.folder / ("a" * 245))}}


def _more_bins_than_anything_holds(space: Workspace) -> dict[str, Any]:
    bins = {"name": "histogram", "edges": [{"low": 0, "high": 1, "bins": 10**12}]}
    return {"query": bins, "privacy_unit": {"record_dim": 0}}


def _numbers_beyond_float32(space: Workspace) -> dict[str, Any]:
    return {
        "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1e60},
        "noise": {"output_dtype": "float32"},
    }


REFUSED = {
    _named_twice: "'row' is there twice",
    _the_source_itself: "'x' is the source itself",
    _a_scalar_named_as_a_dimension: "does not lie along",
    _along_another_dimension_than_its_name: "does not lie along",
    _complex: "not a plain array",
    _in_a_group_of_its_own: "no array 'inner/z' lies beside the source",
    _with_units_that_are_no_json: "not a valid JSON value",
    _names_of_records: "publish.records_are_public: true",
    _names_of_records_of_a_sum: "'row', which query sum sums over",
    _called_as_the_array: "is the name of the released array",
    _larger_than_a_driver_holds: "copied whole",
    _an_array_called_as_its_dimension: "also the name of a dimension",
    _an_attribute_that_decodes: "says how the source's values are stored",
    _an_attribute_with_nan: "not a valid JSON value",
    _chunks_that_no_worker_holds: "more than the 1 GB allowed",
    _a_name_without_room_for_staging: "choose a shorter output.url",
    _more_bins_than_anything_holds: "choose fewer",
    _numbers_beyond_float32: "out of reach of float32",
}


@pytest.mark.parametrize("mistake", REFUSED, ids=lambda mistake: mistake.__name__.strip("_"))
def test_what_cannot_be_published_is_refused_by_the_plan(space: Workspace, mistake: Any) -> None:
    source_with(space)
    path = space.write_spec(**mistake(space))
    for command in ("plan", "run"):
        result = CliRunner().invoke(main, [command, str(path)])
        assert result.exit_code == 2, result.output
        assert len(result.stderr.strip().splitlines()) == 1
        assert REFUSED[mistake] in result.stderr
    assert space.spent() == 0
    assert space.left_behind() == []


def test_the_twin_of_the_refusals_is_released(space: Workspace) -> None:
    source_with(space)
    space.release(publish={"attributes": ["units"], "chunks": [100, 100]})
    opened = xarray.open_zarr(space.folder / "out.zarr")
    assert opened["data"].attrs["units"] == "kWh"


def test_random_publish_sections_are_refused_or_published_never_charged_in_vain(
    space: Workspace, tmp_path: Path
) -> None:
    """Fixed seed: names of coordinates, dimensions, arrays and chunks put together anyhow."""
    random = np.random.default_rng(13)
    source_with(space)
    beside(space, "row", np.arange(ROWS), 3, ("row",))
    beside(space, "column", np.arange(COLUMNS), 3, ("column",))
    beside(space, "crs", 0, 3, (), grid_mapping_name="x")
    beside(space, "area", np.ones((ROWS, COLUMNS)), 3, ("row", "column"))
    beside(space, "other", np.ones(5), 3, ("elsewhere",))
    names = [
        "row",
        "column",
        "crs",
        "area",
        "other",
        "x",
        "data",
        "",
        ".",
        "..",
        "a/b",
        "zarr.json",
        "c",
    ]
    dimensions = ["row", "column", "crs", "data", "a b", "c/d"]
    published = 0
    for number in range(40):
        url = str(tmp_path / f"out-{number}.zarr")
        publish: dict[str, Any] = {
            "coordinates": random.choice(names, random.integers(0, 3)).tolist(),
            "records_are_public": True,
        }
        if random.random() < 0.5:
            publish["dimension_names"] = random.choice(dimensions, 2).tolist()
        if random.random() < 0.3:
            publish["chunks"] = random.integers(1, 9, 2).tolist()
        array = str(random.choice(["data", "row", "crs", "c"]))
        spec = space.spec(output={"url": url, "array": array}, publish=publish)
        before = space.spent()
        try:
            plan(spec)
        except DpdaskError:
            assert space.spent() == before
            continue
        release(spec)
        xarray.open_zarr(url).load()
        published += 1
    assert published >= 5

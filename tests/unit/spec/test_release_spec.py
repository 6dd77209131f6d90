"""The release spec: short forms, sizes, secrets, and a JSON schema that agrees with the parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import zarr

from dpdask import release
from dpdask.errors import InvalidSensitivity, InvalidSpec
from dpdask.ledger import Ledger
from dpdask.planning import make_plan
from dpdask.privacy import PrivacyBudget
from dpdask.releases.verify import verify_release
from dpdask.spec import ReleaseSpec, parse_release_spec

SPEC: dict[str, Any] = {
    "source": {"url": "a.zarr", "array": "x"},
    "output": {"url": "b.zarr"},
    "privacy_unit": {"record_dim": 0, "ranges": [-1, 1]},
    "query": "identity",
    "privacy": {"epsilon": 1.0, "delta": 1e-5},
    "mechanism": "analytic-gaussian",
    "budget": {"dataset": "people"},
    "compute": {"task_size": "64 MiB", "memory": 10**9},
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"query": {"name": "histogram", "edges": [[0, 1], {"low": 0, "high": 1, "bins": 4}]}},
        {"privacy_unit": {"record_dim": 0, "ranges": [[-1, 1], [0, 2]]}},
        {"mechanism": {"name": "mvg", "axis": 1, "directions": {"from": "dp-covariance"}}},
        {
            "source": {
                "url": "s3://b/x",
                "options": {"secret_access_key": {"env": "NAME"}, "allow_http": True},
            }
        },
    ],
)
def test_what_the_parser_takes_the_schema_of_a_form_takes_too(changes: dict[str, Any]) -> None:
    spec = {**SPEC, **changes}
    parsed = parse_release_spec(spec)
    jsonschema.validate(spec, ReleaseSpec.model_json_schema())
    again = parsed.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert parse_release_spec(again) == parsed
    jsonschema.validate(again, ReleaseSpec.model_json_schema())


def test_sizes_are_read_with_their_units() -> None:
    assert parse_release_spec(SPEC).compute.task_size == 64 * 2**20
    for text in ("much", "12 parsecs", "-3 MB"):
        with pytest.raises(InvalidSpec, match="is not a valid size"):
            parse_release_spec({**SPEC, "compute": {"task_size": text}})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sauce": {}}, "did you mean 'source'"),
        ({"privacy_unit": {"record_dims": 0}}, "did you mean 'record_dim'"),
        ({"publish": {"chunk": [1]}}, "did you mean 'chunks'"),
        ({"mechanism": {"name": "mvg", "axes": 1}}, "did you mean 'axis'"),
        ({"query": {"name": "sum", "edges": []}}, "query.edges is not a valid key"),
        ({"budget": {}}, "budget.dataset is missing"),
        ({"privacy": {"epsilon": True, "delta": 1e-5}}, "yes/no value"),
    ],
)
def test_mistakes_in_keys_get_a_suggestion(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSpec, match=text):
        parse_release_spec({**SPEC, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        *({"source": {"url": "s3://b/x", "options": {name: "hunter2"}}} for name in (
            "secret_access_key", "key", "master_key", "azure_storage_master_key",
            "connection_string", "sas_token",
            "sse_customer_key_base64", "AWS_SESSION_TOKEN", "something_new",
        )),
        {"output": {"url": "s3://b/x", "options": {"aws_secret_access_key": "hunter2"}}},
        {"source": {"url": "s3://KEY:hunter2@b/x"}},
        {"output": {"url": "s3://hunter2@b/x"}},
        {"compute": {"cluster": "tls://me:hunter2@host:8786"}},
        {"compute": {"cluster": "a:b", "cluster_options": {"api_token": "hunter2"}}},
        {
            "compute": {
                "cluster": "a:b",
                "cluster_options": {"env": {"AWS_SECRET_ACCESS_KEY": "hunter2"}},
            }
        },
        {"compute": {"cluster": "a:b", "cluster_options": {"pods": [{"password": "hunter2"}]}}},
        {"compute": {"cluster": "a:b", "cluster_options": {"password": ["hunter2"]}}},
        {"compute": {"cluster": "a:b", "cluster_options": {"extra": ["--token=hunter2"]}}},
        {"output": {"url": "s3://b/x", "options": {"endpoint": "http://me:hunter2@host"}}},
        {"output": {"url": "az://c/o?sig=hunter2"}},
        {"budget": {"dataset": "d", "ledger": "postgresql//me:hunter2@host/db"}},
        {"budget": {"dataset": "d", "ledger": "postgresql://me:hunter2@host/db"}},
        {"budget": {"dataset": "d", "ledger": "postgresql://me:hunt/er2@host/db"}},
        {"budget": {"dataset": "d", "ledger": "postgresql://me@host/db?password=hunter2"}},
    ],
)  # fmt: skip
def test_a_spec_with_a_secret_in_it_is_refused_without_repeating_it(
    changes: dict[str, Any],
) -> None:
    """Specs are parameters of flows: whatever is in one is in Prefect's database."""
    with pytest.raises(InvalidSpec, match=r"environment|env: NAME|cannot be read") as caught:
        parse_release_spec({**SPEC, **changes})
    assert "hunter2" not in str(caught.value)


def test_what_is_no_secret_may_stand_in_a_spec() -> None:
    options = {
        "aws_region": "eu-north-1",
        "endpoint_url": "http://127.0.0.1:9000",
        "skip_signature": True,
        "bucket": "b",
    }
    given = {**SPEC, "source": {"url": "s3://b/x@2024/y", "options": options}}
    given["compute"] = {
        "cluster": "a:b",
        "cluster_options": {"n_workers": 4, "env": {"OMP_NUM_THREADS": "1"}},
    }
    given["budget"] = {
        "dataset": "d",
        "ledger": "postgresql+psycopg://me@host:5432/db?sslmode=require",
    }
    assert parse_release_spec(given).source.options["aws_region"] == "eu-north-1"


NAMES = ("day", "person", "feature")


def source_with_names(folder: Path, zarr_format: int = 3, names: Any = NAMES) -> dict[str, Any]:
    """A spec on an array of days, persons and features; each format names dimensions its way."""
    values = np.random.default_rng(3).uniform(-1, 1, (4, 30, 2))
    group = zarr.open_group(folder / "source.zarr", mode="w", zarr_format=zarr_format)
    options = {"dimension_names": names} if zarr_format == 3 else {}
    array = group.create_array("x", data=values, chunks=(2, 10, 2), **options)
    if zarr_format == 2 and names is not None:
        array.attrs["_ARRAY_DIMENSIONS"] = list(names)
    ledger = f"sqlite:///{folder}/ledger.db"
    Ledger(ledger).open_dataset("people", PrivacyBudget(epsilon=1e3, delta=0.1))
    return {
        **SPEC,
        "source": {"url": str(folder / "source.zarr"), "array": "x"},
        "output": {"url": str(folder / "out.zarr")},
        "budget": {"dataset": "people", "ledger": ledger},
        "compute": {"cluster": "inline"},
    }


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_dimension_is_named_as_the_source_names_it(tmp_path: Path, zarr_format: int) -> None:
    spec = source_with_names(tmp_path, zarr_format)
    ranges = [[-1, 1], [0, 2]]
    by_name = {"record_dim": "person", "feature_dim": "feature", "ranges": ranges}
    by_index = {"record_dim": 1, "feature_dim": -1, "ranges": ranges}
    queries = [
        make_plan(parse_release_spec({**spec, "privacy_unit": unit})).data.query
        for unit in (by_name, by_index)
    ]
    assert queries[0] == queries[1]
    assert queries[0].units_axis == 1


def test_a_release_by_the_name_of_a_dimension_is_published_and_verified(tmp_path: Path) -> None:
    spec = source_with_names(tmp_path)
    unit = {
        "record_dim": "person",
        "l2_clip_norm": 2.0,
        "adjacency": "add-remove-one",
        "missing": "center",
    }
    release({**spec, "query": "sum", "privacy_unit": unit})
    card = verify_release(
        str(tmp_path / "out.zarr"), ledger=Ledger(f"sqlite:///{tmp_path}/ledger.db")
    )
    assert card.privacy_unit.record_axis == 1


def test_estimated_directions_take_the_name_of_the_record_dimension(tmp_path: Path) -> None:
    spec = source_with_names(tmp_path)
    values = np.random.default_rng(3).uniform(-1, 1, (30, 4))
    group = zarr.open_group(tmp_path / "source.zarr", mode="a")
    group.create_array("table", data=values, dimension_names=("person", "feature"))
    plan = make_plan(
        parse_release_spec(
            {
                **spec,
                "source": {"url": str(tmp_path / "source.zarr"), "array": "table"},
                "privacy_unit": {"record_dim": "person", "l2_clip_norm": 1.0},
                "mechanism": {
                    "name": "udn",
                    "axis": 1,
                    "weights": [1, 2, 3, 4],
                    "directions": {"from": "dp-covariance"},
                },
            }
        )
    )
    assert plan.directions is not None
    assert plan.directions.query.units_axis == plan.data.query.units_axis == 0


@pytest.mark.parametrize(
    ("names", "unit", "text"),
    [
        (NAMES, {"record_dim": "persons", "ranges": [0, 1]}, "choose one of day, person, feature"),
        (None, {"record_dim": "person", "ranges": [0, 1]}, "have no names; give an index"),
        (NAMES, {"record_dim": 1, "feature_dim": "person", "ranges": [0, 1]}, "of the records"),
        (NAMES, {"record_dim": 1, "feature_dim": "colour", "ranges": [0, 1]}, "choose one of day"),
        (("a", "b", "b"), {"record_dim": "b", "ranges": [0, 1]}, "names 2 dimensions"),
        (NAMES, {"record_dim": 3, "ranges": [0, 1]}, "record_dim=3 is not an axis"),
    ],
)
def test_a_dimension_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, names: Any, unit: dict[str, Any], text: str
) -> None:
    spec = source_with_names(tmp_path, names=names)
    with pytest.raises(InvalidSensitivity, match=text):
        make_plan(parse_release_spec({**spec, "privacy_unit": unit}))


@pytest.mark.parametrize("dimension", [True, 1.5, "", [0], {"name": "person"}])
def test_what_is_not_a_name_or_an_index_is_not_a_dimension(dimension: Any) -> None:
    with pytest.raises(InvalidSpec, match=r"privacy_unit.record_dim: "):
        parse_release_spec({**SPEC, "privacy_unit": {"record_dim": dimension, "ranges": [0, 1]}})


@pytest.mark.parametrize(("written", "axis"), [(1, 1), (-1, -1), ("1", 1), (2.0, 2), ("x", "x")])
def test_a_dimension_is_an_index_or_a_name(written: Any, axis: int | str) -> None:
    unit = {"record_dim": written, "ranges": [0, 1]}
    parsed = parse_release_spec({**SPEC, "privacy_unit": unit})
    assert parsed.privacy_unit.record_dim == axis
    again = ReleaseSpec.model_validate_json(parsed.model_dump_json())
    assert again == parsed

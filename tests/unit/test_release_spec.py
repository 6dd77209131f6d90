"""The release spec: short forms, sizes, secrets, and a JSON schema that agrees with the parser."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from dpdask.errors import InvalidSpec
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

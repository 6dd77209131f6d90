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
    "unit": {"record_axis": 0, "ranges": [-1, 1]},
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
        {"unit": {"record_axis": 0, "ranges": [[-1, 1], [0, 2]]}},
        {"mechanism": {"name": "mvg", "axis": 1, "directions": {"from": "dp-covariance"}}},
        {"source": {"url": "s3://b/x", "options": {"secret_access_key": {"env": "NAME"}, "allow_http": True}}},
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
        with pytest.raises(InvalidSpec, match="no size"):
            parse_release_spec({**SPEC, "compute": {"task_size": text}})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sauce": {}}, "did you mean 'source'"),
        ({"unit": {"record_axiss": 0}}, "did you mean 'record_axis'"),
        ({"publish": {"chunk": [1]}}, "did you mean 'chunks'"),
        ({"mechanism": {"name": "mvg", "axes": 1}}, "did you mean 'axis'"),
        ({"query": {"name": "sum", "edges": []}}, "query.edges is no key"),
        ({"budget": {}}, "budget.dataset is missing"),
        ({"privacy": {"epsilon": True, "delta": 1e-5}}, "yes/no value"),
    ],
)
def test_mistakes_in_keys_get_a_suggestion(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSpec, match=text):
        parse_release_spec({**SPEC, **changes})

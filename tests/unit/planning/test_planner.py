"""What a plan says must not depend on a private number of records."""

from __future__ import annotations

import pytest
import zarr

from dpdask.planning import make_plan
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace


def rounding_warnings(space: Workspace, records: int, adjacency: str) -> list[str]:
    """Plan the sum of so many records, none of which is stored or read."""
    zarr.create_array(
        space.folder / "source.zarr",
        name="x",
        shape=(records, 2),
        chunks=(10**6, 2),
        dtype="f8",
        overwrite=True,
    )
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": adjacency}
    spec = space.spec(query="second-moment", privacy_unit=unit, compute={"threads": 1})
    spec["privacy"] = {"epsilon": 50.0, "delta": 1e-3}
    warnings = make_plan(parse_release_spec(spec)).warnings
    return [warning for warning in warnings if "rounding so many records" in warning]


@pytest.mark.parametrize("records", [10, 10**9])
def test_no_warning_tells_a_private_number_of_records(space: Workspace, records: int) -> None:
    assert rounding_warnings(space, records, "add-remove-one") == []


def test_a_public_number_of_records_is_warned_of(space: Workspace) -> None:
    """The twin: the same plan warns where the number is public, and only when it is large."""
    assert rounding_warnings(space, 10, "replace-one") == []
    assert len(rounding_warnings(space, 10**9, "replace-one")) == 1

"""Row 9: metadata lay outside the manifest.

In 0.1.0 the scale of packed values, the stated epsilon and the names of dimensions could be edited,
in the array's document and in the group's copy of it alike, and `verify --ledger` detected nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dpdask.errors import VerificationFailed
from dpdask.releases.verify import verify_release
from dpdask.storage import ROOT
from tests.support.forging import edit_json, reseal
from tests.support.workspace import Workspace, people

EDITS: dict[str, Callable[[Any], Any]] = {
    "the scale of packed values": lambda array: array["attributes"].update(scale_factor=1000.0),
    "the stated epsilon": lambda array: array["attributes"].update({"dp:epsilon": 0.01}),
    "the dimensions": lambda array: array.update(dimension_names=["day", "person"]),
    "the units": lambda array: array["attributes"].update(units="percent"),
    "the fill value": lambda array: array.update(fill_value=1),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edited_metadata_does_not_verify(space: Workspace, edit: Callable[[Any], Any]) -> None:
    space.source(people(64, 8), chunks=(16, 8))
    space.release(noise={"output_dtype": "int64"}, publish={"dimension_names": ["person", "day"]})
    group = space.folder / "out.zarr"
    verify_release(str(group), ledger=space.ledger)
    edit_json(group / "data" / ROOT, edit)
    edit_json(
        group / ROOT, lambda document: edit(document["consolidated_metadata"]["metadata"]["data"])
    )
    with pytest.raises(VerificationFailed, match=r"zarr\.json"):
        verify_release(str(group), ledger=space.ledger)
    reseal(
        group
    )  # digests computed anew: what the metadata say still does not follow from the card
    with pytest.raises(VerificationFailed, match=r"do not follow from the card"):
        verify_release(str(group))

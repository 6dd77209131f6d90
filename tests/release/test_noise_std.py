"""Every release says how large the noise of every entry is, in an array beside it."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from dpdask import open_release, open_release_dataset
from dpdask.errors import VerificationFailed
from dpdask.noise import levels
from dpdask.planning import make_plan
from dpdask.planning.partition import tile_bytes
from dpdask.releases.read import read_card
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from dpdask.views.card_rows import card_rows
from dpdask.views.plan_rows import plan_rows
from tests.release.test_layers import QUERIES
from tests.support.forging import edit_chunk, edit_json, reseal, rewrite_card, scale_noise_std
from tests.support.workspace import Workspace, people

FEATURES = {"record_dim": 0, "ranges": [[-0.1 * i, 0.1 * i] for i in range(1, 9)]}
DIMENSIONS: dict[str, tuple[str, ...]] = {
    "features": ("dim_1",),
    "dp-directions": ("dim_1",),
    "second-moment": ("dim_0", "dim_1"),
    "counted-mean": ("dim_0",),
}


@pytest.mark.parametrize("case", QUERIES)
def test_every_release_has_the_noise_of_its_entries(space: Workspace, case: str) -> None:
    space.source(people(), chunks=(16, 8))
    attributes = {"units": "K", "standard_name": "air_temperature"}
    publish = {**QUERIES[case].get("publish", {}), "attributes": attributes}
    card = space.release(**{**QUERIES[case], "publish": publish}).card
    released = open_release_dataset(str(space.folder / "out.zarr"))
    std = released.data_noise_std
    assert std.dims == DIMENSIONS.get(case, ())
    assert std.attrs == {
        "units": "K",
        "standard_name": "air_temperature standard_error",
        "long_name": "standard deviation of the noise",
    }
    assert "data_noise_std" in released.data.attrs["ancillary_variables"].split()
    if card.released.noise_std is not None:
        rms = math.sqrt(float((std**2).mean()))
        assert rms == pytest.approx(card.released.noise_std, rel=1e-9)
        extremes = card.released.noise_std_range or (rms, rms)
        assert (float(std.min()), float(std.max())) == pytest.approx(extremes, rel=1e-9)
    verify_release(str(space.folder / "out.zarr"))


LAWS: dict[str, dict[str, Any]] = {
    "iid": {"query": "identity", "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.3]}},
    "directional": {"query": "identity", "privacy_unit": FEATURES, "mechanism": "directional"},
    "laplace": {
        "query": "identity",
        "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.3]},
        "mechanism": "laplace",
    },
    "dense": {
        "query": "identity",
        "mechanism": {
            "name": "imgm",
            "factors": [
                "identity",
                {"dense": [[2.0 * (i == j) + 0.5 * (i > j) for j in range(8)] for i in range(8)]},
            ],
        },
    },
    "int32": {
        "query": "identity",
        "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.3]},
        "noise": {"output_dtype": "int32"},
    },
}


def _noise_in_stds(space: Workspace, case: str) -> tuple[np.ndarray[Any, Any], float]:
    """The noise of a release of zeros by its published standard deviation, and its kurtosis."""
    space.source(np.zeros((3000, 8)), chunks=(1000, 8))
    space.release(**LAWS[case])
    released = open_release_dataset(str(space.folder / "out.zarr"))
    excess = 3.0 if case == "laplace" else 0.0
    return np.asarray(released.data / released.data_noise_std), excess


def _fits(z: np.ndarray[Any, Any], excess: float) -> bool:
    """Whether every column has variance 1.

    Ten standard deviations leave p < 1e-12, though sums of squares are skewed.
    """
    spread = math.sqrt((2 + excess) / z.shape[0])
    return float(np.max(np.abs(np.mean(z**2, axis=0) - 1))) < 10 * spread


@pytest.mark.parametrize("case", LAWS)
def test_the_noise_is_as_large_as_it_says(space: Workspace, case: str) -> None:
    z, excess = _noise_in_stds(space, case)
    assert _fits(z, excess)
    assert not _fits(z * 2, excess)
    assert not _fits(z * 1.5, excess)


def test_one_level_for_all_would_be_wrong_where_noise_differs(space: Workspace) -> None:
    z, excess = _noise_in_stds(space, "directional")
    card = open_release_dataset(str(space.folder / "out.zarr"))
    std = np.asarray(card.data_noise_std)
    assert not _fits(z * std / math.sqrt(np.mean(std**2)), excess)


def test_noise_of_second_moments_is_larger_on_the_diagonal(space: Workspace) -> None:
    space.source(np.zeros((5, 2000)), chunks=(5, 2000))
    space.release(query="second-moment", publish={"chunks": [700, 700]})
    released = open_release_dataset(str(space.folder / "out.zarr"))
    std = np.asarray(released.data_noise_std)
    assert np.allclose(std[0, 0] / std[0, 1], math.sqrt(2))
    z = np.asarray(released.data) / std
    assert _fits(z[np.triu_indices(2000, 1)][:, None], 0.0)
    assert _fits(np.diag(z)[:, None], 0.0)
    assert not _fits(np.diag(z)[:, None] * std[0, 0] / std[0, 1], 0.0)


@pytest.mark.parametrize("case", ["second-moment", "features", "sharded"])
def test_a_large_level_is_written_with_the_tiles(
    space: Workspace, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(), chunks=(16, 8))
    changes = QUERIES[case]
    small = space.staged(**changes)
    plan = make_plan(parse_release_spec(space.spec(**changes)))
    level = plan.data.noise_level
    assert level is not None
    whole = tuple(slice(0, length) for length in plan.layout.shape)
    expected = np.broadcast_to(level.of(whole), plan.layout.shape)
    monkeypatch.setattr(levels, "_MOST_AT_ONCE", 0)
    staged = space.staged(**changes)
    assert {name: staged[name] for name in small} == small
    assert any(name.startswith("data_noise_std/") for name in staged)
    space.release(**changes)
    released = open_release_dataset(str(space.folder / "out.zarr"))
    assert np.array_equal(released.data_noise_std, expected)
    verify_release(str(space.folder / "out.zarr"))
    if case != "sharded":
        for path in (space.folder / "out.zarr/data_noise_std").glob("c.*"):
            edit_chunk(path, offset=7)
        reseal(space.folder / "out.zarr")
        with pytest.raises(VerificationFailed, match="is not the standard deviation"):
            verify_release(str(space.folder / "out.zarr"))


def _released(space: Workspace) -> Path:
    space.source(people(), chunks=(16, 8))
    space.release(privacy_unit=FEATURES, mechanism="directional")
    group = space.folder / "out.zarr"
    verify_release(str(group))
    return group


def test_another_noise_std_does_not_verify(space: Workspace) -> None:
    group = _released(space)
    edit_chunk(group / "data_noise_std/c.0", offset=6)
    with pytest.raises(VerificationFailed, match=r"data_noise_std/c\.0"):
        verify_release(str(group))
    reseal(group)
    with pytest.raises(VerificationFailed, match="is not the standard deviation of the card"):
        verify_release(str(group))


@pytest.mark.parametrize("end", [0, 1])
def test_another_range_of_the_noise_does_not_verify(space: Workspace, end: int) -> None:
    def halve(card: dict[str, Any]) -> None:
        card["released"]["noise_std_range"][end] /= 2

    group = _released(space)
    rewrite_card(group, halve)
    with pytest.raises(VerificationFailed, match="the range of the noise"):
        verify_release(str(group))


def test_another_description_of_the_noise_does_not_verify(space: Workspace) -> None:
    group = _released(space)
    said = {"long_name": "standard error of the mean"}
    edit_json(group / "data_noise_std/zarr.json", lambda document: document.update(attributes=said))
    rewrite_card(group, lambda card: card["released"]["beside"][0].update(attributes=said))
    with pytest.raises(VerificationFailed, match="not those that its noise and layers add"):
        verify_release(str(group))


def test_smaller_noise_on_the_card_does_not_verify(space: Workspace) -> None:
    group = _released(space)
    rewrite_card(group, lambda card: scale_noise_std(card, 0.5))
    with pytest.raises(VerificationFailed, match="the noise level on the card"):
        verify_release(str(group))


def test_noise_in_minutes_is_not_a_time(space: Workspace) -> None:
    space.source(people())
    space.release(publish={"attributes": {"units": "minutes"}})
    dataset = open_release_dataset(str(space.folder / "out.zarr"))
    assert dataset.data_noise_std.dtype == np.float64
    assert open_release(str(space.folder / "out.zarr")).dtype == np.float64


def test_the_array_is_plain_zarr(space: Workspace) -> None:
    space.source(people())
    card = space.release(query="mean").card
    array = zarr.open_array(space.folder / "out.zarr" / "data_noise_std", mode="r")
    assert array[()] == pytest.approx(card.released.noise_std)


def test_the_card_tells_how_far_one_unit_changes_what_is_released(space: Workspace) -> None:
    space.source(people(), chunks=(16, 8))
    card = space.release(query="mean").card
    assert card.sensitivity.l2 == pytest.approx(2, rel=1e-9)
    assert card.sensitivity.released_l2 == pytest.approx(2 / 60, rel=1e-9)

    def halve(card: dict[str, Any]) -> None:
        card["sensitivity"]["released_l2"] /= 2

    verify_release(str(space.folder / "out.zarr"))
    rewrite_card(space.folder / "out.zarr", halve)
    with pytest.raises(VerificationFailed, match="sensitivity of the released numbers"):
        verify_release(str(space.folder / "out.zarr"))


def test_a_card_tells_the_range_of_noise_that_differs(space: Workspace) -> None:
    _released(space)
    card = read_card(str(space.folder / "out.zarr"))
    [noise] = [row.value for row in card_rows(card) if row.label == "noise"]
    assert re.fullmatch(
        r"kronecker, standard deviation \S+ to \S+ per entry \(root mean square \S+\)", noise
    )


def test_a_plan_tells_whose_sensitivity_it_states(space: Workspace) -> None:
    space.source(people(), chunks=(16, 8))
    stated = {}
    for case in ("mean", "counted-mean"):
        plan = make_plan(parse_release_spec(space.spec(**QUERIES[case]))).to_dict()
        [stated[case]] = [row.value for row in plan_rows(plan) if row.label == "sensitivity"]
    assert stated["mean"].endswith("(l2, of the answer)")
    assert stated["counted-mean"].endswith("(l2, of its noisy parts together)")


def test_arrays_beside_a_result_are_worked_out_once_for_all_tiles(space: Workspace) -> None:
    space.source(people(), chunks=(1, 8))
    variable = make_plan(parse_release_spec(space.spec(**LAWS["dense"]))).only
    assert variable.arrays_beside is variable.arrays_beside
    assert [array.suffix for array, _ in variable.arrays_beside] == ["noise_std"]


def test_the_plan_counts_the_memory_of_a_large_level(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    space.source(people(), chunks=(16, 8))
    changes = QUERIES["second-moment"]
    small = tile_bytes(make_plan(parse_release_spec(space.spec(**changes))).only)
    monkeypatch.setattr(levels, "_MOST_AT_ONCE", 0)
    large = tile_bytes(make_plan(parse_release_spec(space.spec(**changes))).only)
    assert large - small == 40 * 3 * 3

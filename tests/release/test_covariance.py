"""Covariances as they are released: against NumPy, in tiles, around public and private centres."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import xarray as xr

from dpdask.errors import DpdaskError, InvalidMechanism, VerificationFailed
from dpdask.releases.verify import verify_release
from tests.support.forging import rewrite_card
from tests.support.workspace import Workspace

Values = np.ndarray[Any, Any]
RANGES = [[270, 330], [500, 700], [270, 330], [140, 160]]
NEAR = [298.0, 601.0, 301.0, 150.0]
PUBLIC = [300.0, 600.0, 300.0, 150.0]
NORM = 40.0
BUDGET = {"epsilon": 2.0, "delta": 1e-6}
MOST = 8.0  # standard deviations: keys are random


def _table(records: int = 20_000) -> Values:
    x = np.random.default_rng(0).normal(300, 5, (records, 4)) * [1, 2, 1, 0.5]
    x[:, 2] += 0.8 * (x[:, 0] - 300)
    x[3, 2] = np.nan
    x[7] = 1e9
    return x


def _unit(bound: str, adjacency: str, *, private: bool) -> dict[str, Any]:
    unit: dict[str, Any] = {"record_dim": 0, "adjacency": adjacency}
    if bound == "ranges":
        return {**unit, "ranges": RANGES}
    return {**unit, "l2_clip_norm": NORM, **({"center": NEAR} if private else {})}


def _bounded(x: Values, bound: str, center: Values) -> Values:
    """Distances from the centre, as they are bounded."""
    y = np.nan_to_num(x - center)
    if bound == "ranges":
        low, high = np.array(RANGES).T
        return np.clip(y, low - center, high - center)
    return y * np.minimum(1, NORM / np.linalg.norm(y, axis=1))[:, None]


def _opened(space: Workspace) -> xr.Dataset:
    out = space.folder / "out.zarr"
    verify_release(str(out), ledger=space.ledger)
    return xr.open_zarr(out, consolidated=False).load()


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("bound", ["clip", "ranges"])
@pytest.mark.parametrize("record_dim", [0, 1])
def test_covariance_and_mean_are_those_of_numpy(
    space: Workspace, bound: str, adjacency: str, record_dim: int
) -> None:
    x = _table()
    space.source(x if record_dim == 0 else x.T.copy(), chunks=(3000, 3)[:: 1 - 2 * record_dim])
    unit = {**_unit(bound, adjacency, private=True), "record_dim": record_dim}
    space.release(query="covariance", privacy_unit=unit, privacy=BUDGET)
    found = _opened(space)
    center = np.array(NEAR if bound == "clip" else PUBLIC)
    y = _bounded(x, bound, center)
    scores = (found.data - np.cov(y.T, bias=True)) / found.data_noise_std
    assert np.abs(scores).max() < MOST
    assert np.abs((found.data_mean - center - y.mean(0)) / found.data_mean_noise_std).max() < MOST
    assert np.array_equal(found.data, found.data.T)
    assert float(found.data_noise_std.max()) < 40  # so that the comparison says something
    assert ("data_count" in found) == (adjacency == "add-remove-one")
    if "data_count" in found:
        assert abs(float(found.data_count) - len(x)) < 200


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
@pytest.mark.parametrize("bound", ["clip", "ranges"])
def test_covariance_around_a_public_centre_is_that_of_numpy(
    space: Workspace, bound: str, adjacency: str
) -> None:
    x = _table()
    space.source(x, chunks=(3000, 3))
    space.release(
        query={"name": "covariance", "center": PUBLIC},
        privacy_unit=_unit(bound, adjacency, private=False),
        privacy=BUDGET,
        publish={"chunks": [3, 3]},
    )
    found = _opened(space)
    y = _bounded(x, bound, np.array(PUBLIC))
    scores = (found.data - y.T @ y / len(x)) / found.data_noise_std
    assert np.abs(scores).max() < MOST
    assert float(found.data_noise_std.max()) < 40
    assert np.array_equal(found.data, found.data.T)
    assert "data_mean" not in found


@pytest.mark.parametrize("ranges", [False, True])
def test_moments_around_a_centre_have_the_bytes_of_shifted_records(
    space: Workspace, ranges: bool
) -> None:
    """The exact audit of second moments is therefore that of covariances with a public centre."""
    x = np.round(np.random.default_rng(2).normal(0, 8, (60, 5))) / 8
    center = np.array([4.0, -2.0, 0.5, 16.0, 0.0])
    unit: dict[str, Any] = {"record_dim": 0, "l2_clip_norm": 1.5}
    pairs = np.array([[-1.0, 2.0]] * 5)
    space.source(x, chunks=(13, 3))
    around_zero = {**unit} if not ranges else {"record_dim": 0, "ranges": pairs.tolist()}
    publish = {"chunks": [2, 2]}
    plain = space.staged(query="second-moment", privacy_unit=around_zero, publish=publish)
    space.source(x + center, chunks=(13, 3))
    around_center = (
        unit
        if not ranges
        else {
            "record_dim": 0,
            "ranges": (pairs + center[:, None]).tolist(),
        }
    )
    query = {"name": "covariance", "center": center.tolist()}
    assert space.staged(query=query, privacy_unit=around_center, publish=publish) == plain
    query["center"] = (center + 0.125).tolist()
    assert space.staged(query=query, privacy_unit=around_center, publish=publish) != plain


def test_one_feature_has_a_variance(space: Workspace) -> None:
    x = np.random.default_rng(5).uniform(10, 30, (30_000, 1))
    space.source(x, chunks=(7000, 1))
    space.release(query="covariance", privacy_unit={"record_dim": 0, "ranges": [0, 40]})
    found = _opened(space)
    assert abs(((found.data - x.var()) / found.data_noise_std).item()) < MOST
    assert found.data_noise_std.item() < 0.5


def test_source_without_records_is_released_as_one_with_a_record(space: Workspace) -> None:
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"}
    space.source(np.zeros((0, 3)), chunks=(1, 3))
    space.release(query="covariance", privacy_unit=unit)
    assert np.all(np.isfinite(_opened(space).data))


def test_dimensions_and_arrays_have_names(space: Workspace) -> None:
    dataset = xr.Dataset({"t": (("day", "site"), np.random.default_rng(1).normal(0, 1, (90, 3)))})
    dataset.to_zarr(space.folder / "named.zarr", zarr_format=3, consolidated=False)
    space.release(
        source={"url": str(space.folder / "named.zarr"), "array": "t"},
        output={"url": str(space.folder / "out.zarr"), "array": "t"},
        query="covariance",
        privacy_unit={"record_dim": "day", "l2_clip_norm": 3.0},
        publish={"attributes": {"standard_name": "air_temperature"}},
    )
    found = _opened(space)
    assert found.t.dims == ("site", "site_2")
    assert found.t_mean.dims == found.t_mean_noise_std.dims == ("site",)
    names = "t_mean t_mean_noise_std t_noise_std"
    assert found.t.attrs["ancillary_variables"] == names
    assert found.t_mean_noise_std.attrs["standard_name"] == "air_temperature standard_error"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two centres": (
        {
            "query": {"name": "covariance", "center": 1.0},
            "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0, "center": 1.0},
        },
        "give one",
    ),
    "a centre that is not finite": (
        {"query": {"name": "covariance", "center": float("nan")}},
        "not finite",
    ),
    "a centre of another length": (
        {"query": {"name": "covariance", "center": [1.0, 2.0, 3.0]}},
        "3 numbers do not fit",
    ),
    "a word that is not a centre": ({"query": {"name": "covariance", "center": "mean"}}, "center"),
    "correlated noise": ({"query": "covariance", "mechanism": "udn"}, "analytic-gaussian"),
    "counts of present entries": (
        {
            "query": "covariance",
            "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0, "missing": "count"},
        },
        "takes missing: center",
    ),
    "no word on missing values": (
        {
            "query": "covariance",
            "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0, "missing": None},
        },
        r"write missing: center \(they count as the centre\)$",
    ),
    "integers": ({"query": "covariance", "noise": {"output_dtype": "int64"}}, "int64"),
    "no bound": ({"query": "covariance", "privacy_unit": {"record_dim": 0}}, "exactly one of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_anything_is_charged(space: Workspace, case: str) -> None:
    space.source(np.zeros((50, 4)))
    changes, text = REFUSED[case]
    with pytest.raises(DpdaskError, match=text):
        space.release(**changes)
    assert space.spent() == 0


@pytest.mark.parametrize(
    ("shape", "text"), [((50,), "1 axes"), ((4, 3, 2), "3 axes"), ((5, 4097), "4096")]
)
def test_sources_without_a_covariance_are_refused(
    space: Workspace, shape: tuple[int, ...], text: str
) -> None:
    space.source(np.zeros(shape))
    with pytest.raises(DpdaskError, match=text):
        space.release(query="covariance")
    assert space.spent() == 0


def _part(card: Any, name: str) -> Any:
    return next(part for part in card["parts"] if part["name"] == name)


def _without(card: Any, name: str) -> None:
    card["parts"] = [part for part in card["parts"] if part["name"] != name]


def _scale(part: Any, by: float) -> None:
    part["noise"]["configuration"]["sigma"] *= by
    part["grid"]["step"] *= by


def _all(card: Any, by: float) -> None:
    for part in (card, *card["parts"]):
        _scale(part, by)


TAMPERED: dict[str, Any] = {
    "less noise of the sum": lambda card: _scale(_part(card, "sum"), 0.999),
    "less noise of the count": lambda card: _scale(_part(card, "count"), 0.99),
    "less noise of the moments": lambda card: _scale(card, 0.999),
    "a little less noise of all": lambda card: _all(card, 1 - 1e-6),
    "no sum": lambda card: _without(card, "sum"),
    "no count": lambda card: _without(card, "count"),
    "no sum, around a public centre": lambda card: (
        _without(card, "sum"),
        card["query"].update(center="public"),
    ),
    "a public number of records": lambda card: (
        _without(card, "count"),
        card["query"].update(counts="none"),
    ),
    "a larger clip norm": lambda card: card["privacy_unit"]["bound"].update(norm=1.01),
    "plain second moments": lambda card: card["query"].update(name="second-moment"),
    "a covariance of one part": lambda card: card["query"].update(name="covariance"),
    "a sum of another shape": lambda card: _part(card, "sum")["noise"]["configuration"].update(
        shape=[3]
    ),
    "no word on the centre": lambda card: card["query"].pop("center"),
    "one noise level": lambda card: card["released"].update(noise_std=1.0),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_tampered_card_of_a_covariance_is_refused(space: Workspace, case: str) -> None:
    space.source(np.random.default_rng(1).normal(0, 0.3, (64, 4)))
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"}
    space.release(query="covariance", privacy_unit=unit)
    url = str(space.folder / "out.zarr")
    verify_release(url)
    rewrite_card(space.folder / "out.zarr", TAMPERED[case])
    with pytest.raises(VerificationFailed):
        verify_release(url)


def test_mean_that_is_published_but_not_counted_is_refused(space: Workspace) -> None:
    """A card that hides the sum, so that what is left could state a smaller guarantee."""
    space.source(np.random.default_rng(1).normal(0, 0.3, (64, 4)))
    unit = {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"}
    space.release(query="covariance", privacy_unit=unit)
    rewrite_card(space.folder / "out.zarr", TAMPERED["no sum, around a public centre"])
    with pytest.raises(VerificationFailed, match="none that its query releases"):
        verify_release(str(space.folder / "out.zarr"))


def test_mechanisms_with_correlated_noise_go_with_a_public_centre(space: Workspace) -> None:
    space.source(np.random.default_rng(1).normal(2, 0.3, (64, 4)))
    mechanism = {"name": "udn", "axis": 1, "weights": [1, 2, 3, 4]}
    query = {"name": "covariance", "center": 2.0}
    space.release(query=query, mechanism=mechanism)
    _opened(space)
    with pytest.raises(InvalidMechanism, match="computed from noisy parts here"):
        space.release(
            query="covariance", mechanism=mechanism, output={"url": f"{space.folder}/other.zarr"}
        )


def test_noise_of_a_retry_is_the_same(space: Workspace) -> None:
    space.source(_table(500), chunks=(100, 3))
    query = {"name": "covariance", "center": PUBLIC}
    for changes in itertools.starmap(
        lambda query, adjacency: {
            "query": query,
            "privacy_unit": _unit("ranges", adjacency, private=True),
        },
        [
            ("covariance", "replace-one"),
            ("covariance", "add-remove-one"),
            (query, "add-remove-one"),
        ],
    ):
        assert space.staged(**changes) == space.staged(
            **changes, compute={"cluster": "inline", "task_size": 3000}
        )

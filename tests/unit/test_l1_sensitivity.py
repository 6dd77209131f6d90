"""l1 sensitivities against brute force: all corners of all bounds of small tensors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from dpdask.errors import InvalidMechanism, InvalidSensitivity
from dpdask.planning.build_sensitivity import sensitivity_of_ranges
from dpdask.planning.histogram_builder import build_histogram
from dpdask.planning.query_inputs import QueryInputs
from dpdask.privacy import Adjacency
from dpdask.sensitivity import (
    EntrywiseBox,
    L1Ball,
    L2Ball,
    Origin,
    RecordBall,
    SensitivitySet,
    known_l1,
    sensitivity_from_dict,
)
from dpdask.spec.query import HistogramSection
from dpdask.spec.release import PrivacyUnitSection, StackSection

BOTH = list(Adjacency)
HOW: dict[str, object] = {"adjacency": Adjacency.REPLACE_ONE, "origin": Origin.DECLARED}


@pytest.mark.parametrize("contributions", [1, 2, 3])
@pytest.mark.parametrize("pairs", [[(0.0, 1.0)], [(-1.0, 2.0), (0.5, 0.75)]])
@pytest.mark.parametrize("shape", [(4, 2), (3, 2, 2)])
def test_ranges_of_records_that_keep_their_places(
    contributions: int, pairs: list[tuple[float, float]], shape: tuple[int, ...]
) -> None:
    """k records move from one end of every range to the other."""
    box = sensitivity_of_ranges(
        pairs,
        shape,
        record_axis=0,
        axis=1,
        contributions=contributions,
        adjacency=Adjacency.REPLACE_ONE,
    )
    widths = np.array([high - low for low, high in pairs])
    moved = np.zeros(shape)
    moved[:contributions] = widths.reshape([-1, *[1] * (len(shape) - 2)])
    assert known_l1(box) == pytest.approx(np.abs(moved).sum(), rel=1e-12)
    assert known_l1(box) >= np.abs(moved).sum()
    assert box.radius == pytest.approx(np.linalg.norm(moved), rel=1e-12)
    assert sensitivity_from_dict(box.to_dict()) == box


@pytest.mark.parametrize("contributions", [1, 3])
def test_ranges_of_records_that_are_numbers(contributions: int) -> None:
    ball = sensitivity_of_ranges(
        [(-2.0, 3.0)],
        (5,),
        record_axis=0,
        axis=0,
        contributions=contributions,
        adjacency=Adjacency.REPLACE_ONE,
    )
    assert known_l1(ball) == pytest.approx(5 * contributions, rel=1e-12)
    assert ball.radius == pytest.approx(5 * math.sqrt(contributions), rel=1e-12)


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize("contributions", [1, 2])
def test_histograms_by_all_tables(adjacency: Adjacency, contributions: int) -> None:
    """All tables of three records in two bins, or outside of both, and all their neighbours."""
    unit = PrivacyUnitSection(record_dim=0, max_contributions=contributions, adjacency=adjacency)
    section = HistogramSection(name="histogram", edges=[[0.0, 1.0, 2.0]])
    inputs = QueryInputs(privacy_unit=unit, shape=(3,), composition=StackSection())
    sensitivity = build_histogram(section, inputs).sensitivity

    def counts(table: tuple[int, ...]) -> np.ndarray:
        return np.array([table.count(0), table.count(1)])

    l1 = l2 = 0.0
    for table in itertools.product((0, 1, 2), repeat=3):
        if adjacency is Adjacency.REPLACE_ONE:
            replaced = itertools.product((0, 1, 2), repeat=contributions)
            others = [(*new, *table[contributions:]) for new in replaced]
        else:
            others = [table[gone:] for gone in range(1, contributions + 1)]
        for other in others:
            difference = counts(table) - counts(other)
            l1 = max(l1, float(np.abs(difference).sum()))
            l2 = max(l2, float(np.linalg.norm(difference)))
    assert known_l1(sensitivity) == l1
    assert sensitivity.radius == pytest.approx(l2, rel=1e-12)


def test_an_entrywise_box_adds_up_its_widths() -> None:
    box = EntrywiseBox(shape=(3, 2), feature_axis=1, widths=(1.0, 4.0), **HOW)  # type: ignore[arg-type]
    assert box.l1 == pytest.approx(15.0, rel=1e-12)


@pytest.mark.parametrize(
    "ball",
    [
        L2Ball(l2=1.0, **HOW),  # type: ignore[arg-type]
        RecordBall(l2=1.0, record_axis=0, **HOW),  # type: ignore[arg-type]
    ],
)
def test_an_l2_bound_has_no_l1(ball: SensitivitySet) -> None:
    assert ball.l1 is None
    with pytest.raises(InvalidMechanism, match="give ranges or an l1 bound"):
        known_l1(ball)


def test_an_l1_ball_is_an_l2_ball_to_gaussian_noise() -> None:
    from dpdask.noise import ScaledIdentity

    factors = [ScaledIdentity(3, 0.5), ScaledIdentity(2, 3.0)]
    ball = L1Ball(l1_radius=4.0, l2=2.0, **HOW)  # type: ignore[arg-type]
    assert ball.whitened(factors) == L2Ball(l2=2.0, **HOW).whitened(factors)  # type: ignore[arg-type]
    record = L1Ball(l1_radius=4.0, l2=2.0, record_axis=0, **HOW)  # type: ignore[arg-type]
    other = RecordBall(l2=2.0, record_axis=0, **HOW)  # type: ignore[arg-type]
    assert record.whitened(factors) == other.whitened(factors)
    assert sensitivity_from_dict(record.to_dict()) == record
    with pytest.raises(InvalidSensitivity, match="above the l1"):
        L1Ball(l1_radius=1.0, l2=2.0, **HOW)  # type: ignore[arg-type]

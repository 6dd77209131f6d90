"""Releases with noise along directions: of ranges, of published theorems and of formulas beyond
theirs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpdask.errors import InvalidMechanism
from dpdask.releases.verify import verify_release
from tests.support.workspace import Workspace, people

LOUD = {"epsilon": 9e4, "delta": 1e-2}
RANGES: dict[str, Any] = {"record_dim": 0, "ranges": [[-1, 1], [0, 2], [-3, 3], [-1, 0]]}


def rotation(size: int, seed: int = 1) -> list[list[float]]:
    basis: list[list[float]] = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[
        0
    ].tolist()
    return basis


def test_ranges_go_with_directions_and_the_noise_is_what_the_card_says(space: Workspace) -> None:
    """MVG's Experiment I as it is printed: features in ranges, noise along given directions."""
    x = people(4000, 4)
    space.source(x, chunks=(500, 4))
    basis = rotation(4)
    receipt = space.release(
        privacy_unit=RANGES,
        mechanism={"name": "imgm", "factors": ["identity", {"dense": _coloured(basis)}]},
    )
    verify_release(f"{space.folder}/out.zarr", ledger=space.ledger)
    assert receipt.card.guarantee.certified
    low, high = np.array(RANGES["ranges"]).T
    noise = (space.values() - np.clip(x, low, high)) @ np.array(basis).T
    stds = np.std(noise, axis=0)
    assert np.allclose(stds / stds[0], [1, 2, 3, 4], rtol=0.1)
    # mu of the ball around the box: 1/mu times its radius in the quietest direction
    mu = receipt.card.guarantee.verified.configuration["mu"]
    radius = np.sqrt(np.sum((high - low) ** 2))
    assert stds[0] * mu / radius == pytest.approx(1, rel=0.1)


def _coloured(basis: list[list[float]]) -> list[list[float]]:
    rows = np.array(basis)
    matrix: list[list[float]] = ((rows.T * [1.0, 2.0, 3.0, 4.0]) @ rows).tolist()
    return matrix


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "mvg", "axis": 1, "allocation": "binary", "tau": 0.9, "chosen": [0]},
        {"name": "mvg", "axis": 1, "allocation": "max-pnr", "eigenvalues": [9.0, 3.0, 1.0, 0.5]},
        {"name": "udn", "axis": 1, "weights": [4.0, 1.0, 0.0, 0.0], "floor": 0.1},
    ],
    ids=["binary", "max-pnr", "zero weights"],
)
def test_published_mechanisms_take_ranges_and_directions(
    space: Workspace, mechanism: dict[str, Any]
) -> None:
    space.source(people(50, 4), chunks=(25, 2))
    section = {**mechanism, "directions": rotation(4)}
    receipt = space.release(privacy_unit=RANGES, mechanism=section)
    assert receipt.card.guarantee.certified
    verify_release(f"{space.folder}/out.zarr", ledger=space.ledger)


def test_a_utility_subspace_of_each_axis_gives_the_weights_of_mgm(space: Workspace) -> None:
    space.source(people(6, 4))
    utility = [None, [[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]]]
    section = {"name": "mgm", "utility": utility}
    with pytest.raises(InvalidMechanism, match="floor"):
        space.release(mechanism=section)
    with pytest.raises(InvalidMechanism, match="both weights and utility"):
        space.release(mechanism={**section, "weights": [None, [1.0] * 4]})
    space.release(mechanism={**section, "floor": 0.05})
    verify_release(f"{space.folder}/out.zarr", ledger=space.ledger)


def test_the_classic_formula_is_released_where_its_profile_holds(space: Workspace) -> None:
    space.source(people(20, 3))
    changes: dict[str, Any] = {
        "mechanism": "classic-gaussian",
        "privacy": {"epsilon": 10.0, "delta": 1e-5},
    }
    with pytest.raises(InvalidMechanism, match="not certified"):
        space.release(**changes)
    assert not space.left_behind()
    receipt = space.release(mechanism="classic-gaussian", privacy={"epsilon": 1.0, "delta": 1e-5})
    assert receipt.card.guarantee.certified
    assert "beyond its epsilon < 1" in receipt.card.guarantee.claimed.theorem
    verify_release(f"{space.folder}/out.zarr", ledger=space.ledger)

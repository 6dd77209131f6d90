"""Row 12: verification computes the guarantee again, whatever the query and the noise, or fails.

0.1.0 added no rounding for histograms and Kronecker noise, took the body of differences from the
card as it was, passed over noise that was too large for a card, and did not know what DP directions
had cost: a card could lower its noise by just that much, or replace it by a digest, and `dpdask
verify` said that the guarantee holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask.errors import VerificationFailed
from dpdask.releases.read import read_card
from dpdask.releases.verify import verify_release
from tests.support.forging import rewrite_card, scale_noise_std
from tests.support.workspace import Workspace, people

RELEASES: dict[str, dict[str, Any]] = {
    "identity": {},
    "identity, ranges": {"privacy_unit": {"record_dim": 0, "ranges": [-1, 1]}},
    "identity, many ranges": {
        "privacy_unit": {"record_dim": 0, "ranges": [[-1, 1]] * 4 + [[0, 3]] * 4}
    },
    "identity, k": {"privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0, "max_contributions": 3}},
    "identity, dense": {
        "mechanism": {
            "name": "imgm",
            "factors": ["identity", {"dense": (np.eye(8) * 2 + 0.1).tolist()}],
        }
    },
    "sum": {"query": "sum"},
    "sum, add-remove": {
        "query": "sum",
        "privacy_unit": {"record_dim": 0, "l2_clip_norm": 1.0, "adjacency": "add-remove-one"},
    },
    "sum, ranges": {"query": "sum", "privacy_unit": {"record_dim": 0, "ranges": [-1, 1]}},
    "sum, directional": {
        "query": "sum",
        "privacy_unit": {"record_dim": 0, "ranges": [[-1, 1]] * 4 + [[0, 3]] * 4},
        "mechanism": "directional",
    },
    "mean": {"query": "mean"},
    "second-moment": {"query": "second-moment"},
    "second-moment, mgm": {"query": "second-moment", "mechanism": "mgm"},
    "second-moment, ranges": {
        "query": "second-moment",
        "privacy_unit": {"record_dim": 0, "ranges": [[-1, 1]] * 4 + [[0, 3]] * 4},
    },
    "second-moment, dense": {
        "query": "second-moment",
        "mechanism": {
            "name": "imgm",
            "factors": [{"dense": (np.eye(8) * 2 + 0.3).tolist()}] * 2,
        },
    },
    "histogram": {
        "query": {"name": "histogram", "edges": [[-1, 0, 1], [-1, 0, 0.5, 1]]},
        "privacy_unit": {"record_dim": 0},
    },
    "histogram, mgm": {
        "query": {"name": "histogram", "edges": [[-1, 0, 1], [-1, 0, 0.5, 1]]},
        "privacy_unit": {"record_dim": 0, "max_contributions": 2},
        "mechanism": "mgm",
    },
    "declared": {"query": {"name": "precomputed", "l2_sensitivity": 1.0}, "privacy_unit": {}},
    "declared, dense": {
        "query": {"name": "precomputed", "l2_sensitivity": 1.0},
        "privacy_unit": {},
        "mechanism": {
            "name": "imgm",
            "factors": [{"dense": (np.eye(64) * 3 + 0.1).tolist()}, "identity"],
        },
    },
    "laplace counts": {
        "query": {"name": "histogram", "edges": [[-0.5, 0.0, 0.5]], "columns": [1]},
        "privacy_unit": {"record_dim": 0, "max_contributions": 3},
        "mechanism": "laplace",
    },
    "laplace mean": {
        "query": "mean",
        "privacy_unit": {"record_dim": 0, "ranges": [-0.5, 0.5]},
        "mechanism": "laplace",
    },
    "laplace ranges": {
        "privacy_unit": {"record_dim": 0, "ranges": [-0.5, 0.5], "max_contributions": 2},
        "mechanism": "laplace",
    },
    "directions": {
        "mechanism": {
            "name": "udn",
            "axis": 1,
            "directions": {"from": "dp-covariance", "share": 0.2},
        },
        "privacy": {"epsilon": 5.0, "delta": 1e-5},
    },
}


def rewritten(space: Workspace, change: Callable[[dict[str, Any]], Any]) -> str:
    rewrite_card(space.folder / "out.zarr", change)
    return str(space.folder / "out.zarr")


def scaled(noise: dict[str, Any], by: float, group: Path) -> None:
    """Noise times ``by``; a matrix that is too large for the card is an array beside it."""
    given = noise["configuration"]
    if noise["name"] in ("iid", "laplace"):
        given["sigma" if noise["name"] == "iid" else "scale"] *= by
        return
    factor = given["factors"][0]
    values = factor["configuration"]
    if factor["name"] in ("identity", "scaled"):
        factor["name"] = "scaled"
        values["scale"] = values.get("scale", 1.0) * by
    elif factor["name"] == "diagonal":
        values["scales"] = [scale * by for scale in values["scales"]]
    elif isinstance(values["matrix"], dict):
        chunk = group / "dp_release" / values["matrix"]["array"] / "c" / "0" / "0"
        chunk.write_bytes((np.frombuffer(chunk.read_bytes()) * by).tobytes())
    else:
        values["matrix"] = [[entry * by for entry in row] for row in values["matrix"]]


@pytest.mark.parametrize("name", RELEASES)
def test_a_little_less_noise_than_the_guarantee_needs_is_found(space: Workspace, name: str) -> None:
    """The noise of a card, lowered by a millionth, no longer gives what the card says: rounding is
    not given away.
    """
    space.source(people(64, 8), chunks=(64, 8))
    space.release(**RELEASES[name])
    url = str(space.folder / "out.zarr")
    verify_release(url)
    by = 1 - 1e-6

    def lower(card: dict[str, Any]) -> None:
        scaled(card["noise"], by, space.folder / "out.zarr")
        scale_noise_std(card, by)
        if "step" in card["grid"]:
            card["grid"]["step"] *= by

    rewritten(space, lower)
    with pytest.raises(VerificationFailed, match="smaller than its guarantee needs"):
        verify_release(url)


def test_noise_that_is_only_a_digest_does_not_verify(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(64, 8))
    space.release()
    url = rewritten(
        space, lambda card: card.update(noise={"name": card["noise"]["name"], "sha256": "0" * 64})
    )
    with pytest.raises(VerificationFailed, match="cannot be rebuilt"):
        verify_release(url)


TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a looser bound": (
        lambda card: card["privacy_unit"]["bound"].update(norm=2.0),
        "smaller than what its bound",
    ),
    "more records per unit": (
        lambda card: card["privacy_unit"].update(max_contributions=2),
        "records per privacy unit contradict",
    ),
    "other neighbours": (
        lambda card: card["privacy_unit"].update(adjacency="add-remove-one"),
        "other neighbours",
    ),
    "another query": (lambda card: card["query"].update(name="sum"), "sensitivity set on the card"),
    "an unknown query": (lambda card: card["query"].update(name="median"), "does not go with"),
    "another shape": (lambda card: card["query"].update(answer_shape=[64, 9]), "another shape"),
    "no records per unit": (
        lambda card: card["privacy_unit"].update(max_contributions=0),
        "records per privacy unit|smaller than what",
    ),
    "a bound that was not enforced": (
        lambda card: card["privacy_unit"]["bound"].update(enforced=False),
        "another bound",
    ),
    "another origin": (
        lambda card: card["sensitivity"].update(origin="declared"),
        "origin of the sensitivity",
    ),
    "a finer step than the noise's": (
        lambda card: card["grid"].update(step=1e-9),
        "grid on the card is not that of its noise",
    ),
    "a grid that is not exact": (
        lambda card: card["grid"].update(exact=False),
        "grid on the card is not that of its noise",
    ),
    "steps that no proof covers": (
        lambda card: card["grid"].update(steps_per_sigma=3),
        "power of two",
    ),
    "a dataset that paid nothing": (
        lambda card: card["composition"].update(cumulative_epsilon=0.0),
        "less than this release",
    ),
    "a smaller total": (
        lambda card: card["composition"]["total"].update(epsilon=0.01),
        "above its total",
    ),
    "directions that cost nothing": (
        lambda card: card["mechanism"].update(directions={"from": "dp-covariance"}),
        "directions that they were bought",
    ),
    "no grid": (lambda card: card.update(grid={}), "cannot be recomputed"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_facts_that_the_guarantee_follows_from_are_checked(space: Workspace, name: str) -> None:
    space.source(people(64, 8), chunks=(64, 8))
    space.release()
    change, text = TAMPERED[name]
    url = rewritten(space, change)
    with pytest.raises(VerificationFailed, match=text):
        verify_release(url)


def test_directions_are_on_the_card_and_part_of_the_guarantee(space: Workspace) -> None:
    space.source(people(64, 8), chunks=(64, 8))
    space.release(**RELEASES["directions"])
    url = str(space.folder / "out.zarr")
    assert read_card(url).directions is not None
    rewritten(
        space, lambda card: scaled(card["directions"]["noise"], 0.999, space.folder / "out.zarr")
    )
    with pytest.raises(VerificationFailed, match="smaller than its guarantee needs"):
        verify_release(url)


def test_a_box_that_moves_its_width_to_another_feature_is_found(space: Workspace) -> None:
    """The same l2 radius, but nearly all of it on the feature with the most noise: the noise of the
    others could be tiny.
    """
    space.source(people(64, 8), chunks=(64, 8))
    space.release(privacy_unit={"record_dim": 0, "ranges": [[0, 1]] * 8}, mechanism="directional")

    def spread(card: dict[str, Any]) -> None:
        configuration = card["sensitivity"]["set"]["configuration"]
        assert len(configuration["widths"]) == 8
        configuration["widths"] = [1e-12] * 7 + [
            float(np.sqrt(np.sum(np.square(configuration["widths"]))))
        ]

    url = rewritten(space, spread)
    with pytest.raises(VerificationFailed, match="does not go with its query and privacy unit"):
        verify_release(url)


def test_a_box_of_several_records_that_says_one_is_found_under_mixed_records(
    space: Workspace,
) -> None:
    """Noise that mixes records adds up the changes of a unit's two; the ball of one is smaller."""
    space.source(people(6, 4))
    mixing = (np.eye(6) * 2 + 0.9).tolist()
    space.release(
        privacy_unit={"record_dim": 0, "ranges": [-1, 1], "max_contributions": 2},
        mechanism={"name": "imgm", "factors": [{"dense": mixing}, "identity"]},
    )
    url = str(space.folder / "out.zarr")
    verify_release(url)

    def alone(card: dict[str, Any]) -> None:
        assert card["sensitivity"]["set"]["configuration"].pop("records") == 2

    rewritten(space, alone)
    with pytest.raises(VerificationFailed, match="does not go with its query and privacy unit"):
        verify_release(url)

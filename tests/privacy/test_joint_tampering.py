"""Every number that the guarantee of a counted, grouped or Laplace release needs is recomputed.

Cards are rewritten together with all that follows from them without a key, so only the mathematics
can refuse them.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.noise import noise_from_dict
from dpdask.releases.card import card_from_attributes
from dpdask.releases.recompute import check_guarantee
from dpdask.releases.verify import verify_release
from tests.support.forging import rewrite_card
from tests.support.workspace import Workspace

NAN, INF = math.nan, math.inf
PER_FEATURE = [[250, 320], [0, 320], [250, 2000]]
RELEASES: dict[str, dict[str, Any]] = {
    "counts of records": {
        "query": "mean",
        "privacy_unit": {
            "ranges": PER_FEATURE,
            "adjacency": "add-remove-one",
            "max_contributions": 2,
        },
    },
    "counts of entries": {
        "query": "mean",
        "privacy_unit": {"l2_clip_norm": 30.0, "center": 285.0, "missing": "count"},
    },
    "groups": {
        "query": {"name": "sum", "by": {"array": "group", "groups": [3, 7]}},
        "privacy_unit": {"ranges": [250, 320], "center": 260, "missing": "count"},
    },
    "covariance": {
        "query": "covariance",
        "privacy_unit": {
            "l2_clip_norm": 30.0,
            "center": 285.0,
            "adjacency": "add-remove-one",
            "max_contributions": 2,
        },
    },
    "covariance, replace-one": {"query": "covariance", "privacy_unit": {"ranges": PER_FEATURE}},
    "laplace": {
        "query": "sum",
        "mechanism": "laplace",
        "privacy_unit": {"ranges": PER_FEATURE, "max_contributions": 3},
    },
}
# by place: values that no release has, or by which the noise would be too small
WRONG: dict[str, list[tuple[str, list[Any]]]] = {
    "counts of records": [
        ("privacy_unit.bound.center.0", [NAN, None, INF, 100.0, 2000.0]),
        ("privacy_unit.bound.center", [None, [285.0], [285.0, 160.0]]),
        ("privacy_unit.bound.ranges.1.1", [NAN, INF, -1.0, 640.0]),
        ("privacy_unit.bound.ranges.2.0", [NAN, -INF, 0.0, 2000.0]),
        ("privacy_unit.max_contributions", [1, 3]),
        ("privacy_unit.adjacency", ["replace-one"]),
        ("query.counts", ["none", "entries", "", None]),
        ("query.record_entries", [0, 1, 2, 4, -3, NAN]),
        ("query.name", ["sum", "mean"]),
        ("sensitivity.set.configuration.l2", [1.0, NAN]),
        ("parts", [[]]),
        ("parts.0.name", ["other", ""]),
        ("parts.0.noise.configuration.sigma", [1.0, NAN]),
        ("parts.0.noise.name", ["laplace"]),
        ("noise.configuration.sigma", [1.0, NAN]),
    ],
    "counts of entries": [
        ("privacy_unit.bound.norm", [NAN, INF, 0.0, -30.0, 60.0]),
        ("privacy_unit.bound.center", [NAN, INF, None]),
        ("query.counts", ["none", "records"]),
        ("query.record_entries", [1, 2, 4]),
        ("parts.0.noise.configuration.sigma", [0.01]),
        ("parts.0.noise.configuration.shape", [[1], [6]]),
        ("parts.0.grid.step", [1.0]),
    ],
    "groups": [
        ("privacy_unit.bound.center", [NAN, 250.0, 400.0]),
        ("query.groups", [[], None]),
        ("query.groups.0.groups", [[3], [3, 7, 8], None]),
        ("query.record_entries", [2, 6]),
        ("query.counts", ["none", "records"]),
    ],
    "covariance": [
        ("privacy_unit.bound.norm", [NAN, INF, 0.0, -30.0, 60.0]),
        ("privacy_unit.bound.center", [NAN, INF, None]),
        ("privacy_unit.max_contributions", [1, 3]),
        ("privacy_unit.adjacency", ["replace-one"]),
        ("query.center", ["public", "", None]),
        ("query.counts", ["none", "", None]),
        ("query.answer_shape", [[3, 4], [9, 1], [9]]),
        ("query.name", ["covariance", "second-moment", "counted-sum"]),
        ("sensitivity.set.configuration.l2", [1.0, NAN]),
        ("parts", [[]]),
        ("parts.0.name", ["count", "other", ""]),
        ("parts.1.name", ["sum", "other", ""]),
        ("parts.0.noise.configuration.sigma", [1.0, NAN]),
        ("parts.1.noise.configuration.sigma", [0.01, NAN]),
        ("parts.0.noise.configuration.shape", [[1], [2], [9]]),
        ("parts.1.noise.configuration.shape", [[3]]),
        ("parts.0.grid.step", [1e6]),
        ("noise.configuration.sigma", [1.0, NAN]),
        ("grid.record_step", [None]),
    ],
    "covariance, replace-one": [
        ("privacy_unit.bound.center.0", [NAN, None, INF, 100.0, 2000.0]),
        ("privacy_unit.bound.center", [None, [285.0], [285.0, 160.0]]),
        ("privacy_unit.bound.ranges.1.1", [NAN, INF, -1.0, 640.0]),
        ("privacy_unit.bound.ranges.2.0", [NAN, -INF, 0.0, 2000.0]),
        ("query.center", ["public"]),
        ("query.counts", ["records"]),
        ("parts.0.noise.configuration.sigma", [1.0, NAN]),
    ],
    "laplace": [
        ("noise.configuration.scale", [1.0, NAN, 0.0]),
        ("privacy_unit.max_contributions", [1, 4]),
        ("privacy_unit.bound.ranges.0.0", [NAN, -INF, 0.0, 320.0]),
        ("sensitivity.set.configuration.widths", [[1.0, 1.0, 1.0], [NAN] * 3]),
        ("guarantee.verified.configuration.epsilon", [0.5, NAN]),
        ("guarantee.claimed.epsilon", [0.5]),
        ("grid.steps_per_sigma", [3, 2.0**40]),
        ("grid.step", [1e-3]),
    ],
}


def _changed(card: Any, place: str, value: Any) -> Any:
    changed = copy.deepcopy(card)
    inner = changed
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    for part in path:
        inner = inner[part]
    assert inner[last] is not None
    inner[last] = value
    return changed


def _released(space: Workspace, release: str) -> Path:
    space.source(np.full((12, 3), 285.0))
    space.source(np.array([3, 7] * 6), name="group")
    changes = {"mechanism": "auto", **RELEASES[release]}
    changes["privacy_unit"] = {"record_dim": 0, "missing": "center", **changes["privacy_unit"]}
    space.release(**changes)
    return space.folder / "out.zarr"


def _holds(document: Any) -> bool:
    try:
        card = card_from_attributes({"dp": json.loads(json.dumps(document))})
        check_guarantee(card, noise_from_dict(card.noise))
    except (DpdaskError, LookupError, TypeError, ValueError):
        return False
    return True


def _attacks() -> Iterator[Any]:
    for release, places in WRONG.items():
        yield pytest.param(release, places, id=release)


@pytest.mark.parametrize(("release", "places"), _attacks())
def test_no_changed_number_verifies(
    space: Workspace, release: str, places: list[tuple[str, list[Any]]]
) -> None:
    group = _released(space, release)
    card = json.loads((group / "zarr.json").read_text())["attributes"]["dp"]
    assert _holds(card)
    accepted = [
        (place, value)
        for place, values in places
        for value in values
        if _holds(_changed(card, place, value))
    ]
    assert accepted == []


@pytest.mark.parametrize("release", list(RELEASES))
def test_a_forged_release_is_refused_and_a_resealed_one_is_not(
    space: Workspace, release: str
) -> None:
    group = _released(space, release)
    rewrite_card(group, lambda card: None)
    verify_release(str(group))
    place, values = WRONG[release][0]

    def forge(card: Any) -> None:
        card.update(_changed(card, place, values[0]))

    rewrite_card(group, forge)
    with pytest.raises(VerificationFailed):
        verify_release(str(group))


def test_counts_that_are_published_but_not_charged_are_refused(space: Workspace) -> None:
    """A card that hides its counts, so that the sum alone could state a smaller guarantee."""
    group = _released(space, "groups")

    def hide(card: Any) -> None:
        del card["parts"]
        card["query"]["counts"] = "none"

    rewrite_card(group, hide)
    with pytest.raises(VerificationFailed, match="none that its query releases"):
        verify_release(str(group))


@pytest.mark.parametrize("release", ["counts of records", "covariance"])
@pytest.mark.parametrize("step", [NAN, INF, 1e9, -1e9])
def test_rounding_is_charged_whatever_the_card_says_of_the_step_of_records(
    space: Workspace, release: str, step: float
) -> None:
    """Noise that is just too small does not verify because records would not be rounded."""
    group = _released(space, release)
    card = json.loads((group / "zarr.json").read_text())["attributes"]["dp"]
    assert _holds(card)
    assert card["grid"]["record_step"] is not None
    card["grid"]["record_step"] = step
    for part in (card, *card["parts"]):
        part["noise"]["configuration"]["sigma"] *= 1 - 1e-6
        part["grid"]["step"] *= 1 - 1e-6
    assert not _holds(card)

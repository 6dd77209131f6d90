"""Releases with noise along directions: public ones, and principal axes of the records with their
eigenvalues, from a DP second moment.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from dpdask import execution
from dpdask.errors import InvalidMechanism, VerificationFailed
from dpdask.noise import noise_from_dict
from dpdask.planning import make_plan
from dpdask.queries import ModeMoment
from dpdask.releases.api import resume
from dpdask.releases.check_directions import check_axes
from dpdask.releases.verify import verify_release
from dpdask.spec import parse_release_spec
from tests.support.forging import rewrite_card
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


MAX_PNR: dict[str, Any] = {
    "name": "mvg",
    "allocation": "max-pnr",
    "directions": {"from": "dp-covariance", "share": 0.2},
}
CLIPPED: dict[str, Any] = {"record_dim": 0, "l2_clip_norm": 3.0}
WHOLE: dict[str, dict[str, Any]] = {
    "identity, clipped": {"shape": (400, 5), "axis": 1, "privacy_unit": CLIPPED},
    "identity, ranges": {
        "shape": (400, 5),
        "axis": 1,
        "privacy_unit": {"record_dim": 0, "ranges": [[-3, 3]] * 5},
    },
    "identity of records along the last axis": {
        "shape": (5, 400),
        "axis": 0,
        "privacy_unit": {"record_dim": 1, "l2_clip_norm": 3.0},
    },
    "identity of tensors": {
        "shape": (200, 3, 5),
        "axis": 2,
        "privacy_unit": {"record_dim": 0, "l2_clip_norm": 6.0},
    },
    "identity of tensors in ranges": {
        "shape": (3, 200, 5),
        "axis": 2,
        "privacy_unit": {"record_dim": 1, "feature_dim": 0, "ranges": [[-3, 3]] * 3},
    },
    "sum": {"shape": (400, 3, 5), "axis": 1, "query": "sum", "privacy_unit": CLIPPED},
    "sum under add-remove-one": {
        "shape": (400, 3, 5),
        "axis": 1,
        "query": "sum",
        "privacy_unit": {**CLIPPED, "adjacency": "add-remove-one"},
        "gamma": 1e4,
    },
    "mean, ranges": {
        "shape": (400, 5, 3),
        "axis": 0,
        "query": "mean",
        "privacy_unit": {"record_dim": 0, "ranges": [[-3, 3]]},
    },
    "second moment": {
        "shape": (400, 5),
        "axis": 0,
        "query": "second-moment",
        "theorem": "psd",
        "privacy_unit": CLIPPED,
    },
    "covariance, ranges": {
        "shape": (400, 5),
        "axis": 0,
        "query": {"name": "covariance", "center": 0.0},
        "privacy_unit": {"record_dim": 0, "ranges": [[-3, 3]]},
    },
}
OPTIONS = ("axis", "theorem", "gamma")


def strong_feature(case: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Records whose feature 2 is far stronger than the others, along the axis of the noise."""
    x = np.random.default_rng(8).standard_normal(case["shape"]) * 0.1
    strong = next(axis for axis in reversed(range(x.ndim)) if case["shape"][axis] == 5)
    np.moveaxis(x, strong, 0)[2] *= 15
    return x


def changes_of(case: dict[str, Any]) -> dict[str, Any]:
    section = {**MAX_PNR, **{key: case[key] for key in OPTIONS if key in case}}
    rest = {key: value for key, value in case.items() if key in ("query", "privacy_unit")}
    return {"mechanism": section, "privacy": LOUD, **rest}


@pytest.mark.parametrize("name", WHOLE)
def test_a_dp_covariance_gives_directions_and_eigenvalues_to_max_pnr(
    space: Workspace, name: str
) -> None:
    """MVG with DP directions and max-PNR from one share, for every query that it suits."""
    case = WHOLE[name]
    x = strong_feature(case)
    space.source(x, chunks=tuple(-(-n // 2) for n in x.shape))
    receipt = space.release(**changes_of(case))
    card = verify_release(f"{space.folder}/out.zarr", ledger=space.ledger)
    assert card.guarantee.certified
    assert card.directions is not None
    assert "for the directions, then MVG Thm" in card.guarantee.claimed.theorem
    rows = space.values(array="dp_release/directions")
    kappa = space.values(array="dp_release/eigenvalues")
    assert np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-9)
    assert np.all(np.diff(kappa) <= 0)
    if len(rows) == 5:
        assert abs(rows[0, 2]) > 0.9
    [release] = space.ledger.state("people").releases
    noted = json.loads(space.ledger.get_once(release, "directions") or "")
    assert noted == {"directions": rows.tolist(), "eigenvalues": kappa.tolist()}
    assert space.spent() <= receipt.card.guarantee.verified.epsilon_at_delta * 2 + 1e-9


def test_the_eigenvalues_are_those_of_the_query(space: Workspace) -> None:
    """At a huge epsilon the noisy second moment is the exact one: K_f = X'X, not divided by n."""
    case = WHOLE["identity, clipped"]
    x = strong_feature(case)
    space.source(x)
    loud = {**changes_of(case), "privacy": {"epsilon": 9e5, "delta": 0.4}}
    loud["mechanism"] = {**loud["mechanism"], "directions": {"from": "dp-covariance", "share": 0.9}}
    space.release(**loud)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    clipped = x * np.minimum(1, 3.0 / norms)
    exact = np.linalg.eigvalsh(clipped.T @ clipped)[::-1]
    kappa = space.values(array="dp_release/eigenvalues")
    assert np.allclose(kappa, exact, rtol=0.02)


@pytest.mark.parametrize(
    ("unit", "axis", "shape"),
    [
        ({"record_dim": 0, "l2_clip_norm": 4.0}, 2, (60, 4, 5)),
        ({"record_dim": 1, "l2_clip_norm": 4.0}, 0, (4, 60, 5)),
        ({"record_dim": 2, "ranges": [[-1, 1]]}, 1, (4, 5, 60)),
        ({"record_dim": 0, "feature_dim": 2, "ranges": [[-1, 1], [0, 2], [-2, 0]]}, 1, (60, 5, 3)),
    ],
)
def test_second_moments_along_one_axis_are_those_of_the_unfolded_records(
    space: Workspace, unit: dict[str, Any], axis: int, shape: tuple[int, ...]
) -> None:
    """Against a plain computation, and the sensitivity against every corner that could be worst."""
    x = np.random.default_rng(1).standard_normal(shape)
    space.source(x, chunks=tuple(-(-n // 2) for n in shape))
    section = {"name": "udn", "axis": axis, "directions": {"from": "dp-covariance", "share": 0.9}}
    plan = make_plan(
        parse_release_spec(space.spec(mechanism=section, privacy_unit=unit, privacy=LOUD))
    )
    assert plan.directions is not None
    query = plan.directions.query
    assert isinstance(query, ModeMoment)
    record = unit["record_dim"]
    others = tuple(i for i in range(3) if i != record)
    if "l2_clip_norm" in unit:
        norms = np.sqrt(np.sum(x**2, axis=others, keepdims=True))
        bounded, reach = x * np.minimum(1, 4.0 / norms), 4.0
    else:
        pairs = np.array(unit["ranges"], dtype=float)
        wide = [1, 1, 1]
        wide[unit.get("feature_dim", axis)] = len(pairs)
        low, high = (pairs[:, end].reshape(wide) for end in (0, 1))
        bounded = np.clip(x, low, high)
        largest = np.broadcast_to(np.maximum(abs(low), abs(high)), shape)
        reach = float(np.linalg.norm(np.take(largest, 0, axis=record)))
    rows = np.moveaxis(bounded, axis, 0).reshape(shape[axis], -1)
    with execution.connect(plan.spec.compute, None) as executor:
        variable = plan.only.answering(plan.directions)
        prepared = execution.prepare(executor, plan, variable, lambda _progress: None)
        [answer] = prepared.answers.values()
        [total] = [executor.map_unordered(_sums, [(answer,)])]
        [sums] = list(total)
    assert plan.directions.exact_sum is not None
    exact = plan.directions.exact_sum.answer(sums)
    assert np.allclose(exact, rows @ rows.T, atol=1e-3 * reach**2)
    assert query.reach == pytest.approx(reach)
    assert query.sensitivity.radius == pytest.approx(math.sqrt(2) * reach**2)
    # two records that are orthogonal and as large as they may be change it by that much
    assert np.linalg.norm(_product(shape, axis, record, reach)) == pytest.approx(
        query.sensitivity.radius
    )


def _sums(answer: Any) -> Any:
    return answer.value["data"]


def _product(
    shape: tuple[int, ...], axis: int, record: int, reach: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The change of the second moment when one record becomes an orthogonal one."""
    del record
    one, two = np.zeros((2, shape[axis]))
    one[0] = two[1] = reach
    return np.outer(one, one) - np.outer(two, two)


def test_a_retry_takes_the_eigenvalues_that_were_noted(space: Workspace) -> None:
    case = WHOLE["identity, clipped"]
    space.source(strong_feature(case), chunks=(100, 5))
    changes = changes_of(case)

    def stop(progress: Any) -> None:
        if progress.stage == "tiles":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        space.release(on_progress=stop, **changes)
    charged = space.spent()
    [release] = space.ledger.state("people").releases
    noted = space.ledger.get_once(release, "directions")
    resume(space.spec(**changes))
    assert space.spent() == charged
    assert json.loads(noted or "")["eigenvalues"] == (
        space.values(array="dp_release/eigenvalues").tolist()
    )


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ({"mechanism": {**MAX_PNR, "axis": 0}}, "set mechanism.axis to an axis of features"),
        ({"mechanism": {**MAX_PNR, "axis": 7}}, "set mechanism.axis"),
        (
            {"mechanism": {**MAX_PNR, "axis": 1}, "privacy_unit": {"ranges": [[-1, 1]]}},
            "privacy_unit.record_dim",
        ),
        (
            {"mechanism": {"name": "mvg", "axis": 1, "allocation": "max-pnr"}},
            "no eigenvalues.*dp-covariance",
        ),
    ],
)
def test_axes_without_features_are_refused(
    space: Workspace, case: dict[str, Any], message: str
) -> None:
    space.source(people(40, 5))
    with pytest.raises(InvalidMechanism, match=message):
        space.release(**case)
    assert not space.left_behind()


TENSORS = WHOLE["identity of tensors in ranges"]
FORGED: dict[str, tuple[Any, str]] = {
    "fewer fibres": (
        lambda card: card["directions"]["query"].update(fibres=1),
        "does not go with",  # 5 entries are not as many of each of 3 ranges
    ),
    "more fibres": (
        lambda card: card["directions"]["query"].update(fibres=6),
        "smaller than what its bound",
    ),
    "no fibres": (lambda card: card["directions"]["query"].update(fibres=0), "does not go with"),
    "another bound": (
        lambda card: card["directions"]["bound"].update(ranges=[[-1, 1]] * 3),
        "not those of its data",
    ),
    "a smaller sensitivity": (
        lambda card: card["directions"]["sensitivity"]["configuration"].update(l2=1.0),
        "smaller than what its bound",
    ),
    "another axis": (lambda card: card["mechanism"].update(axis=0), "does not follow from"),
    "another floor": (lambda card: card["mechanism"].update(floor=0.5), "does not follow from"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_card_that_says_otherwise_of_its_axes_is_found(space: Workspace, name: str) -> None:
    space.source(strong_feature(TENSORS), chunks=(3, 100, 5))
    space.release(**changes_of(TENSORS))
    change, message = FORGED[name]
    rewrite_card(space.folder / "out.zarr", change)
    with pytest.raises(VerificationFailed, match=message):
        verify_release(f"{space.folder}/out.zarr")


def test_other_eigenvalues_or_directions_than_those_of_the_noise_are_found(
    space: Workspace,
) -> None:
    """As published the noise follows from them; from others it does not."""
    space.source(strong_feature(TENSORS), chunks=(3, 100, 5))
    space.release(**changes_of(TENSORS))
    url = f"{space.folder}/out.zarr"
    card = verify_release(url)
    names = ("directions", "eigenvalues")
    arrays = {name: space.values(array=f"dp_release/{name}") for name in names}
    noise = noise_from_dict(card.noise)
    check_axes(card, noise, arrays)
    others = [
        {**arrays, "eigenvalues": arrays["eigenvalues"][::-1]},
        {**arrays, "directions": np.array(rotation(5))},
        {**arrays, "directions": 2 * arrays["directions"]},
        {"directions": arrays["directions"]},
        {},
    ]
    for wrong in others:
        with pytest.raises(VerificationFailed, match="does not follow from the directions"):
            check_axes(card, noise, wrong)

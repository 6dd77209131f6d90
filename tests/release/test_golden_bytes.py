"""Released bytes for a fixed key, spec and fingerprint: no change of the code may change one of
them by accident.

Two digests per case. ``values`` is drawn for a fixed binding, so it pins clipping, sums, grids,
sampler and layout alone. ``bound`` is drawn for the digest of the recipe, so it also pins the names
that go into it. To write the file anew after a deliberate change: ``python -m
tests.release.test_golden_bytes``.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpdask.execution import driver
from dpdask.planning import ReleasePlan, make_plan
from dpdask.planning.verified import recorded_answer, rounding_in_sigmas
from dpdask.spec import parse_release_spec
from tests.support.workspace import Workspace, staged_bytes

GOLDEN = Path(__file__).parent.parent / "golden" / "bytes.json"

CLIP = {"record_dim": 0, "l2_clip_norm": 1.0}
ANY = {"accept_uncertified": True}

CASES: dict[str, dict[str, Any]] = {
    "identity-clip": {},
    "identity-clip-coarse": {"noise": {"steps_per_sigma": 1024}},
    "identity-clip-other-axis": {"privacy_unit": {"record_dim": 1, "l2_clip_norm": 0.7}},
    "identity-range": {"privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.4]}},
    "identity-range-int32": {
        "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.4]},
        "noise": {"output_dtype": "int32"},
    },
    "identity-range-float32": {
        "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.4]},
        "noise": {"output_dtype": "float32"},
    },
    "identity-ranges": {
        "privacy_unit": {"record_dim": 0, "ranges": [[-0.1 * i, 0.2 * i] for i in range(1, 9)]}
    },
    "identity-whole-box": {"privacy_unit": {"ranges": [-0.3, 0.4]}},
    "identity-sharded": {"publish": {"chunks": [7, 3], "shards": [14, 6]}},
    "identity-directional": {
        "privacy_unit": {"record_dim": 0, "ranges": [[-0.1 * i, 0.2 * i] for i in range(1, 9)]},
        "mechanism": {"name": "directional"},
    },
    "identity-mgm": {"mechanism": {"name": "mgm", "weights": [None, [1, 2, 3, 4, 5, 6, 7, 8]]}},
    "identity-udn": {"mechanism": {"name": "udn", "axis": 1, "weights": [1, 2, 3, 4, 5, 6, 7, 8]}},
    "identity-udn-directions": {
        "mechanism": {
            "name": "udn",
            "axis": 1,
            "weights": [1, 2, 3, 4, 5, 6, 7, 8],
            "directions": [[float(i == (j + 3) % 8) for j in range(8)] for i in range(8)],
        },
    },
    "identity-dense": {
        "mechanism": {
            "name": "imgm",
            "factors": [
                "identity",
                {"dense": [[2.0 * (i == j) + 0.1 * (i > j) for j in range(8)] for i in range(8)]},
            ],
        },
    },
    "identity-rank-one": {"mechanism": "rank-one", **ANY},
    "identity-k-norm": {"privacy_unit": {"ranges": [-0.3, 0.4]}, "mechanism": "k-norm", **ANY},
    "sum-clip": {"query": "sum"},
    "sum-clip-other-axis": {"query": "sum", "privacy_unit": {"record_dim": 1, "l2_clip_norm": 0.7}},
    "sum-add-remove": {"query": "sum", "privacy_unit": {**CLIP, "adjacency": "add-remove-one"}},
    "sum-ranges": {
        "query": "sum",
        "privacy_unit": {"record_dim": 0, "ranges": [[-0.1 * i, 0.2 * i] for i in range(1, 9)]},
    },
    "mean-range": {"query": "mean", "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.4]}},
    "mean-kronecker": {
        "query": "mean",
        "mechanism": {"name": "udn", "weights": [1, 2, 3, 4, 5, 6, 7, 8]},
    },
    "mean-rank-one": {"query": "mean", "mechanism": "rank-one", **ANY},
    "second-moment": {"query": "second-moment"},
    "second-moment-tiles": {"query": "second-moment", "publish": {"chunks": [3, 3]}},
    "covariance": {"query": "covariance", "publish": {"chunks": [3, 3]}},
    "covariance-add-remove": {
        "query": "covariance",
        "privacy_unit": {"record_dim": 0, "ranges": [-0.5, 1], "adjacency": "add-remove-one"},
        "publish": {"layers": ["psd", {"name": "pca", "components": 2}]},
    },
    "covariance-public": {
        "query": {"name": "covariance", "center": 0.1},
        "publish": {"chunks": [3, 3]},
    },
    "covariance-public-add-remove": {
        "query": {"name": "covariance", "center": 0.1},
        "privacy_unit": {**CLIP, "adjacency": "add-remove-one"},
        "publish": {"chunks": [3, 3]},
    },
    "histogram": {
        "privacy_unit": {"record_dim": 0},
        "query": {"name": "histogram", "edges": [[-0.5, 0, 0.1, 0.5]], "columns": [2]},
    },
    "histogram-2d": {
        "privacy_unit": {"record_dim": 0, "max_contributions": 2},
        "query": {
            "name": "histogram",
            "edges": [[-0.5, 0, 0.5], {"low": -1, "high": 1, "bins": 5}],
            "columns": [2, 5],
        },
    },
    "histogram-by-group": {
        "privacy_unit": {"record_dim": 0},
        "query": {
            "name": "histogram",
            "edges": [[-0.5, 0, 0.1, 0.5]],
            "columns": [2],
            "by": {"array": "group", "groups": [2, 0]},
        },
    },
    "histogram-kronecker": {
        "privacy_unit": {"record_dim": 0},
        "query": {"name": "histogram", "edges": [[-0.5, 0, 0.1, 0.5]], "columns": [2]},
        "mechanism": {"name": "udn", "weights": [1, 2, 3]},
    },
    "precomputed": {"privacy_unit": {}, "query": {"name": "precomputed", "l2_sensitivity": 0.5}},
    "precomputed-kronecker": {
        "privacy_unit": {},
        "query": {"name": "precomputed", "l2_sensitivity": 0.5},
        "mechanism": {"name": "udn", "axis": 1, "weights": [1, 2, 3, 4, 5, 6, 7, 8]},
    },
    "precomputed-rank-one": {
        "privacy_unit": {},
        "query": {"name": "precomputed", "l2_sensitivity": 0.5},
        "mechanism": "rank-one",
        **ANY,
    },
    "laplace-range": {
        "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.4]},
        "mechanism": "laplace",
    },
    "laplace-ranges": {
        "privacy_unit": {
            "record_dim": 0,
            "max_contributions": 2,
            "ranges": [[-0.1 * i, 0.2 * i] for i in range(1, 9)],
        },
        "mechanism": "laplace",
    },
    "laplace-mean": {
        "query": "mean",
        "privacy_unit": {"record_dim": 0, "ranges": [-0.3, 0.4]},
        "mechanism": "laplace",
    },
    "laplace-histogram": {
        "privacy_unit": {"record_dim": 0},
        "query": {"name": "histogram", "edges": [[-0.5, 0, 0.1, 0.5]], "columns": [2]},
        "mechanism": "laplace",
        "noise": {"output_dtype": "int64"},
    },
    "laplace-precomputed": {
        "privacy_unit": {},
        "query": {"name": "precomputed", "l2_sensitivity": 0.5, "l1_sensitivity": 0.7},
        "mechanism": "laplace",
    },
    "layers-identity": {
        "privacy_unit": {"record_dim": 0, "ranges": [[-0.1 * i, 0.2 * i] for i in range(1, 9)]},
        "publish": {"chunks": [7, 3], "layers": ["clamped", ["non-negative", "integer"]]},
    },
    "layers-second-moment": {
        "query": "second-moment",
        "noise": {"output_dtype": "float32"},
        "publish": {"chunks": [3, 3], "layers": ["non-negative"]},
    },
    "precomputed-steps": {
        "privacy_unit": {},
        "query": {"name": "precomputed", "l2_sensitivity": 0.5},
        "composition": {"steps": 60, "steps_are_independent": True},
    },
    "identity-variables": {"arrays": {"x": {}, "y": {"l2_clip_norm": 0.5}}},
    "mean-variables": {
        "arrays": {"x": {"ranges": [-0.3, 0.4]}, "y": {"missing": "count", "ranges": [0, 1]}},
        "query": "mean",
    },
}


def _plan(space: Workspace, case: str) -> ReleasePlan:
    changes = {"publish": {"chunks": None}, **CASES[case]}
    if "arrays" in changes:
        source = {"url": str(space.folder / "source.zarr"), "arrays": changes.pop("arrays")}
        changes = {"source": source, **changes}
    return make_plan(parse_release_spec(space.spec(**changes)))


def digests(space: Workspace, case: str) -> dict[str, str]:
    """The digests of all staged chunks of a case, in the order of their keys."""
    plan = _plan(space, case)
    bound = staged_bytes(plan)
    drawn = driver.recipe_digest
    driver.recipe_digest = lambda _fingerprint, _component: "cd" * 32
    try:
        values = staged_bytes(plan)
    finally:
        driver.recipe_digest = drawn
    return {"values": _digest(values), "bound": _digest(bound)}


def _digest(staged: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(staged):
        digest.update(f"{name} {len(staged[name])}\n".encode() + staged[name])
    return digest.hexdigest()


def _source(space: Workspace) -> None:
    space.source(np.random.default_rng(7).standard_normal((60, 8)) * 0.3, chunks=(13, 3))
    space.source(np.arange(60) % 4, name="group", chunks=(11,))
    space.source(np.random.default_rng(8).standard_normal((60, 8)), name="y", chunks=(20, 8))


@pytest.mark.parametrize("case", CASES)
def test_a_verifier_computes_the_rounding_that_the_noise_grew_for(
    space: Workspace, case: str
) -> None:
    _source(space)
    plan = _plan(space, case)
    for variable in plan.variables:
        component = variable.component
        if component.parts:  # their rounding is added up, and the noise grows until it suffices
            continue
        recorded = recorded_answer(component, plan.spec.composition.steps)
        planned = component.discretized.rounding
        assert rounding_in_sigmas(recorded) == pytest.approx(planned, rel=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_released_bytes_are_those_of_the_golden_file(space: Workspace, case: str) -> None:
    _source(space)
    assert digests(space, case) == json.loads(GOLDEN.read_text())[case]


def test_another_clip_norm_gives_other_bytes(space: Workspace) -> None:
    _source(space)
    changed = make_plan(
        parse_release_spec(space.spec(privacy_unit={**CLIP, "l2_clip_norm": 1.0000001}))
    )
    assert (
        _digest(staged_bytes(changed)) != json.loads(GOLDEN.read_text())["identity-clip"]["bound"]
    )


def write_golden() -> None:
    """Write the golden file anew."""
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(Path(folder))
        _source(space)
        golden = {case: digests(space, case) for case in CASES}
    GOLDEN.write_text(json.dumps(golden, indent=2) + "\n")


if __name__ == "__main__":
    write_golden()

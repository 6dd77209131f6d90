"""Every mechanism through the whole pipeline on a zero tensor with many tiles: the recovered noise
has its law.

Thresholds are p < 1e-12; each law has a twin that must fail: another scale, or noise that is
reused.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dpdask.keystream import ReleaseKey
from dpdask.noise import KroneckerNoise, SphericalNoise
from dpdask.planning import ReleasePlan, make_plan, recipe_digest
from dpdask.privatizers.chunk_radii import chunk_radii
from dpdask.spec import parse_release_spec
from tests.support.workspace import KEY, Workspace, staged_bytes

SURE = 1e-12
SHAPE = (96, 60)
CHUNKS = (16, 20)

MECHANISMS: dict[str, dict[str, Any]] = {
    "classic-gaussian": {
        "mechanism": "classic-gaussian",
        "privacy": {"epsilon": 0.5, "delta": 1e-5},
    },
    "analytic-gaussian": {"mechanism": "analytic-gaussian"},
    "imgm": {
        "mechanism": {
            "name": "imgm",
            "factors": ["identity", {"diagonal": np.linspace(1, 3, 60).tolist()}],
        }
    },
    "mvg": {"mechanism": {"name": "mvg", "axis": 1}},
    "mgm": {
        "mechanism": {
            "name": "mgm",
            "weights": [np.linspace(1, 9, 96).tolist(), np.linspace(1, 4, 60).tolist()],
        }
    },
    "udn": {"mechanism": {"name": "udn", "axis": 1, "weights": np.linspace(1, 9, 60).tolist()}},
    "idn": {
        "mechanism": {"name": "idn", "axis": 1, "weights": np.linspace(1, 9, 60).tolist()},
        "privacy_unit": {"ranges": [-1, 1]},
    },
    "directional": {
        "mechanism": {"name": "directional", "weights": np.linspace(1, 9, 60).tolist()},
        "privacy_unit": {"record_dim": 0, "ranges": [-1, 1]},
    },
}
COLOURED: dict[str, dict[str, Any]] = {
    "low-rank": {
        "mechanism": {
            "name": "imgm",
            "factors": [
                {
                    "low_rank": {
                        "base": 1.0,
                        "directions": [(np.ones(96) / np.sqrt(96)).tolist()],
                        "scales": [5.0],
                    }
                },
                "identity",
            ],
        }
    },
    "dense": {
        "mechanism": {
            "name": "imgm",
            "factors": ["identity", {"dense": (np.eye(60) + np.tri(60) * 0.2).tolist()}],
        },
    },
    "both": {
        "mechanism": {
            "name": "imgm",
            "factors": [
                {
                    "low_rank": {
                        "base": 1.0,
                        "directions": [np.eye(96)[0].tolist()],
                        "scales": [3.0],
                    }
                },
                {"dense": (np.eye(60) + np.tri(60) * 0.2).tolist()},
            ],
        },
    },
}


def plan_on_zeros(space: Workspace, shape: tuple[int, ...] = SHAPE, **changes: Any) -> ReleasePlan:
    space.source(np.zeros(shape), chunks=CHUNKS)
    return make_plan(parse_release_spec(space.spec(publish={"chunks": list(CHUNKS)}, **changes)))


def noise_of(plan: ReleasePlan, fingerprint: str = "ab" * 32) -> np.ndarray[Any, Any]:
    found = staged_bytes(plan, fingerprint)
    out = np.empty(plan.layout.shape)
    for index in plan.layout.indices():
        out[plan.layout.region(index)] = np.frombuffer(
            found[plan.layout.key(index)][:-4], plan.layout.dtype
        ).reshape(plan.layout.write_chunk)
    return out


def whitened(noise: np.ndarray[Any, Any], plan: ReleasePlan) -> np.ndarray[Any, Any]:
    """The standard normal numbers that the noise was made of, by explicit matrices."""
    law = plan.data.privatizer.noise
    if not isinstance(law, KroneckerNoise):
        return noise / law.entry_std
    left, right = (factor.to_dense() for factor in law.factors)
    return np.linalg.solve(left, np.linalg.solve(right, noise.T).T)


def standard_normal_p(z: np.ndarray[Any, Any]) -> float:
    """The least of several p-values that the entries of z are independent N(0, 1)."""
    flat = z.ravel()
    size = flat.size
    found = [
        stats.kstest(flat, "norm").pvalue,
        2 * min(stats.chi2.cdf(flat @ flat, size), stats.chi2.sf(flat @ flat, size)),
    ]
    for moved in (
        np.roll(z, CHUNKS[0], axis=0),
        np.roll(z, CHUNKS[1], axis=1),
        np.roll(z, 1, axis=0),
        np.roll(z, 1, axis=1),
    ):
        found.append(
            2 * stats.norm.sf(abs(float(np.sum(z * moved))) / np.sqrt(size))
        )  # tiles and neighbours are uncorrelated
    return min(found)


@pytest.mark.parametrize("name", [*MECHANISMS, *COLOURED])
def test_gaussian_mechanisms_add_their_covariance_across_tile_borders(
    space: Workspace, name: str
) -> None:
    plan = plan_on_zeros(space, **{**MECHANISMS, **COLOURED}[name])
    z = whitened(noise_of(plan), plan)
    assert standard_normal_p(z) > SURE
    assert standard_normal_p(z * 1.2) < SURE
    reused = z.copy()
    reused[CHUNKS[0] :] = reused[: -CHUNKS[0]]
    assert (
        standard_normal_p(np.tile(z[: CHUNKS[0]], (6, 1))) < SURE
    )  # the twin: one row of tiles, reused


def test_a_coloured_axis_is_correlated_across_tile_borders(space: Workspace) -> None:
    """Along the strong direction all rows move together, those of different chunks too."""
    plan = plan_on_zeros(space, **COLOURED["low-rank"])
    noise = noise_of(plan)
    law = plan.data.privatizer.noise
    assert isinstance(law, KroneckerNoise)
    along = np.ones(96) / np.sqrt(96) @ noise / law.factors[0].scales[0]  # type: ignore[attr-defined]
    assert stats.kstest(along, "norm").pvalue > SURE
    top, bottom = noise[:16].mean(axis=0), noise[16:32].mean(axis=0)
    correlation = float(np.corrcoef(top, bottom)[0, 1])
    assert correlation > 0.5


def test_rank_one_noise_has_one_direction_shared_by_all_tiles(space: Workspace) -> None:
    """Over releases ||n||^2 / sigma_star is chi^2 with one degree of freedom, and the direction is
    uniform.
    """
    plan = plan_on_zeros(space, mechanism="rank-one", accept_uncertified=True)
    law = plan.data.privatizer.noise
    assert isinstance(law, SphericalNoise)
    key = ReleaseKey(KEY)
    sizes = plan.data.tiling.sizes()
    squares = []
    for release in range(400):
        drawn_for = bytes.fromhex(recipe_digest(release.to_bytes(32, "big").hex(), plan.data))
        radii = chunk_radii(
            key, fingerprint=drawn_for, component="data", law=law.law, chunk_sizes=sizes
        )
        squares.append(float(radii @ radii) / law.law.scale**2)
    for release in (
        3,
        141,
        250,
    ):  # the pipeline's own noise has the radius that was drawn, over all tiles together
        noise = noise_of(plan, release.to_bytes(32, "big").hex())
        assert np.sum(noise**2) / law.law.scale**2 == pytest.approx(squares[release], rel=1e-2)
        direction = noise / np.linalg.norm(noise) * np.sqrt(noise.size)
        assert stats.kstest(direction.ravel(), "norm").pvalue > SURE
        tiles = direction.reshape(6, 16, 3, 20).swapaxes(1, 2).reshape(18, 320)
        shares = np.sum(tiles**2, axis=1)
        assert (
            stats.kstest(shares, stats.chi2(320).cdf).pvalue > SURE
        )  # nearly, for 320 of 5760 entries
    assert stats.kstest(squares, stats.chi2(1).cdf).pvalue > SURE
    assert stats.kstest(np.array(squares) * 2.5, stats.chi2(1).cdf).pvalue < SURE


def test_k_norm_noise_has_its_radius(space: Workspace) -> None:
    plan = plan_on_zeros(space, mechanism="k-norm", accept_uncertified=True)
    law = plan.data.privatizer.noise
    assert isinstance(law, SphericalNoise)
    radii = np.array(
        [np.linalg.norm(noise_of(plan, n.to_bytes(32, "big").hex())) for n in range(5)]
    )
    spread = law.law.scale * np.sqrt(law.entries)
    assert np.all(np.abs(radii - law.law.scale * law.entries) < 8 * spread)


@pytest.mark.parametrize("query", ["sum", "second-moment"])
def test_noise_of_summed_queries_has_its_law(space: Workspace, query: str) -> None:
    space.source(np.zeros((5, 240)), chunks=(5, 64))
    plan = make_plan(
        parse_release_spec(
            space.spec(query=query, publish={"chunks": [64] if query == "sum" else [64, 64]})
        )
    )
    found = staged_bytes(plan)
    out = np.empty(plan.layout.shape)
    for index in plan.layout.indices():
        box = plan.layout.region(index)
        whole = np.frombuffer(found[plan.layout.key(index)][:-4], "f8").reshape(
            plan.layout.write_chunk
        )
        out[box] = whole[tuple(slice(0, part.stop - part.start) for part in box)]
    z = out / (plan.data.privatizer.noise.entry_std / plan.data.query.divisor)
    if query == "second-moment":
        assert np.array_equal(z, z.T)
        off = z[np.triu_indices(240, 1)] * np.sqrt(2)  # the mean of two
        assert stats.kstest(off, "norm").pvalue > SURE
        assert stats.kstest(off * 1.1, "norm").pvalue < SURE
        assert np.sqrt(np.mean(out**2)) == pytest.approx(
            plan.entry_std, rel=0.05
        )  # what the card says
        z = np.diag(z)
    assert stats.kstest(z, "norm").pvalue > SURE
    assert stats.kstest(np.tile(z, 20) * 1.4, "norm").pvalue < SURE


def test_components_of_one_release_draw_different_noise(space: Workspace) -> None:
    plan = plan_on_zeros(space)
    renamed = plan.only.answering(dataclasses.replace(plan.data, name="directions"))
    other = dataclasses.replace(plan, variables=(renamed,))
    first, second = noise_of(plan), noise_of(other)
    assert abs(np.sum(first * second)) / (plan.entry_std**2 * np.sqrt(first.size)) < 8

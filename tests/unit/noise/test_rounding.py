"""Bounds on rounding against exact rational arithmetic: dot products, inverses, every whitening
kernel, whole recipes.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from dpdask.errors import OutOfReach
from dpdask.keystream import ReleaseKey, TileStream
from dpdask.noise import (
    DenseFactor,
    DiagonalFactor,
    IidNoise,
    KroneckerNoise,
    LowRankFactor,
    ScaledIdentity,
)
from dpdask.noise.rounding import (
    dot_error,
    float_share,
    gamma,
    moved_entries,
    moved_records,
    spectral_norm,
    whitened_rounding,
)
from dpdask.privacy import Adjacency
from dpdask.privatizers import kernels, kronecker, panels
from dpdask.privatizers.base import Tile
from dpdask.privatizers.bounds import AnswerBounds
from dpdask.privatizers.discretize import discretize
from dpdask.queries.bins import ColumnBins
from dpdask.queries.histogram import Histogram
from dpdask.queries.precomputed import Precomputed
from dpdask.sensitivity import L2Ball, Origin, RecordBall

KEY = ReleaseKey(bytes(range(32)))
STEPS = 2.0**30


def stream() -> TileStream:
    return KEY.tile(fingerprint=bytes(32), component="rounding", index=())


def exact(matrix: Any) -> list[list[Fraction]]:
    return [[Fraction(float(v)) for v in row] for row in np.atleast_2d(matrix)]


def product(a: list[list[Fraction]], b: list[list[Fraction]]) -> list[list[Fraction]]:
    columns = list(zip(*b, strict=True))
    return [
        [sum((x * y for x, y in zip(row, column, strict=True)), Fraction(0)) for column in columns]
        for row in a
    ]


def norm(rows: list[list[Fraction]]) -> float:
    return math.sqrt(float(sum(v * v for row in rows for v in row)))


def apart(a: list[list[Fraction]], b: list[list[Fraction]]) -> float:
    return norm(
        [[x - y for x, y in zip(one, other, strict=True)] for one, other in zip(a, b, strict=True)]
    )


def hostile(rng: np.random.Generator, size: int, kind: str) -> np.ndarray:
    """Answers whose whitening cancels, carries large offsets, or spans many magnitudes."""
    if kind == "offset":
        return np.floor(2.0**24 * rng.uniform(0.5, 1, (size, 2))) + rng.uniform(-1, 1, (size, 2))
    if kind == "cancelling":
        x = rng.standard_normal((size, 2)) * 2.0**24
        return x - np.mean(x, axis=0) + rng.uniform(-1, 1, (size, 2)) * 2.0**-20
    return rng.standard_normal((size, 2)) * np.exp(rng.uniform(-30, 16, (size, 2)))


KINDS = ["offset", "cancelling", "magnitudes"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 64, 65, 300])
def test_dot_products_keep_their_bound(kind: str, size: int) -> None:
    rng = np.random.default_rng(size)
    matrix, x = rng.standard_normal((4, size)), hostile(rng, size, kind)
    found = exact(kernels.fixed_product(matrix, x))
    wanted = product(exact(matrix), exact(x))
    absolute = product(exact(np.abs(matrix)), exact(np.abs(x)))
    worst = max(
        float(abs(f - w) / a)
        for fs, ws, rs in zip(found, wanted, absolute, strict=True)
        for f, w, a in zip(fs, ws, rs, strict=True)
    )
    assert worst <= dot_error(size)
    assert dot_error(2**22) < gamma(67)  # however long the mode


def test_a_plain_sum_of_so_many_terms_would_break_the_bound() -> None:
    """The twin: one long chain, as in 0.1.0."""
    n = 2**20
    x = np.concatenate(
        [[2.0**40], np.full(n, 0.6 * 2.0**-12)]
    )  # a little more than half a last place, rounded up every time
    plain = 0.0
    for v in x.tolist():
        plain += v
    true = math.fsum(x)
    assert abs(plain - true) / true > dot_error(n)
    folded = float(kernels.fixed_product(np.ones((1, n + 1)), x[:, None])[0, 0])
    assert abs(folded - true) / true <= dot_error(n + 1)


@pytest.mark.parametrize("seed", range(6))
def test_spectral_norms_are_upper_bounds_and_tight(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 14))
    matrix = rng.standard_normal((size, size)) * 10.0 ** rng.uniform(-80, 80)
    if seed % 2:
        left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
        matrix = (left * np.geomspace(1, 1e-12, size)) @ right
    with mpmath.workdps(60):
        true = max(mpmath.svd_r(mpmath.matrix(matrix.tolist()), compute_uv=False))
        found = mpmath.mpf(spectral_norm(matrix))
        assert true <= found <= true * (1 + mpmath.mpf("1e-10"))


def low_rank(
    size: int, rank: int, seed: int, scales: Any = None, base: float = 1.0
) -> LowRankFactor:
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((size, rank)))[0]
    return LowRankFactor(
        base, directions, np.geomspace(0.01, 30, rank) if scales is None else scales
    )


def applied(factor: Any) -> list[list[Fraction]]:
    """W, the matrix that kernels whiten by, exactly."""
    if isinstance(factor, DenseFactor):
        return exact(factor.inverse())
    if isinstance(factor, LowRankFactor):
        v = exact(factor.directions)
        gains = [Fraction(float(g)) for g in 1 / factor.scales - 1 / factor.base]
        scaled = [[entry * gain for entry, gain in zip(row, gains, strict=True)] for row in v]
        rows = product(scaled, [list(column) for column in zip(*v, strict=True)])
        for i, row in enumerate(rows):
            row[i] += Fraction(1 / factor.base)
        return rows
    diagonal = np.broadcast_to(factor.diagonal(), factor.size)
    return [
        [1 / Fraction(float(d)) if i == j else Fraction(0) for j in range(factor.size)]
        for i, d in enumerate(diagonal)
    ]


def dense(size: int, seed: int, condition: float = 1e3) -> DenseFactor:
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
    return DenseFactor((left * np.geomspace(1, 1 / condition, size)) @ right)


FACTORS: dict[str, Any] = {
    "dense": dense(90, 1),
    "dense, times": dense(20, 2).times(0.3),
    "low-rank": low_rank(130, 3, 3),
    "low-rank, quiet": low_rank(130, 2, 4, scales=[1e-2, 1e-3]),
    "low-rank, one": low_rank(70, 1, 5, scales=[1.0], base=1000.0),
    "diagonal": DiagonalFactor(np.geomspace(0.1, 7, 60)),
    "scaled": ScaledIdentity(60, 0.3),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_bounds_the_matrix_that_is_applied(name: str) -> None:
    factor = FACTORS[name]
    w = applied(factor)
    with mpmath.workdps(40):
        columns = max(math.sqrt(float(sum(row[j] ** 2 for row in w))) for j in range(factor.size))
        assert columns <= factor.largest_whitened_axis() <= columns * (1 + 1e-9)
        rough = np.array([[float(v) for v in row] for row in w])
        assert float(np.linalg.norm(rough, 2)) <= 1 / factor.smallest * (1 + 1e-15)
        assert 1 / factor.smallest <= float(np.linalg.norm(rough, 2)) * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FACTORS)
def test_whitening_keeps_its_bound_in_every_kernel(name: str, kind: str) -> None:
    """The integers of a tile, less its noise, against steps_per_sigma * W x in rational numbers."""
    factor = FACTORS[name]
    size = factor.size
    x = hostile(np.random.default_rng(7), size, kind)
    scale = np.array([0.7, 1.9])
    wanted = product(applied(factor), exact(x))
    single = [[v / Fraction(float(s)) for v, s in zip(row, scale, strict=True)] for row in wanted]
    reach = float(np.max(np.abs(x))) * math.sqrt(size) / factor.smallest / 0.7
    steps_per_sigma = 2.0 ** min(30, 50 - math.ceil(math.log2(reach)))
    found = integers_of(x, factor, scale, steps_per_sigma)
    total = float_share([factor, DiagonalFactor(scale)]) / factor.smallest / 0.7 * np.linalg.norm(x)
    assert (
        apart(found, [[v * Fraction(steps_per_sigma) for v in row] for row in single])
        <= steps_per_sigma * total + math.sqrt(x.size) / 2
    )
    if not isinstance(factor, DiagonalFactor | ScaledIdentity):
        mixed = panels.transform(x, factor, 0, inverse=True)
        assert apart(exact(mixed), wanted) <= factor.whitening_error() * np.linalg.norm(x)


def integers_of(
    x: np.ndarray, factor: Any, scale: np.ndarray, steps_per_sigma: float
) -> list[list[Fraction]]:
    """What a kernel adds noise to: its sums on x less its sums on zeros."""
    bound = float(np.max(np.abs(x))) * 2
    seen: list[np.ndarray] = []
    diagonal = factor.diagonal()
    for values in (x, np.zeros(x.shape)):
        out = np.empty(x.shape)
        if isinstance(factor, LowRankFactor):
            lows, highs = (
                (np.full(len(x), -bound), np.full(2, -bound)),
                (np.full(len(x), bound), np.full(2, bound)),
            )
            sums = np.empty(x.shape)
            panel = panels.Panel(
                values=values,
                low=lows,
                high=highs,
                scale=scale,
                stream=stream(),
                steps_per_sigma=steps_per_sigma,
                start=0,
            )
            panels.add_low_rank(panel, factor, out, sums)
            seen.append(sums)
        elif isinstance(factor, DenseFactor):
            work = values
            for axis, part in enumerate([factor, scale]):
                work = panels.transform(work, part, axis, inverse=True)
            seen.append(np.rint(work * steps_per_sigma))
        else:
            rows = np.ascontiguousarray(np.broadcast_to(diagonal, len(x)))
            kronecker.add_kronecker(
                values,
                out,
                stream=stream(),
                factors=[rows, scale],
                steps_per_sigma=steps_per_sigma,
                low=[-bound] * 2,
                high=[bound] * 2,
            )
            seen.append(np.rint(out / (rows[:, None] / steps_per_sigma * scale)))
    return [
        [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(one, other, strict=True)]
        for one, other in zip(*seen, strict=True)
    ]


def test_entries_that_one_unit_can_move() -> None:
    assert moved_entries((10, 4, 3), (), 0, 2) == 24
    assert moved_entries((10, 4, 3), (1,), 0, 20) == 120
    assert moved_entries((10, 4, 3), (0,), 0, 1) == 120
    assert moved_entries((10, 4, 3), (), None, 1) == 120
    assert [moved_records((10, 4), mixing, 0, 3) for mixing in ((), (0,), (1,))] == [3, 10, 3]


def test_the_noise_grows_until_everything_is_paid_for() -> None:
    factor = low_rank(4096, 4, 9)
    noise = KroneckerNoise((factor, ScaledIdentity(3)))
    sensitivity = RecordBall(
        l2=0.004, record_axis=1, adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED
    )
    mu = sensitivity.whitened(noise.factors)
    bounds = AnswerBounds(sensitivity=sensitivity, low=(-1.0, -1.0), high=(1.0, 1.0), record_axis=1)
    discretized = discretize(noise, bounds, mu=mu, steps_per_sigma=None)
    recipe: Any = discretized.privatizer
    assert discretized.mu == mu
    extra, floating = whitened_rounding(
        recipe.noise.factors, steps_per_sigma=recipe.steps_per_sigma, moved=4096, norm=64.0
    )
    assert 0 < floating < extra
    assert sensitivity.whitened(recipe.noise.factors) + extra <= mu * (1 + 4e-14)
    assert recipe.noise.entry_std < 1.01 * noise.entry_std


def test_what_floating_point_moves_too_far_is_refused() -> None:
    noise = KroneckerNoise((dense(40, 3), ScaledIdentity(3)))
    sensitivity = L2Ball(l2=1e-9, adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED)
    bounds = AnswerBounds(sensitivity=sensitivity, low=(-1e3, -1e3), high=(1e3, 1e3))
    mu = sensitivity.whitened(noise.factors)
    with pytest.raises(OutOfReach, match=r"more than 1% of mu.*narrow the bounds"):
        discretize(noise, bounds, mu=mu, steps_per_sigma=2**20)


@pytest.mark.parametrize("size", [2**10, 2**16])
def test_finished_results_stay_usable(size: int) -> None:
    """A cut of at least 2^16 standard deviations of the quietest direction, and less than one per
    cent more noise.
    """
    factor = low_rank(size, 4, 11)
    noise = KroneckerNoise((factor, ScaledIdentity(8)))
    sensitivity = L2Ball(
        l2=0.3 * factor.smallest, adjacency=Adjacency.REPLACE_ONE, origin=Origin.DECLARED
    )
    query = Precomputed(
        source_shape=(size, 8),
        answer_shape=(size, 8),
        sensitivity=sensitivity,
        bound=None,
        norm_bound=None,
    )
    mu = sensitivity.whitened(noise.factors)
    discretized, _ = query.discretize(noise, mu=mu, steps_per_sigma=None)
    assert discretized.privatizer.largest >= 2.0**16 * factor.smallest
    assert discretized.noise.entry_std < 1.01 * noise.entry_std
    box = (slice(0, size), slice(0, 8))
    out = np.empty((size, 8))
    tile = Tile(values=np.full((size, 8), 7.0), box=box, stream=stream())
    discretized.privatizer.apply(tile, out)
    assert abs(float(np.mean(out)) - 7) < 60


def test_counts_beyond_exact_steps_are_refused() -> None:
    sensitivity = L2Ball(l2=math.sqrt(2), adjacency=Adjacency.REPLACE_ONE, origin=Origin.CLIPPED)
    query = Histogram(
        source_shape=(2**40,),
        answer_shape=(4,),
        sensitivity=sensitivity,
        bound=None,
        norm_bound=None,
        record_axis=0,
        axes=(ColumnBins(0, (0.0, 1.0, 2.0, 3.0, 4.0)),),
    )
    with pytest.raises(OutOfReach, match=r"2\^49"):
        query.discretize(IidNoise((4,), 1.0), mu=math.sqrt(2), steps_per_sigma=None)


@pytest.mark.parametrize("dtype", ["float64", "int64"])
def test_a_declared_entry_is_off_by_less_than_eleven_sixteenths(dtype: str) -> None:
    """Half a step of rounding and three roundings of the product, at the largest entries of the
    grid.
    """
    step = 0.3 / 2**14
    rng = np.random.default_rng(3)
    x = rng.uniform(2.0**48, 2.0**49, 20_000) * step
    if dtype == "int64":
        step = 2.0**10 + 0.3
        x = rng.integers(2**57, 2**59, 20_000)
    found = np.rint(np.asarray(x, dtype=np.float64) * (1 / step))
    off = max(
        abs(Fraction(int(f)) - Fraction(v) / Fraction(step))
        for f, v in zip(found, x.tolist(), strict=True)
    )
    assert off <= Fraction(11, 16)

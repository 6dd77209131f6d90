"""Tile kernels: the value rule, exact arithmetic, replay, and outputs that tell nothing by their
bits.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import tracemalloc
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from dpdask.errors import InvalidNoise
from dpdask.keystream import ReleaseKey, TileStream, TransferableKey
from dpdask.noise import DenseFactor, LowRankFactor
from dpdask.privatizers.blocks import gaussian_integers
from dpdask.privatizers.clipping import clip_factors, record_norms
from dpdask.privatizers.exact_gaussian import exact_integers
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.iid import add_iid, add_iid_clipped
from dpdask.privatizers.kronecker import add_kronecker
from dpdask.privatizers.spherical import add_spherical

KEY = ReleaseKey(bytes(range(32)))
GRID = Grid.for_range(sigma=3.7, low=-4.0, high=4.0)
COARSE = Grid.for_range(sigma=3.7, low=-4.0, high=4.0, steps_per_sigma=2.0**6)
BOUND = 4.0
DTYPES = ["float32", "float64", "int32", "int64"]
STEPS = 2.0**14


def stream(*index: int) -> TileStream:
    return KEY.tile(fingerprint=bytes(32), component="noise", index=index)


def data(dtype: str, shape: tuple[int, ...] = (37, 53), seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)


def awkward(dtype: str) -> np.ndarray:
    """Every value that could trip a kernel, and enough ordinary ones around it."""
    block = data(dtype)
    odd: list[float] = [0, 1, -1]
    if dtype.startswith("float"):
        top = float(np.finfo(dtype).max)
        odd += [
            math.nan,
            -math.nan,
            math.inf,
            -math.inf,
            top,
            -top,
            float(np.finfo(dtype).tiny) / 4,
            -0.0,
        ]
    else:
        odd += [np.iinfo(dtype).min, np.iinfo(dtype).max]
    block.ravel()[5 : 5 + len(odd)] = np.array(odd, dtype=dtype)
    return block


def by_rule(block: np.ndarray, grid: Grid) -> np.ndarray:
    """NaN -> 0, +-inf -> bound, round to the grid, clamp: in NumPy."""
    v = np.nan_to_num(block.astype(np.float64), nan=0.0, posinf=math.inf, neginf=-math.inf)
    with np.errstate(over="ignore"):
        return np.clip(np.rint(v * (1 / grid.step)), grid.low, grid.high)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", DTYPES)
def test_iid_tiles_are_grid_integers_plus_exact_integers(dtype: str, out_dtype: str) -> None:
    x = awkward(dtype)
    out = np.empty(x.shape, out_dtype)
    add_iid(x, out, stream=stream(1), grid=GRID)
    total = by_rule(x, GRID) + exact_integers(stream(1), STEPS, 0, x.size).reshape(x.shape)
    expected = total * GRID.step if out_dtype.startswith("float") else total
    assert np.array_equal(out, expected.astype(out_dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("record_axis", [0, 1, 2])
def test_clipped_tiles_shrink_records_and_add_exact_integers(dtype: str, record_axis: int) -> None:
    x = awkward(dtype).reshape(37, 53, 1).repeat(3, axis=2)
    grid = Grid.for_clip(sigma=2.0, norm=5.0)
    factors = clip_factors(record_norms(x, record_axis=record_axis, step=grid.step), grid=grid)
    out = np.empty(x.shape)
    add_iid_clipped(x, out, stream=stream(2), grid=grid, factors=factors, record_axis=record_axis)
    noise = exact_integers(stream(2), STEPS, 0, x.size).reshape(x.shape)
    clipped = np.rint(out / grid.step) - noise
    squares = np.sum(clipped**2, axis=tuple(a for a in range(3) if a != record_axis))
    assert np.all(squares <= grid.high**2)
    assert np.any(factors < 1)


def test_a_tile_can_be_computed_in_parts() -> None:
    x = data("float64", (10_000,))
    whole = np.empty(x.shape)
    add_iid(x, whole, stream=stream(3), grid=GRID)
    for start, stop in ((0, 1), (1, 1025), (1024, 2048), (777, 9999), (9999, 10_000)):
        part = np.empty(stop - start)
        add_iid(x[start:stop], part, stream=stream(3), grid=GRID, start=start)
        assert np.array_equal(part, whole[start:stop])


def every_shape(to_transferable: TransferableKey, tile: int) -> bytes:
    """All kernels on one tile, as bytes; runs in other processes too."""
    key = to_transferable.from_transferable()
    x = data("float32", (64, 80), tile)
    out = np.empty(x.shape, np.float32)
    made = []

    def fresh(component: str) -> TileStream:
        return key.tile(fingerprint=bytes(32), component=component, index=(tile,))

    add_iid(x, out, stream=fresh("iid"), grid=GRID)
    made.append(out.tobytes())
    add_spherical(
        x, out, stream=fresh("spherical"), step=COARSE.step, low=-BOUND, high=BOUND, radius=50.0
    )
    made.append(out.tobytes())
    bounds: dict[str, Any] = {
        "steps_per_sigma": STEPS,
        "low": [-4.0, -4.0],
        "high": [4.0, 4.0],
    }
    add_kronecker(x, out, stream=fresh("diagonal"), factors=[np.linspace(1, 2, 64), 0.5], **bounds)
    made.append(out.tobytes())
    directions = np.linalg.qr(np.random.default_rng(5).standard_normal((64, 3)))[0]
    low_rank = LowRankFactor(1.0, directions, [2.0, 3.0, 0.5])
    add_kronecker(x, out, stream=fresh("low-rank"), factors=[low_rank, 1.0], **bounds)
    made.append(out.tobytes())
    return b"".join(made)


@pytest.mark.slow
def test_threads_order_fork_and_spawn_give_the_same_bytes() -> None:
    to_transferable = KEY.to_transferable()
    alone = [every_shape(to_transferable, tile) for tile in range(4)]
    assert len(set(alone)) == 4
    with ThreadPoolExecutor(4) as pool:
        threads = list(
            pool.map(every_shape, itertools.repeat(to_transferable), [3, 2, 1, 0, 0, 1, 2, 3])
        )
    assert threads == alone[::-1] + alone
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            assert list(pool.map(every_shape, itertools.repeat(to_transferable), range(4))) == alone


def test_no_output_tells_zero_from_the_bound_by_its_bits() -> None:
    """The precision attack: with floating-point noise the low bits of x + noise betray x. Here all
    outputs are k * step.
    """
    n = 1 << 20
    grid = Grid.for_range(sigma=0.7, low=-0.1, high=0.1)
    outputs = []
    for tile, value in enumerate((0.0, 0.1)):
        out = np.empty(n)
        add_iid(np.full(n, value), out, stream=stream(4, tile), grid=grid)
        multiples = np.rint(out / grid.step)
        assert np.array_equal(multiples * grid.step, out)
        outputs.append(set(multiples.astype(np.int64).tolist()))
    common = outputs[0] & outputs[1]
    core = set(range(-20_000, 20_000))
    assert core <= common  # every likely value occurs for both: no value singles one out

    naive = [value + 0.7 * np.random.default_rng(1).standard_normal(n) for value in (0.0, 0.1)]
    assert not set(naive[0]) & set(naive[1])  # the twin: plain floating-point noise is told apart


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0, 2**62, -(2**62)]
)
def test_extreme_values_follow_the_rule_in_every_kernel(dtype: str, value: float) -> None:
    if dtype.startswith("int"):
        if not math.isfinite(value) or value == 1e308:
            return
        value = int(np.clip(value, np.iinfo(dtype).min, np.iinfo(dtype).max))
    with np.errstate(over="ignore"):
        x = np.full((8, 8), value).astype(dtype)
    expected = by_rule(x, GRID)[0, 0] * GRID.step
    out = np.empty((8, 8))
    add_iid(x, out, stream=stream(5), grid=GRID)
    noise = exact_integers(stream(5), STEPS, 0, 64).reshape(8, 8) * GRID.step
    assert np.allclose(out, expected + noise, rtol=1e-12)
    bounds: dict[str, Any] = {
        "steps_per_sigma": STEPS,
        "low": [-4.0, -9.0],
        "high": [9.0, 4.0],
    }
    add_kronecker(x, out, stream=stream(5), factors=[2.0, 3.0], **bounds)
    assert np.all(np.isfinite(out))
    add_kronecker(
        x, out, stream=stream(5), factors=[DenseFactor(np.tri(8) + np.eye(8)), 1.0], **bounds
    )
    assert np.all(np.isfinite(out))
    add_spherical(x, out, stream=stream(5), step=COARSE.step, low=-BOUND, high=BOUND, radius=100.0)
    assert math.isclose(np.linalg.norm(out - by_rule(x, COARSE) * COARSE.step), 100.0, rel_tol=1e-2)


def whitened_reference(
    x: np.ndarray, factors: list[Any], integers: np.ndarray, bound: float
) -> np.ndarray:
    """U (round(S U^-1 clamp(x)) + k) / S with explicit matrices."""
    matrices = [
        f.to_dense() if hasattr(f, "to_dense") else np.diag(np.broadcast_to(f, n))
        for f, n in zip(factors, x.shape, strict=True)
    ]
    work = np.clip(x.astype(np.float64), -bound, bound)
    for axis, matrix in enumerate(matrices):
        work = np.moveaxis(np.tensordot(np.linalg.inv(matrix), work, (1, axis)), 0, axis)
    work = np.rint(work * STEPS) + integers
    for axis, matrix in enumerate(matrices):
        work = np.moveaxis(np.tensordot(matrix, work, (1, axis)), 0, axis)
    return work / STEPS


DIRECTIONS = np.linalg.qr(np.random.default_rng(5).standard_normal((24, 3)))[0]
LOW_RANK = LowRankFactor(1.0, DIRECTIONS, [2.0, 3.0, 0.5])
DENSE = DenseFactor(np.eye(24) * 3 + np.random.default_rng(6).standard_normal((24, 24)) * 0.3)


@pytest.mark.parametrize(
    "factors",
    [
        [np.linspace(1, 2, 24), np.linspace(0.5, 3, 30)],
        [LOW_RANK, np.linspace(0.5, 3, 30)],
        [DENSE, 2.0],
        [2.0, LOW_RANK],
        [LOW_RANK, DENSE],
        [3.0, np.linspace(1, 2, 24), LOW_RANK],
        [np.linspace(1, 2, 4), LOW_RANK, np.linspace(1, 2, 5)],
    ],
    ids=[
        "diagonal",
        "low-rank",
        "dense",
        "low-rank last",
        "both",
        "order 3 last",
        "order 3 middle",
    ],
)
def test_kronecker_tiles_whiten_add_and_unwhiten(factors: list[Any]) -> None:
    sizes = [f.size if hasattr(f, "size") else None for f in factors]
    shape = tuple(size if size is not None else 7 for size in sizes)
    if sizes == [None, 24]:
        shape = (30, 24)
    x = data("float64", shape)
    out, dense_out = np.empty(shape), np.empty(shape)
    bounds: dict[str, Any] = {
        "steps_per_sigma": STEPS,
        "low": [-4.0] * len(shape),
        "high": [4.0] * len(shape),
    }
    add_kronecker(x, out, stream=stream(6), factors=factors, **bounds)
    # the integers, in the order in which the panels take them: recovered from a run on zeros
    add_kronecker(np.zeros(shape), dense_out, stream=stream(6), factors=factors, **bounds)
    integers = dense_out * STEPS
    for axis, f in enumerate(factors):
        matrix = np.linalg.inv(
            f.to_dense() if hasattr(f, "to_dense") else np.diag(np.broadcast_to(f, shape[axis]))
        )
        integers = np.moveaxis(np.tensordot(matrix, integers, (1, axis)), 0, axis)
    assert np.allclose(integers, np.rint(integers), atol=1e-4)
    drawn = np.sort(exact_integers(stream(6), STEPS, 0, x.size))
    assert np.array_equal(np.sort(np.rint(integers).astype(np.int64).ravel()), drawn)
    reference = whitened_reference(x, factors, np.rint(integers), 4.0)
    # floating-point whitening may round a tie the other way: one grid step in a few entries, spread
    # by the factors
    assert np.mean(np.abs(out - reference) > 1e-6) < 0.05
    assert np.allclose(out, reference, atol=20 / STEPS)


@pytest.mark.parametrize("steps_per_sigma", [2.0**14, 2.0**24])
def test_a_float32_output_holds_the_rounded_float64_one(steps_per_sigma: float) -> None:
    """At 2^24 the sums no longer fit float32 and are kept elsewhere on the way."""
    x = data("float64", (24, 30))
    made = []
    for dtype in ("float64", "float32"):
        out = np.empty(x.shape, dtype)
        add_kronecker(
            x,
            out,
            stream=stream(9),
            factors=[LOW_RANK, 2.0],
            steps_per_sigma=steps_per_sigma,
            low=[-4.0] * 2,
            high=[4.0] * 2,
        )
        made.append(out)
    assert np.array_equal(made[0].astype("float32"), made[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_spherical_tiles_hold_the_same_vector_in_every_dtype(dtype: str) -> None:
    """8-byte outputs store the direction on the way, 4-byte ones draw it twice."""
    x = data("float64", (40, 50))
    exact, out = np.empty(x.shape), np.empty(x.shape, dtype)
    add_spherical(
        x, exact, stream=stream(10), step=COARSE.step, low=-BOUND, high=BOUND, radius=300.0
    )
    add_spherical(x, out, stream=stream(10), step=COARSE.step, low=-BOUND, high=BOUND, radius=300.0)
    steps = np.rint(exact / COARSE.step)
    expected = steps * COARSE.step if dtype.startswith("float") else steps
    assert np.array_equal(out, expected.astype(dtype))
    direction = exact_integers(stream(10), 2.0**24, 0, x.size).reshape(x.shape)
    ideal = (
        np.clip(x, -BOUND, BOUND) / COARSE.step
        + direction / np.linalg.norm(direction) * 300.0 / COARSE.step
    )
    assert np.max(np.abs(steps - ideal)) <= 0.5 + 1e-6


def test_spherical_noise_refuses_a_grid_that_would_show_its_lattice() -> None:
    x, out = data("float64"), np.empty((37, 53))
    with pytest.raises(InvalidNoise, match="coarser grid"):
        add_spherical(
            x, out, stream=stream(10), step=GRID.step, low=-BOUND, high=BOUND, radius=300.0
        )
    with pytest.raises(InvalidNoise, match="coarser grid"):
        add_spherical(
            x, out, stream=stream(10), step=COARSE.step, low=-BOUND, high=BOUND, radius=1e9
        )


def test_a_single_entry_gets_the_whole_radius() -> None:
    out = np.empty(1)
    for tile in range(50):
        add_spherical(
            np.zeros(1),
            out,
            stream=stream(11, tile),
            step=COARSE.step,
            low=-BOUND,
            high=BOUND,
            radius=37.0,
        )
        assert math.isclose(abs(out[0]), 37.0, rel_tol=2e-3)


def test_an_empty_tile_is_an_empty_tile() -> None:
    add_iid(np.empty((0, 5)), np.empty((0, 5)), stream=stream(0), grid=GRID)


def test_a_negative_record_axis_counts_from_the_end() -> None:
    x = data("float64") * 10
    grid = Grid.for_clip(sigma=2.0, norm=5.0)
    made = []
    for axis in (1, -1):
        factors = clip_factors(record_norms(x, record_axis=axis, step=grid.step), grid=grid)
        out = np.empty(x.shape)
        add_iid_clipped(x, out, stream=stream(12), grid=grid, factors=factors, record_axis=axis)
        made.append(out)
    assert np.array_equal(*made)


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_makes_no_warning() -> None:
    x = np.frombuffer(np.full(24 * 7, 0x7FA00000, np.uint32).tobytes(), np.float32).reshape(24, 7)
    out = np.empty((24, 7), np.float32)
    add_kronecker(
        x,
        out,
        stream=stream(13),
        factors=[DENSE, 1.0],
        steps_per_sigma=STEPS,
        low=[-4.0] * 2,
        high=[4.0] * 2,
    )
    assert np.all(np.isfinite(out))


def test_settled_blocks_reach_the_output() -> None:
    """At 2^30 steps per sigma many blocks hold a doubtful pair; the tile equals exact integers."""
    n = 1 << 18
    out = np.empty(n)
    gaussian_integers(stream(7), 2.0**30, out)
    assert np.array_equal(out, exact_integers(stream(7), 2.0**30, 0, n))


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (lambda x: add_iid(x.astype("float16"), x.copy(), stream=stream(0), grid=GRID), "float16"),
        (lambda x: add_iid(x, x, stream=stream(0), grid=GRID), "in place"),
        (lambda x: add_iid(x.T, np.empty(x.T.shape), stream=stream(0), grid=GRID), "C-contiguous"),
        (lambda x: add_iid(x, np.empty((2, 2)), stream=stream(0), grid=GRID), "output shape"),
        (
            lambda x: add_iid_clipped(
                x, x.copy(), stream=stream(0), grid=GRID, factors=np.ones(3), record_axis=0
            ),
            "clip factors",
        ),
        (
            lambda x: add_iid_clipped(
                x,
                x.copy(),
                stream=stream(0),
                grid=GRID,
                factors=np.ones(37, "float32"),
                record_axis=0,
            ),
            "from 0 to 1",
        ),
        (
            lambda x: gaussian_integers(stream(0), STEPS, np.zeros((4, 6))[:, :3]),
            "contiguous",
        ),
        (
            lambda x: add_kronecker(
                data("float64", (24, 24)),
                np.empty((24, 24)),
                stream=stream(0),
                factors=[LOW_RANK, -1.0],
                steps_per_sigma=STEPS,
                low=[-1.0] * 2,
                high=[1.0] * 2,
            ),
            "finite and > 0",
        ),
        (
            lambda x: add_kronecker(
                x,
                x.copy(),
                stream=stream(0),
                factors=[DENSE, 1.0],
                steps_per_sigma=STEPS,
                low=[-1.0] * 2,
                high=[1.0] * 2,
            ),
            "span that axis",
        ),
        (
            lambda x: add_kronecker(
                x,
                x.copy(),
                stream=stream(0),
                factors=[1.0, 1.0],
                steps_per_sigma=STEPS,
                low=[-math.inf] * 2,
                high=[math.inf] * 2,
            ),
            "finite",
        ),
        (
            lambda x: add_kronecker(
                x,
                x.copy(),
                stream=stream(0),
                factors=[1e-9, 1.0],
                steps_per_sigma=STEPS,
                low=[-1e9] * 2,
                high=[1e9] * 2,
            ),
            "2\\^51",
        ),
    ],
)
def test_misuse_is_refused(recipe: Any, message: str) -> None:
    with pytest.raises(InvalidNoise, match=message):
        recipe(data("float64"))


@pytest.mark.parametrize("shape", ["iid", "clipped", "diagonal", "spherical", "low-rank"])
def test_a_call_needs_less_than_four_megabytes_beyond_the_tile(shape: str) -> None:
    """Python's and NumPy's allocations; compiled code allocates one block of 8 KiB and, for panels,
    some rows.
    """
    x, out = data("float64", (1024, 2048)), np.empty((1024, 2048))
    directions = np.linalg.qr(np.random.default_rng(5).standard_normal((1024, 10)))[0]
    low_rank = LowRankFactor(1.0, directions, np.linspace(0.5, 2, 10))
    clip = Grid.for_clip(sigma=2.0, norm=5.0)
    bounds: dict[str, Any] = {
        "steps_per_sigma": STEPS,
        "low": [-4.0, -4.0],
        "high": [4.0, 4.0],
    }
    calls: dict[str, Any] = {
        "iid": lambda: add_iid(x, out, stream=stream(8), grid=GRID),
        "clipped": lambda: add_iid_clipped(
            x,
            out,
            stream=stream(8),
            grid=clip,
            factors=clip_factors(record_norms(x, record_axis=0, step=clip.step), grid=clip),
            record_axis=0,
        ),
        "diagonal": lambda: add_kronecker(
            x, out, stream=stream(8), factors=[np.ones(1024), 2.0], **bounds
        ),
        "spherical": lambda: add_spherical(
            x, out, stream=stream(8), step=COARSE.step, low=-BOUND, high=BOUND, radius=5.0
        ),
        "low-rank": lambda: add_kronecker(
            x, out, stream=stream(8), factors=[low_rank, 1.0], **bounds
        ),
    }
    calls[shape]()
    tracemalloc.start()
    calls[shape]()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20

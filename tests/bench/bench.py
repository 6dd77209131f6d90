"""`make bench`: every number is a ratio of two things measured side by side in this process,
alternating, best of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import randomgen
from diffprivlib.mechanisms import GaussianAnalytic
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features

from dpdask.keystream import ReleaseKey, TileStream
from dpdask.noise import LowRankFactor
from dpdask.privatizers.clipping import clip_factors, record_norms
from dpdask.privatizers.grid import Grid
from dpdask.privatizers.iid import add_iid, add_iid_clipped
from dpdask.privatizers.kronecker import add_kronecker
from dpdask.privatizers.spherical import add_spherical
from tests.bench.table import Row, Task, is_quick, record, row

ENTRIES = 1 << (18 if is_quick() else 22)
SHAPE = (2048, ENTRIES // 2048)
SIGMA = 3.7
GRID = Grid.for_range(sigma=SIGMA, low=-4.0, high=4.0)
COARSE = Grid.for_range(sigma=SIGMA, low=-4.0, high=4.0, steps_per_sigma=2.0**6)
KEY = ReleaseKey.generate()


def stream(tile: int = 0) -> TileStream:
    return KEY.tile(fingerprint=bytes(32), component="bench", index=(tile,))


def side_by_side(ours: Task, theirs: Task, rounds: int = 9) -> tuple[float, float]:
    """Seconds of each, best of alternating rounds."""
    best = [float("inf"), float("inf")]
    ours(), theirs()
    for _ in range(rounds):
        for i, task in enumerate((ours, theirs)):
            started = time.perf_counter()
            task()
            best[i] = min(best[i], time.perf_counter() - started)
    return best[0], best[1]


POOL = ThreadPoolExecutor(2)


def on_threads(tasks: list[Task]) -> Task:
    """Run all tasks at once, each on a thread of its own that lives on, as a Dask worker's do."""
    if len(tasks) == 1:
        return tasks[0]

    def run() -> None:
        for future in [POOL.submit(task) for task in tasks]:
            future.result()

    return run


class Rows:
    """The section as it grows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(
        self,
        name: str,
        dtype: str,
        threads: int,
        ratio: float,
        *,
        goal: float | None = None,
        aim: float | None = None,
        larger_is_better: bool = False,
        detail: str = "",
    ) -> None:
        what = f"{name}, {dtype}, {threads} thread{'s' if threads > 1 else ''}"
        bounds: dict[str, Any] = {"goal": goal, "aim": aim, "larger_is_better": larger_is_better}
        self.rows.append(row(what, ratio, detail=detail, **bounds))
        print(f"  {what}: {ratio:.4g} {detail}", flush=True)


def nanoseconds(seconds: float, entries: int) -> str:
    return f"{seconds / entries * 1e9:.2f} ns"


def thread_sets(dtype: str, threads: int) -> list[tuple[Any, Any, int]]:
    """(input, output, tile) for each thread, on separate memory."""
    generator = np.random.default_rng(1)
    return [
        (generator.standard_normal(SHAPE).astype(dtype), np.empty(SHAPE, dtype), tile)
        for tile in range(threads)
    ]


def bench_iid(rows: Rows, dtype: str, threads: int) -> None:
    sets = thread_sets(dtype, threads)
    ours = on_threads(
        [lambda x=x, o=o, t=t: add_iid(x, o, stream=stream(t), grid=GRID) for x, o, t in sets]
    )

    def theirs(make: Callable[[int], np.random.Generator]) -> Task:
        def one(x: Any, out: Any, generator: np.random.Generator) -> None:
            noise = generator.standard_normal(SHAPE)
            noise *= SIGMA
            np.add(x, noise, out=out, casting="same_kind")

        return on_threads([lambda x=x, o=o, g=make(t): one(x, o, g) for x, o, t in sets])

    rivals = [
        (
            "exact i.i.d. / NumPy PCG64 standard_normal + scale + add",
            lambda s: np.random.Generator(np.random.PCG64(s)),
            0.22,
            0.18,
        ),
        (
            "exact i.i.d. / randomgen AESCounter normal",
            lambda s: np.random.Generator(randomgen.AESCounter(s)),
            None,
            None,
        ),
    ]
    for name, make, goal, aim in rivals:
        mine, other = side_by_side(ours, theirs(make))
        rows.add(
            name,
            dtype,
            threads,
            mine / other,
            goal=goal,
            aim=aim,
            detail=f"{nanoseconds(mine, ENTRIES)} : {nanoseconds(other, ENTRIES)}",
        )
    copies = on_threads([lambda x=x, o=o: np.copyto(o, x) for x, o, _ in sets])
    mine, other = side_by_side(ours, copies)
    rows.add(
        "fused tile kernel / memcpy of the tile",
        dtype,
        threads,
        mine / other,
        detail=f"{nanoseconds(mine, ENTRIES)} : {nanoseconds(other, ENTRIES)}",
    )


def bench_threads(rows: Rows, dtype: str) -> None:
    sets = thread_sets(dtype, 2)
    tasks: list[Task] = [
        lambda x=x, o=o, t=t: add_iid(x, o, stream=stream(t), grid=GRID) for x, o, t in sets
    ]
    both, one = side_by_side(on_threads(tasks), tasks[0], rounds=15)
    name = "speed of two threads / speed of one"
    rows.add(name, dtype, 2, 2 * one / both, goal=1.8, larger_is_better=True)


def bench_shapes(rows: Rows, dtype: str) -> None:
    ((x, out, _),) = thread_sets(dtype, 1)
    plain: Task = lambda: add_iid(x, out, stream=stream(), grid=GRID)  # noqa: E731
    directions = np.linalg.qr(np.random.default_rng(2).standard_normal((SHAPE[0], 10)))[0]
    low_rank = LowRankFactor(1.0, directions, np.linspace(0.5, 3, 10))
    bounds: dict[str, Any] = {"steps_per_sigma": 2.0**14, "low": [-4.0, -4.0], "high": [4.0, 4.0]}
    diagonal = [np.linspace(1, 2, SHAPE[0]), np.linspace(1, 3, SHAPE[1])]
    clip = Grid.for_clip(sigma=SIGMA, norm=1.5)

    def clipped() -> None:
        factors = clip_factors(record_norms(x, record_axis=0, step=clip.step), grid=clip)
        add_iid_clipped(x, out, stream=stream(), grid=clip, factors=factors, record_axis=0)

    def as_in_0_1_0() -> None:
        """i.i.d. noise by the cipher of a library and the sampler's longer polynomials."""
        available = TileStream.has_round_keys
        TileStream.has_round_keys = False  # type: ignore[assignment,method-assign]
        try:
            plain()
        finally:
            TileStream.has_round_keys = available  # type: ignore[method-assign]

    shapes: list[tuple[str, Task, Task, float | None, float | None]] = [
        (
            "diagonal Kronecker / i.i.d.",
            lambda: add_kronecker(x, out, stream=stream(), factors=diagonal, **bounds),
            plain,
            1.3,
            None,
        ),
        (
            "spherical / i.i.d.",
            lambda: add_spherical(
                x, out, stream=stream(), step=COARSE.step, low=-4.0, high=4.0, radius=100.0
            ),
            plain,
            1.5,
            1.3,
        ),
        (
            "identity plus rank 10 / i.i.d. of 0.1.0",
            lambda: add_kronecker(x, out, stream=stream(), factors=[low_rank, 1.0], **bounds),
            as_in_0_1_0,
            2.5,
            2.1,
        ),
        ("record clip + i.i.d. / i.i.d.", clipped, plain, None, None),
    ]
    for name, task, other_task, goal, aim in shapes:
        mine, other = side_by_side(task, other_task)
        rows.add(
            name,
            dtype,
            1,
            mine / other,
            goal=goal,
            aim=aim,
            detail=f"{nanoseconds(mine, ENTRIES)} : {nanoseconds(other, ENTRIES)}",
        )


def bench_exact_rivals(rows: Rows) -> None:
    """Samplers that take microseconds per number are measured on fewer of them."""
    enable_features("contrib")
    few = 1_000 if is_quick() else 20_000
    data = np.random.default_rng(3).standard_normal(few)
    as_list = data.tolist()
    domain = vector_domain(atom_domain(T=float, nan=False)), l2_distance(T=float)
    opendp = make_gaussian(*domain, scale=SIGMA)
    diffprivlib = GaussianAnalytic(epsilon=1.0, delta=1e-5, sensitivity=1.0)
    for dtype in ("float64", "float32"):
        ((x, out, _),) = thread_sets(dtype, 1)
        ours: Task = lambda x=x, out=out: add_iid(x, out, stream=stream(), grid=GRID)  # noqa: E731
        rivals: list[tuple[str, Task]] = [
            ("exact i.i.d. / OpenDP Gaussian", lambda: opendp(as_list)),
            (
                "exact i.i.d. / diffprivlib GaussianAnalytic",
                lambda: [diffprivlib.randomise(v) for v in as_list],
            ),
        ]
        for name, theirs in rivals:
            mine, other = side_by_side(ours, theirs, rounds=3)
            ratio = (mine / ENTRIES) / (other / few)
            rows.add(
                name,
                dtype,
                1,
                ratio,
                detail=f"{nanoseconds(mine, ENTRIES)} : {nanoseconds(other, few)}",
            )


def main() -> None:
    rows = Rows()
    for dtype in ("float64", "float32"):
        for threads in (1, 2):
            bench_iid(rows, dtype, threads)
        bench_threads(rows, dtype)
        bench_shapes(rows, dtype)
    bench_exact_rivals(rows)
    record("noise", rows.rows)


if __name__ == "__main__":
    main()

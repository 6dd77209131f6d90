"""Random release specs over everything a spec can say, from a seeded generator; the plan refuses
some, which is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["MECHANISMS", "Case", "random_case"]

Rng = np.random.Generator

DTYPES = ("f8", "f4", "f2", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">f8", ">f4", ">i2")
FACTORS = ("identity", "scaled", "diagonal", "dense", "covariance", "low_rank")
IID = ("analytic-gaussian", "classic-gaussian", "imgm")
COLOURED = ("imgm-factors", "mvg", "mgm", "udn")
ON_RANGES = ("idn", "directional", "laplace", "auto")
SPHERICAL = ("rank-one", "k-norm")

MECHANISMS = {  # what each kind of query can be asked for; a stack of steps takes i.i.d. noise
    "identity": (*IID, *COLOURED, *ON_RANGES, *SPHERICAL),
    "sum": (*IID, *COLOURED, *ON_RANGES, *SPHERICAL),
    "mean": (*IID, *COLOURED, *ON_RANGES, *SPHERICAL),
    "second-moment": (*IID, *COLOURED, *SPHERICAL, "auto"),
    "covariance": (*IID, *COLOURED, "auto"),
    "histogram": (*IID, *COLOURED, *SPHERICAL, "laplace", "auto"),
    "declared": (*IID, *COLOURED, *SPHERICAL, "auto"),
    "steps": ("analytic-gaussian", "classic-gaussian", "auto"),
}


MOMENTS = ("second-moment", "covariance")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A spec without its URLs, and the source that it is made for."""

    query: str
    mechanism: str
    spec: dict[str, Any]
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    storage: dict[str, Any]
    axis: int | None = None
    contributions: int = 1
    private_count: bool = False
    steps: int = 1

    @property
    def window(self) -> tuple[int, int, int] | None:
        """Axis, start and stop of the part that is released."""
        found = self.spec["source"].get("window")
        return None if found is None else (found["axis"], found["start"], found["stop"])

    def described(self) -> str:
        """One line to find the case again."""
        return (
            f"{self.query} {self.mechanism} {self.shape} {self.dtype} chunks {self.chunks}"
            f" {self.spec}"
        )


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def _orthonormal(rng: Rng, size: int, rank: int) -> list[list[float]]:
    found: list[list[float]] = np.linalg.qr(rng.standard_normal((size, size)))[0][:rank].tolist()
    return found


def _factor(rng: Rng, size: int, kinds: tuple[str, ...]) -> Any:
    kind = str(rng.choice(kinds))
    spread = np.exp(rng.uniform(-2.3, 2.3, size))
    basis = np.array(_orthonormal(rng, size, size))
    if kind == "identity" or (kind == "low_rank" and size < 2):
        return "identity"
    if kind == "scaled":
        return {"scaled": _log_uniform(rng, 1e-3, 1e3)}
    if kind == "diagonal":
        return {"diagonal": spread.tolist()}
    if kind == "dense":
        return {"dense": ((basis * spread) @ np.array(_orthonormal(rng, size, size))).tolist()}
    if kind == "covariance":
        covariance = (basis * spread**2) @ basis.T
        return {"covariance": ((covariance + covariance.T) / 2).tolist()}
    rank = int(rng.integers(1, size))
    low_rank = {
        "base": _log_uniform(rng, 0.1, 10),
        "directions": basis[:rank].tolist(),
        "scales": spread[:rank].tolist(),
    }
    return {"low_rank": low_rank}


def _mechanism(
    rng: Rng, name: str, shape: tuple[int, ...], *, box: bool, feature_axis: int, bounded: bool
) -> dict[str, Any]:
    """The mechanism's section for an answer of ``shape``; noise on a ``box`` of ranges seldom mixes
    entries, since its bound is then that of the ball around it.
    """
    box = box and rng.random() < 0.7
    order = len(shape)
    axis = int(rng.integers(order))
    kinds = FACTORS[:3] if box else FACTORS
    if name == "imgm-factors":
        return {"name": "imgm", "factors": [_factor(rng, n, kinds) for n in shape]}
    if name == "mvg":
        made: dict[str, Any] = {"name": "mvg", "axis": axis}
        if not bounded:
            made["gamma"] = 1e4
        size = shape[axis]
        directions = (
            {} if box or rng.random() < 0.3 else {"directions": _orthonormal(rng, size, size)}
        )
        kind = int(rng.integers(5))
        if kind == 1 and size > 1:
            made |= {
                "allocation": "binary",
                "tau": float(rng.uniform(0.2, 0.8)),
                "chosen": [0],
                **directions,
            }
        elif kind == 2:
            shares = rng.dirichlet(np.ones(size)) * 0.999
            made |= {"allocation": "given", "shares": shares.tolist(), **directions}
        elif kind == 3:
            made |= {
                "allocation": "max-pnr",
                "eigenvalues": np.exp(rng.uniform(-1, 1, size)).tolist(),
                **directions,
            }
        elif kind == 4:
            made |= {"factors": [_factor(rng, n, kinds) for n in shape]}
        return made
    if name == "mgm":
        if rng.random() < 0.4:
            return {"name": "mgm", "factors": [_factor(rng, n, kinds) for n in shape]}
        made = {
            "name": "mgm",
            "weights": [
                np.exp(rng.uniform(-2, 2, n)).tolist() if rng.random() < 0.7 else None
                for n in shape
            ],
        }
        if not box and rng.random() < 0.6:
            made["directions"] = [_orthonormal(rng, n, n) for n in shape]
        return made
    if name in ("udn", "idn"):
        size = shape[axis]
        made = {"name": name, "axis": axis}
        if rng.random() < 0.5:
            made["weights"] = np.exp(rng.uniform(-2, 2, size)).tolist()
        elif rng.random() < 0.5:
            made["utility"] = rng.standard_normal((3, size)).tolist()
        if name == "udn" and not box and rng.random() < 0.6:
            made["directions"] = _orthonormal(rng, size, size)
        return made
    if name == "directional":
        weights = rng.random() < 0.7
        return (
            {"name": name, "weights": np.exp(rng.uniform(-2, 2, shape[feature_axis])).tolist()}
            if weights
            else {"name": name}
        )
    return {"name": name}


def _chunks(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Up to three along up to two axes; mostly lengths that divide the shape, which are read
    straight from files.
    """
    chunks = list(shape)
    for axis in rng.permutation(len(shape))[: int(rng.integers(0, 3))]:
        n = shape[axis]
        lengths = [
            d for d in range(1, n + 1) if -(-n // d) <= 3 and (n % d == 0 or rng.random() < 0.15)
        ]
        chunks[axis] = int(rng.choice(lengths))
    return tuple(chunks)


def _ranges(rng: Rng, count: int, scale: float) -> list[list[float]]:
    found = []
    for _ in range(count):
        low, high = sorted((rng.uniform(-scale, scale), rng.uniform(-scale, scale)))
        kind = int(rng.integers(4))
        if kind == 0:
            low, high = 0.0, abs(high) + 1e-3 * scale
        elif kind == 1:
            low, high = -abs(high) - 1e-3 * scale, abs(high) + 1e-3 * scale
        found.append([float(low), float(max(high, low + 1e-6 * scale))])
    return found


def _center(rng: Rng, unit: dict[str, Any], features: int, scale: float) -> float | list[float]:
    """A public centre: within the ranges, if there are any, else anywhere near the clip norm."""
    if "ranges" in unit:
        numbers = [float(low + rng.random() * (high - low)) for low, high in unit["ranges"]]
        return numbers[0] if len(numbers) == 1 else numbers
    if rng.random() < 0.5:
        return float(rng.normal() * scale)
    return [float(number) for number in rng.normal(size=features) * scale]


def random_case(rng: Rng, query: str, mechanism: str) -> Case:
    """One random spec of a query and a mechanism."""
    kind = "declared" if query == "steps" else query
    order = int(rng.integers(1, 5)) if kind in ("identity", "sum", "mean", "declared") else 2
    if kind == "histogram":
        order = int(rng.integers(1, 3))
    if mechanism == "mvg" and kind not in MOMENTS:
        order = max(order, 3 if kind in ("sum", "mean") else 2)
    longest = {1: 24, 2: 9, 3: 5, 4: 4}[order]
    shape = tuple(int(rng.integers(2, longest + 1)) for _ in range(order))
    if kind == "declared" and order == 1 and rng.random() < 0.3:
        shape = (int(rng.integers(24, 400)),)
    dtype = str(rng.choice(DTYPES, p=[0.3, 0.14, *[0.56 / 12] * 12]))
    unit: dict[str, Any] = {}
    contributions = int(rng.choice([1, 1, 1, 2, 3]))
    private = kind in ("sum", "second-moment", "histogram") and rng.random() < 0.4
    axis: int | None = None
    scale = _log_uniform(rng, 1e-2, 1e3) if rng.random() < 0.9 else _log_uniform(rng, 1e-30, 1e30)
    if kind == "declared" and np.dtype(dtype).kind != "f":
        scale = _log_uniform(rng, 2, 100)  # whole numbers can move by it
    box, feature_axis, answer_shape = False, 0, shape
    query_section: Any = kind
    if kind != "declared":
        axis = int(rng.integers(order))
        contributions = min(contributions, shape[axis] - 1)
        unit = {"record_dim": axis, "max_contributions": contributions}
        if private:
            unit["adjacency"] = "add-remove-one"
    others = [i for i in range(order) if i != axis]
    if kind in ("identity", "sum", "mean"):
        ranged = mechanism in ON_RANGES or rng.random() < 0.45
        if ranged:
            box = True
            if kind == "identity" and rng.random() < 0.25:
                axis = None
                unit = {"max_contributions": 1}
                contributions, others = 1, list(range(order))
            along = int(rng.choice(others)) if others else 0
            many = shape[along] if others and rng.random() < 0.6 else 1
            unit["ranges"] = _ranges(rng, many, scale)
            if private and mechanism in ("analytic-gaussian", "classic-gaussian", "auto"):
                # around another centre counts lie beside the sum: test_joint_audit.py
                unit["ranges"] = [[-high, high] for _, high in _ranges(rng, many, scale)]
            if others:
                unit["feature_dim"] = along
            feature_axis = along
        else:
            unit["l2_clip_norm"] = scale
    if kind in ("sum", "mean"):
        assert axis is not None
        answer_shape = tuple(n for i, n in enumerate(shape) if i != axis) or (1,)
        feature_axis -= feature_axis > axis and order > 1
    elif kind in MOMENTS:
        assert axis is not None
        answer_shape = (shape[1 - axis],) * 2
        if rng.random() < 0.4:
            many = shape[1 - axis] if rng.random() < 0.6 else 1
            unit |= {"ranges": _ranges(rng, many, scale), "feature_dim": 1 - axis}
        else:
            unit["l2_clip_norm"] = scale
        if kind == "covariance":
            query_section = {"name": kind, "center": _center(rng, unit, shape[1 - axis], scale)}
    elif kind == "histogram":
        available = 1 if order == 1 else shape[1 - (axis or 0)]
        columns = [
            int(c)
            for c in rng.permutation(available)[: int(rng.integers(1, min(available, 2) + 1))]
        ]
        edges: list[Any] = []
        if np.dtype(dtype).kind != "f" or np.dtype(dtype).itemsize == 2:
            scale = _log_uniform(rng, 2, 60)  # bins that the dtype can reach
        for _ in columns:
            low = float(abs(rng.normal()) if np.dtype(dtype).kind == "u" else rng.normal()) * scale
            if rng.random() < 0.3:
                edges.append({"low": low, "high": low + scale, "bins": int(rng.integers(2, 6))})
            else:
                edges.append(
                    np.unique(
                        low + scale * np.cumsum(rng.uniform(0.1, 1, int(rng.integers(3, 6))))
                    ).tolist()
                )
        query_section = {"name": "histogram", "edges": edges, "columns": columns}
        answer_shape = tuple(
            row["bins"] if isinstance(row, dict) else len(row) - 1 for row in edges
        )
    steps = 1
    spec: dict[str, Any] = {}
    if kind == "declared":
        if query == "steps":
            steps = shape[0]
            spec["composition"] = {"steps": steps, "steps_are_independent": True}
        query_section = {"name": "precomputed", "l2_sensitivity": scale}
    step_shape = answer_shape if steps == 1 else answer_shape[1:] or (1,)
    epsilon = (
        _log_uniform(rng, 0.05, 0.99)
        if mechanism == "classic-gaussian"
        else _log_uniform(rng, 0.05, 8)
    )
    section = _mechanism(
        rng,
        mechanism,
        step_shape,
        box=box,
        feature_axis=feature_axis,
        bounded=kind != "declared" and not private,
    )
    window = None
    if rng.random() < 0.12 and not (private or kind == "histogram" or steps > 1):
        along = int(rng.integers(order))
        before, after = (int(n) for n in rng.integers(0, 3, 2))
        window = {"axis": along, "start": before, "stop": before + shape[along]}
        shape = tuple(n + before + after if i == along else n for i, n in enumerate(shape))
    chunks = _chunks(rng, shape)
    storage: dict[str, Any] = {"compressors": None}
    if rng.random() < 0.08:
        storage = {}
    if not np.dtype(dtype).isnative:
        storage["zarr_format"] = int(rng.choice([2, 3]))
        if storage["zarr_format"] == 2:
            storage = {"zarr_format": 2, "compressors": None}
    noise: dict[str, Any] = {}
    coloured = mechanism in (*COLOURED, *ON_RANGES)
    if rng.random() < 0.5:
        choices = (
            ["float32", "float64"]
            if coloured or kind in MOMENTS
            else ["float32", "float64", "int32", "int64"]
        )
        noise["output_dtype"] = str(rng.choice(choices))
    if rng.random() < 0.25:
        noise["steps_per_sigma"] = 2 ** int(rng.integers(10 if mechanism in IID else 14, 24))
    publish: dict[str, Any] = {}
    if kind in MOMENTS:
        publish["chunks"] = [int(rng.integers(-(-answer_shape[0] // 3), answer_shape[0] + 1))] * 2
    elif rng.random() < 0.5:
        publish["chunks"] = list(_chunks(rng, answer_shape))
    if publish and rng.random() < 0.15:
        publish["shards"] = [2 * c for c in publish["chunks"]]
    if rng.random() < 0.1:
        publish["codec"] = "zstd"
    spec |= {
        "source": {"array": "x", **({} if window is None else {"window": window})},
        "privacy_unit": unit,
        "query": query_section,
        "privacy": {"epsilon": epsilon, "delta": _log_uniform(rng, 1e-10, 1e-3)},
        "mechanism": section,
        "noise": noise,
        "publish": publish,
        "budget": {"dataset": "audit"},
        "accept_uncertified": mechanism
        in SPHERICAL,  # which is never certified; what is verified must hold all the same
        "compute": {"threads": 1, "task_size": int(rng.choice([1, 64, 2**26, 2**26]))},
    }
    return Case(
        query=query,
        mechanism=mechanism,
        spec=spec,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        storage=storage,
        axis=axis,
        contributions=contributions,
        private_count=private,
        steps=steps,
    )

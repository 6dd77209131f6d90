"""Hostile neighbours of the privacy unit, built from a spec and what an attacker knows of its plan.

Values sit at, next to and far beyond every bound: NaN, infinities, zeros of both signs, subnormals,
the largest numbers of the dtype, clip norms, ends of ranges, edges of bins, half-points of every
grid; records are equal everywhere, concentrated in one entry, opposite, or along the direction in
which the noise is weakest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from dpdask.noise import KroneckerNoise
from dpdask.noise.factors import DenseFactor, Factor, LowRankFactor
from dpdask.planning import Component
from dpdask.queries import Clip, Ranges
from dpdask.queries.histogram import Histogram
from tests.privacy.audit import Group, Values

__all__ = ["declared_groups", "quietest_vector", "record_groups", "resized_groups"]

Rng = np.random.Generator


def cast(values: Any, dtype: np.dtype[Any]) -> Values:
    """Values in a dtype; integers saturate, so that every hostile number has a place."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            low, high = float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
            whole = np.rint(np.nan_to_num(array, nan=0.0, posinf=math.inf, neginf=-math.inf))
            inner = np.clip(whole, low, math.nextafter(high, 0.0)).astype(dtype)
            return np.where(whole >= high, np.array(np.iinfo(dtype).max, dtype), inner).astype(
                dtype
            )
        return array.astype(dtype)


def _near(value: float) -> list[float]:
    return [value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]


def _near_in(value: float, dtype: np.dtype[Any]) -> list[float]:
    """A value and its neighbours among doubles and in the dtype."""
    if dtype.kind != "f" or dtype.itemsize == 8:
        return _near(value)
    with np.errstate(all="ignore"):
        small = np.asarray(value).astype(dtype.newbyteorder("="))
        found = [
            float(np.nextafter(small, np.asarray(side, small.dtype))) for side in (np.inf, -np.inf)
        ]
    return [*_near(value), *(v for v in found if math.isfinite(v))]


def grid_steps(component: Component) -> list[float]:
    """Every grid that the component rounds to, in units of the data."""
    privatizer, steps = component.privatizer, []
    records = component.exact_sum and component.exact_sum.records
    for grid in (
        getattr(privatizer, "grid", None),
        privatizer.clip_grid,
        records and records.grid,
    ):
        if grid:
            steps.append(grid.step)
    noise = privatizer.noise
    if isinstance(noise, KroneckerNoise) and hasattr(privatizer, "steps_per_sigma"):
        smallest = math.prod(factor.smallest for factor in noise.factors)
        steps.append(smallest / privatizer.steps_per_sigma)
    return steps


def pool(component: Component, dtype: np.dtype[Any], rng: Rng) -> list[float]:
    """Numbers that could break something."""
    found = [
        0.0,
        -0.0,
        math.nan,
        math.inf,
        -math.inf,
        5e-324,
        -5e-324,
        1e-310,
        1e-45,
        1e300,
        -1e300,
        1.7976931348623157e308,
    ]
    found += [
        1.0,
        -1.0,
        2.0**31,
        -(2.0**31),
        2.0**52 + 1,
        2.0**63,
        -(2.0**63),
        65504.0,
        3.4028235e38,
        -3.4028235e38,
    ]
    bound = component.query.bound
    if isinstance(bound, Clip):
        for scale in (1.0, 0.5, 1e6, 1e-6):
            found += [sign * v for v in _near_in(bound.norm * scale, dtype) for sign in (1.0, -1.0)]
    if isinstance(bound, Ranges):
        for low, high in bound.pairs:
            found += (
                _near_in(low, dtype)
                + _near_in(high, dtype)
                + [(low + high) / 2, 2 * high - low, 2 * low - high]
            )
    if isinstance(component.query, Histogram):
        for axis in component.query.axes:
            row = axis.edges
            for edge in row:
                found += _near_in(edge, dtype)
            found += [(a + b) / 2 for a, b in itertools.pairwise(row)]
    for step in grid_steps(component):
        for m in rng.integers(-(2**20), 2**20, 4):
            found += [
                (float(m) + 0.5) * step,
                math.nextafter((float(m) + 0.5) * step, math.inf),
                float(m) * step,
            ]
        found += [0.5 * step, math.nextafter(0.5 * step, 0.0), -0.5 * step]
    return found


def quietest_vector(factor: Factor) -> Values:
    """The unit vector along which a factor's noise is weakest."""
    if isinstance(factor, DenseFactor):
        return np.asarray(np.linalg.svd(factor.matrix)[0][:, -1])
    if isinstance(factor, LowRankFactor):
        least = int(np.argmin(factor.scales))
        if factor.scales[least] <= factor.base:
            return np.asarray(factor.directions[:, least])
        rest = np.zeros(factor.size)
        rest[int(np.argmin(np.sum(factor.directions**2, axis=1)))] = 1.0
        rest -= factor.directions @ (factor.directions.T @ rest)
        norm = float(np.linalg.norm(rest))
        return rest / norm if norm > 1e-6 else np.asarray(factor.directions[:, least])
    diagonal = factor.diagonal()
    vector = np.zeros(factor.size)
    vector[int(np.argmin(diagonal)) if isinstance(diagonal, np.ndarray) else 0] = 1.0
    return vector


def _outer(vectors: Sequence[Values]) -> Values:
    total: Values = np.ones(())
    for vector in vectors:
        total = np.multiply.outer(total, vector)
    return total


def _unit_vectors(
    component: Component, shape: tuple[int, ...], axes: Sequence[int] | None, rng: Rng
) -> list[tuple[str, Values]]:
    """Unit tensors: even, concentrated, alternating, random, and along the noise's weakest
    directions.
    """
    size = math.prod(shape)
    even = np.full(shape, 1 / math.sqrt(size))
    one = np.zeros(size)
    one[int(rng.integers(size))] = 1.0
    random = rng.standard_normal(size)
    found = [
        ("even", even),
        ("alternating", (even.reshape(-1) * (1 - 2 * (np.arange(size) % 2))).reshape(shape)),
        ("first entry", np.eye(1, size).reshape(shape)),
        ("one entry", one.reshape(shape)),
        ("random", (random / np.linalg.norm(random)).reshape(shape)),
    ]
    noise = component.privatizer.noise
    if isinstance(noise, KroneckerNoise) and axes is not None:
        vectors = [quietest_vector(noise.factors[axis]) for axis in axes]
        quiet = _outer(vectors)
        if quiet.shape == shape:
            found.append(("quietest", quiet))
    return found


def _answer_axes(component: Component, record_axis: int | None) -> list[int] | None:
    """The axes of the noise along which one record lies."""
    query = component.query
    order = len(query.answer_shape)
    if query.symmetric:
        return [1]
    if query.summed:
        return None if len(query.source_shape) == 1 else list(range(order))
    return [axis for axis in range(order) if axis != record_axis]


def _records(
    component: Component, shape: tuple[int, ...], dtype: np.dtype[Any], axis: int | None, rng: Rng
) -> Iterator[tuple[str, Values]]:
    """Hostile records of ``shape``."""
    bound, numbers = component.query.bound, pool(component, dtype, rng)
    size = math.prod(shape)
    if isinstance(bound, Clip):
        center = bound.center.without(bound.record_axis, shape)
        units = _unit_vectors(component, shape, _answer_axes(component, axis), rng)
        chosen = [units[-1], *(units[i] for i in rng.permutation(len(units) - 1)[:3])]
        for name, unit in chosen:
            for scale in (
                1.0,
                float(rng.choice([1 + 2.0**-52, 1 - 2.0**-53, 0.999999, 1e8, 1e200, 3.7])),
            ):
                yield f"{name} x {scale:g} C", center + unit * bound.norm * scale
                yield f"{name} x {-scale:g} C", center - unit * bound.norm * scale
    elif isinstance(bound, Ranges):
        along = (
            bound.feature_axis - (axis is not None and bound.feature_axis > axis)
            if len(shape)
            else 0
        )
        index = [-1 if i == along else 1 for i in range(len(shape))]
        low, high = (
            np.broadcast_to(np.reshape(ends, index) if len(ends) > 1 and shape else ends[0], shape)
            for ends in (bound.lows, bound.highs)
        )
        yield "all low", low
        yield "all high", high
        yield "all far below", np.full(shape, -math.inf)
        yield "all far above", np.full(shape, 1e300)
        mixed = rng.random(shape) < 0.5
        yield "mixed ends", np.where(mixed, low, high)
        yield "opposite ends", np.where(mixed, high, low)
        with np.errstate(all="ignore"):
            yield (
                "just outside",
                np.where(mixed, np.nextafter(low, -np.inf), np.nextafter(high, np.inf)),
            )
            yield (
                "just inside",
                np.where(mixed, np.nextafter(low, np.inf), np.nextafter(high, -np.inf)),
            )
    if isinstance(component.query, Histogram):
        for _ in range(8):
            record = rng.choice(numbers, size)
            for axis in component.query.axes:
                column, row = axis.column, axis.edges
                left = int(rng.integers(len(row) - 1))
                record[column] = float(
                    rng.choice([row[left], (row[left] + row[left + 1]) / 2, row[left + 1]])
                )
            yield f"in a bin, at {record[component.query.columns[0]]:g}", record.reshape(shape)
    while True:
        value = float(rng.choice(numbers))
        kind = int(rng.integers(4))
        if kind == 0:
            yield f"all {value:g}", np.full(shape, value)
        elif kind == 1:
            record = np.zeros(size)
            record[int(rng.integers(size))] = value
            yield f"one entry {value:g}", record.reshape(shape)
        elif kind == 2:
            yield "hostile entries", rng.choice(numbers, size).reshape(shape)
        else:
            usual = rng.standard_normal(shape) * float(rng.choice([1e-3, 1.0, 1e3]))
            yield "ordinary", usual


def _window(shape: tuple[int, ...], window: tuple[int, int, int] | None) -> tuple[slice, ...]:
    """The part of a stored array that is released."""
    return tuple(
        slice(window[1], window[2]) if window and i == window[0] else slice(0, n)
        for i, n in enumerate(shape)
    )


def _bases(component: Component, shape: tuple[int, ...], dtype: np.dtype[Any], rng: Rng) -> Values:
    kind = int(rng.integers(4))
    if kind == 0:
        return cast(np.zeros(shape), dtype)
    if kind == 1:
        return cast(rng.choice(pool(component, dtype, rng), shape), dtype)
    bound = component.query.bound
    scale = (
        bound.norm
        if isinstance(bound, Clip)
        else bound.largest
        if isinstance(bound, Ranges)
        else 1.0
    )
    return cast(
        rng.standard_normal(shape) * min(scale, 1e100) * float(rng.choice([0.1, 1.0, 10.0])), dtype
    )


def _hostile_positions(
    component: Component, axis: int, count: int, offset: int, rng: Rng
) -> list[int]:
    """First and last records, tile borders, and where the noise along the records is weakest."""
    found = [0, count - 1, int(rng.integers(count))]
    tiling = component.tiling
    if not component.query.summed and axis < len(tiling.extent):
        border = tiling.extent[axis]
        found += [p for p in (border - 1, border) if 0 <= p < count]
        noise = component.privatizer.noise
        if isinstance(noise, KroneckerNoise) and axis < len(noise.factors):
            factor = noise.factors[axis]
            inverse = factor.inverse() if isinstance(factor, DenseFactor) else None
            if inverse is not None:
                found.append(int(np.argmax(np.linalg.norm(inverse, axis=0))))
            elif isinstance(factor.diagonal(), np.ndarray):
                found.append(int(np.argmin(factor.diagonal())))
    return [offset + p for p in found]


def record_groups(
    component: Component,
    *,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axis: int | None,
    contributions: int,
    window: tuple[int, int, int] | None,
    rng: Rng,
    groups: int,
    variants: int,
) -> Iterator[Group]:
    """Replace-one: in every source of a group the same few records (or, without a record axis,
    everything) are replaced.
    """
    for _ in range(groups):
        base = _bases(component, shape, dtype, rng)
        if axis is None:
            seen = _window(shape, window)
            records = _records(
                component, tuple(part.stop - part.start for part in seen), dtype, None, rng
            )
            named = [next(records) for _ in range(variants)]
            sources = [base, *(base.copy() for _ in named)]
            for source, (_, record) in zip(sources[1:], named, strict=True):
                source[seen] = cast(record, dtype)
            yield Group(
                sources=tuple(sources), names=("base", *(name for name, _ in named)), clique=True
            )
            continue
        start, stop = (
            (window[1], window[2]) if window is not None and window[0] == axis else (0, shape[axis])
        )
        positions = _hostile_positions(component, axis, stop - start, start, rng)
        preferred = positions[-1] if rng.random() < 0.5 else int(rng.choice(positions))
        others = [p for p in rng.permutation(np.arange(start, stop)) if p != preferred]
        unit = [preferred, *(int(p) for p in others[: contributions - 1])]
        seen = _window(shape, window)
        record_shape = tuple(part.stop - part.start for i, part in enumerate(seen) if i != axis)
        records = _records(component, record_shape, dtype, axis, rng)
        sources, names = [base], ["base"]
        for number in range(variants):
            name, record = next(records)
            source = base.copy()
            whole = number < 12 or rng.random() < 0.6
            for position in unit if whole else unit[: int(rng.integers(1, len(unit) + 1))]:
                source[(*seen[:axis], position, *seen[axis + 1 :])] = cast(record, dtype)
                if not whole and rng.random() < 0.5:
                    _, record = next(records)
            sources.append(source)
            names.append(f"records {unit} {name}")
        yield Group(sources=tuple(sources), names=tuple(names), clique=True)


def resized_groups(
    component: Component,
    *,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axis: int,
    contributions: int,
    rng: Rng,
    groups: int,
    variants: int,
) -> Iterator[tuple[int, Group]]:
    """Add-remove-one: a source and what is left of it when a unit's records go; yields how many go,
    at most.
    """
    record_shape = tuple(n for i, n in enumerate(shape) if i != axis)
    for _ in range(groups):
        gone = (
            int(rng.integers(1, contributions + 1))
            if contributions > 1 and rng.random() < 0.3
            else contributions
        )
        gone = min(gone, shape[axis] - 1)
        rest = _bases(
            component, tuple(n - gone if i == axis else n for i, n in enumerate(shape)), dtype, rng
        )
        records = _records(component, record_shape, dtype, axis, rng)
        sources, names = [rest], ["without the unit"]
        for _ in range(variants):
            name, record = next(records)
            source = rest
            for _ in range(gone):
                count = source.shape[axis]
                at = int(rng.choice([0, count, int(rng.integers(count + 1))]))
                source = np.insert(source, at, cast(record, dtype), axis=axis)
            sources.append(source)
            names.append(f"with {gone} records {name}")
        yield gone, Group(sources=tuple(sources), names=tuple(names), clique=False)


# --- finished results with a declared sensitivity
# -----------------------------------------------------------------------------


def _within(one: Values, other: Values, radius: float) -> bool:
    """Whether two stored arrays are at most ``radius`` apart, exact for small ones and with margin
    to spare for large ones.
    """
    moved = np.flatnonzero(one != other)
    a, b = one.reshape(-1)[moved], other.reshape(-1)[moved]
    if moved.size > 4096:
        total = np.sum((a.astype(np.longdouble) - b.astype(np.longdouble)) ** 2)
        return bool(np.sqrt(total) <= np.longdouble(radius) * (1 - np.longdouble(2) ** -50))
    square = sum(
        (Fraction(x) - Fraction(y)) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)
    )
    return square <= Fraction(radius) ** 2


def _moved(base: Values, unit: Values, radius: float) -> Values | None:
    """``base`` moved along ``unit`` by as much of ``radius`` as the dtype lets it, never more."""
    length = radius
    for shrink in (
        2.0**-53,
        2.0**-51,
        2.0**-48,
        2.0**-44,
        2.0**-40,
        2.0**-34,
        2.0**-28,
        2.0**-22,
        2.0**-14,
        2.0**-8,
        0.1,
        0.3,
        0.6,
    ):
        exact = base.astype(np.longdouble) + unit.astype(np.longdouble) * np.longdouble(length)
        with np.errstate(over="ignore"):
            moved = (
                exact.astype(base.dtype)
                if base.dtype.kind == "f"
                else cast(np.asarray(exact, np.float64), base.dtype)
            )
        if np.all(np.isfinite(moved)) and _within(base, moved, radius):
            return moved
        length = radius * (1 - shrink)
    return None


def declared_groups(
    component: Component,
    *,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    steps: int,
    window: tuple[int, int, int] | None,
    rng: Rng,
    groups: int,
    variants: int,
) -> Iterator[Group]:
    """Stars around a result: each other one just within the declared l2 distance, in each step."""
    radius = component.query.sensitivity.radius
    clamp = component.privatizer.largest
    spacing = grid_steps(component)
    for number in range(groups):
        seen = _window(shape, window)
        inner = tuple(part.stop - part.start for part in seen)[0 if steps == 1 else 1 :]
        large = [
            1e3 * radius,
            clamp * 2.0**-8,
            clamp * 0.5,
            clamp * (1 - 2.0**-12),
            clamp,
            2 * clamp,
        ]
        offset = float(rng.choice([0.0, radius] if number == 0 else large))
        kind = int(rng.integers(4))
        if kind == 0:
            exact = np.full(shape, offset)
        elif kind == 1:
            exact = offset * rng.choice([-1.0, 1.0], shape)
        elif (
            kind == 2 and spacing
        ):  # just below a half-point of the grid, where the least move rounds up everywhere
            step = spacing[-1]
            exact = np.nextafter(
                (np.rint(min(offset, 2.0**48 * step) / step * rng.random(shape)) + 0.5) * step,
                -np.inf,
            )
        else:
            exact = offset + rng.standard_normal(shape) * radius
        with np.errstate(all="ignore"):
            base = cast(exact, dtype)
        if dtype.kind == "f":
            base = np.nan_to_num(
                base, posinf=float(np.finfo(dtype).max), neginf=float(np.finfo(dtype).min)
            ).astype(dtype)
        sources, names = [base], [f"offset {offset:g}"]
        axes = list(range(len(component.query.answer_shape))) if steps == 1 else None
        while len(sources) <= variants:
            for name, unit in _unit_vectors(component, inner, axes, rng):
                sign = float(rng.choice([-1.0, 1.0]))
                moved = [
                    _moved(part, sign * unit, radius)
                    for part in (base if steps > 1 else base[seen][None])
                ]
                if any(part is None for part in moved):
                    continue
                source = base.copy()
                source[seen] = np.stack(moved) if steps > 1 else moved[0]  # type: ignore[arg-type]
                sources.append(source)
                names.append(f"{name} x {sign:+g} s")
            if len(sources) == 1:
                break
        yield Group(
            sources=tuple(sources[: variants + 1]), names=tuple(names[: variants + 1]), clique=False
        )

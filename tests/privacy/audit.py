"""The exact audit: two neighbours through the real tasks with one fixed key, and how far apart the
released integers are.

Noise is a function of key, fingerprint, component and tile, so two runs on neighbouring sources
draw the same integers and the difference of their outputs is free of noise. In whitened units (grid
steps over steps per sigma) its l2 norm is exactly the mu that this pair shows to an observer, and
must not exceed the mu that the plan verified. One pair is one exact test.

What is read is the output of the real tasks under the plan's own recipe, tiles and bounds, in a
*lossless view*: float64, not divided by a public count, not symmetrised. The published form is
post-processing of it, which :meth:`Subject.check_published` compares byte for byte. Un-whitening by
factors that mix entries is post-processing as well and left out; that the published floats are
those integers, un-whitened, is checked in extended precision. So integers are compared, in exact
arithmetic: the audit has no tolerance. Spherical noise is rounded after it is added: there the
answers are read without noise, to 2^-50 of their size, and their l2 distance, less that resolution,
is compared. Laplace noise is compared in l1: grid steps over steps per scale, against the largest
privacy loss that was verified.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from dpdask import execution
from dpdask.accounting import GaussianProfile, PureProfile, SphericalProfile
from dpdask.accounting.composed import ComposedProfile, SampledProfile
from dpdask.execution import InlineExecutor
from dpdask.keystream import ReleaseKey
from dpdask.noise import LaplaceNoise, SphericalNoise
from dpdask.noise.factors import DenseFactor, Factor, LowRankFactor
from dpdask.planning import Component, ReleasePlan, make_plan, recipe_digest
from dpdask.planning.build_mechanism import calibrate_mechanism, steps_of
from dpdask.privacy import PrivacyProfile
from dpdask.privatizers import kernels, panels
from dpdask.privatizers.blocks import drawn_integers
from dpdask.privatizers.iid import IidPrivatizer
from dpdask.privatizers.kronecker import KroneckerPrivatizer
from dpdask.privatizers.spherical import SphericalPrivatizer
from dpdask.queries import SecondMoment
from dpdask.spec import parse_release_spec
from dpdask.storage import Publisher, open_storage

__all__ = [
    "KEY",
    "Group",
    "InlineExecutor",
    "Subject",
    "Verdict",
    "audit_group",
    "plan_for",
    "reused_noise",
    "verified_mu",
]

KEY = bytes(range(32))
FINGERPRINT = "ab" * 32
NEAR = 0.2  # steps between an un-mixed output and its integer; a quarter would still be unambiguous

Values = np.ndarray[Any, Any]


# --- running the real tasks
# -------------------------------------------------------------------------------------------


def _quiet(_progress: Any) -> None:
    """No progress is shown."""


class SourceFile:
    """A stored source whose values can be replaced quickly; its schema stays."""

    def __init__(
        self, path: Path, shape: Sequence[int], dtype: str, chunks: Sequence[int], **options: Any
    ) -> None:
        self.path, self.shape, self.chunks = path, tuple(shape), tuple(chunks)
        self.array = zarr.create_array(
            path, name="x", shape=shape, chunks=tuple(chunks), dtype=dtype, **options
        )
        self.dtype = np.dtype(self.array.dtype)
        plain = (
            options.get("compressors", "auto") is None
            and options.get("zarr_format", 3) == 3
            and "serializer" not in options
        )
        self._raw = plain and self.dtype.isnative

    def put(self, values: Values) -> None:
        """Store ``values``."""
        if not self._raw:
            self.array[...] = values
            return
        for index in np.ndindex(
            *(-(-n // c) for n, c in zip(self.shape, self.chunks, strict=True))
        ):
            box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, self.chunks, strict=True))
            part = np.ascontiguousarray(values[box], self.dtype)
            if (
                part.shape != self.chunks
            ):  # what lies beyond the edge must not matter: fill it with something loud
                whole = np.full(self.chunks, 113, self.dtype)
                whole[tuple(slice(0, n) for n in part.shape)] = part
                part = whole
            file = self.path / "x" / self.array.metadata.encode_chunk_key(index)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(part.tobytes())


def plan_for(spec: dict[str, Any]) -> ReleasePlan:
    """The plan of a spec, as plain data; nothing is charged."""
    return make_plan(parse_release_spec(spec))


def calibrated_noise(plan: ReleasePlan) -> Any:
    """The data's noise as its mechanism calibrates it, with nothing for rounding."""
    query, spec = plan.data.query, plan.spec
    return calibrate_mechanism(
        spec.mechanism,
        budget=spec.privacy.budget(),
        sensitivity=query.sensitivity,
        shape=query.answer_shape,
        steps=steps_of(spec.composition, query.max_contributions),
        norm_bound=query.norm_bound,
    ).noise


def _lossless(plan: ReleasePlan, component: Component) -> tuple[ReleasePlan, Component]:
    """The same release with nothing after the noise: float64, undivided, not symmetrised."""
    query = component.query
    if isinstance(query, SecondMoment):  # as the noise meets it, before both halves are averaged
        plain = type(type(query).__name__, (type(query),), {"symmetric": False})
        fields = {field.name: getattr(query, field.name) for field in dataclasses.fields(query)}
        query = plain(**fields)
    component = dataclasses.replace(
        component,
        query=dataclasses.replace(query, divisor=1),
        tiling=dataclasses.replace(component.tiling, symmetric=False),
    )
    whole = component.tiling.write_chunk
    layout = dataclasses.replace(
        plan.layout,
        shape=component.tiling.shape,
        chunks=whole,
        shards=None,
        dtype="float64",
        codec="none",
        dimension_names=tuple(f"dim_{axis}" for axis in range(len(whole))),
    )
    variables = (dataclasses.replace(plan.only, layout=layout),)
    return dataclasses.replace(plan, variables=variables, fingerprint=FINGERPRINT), component


def _without_noise(component: Component, reach: float) -> Component:
    """Spherical noise of no size on a grid of 2^-50 of ``reach``, to read the answers."""
    recipe = component.privatizer
    assert isinstance(recipe, SphericalPrivatizer)
    silent = SphericalNoise(
        recipe.noise.shape, type(recipe.noise.law)(1e-300 * recipe.noise.law.scale)
    )
    step = 2.0 ** (math.frexp(min(reach, recipe.largest) or recipe.largest)[1] - 50)
    quiet = dataclasses.replace(recipe, noise=silent, rounding=step)
    discretized = dataclasses.replace(component.discretized, privatizer=quiet)
    return dataclasses.replace(component, discretized=discretized)


@contextlib.contextmanager
def _nothing_after_the_noise(recipe: Any) -> Iterator[None]:
    """Leave out un-whitening by factors that mix entries: outputs are then integers over steps per
    sigma, exactly.
    """
    transform, finish = panels.transform, kernels.low_rank_finish

    def only_whiten(work: Values, factor: Any, axis: int, *, inverse: bool) -> Values:
        return transform(work, factor, axis, inverse=True) if inverse else work

    def only_scale(sums: Values, out: Values, *_whitening: Any) -> None:
        out[...] = sums / recipe.steps_per_sigma

    try:
        panels.transform, kernels.low_rank_finish = only_whiten, only_scale
        yield
    finally:
        panels.transform, kernels.low_rank_finish = transform, finish


# --- from outputs to integers
# -----------------------------------------------------------------------------------------


class OffGrid(Exception):
    """An output that is not on the grid of its noise shows more of the data than integers do."""


def _along(work: Values, axis: int, transform: Callable[[Values], Values]) -> Values:
    """Apply a map of vectors along one axis."""
    lifted = np.moveaxis(work, axis, 0)
    flat = transform(lifted.reshape(lifted.shape[0], -1))
    return np.moveaxis(flat.reshape(lifted.shape), 0, axis)


def _mix(work: Values, factors: Sequence[Factor], *, inverse: bool) -> Values:
    """U or its inverse along every axis, in extended precision."""
    for axis, factor in enumerate(factors):
        if isinstance(factor, DenseFactor):
            matrix = (factor.inverse() if inverse else factor.matrix).astype(np.longdouble)
            work = _along(work, axis, lambda flat, m=matrix: m @ flat)  # type: ignore[misc]
        elif isinstance(factor, LowRankFactor):
            v = factor.directions.astype(np.longdouble)
            base, scales = np.longdouble(factor.base), factor.scales.astype(np.longdouble)
            if inverse:
                base, scales = 1 / base, 1 / scales
            work = _along(
                work,
                axis,
                lambda x, v=v, b=base, s=scales: b * x + v @ ((s - b)[:, None] * (v.T @ x)),
            )  # type: ignore[misc]
        else:
            diagonal = np.asarray(factor.diagonal(), dtype=np.longdouble)
            scale = (
                diagonal.reshape([-1 if i == axis else 1 for i in range(work.ndim)])
                if diagonal.ndim
                else diagonal
            )
            work = work / scale if inverse else work * scale
    return work


def _rounded(steps: Values) -> Values:
    found = np.rint(steps)
    if (
        not np.all(np.isfinite(found))
        or np.any(np.abs(found) > 2.0**60)
        or np.any(np.abs(steps - found) > NEAR)
    ):
        raise OffGrid
    return found.astype(np.int64)


def _mixes(recipe: Any) -> bool:
    return isinstance(recipe, KroneckerPrivatizer) and any(
        factor.diagonal() is None for factor in recipe.noise.factors
    )


def _integers(recipe: Any, out: Values) -> Values:
    """The grid integers that a lossless output stands for; :class:`OffGrid` where it stands for
    none.
    """
    exact = out.astype(np.longdouble)
    if _mixes(recipe):
        return _rounded(exact * np.longdouble(recipe.steps_per_sigma))
    if isinstance(recipe, KroneckerPrivatizer):
        return _rounded(
            _mix(exact, recipe.noise.factors, inverse=True) * np.longdouble(recipe.steps_per_sigma)
        )
    return _rounded(exact / np.longdouble(recipe.step))


def _check_unwhitened(recipe: Any, integers: Values, out: Values) -> None:
    """Published floats are the integers, un-whitened: nothing else of the data is in them."""
    expected = _mix(
        integers.astype(np.longdouble), recipe.noise.factors, inverse=False
    ) / np.longdouble(recipe.steps_per_sigma)
    size = math.sqrt(out.size) * float(np.max(np.abs(expected))) * _condition(recipe)
    np.testing.assert_allclose(out, expected.astype(np.float64), rtol=1e-11, atol=1e-14 * size)


def _condition(recipe: Any) -> float:
    """By how much mixing may enlarge the rounding of an output."""
    condition = 1.0
    for factor in recipe.noise.factors if isinstance(recipe, KroneckerPrivatizer) else ():
        if isinstance(factor, DenseFactor):
            condition *= factor.size * float(factor.singular[0]) / factor.smallest
        elif isinstance(factor, LowRankFactor):
            condition *= (
                math.sqrt(factor.size)
                * max(factor.base, float(np.max(factor.scales)))
                / factor.smallest
            )
    return condition


# --- what the plan allows
# ---------------------------------------------------------------------------------------------


def _step_profile(profile: PrivacyProfile) -> PrivacyProfile:
    """The profile of one step that was not sampled."""
    if isinstance(profile, ComposedProfile):
        [(profile, _)] = profile.parts
    return profile.step if isinstance(profile, SampledProfile) else profile


def verified_mu(component: Component) -> tuple[float, float]:
    """The verified mu of one step and of all of them (infinite where sampling stands between the
    two).
    """
    verified, steps = component.guarantee.verified, getattr(component.query, "steps", 1)
    single = _step_profile(verified)
    assert isinstance(single, GaussianProfile)
    if single is verified:
        return (single.mu if steps == 1 else float(component.discretized.mu or 0.0)), single.mu
    return single.mu, math.inf


@dataclass(frozen=True, repr=False)
class Subject:
    """One component of a plan, to be run on any values of its source."""

    plan: ReleasePlan
    component: Component
    file: SourceFile
    key: ReleaseKey = dataclasses.field(default_factory=lambda: ReleaseKey(KEY))
    fingerprint: str = FINGERPRINT

    @classmethod
    def of(cls, spec: dict[str, Any], file: SourceFile, **options: Any) -> Subject:
        """The data component of a spec's plan."""
        plan = plan_for(spec)
        return cls(plan, plan.data, file, **options)

    @property
    def spherical(self) -> bool:
        """Whether the noise is one random direction."""
        return isinstance(self.component.privatizer, SphericalPrivatizer)

    @property
    def norm(self) -> int:
        """The norm in which neighbours are compared: 1 for Laplace noise, else 2."""
        return 1 if isinstance(self.component.noise, LaplaceNoise) else 2

    def outputs(self, values: Values, *, published: bool = False) -> Values:
        """What the tasks write for ``values``: in the lossless view, or as it is published."""
        self.file.put(values)
        plan, component = (
            (self.plan, self.component) if published else _lossless(self.plan, self.component)
        )
        return self._written(dataclasses.replace(plan, fingerprint=self.fingerprint), component)

    def _written(self, plan: ReleasePlan, component: Component) -> Values:
        executor, layout = InlineExecutor(), plan.layout
        place = open_storage(f"memory://audit-{id(self)}")
        staging = Publisher.of(place, "audit")
        variable = plan.only.answering(component)
        intermediates = execution.prepare(executor, plan, variable, _quiet)
        work = execution.TileWork(plan, variable, intermediates, staging)
        try:
            for written in execution.write(executor, [work], self.key, set(), _quiet):
                assert not written.conflicts, "a tile was written twice, with other bytes"
            out = np.empty(layout.shape, layout.dtype)
            for index in layout.indices():
                out[layout.region(index)] = _decoded(
                    layout, index, staging.data.read(layout.key(index)) or b""
                )
            return out
        finally:
            place.delete()

    def integers(self, values: Values, reach: float = math.inf) -> Values:
        """The whitened grid integers that an observer could read off the release of ``values``,
        noise included.

        For spherical noise, the answers themselves to 2^-50 of ``reach``, a bound on all sources
        that are compared.
        """
        if self.spherical:
            quiet = dataclasses.replace(self, component=_without_noise(self.component, reach))
            return _integers(quiet.component.privatizer, quiet.outputs(values))
        recipe = self.component.privatizer
        with _nothing_after_the_noise(recipe) if _mixes(recipe) else contextlib.nullcontext():
            return _integers(recipe, self.outputs(values))

    def steps_per_sigma(self, reach: float = math.inf) -> float:
        """How many integers make one standard deviation; for spherical noise, the unit of length of
        its law.
        """
        recipe = self.component.privatizer
        if isinstance(recipe, IidPrivatizer):
            return recipe.grid.steps_per_sigma
        if isinstance(recipe, KroneckerPrivatizer):
            return recipe.steps_per_sigma
        assert isinstance(recipe, SphericalPrivatizer)
        step = _without_noise(self.component, reach).privatizer.step
        assert step is not None
        return recipe.noise.law.scale / step

    @property
    def allowed(self) -> tuple[float, float]:
        """The whitened distance that was verified, for one step and for all of them together."""
        if self.norm == 1:
            loss = self.component.guarantee.verified
            assert isinstance(loss, PureProfile)
            return loss.largest_loss, loss.largest_loss
        if not self.spherical:
            return verified_mu(self.component)
        profile = _step_profile(self.component.guarantee.verified)
        assert isinstance(profile, SphericalProfile)
        far = profile.sensitivity / profile.law.scale
        return far, far

    def check_published(self, values: Values) -> None:
        """The published bytes are a function of the lossless ones: divided, symmetrised, cast or
        packed, and nothing else.
        """
        lossless, published = self.outputs(values), self.outputs(values, published=True)
        recipe = self.component.privatizer
        if _mixes(recipe):
            _check_unwhitened(recipe, self.integers(values), lossless)
        query, dtype = self.component.query, published.dtype
        if dtype.kind == "i":
            step = self.component.privatizer.step
            assert step is not None
            expected = np.rint(lossless / step)
        else:
            expected = lossless / query.divisor
            expected = (expected + expected.T) / 2 if query.symmetric else expected
        np.testing.assert_array_equal(published, expected.astype(dtype))

    def check_noise(self, nothing: Values) -> None:
        """A release of ``nothing``, whose answer is 0, is the noise: the integers of every tile's
        own stream, and no others.
        """
        found, steps_per_sigma = self.integers(nothing), self.steps_per_sigma()
        _, component = _lossless(self.plan, self.component)
        binding = bytes.fromhex(recipe_digest(self.fingerprint, component))
        for index in component.tiling.indices():
            block = found[component.tiling.box(index)]
            stream = self.key.tile(fingerprint=binding, component=component.name, index=index)
            drawn = np.empty(block.size)
            drawn_integers(component.privatizer.sampler, stream, steps_per_sigma, drawn)
            np.testing.assert_array_equal(
                np.sort(block.reshape(-1)), np.sort(drawn).astype(np.int64)
            )


def _decoded(layout: Any, index: tuple[int, ...], stored: bytes) -> Values:
    """A staged write chunk as values."""
    box = layout.region(index)
    if layout.shards is None and layout.codec == "none":
        whole = np.frombuffer(stored[:-4], layout.dtype).reshape(layout.chunks)
        return whole[tuple(slice(0, part.stop - part.start) for part in box)]
    from zarr.core.buffer import default_buffer_prototype
    from zarr.storage import MemoryStore

    kept: dict[str, Any] = {}
    array = layout.create(MemoryStore(kept))
    kept[array.metadata.encode_chunk_key(index)] = default_buffer_prototype().buffer.from_bytes(
        stored
    )
    return np.asarray(array[box])


# --- comparing
# ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Group:
    """Sources of which the first neighbours every other one; in a ``clique`` any two are
    neighbours.
    """

    sources: tuple[Values, ...]
    names: tuple[str, ...]
    clique: bool

    def pairs(self) -> Iterable[tuple[int, int]]:
        """All pairs of neighbours."""
        many = len(self.sources)
        return (
            itertools.combinations(range(many), 2)
            if self.clique
            else ((0, other) for other in range(1, many))
        )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The worst pair of a group: ``ratio`` is the distance it shows over the distance that was
    verified.
    """

    ratio: float
    pairs: int
    runs: int
    worst: tuple[str, str] = ("", "")

    @property
    def holds(self) -> bool:
        """Whether no pair shows more than was verified."""
        return self.ratio <= 1


def audit_group(subjects: Sequence[Subject], group: Group) -> Verdict:
    """Run every source of a group, the first by the first subject and all others by the last, and
    find the worst pair.
    """
    first, other_subject = subjects[0], subjects[-1]
    reach = _reach(group.sources)
    runs: list[Values | None] = []
    for number, source in enumerate(group.sources):
        try:
            runs.append((first if number == 0 else other_subject).integers(source, reach))
        except OffGrid:
            runs.append(None)
    measure = functools.partial(
        _ratio,
        steps=getattr(first.component.query, "steps", 1),
        limits=first.allowed,
        per_unit=first.steps_per_sigma(reach),
        resolved=0 if not first.spherical else 1,
        norm=first.norm,
    )
    worst, ratio, pairs = ("", ""), 0.0, 0
    for one, other in group.pairs():
        pairs += 1
        a, b = runs[one], runs[other]
        found = math.inf if a is None or b is None else measure(a - b)
        if found > ratio:
            worst, ratio = (group.names[one], group.names[other]), found
    return Verdict(ratio=ratio, pairs=pairs, runs=len(runs), worst=worst)


def _reach(sources: Sequence[Values]) -> float:
    """A bound on every finite entry."""
    with np.errstate(all="ignore"):
        largest = [
            np.max(np.abs(source.astype(np.float64)), initial=0.0, where=np.isfinite(source))
            for source in sources
        ]
    return float(max(largest))


def _ratio(
    difference: Values,
    *,
    steps: int,
    limits: tuple[float, float],
    per_unit: float,
    resolved: int,
    norm: int = 2,
) -> float:
    """The larger of both ratios, of single steps and of all of them; decided in exact arithmetic
    where it is close to 1.

    ``resolved`` is by how many integers an entry that moved may be off for the audit's own sake.
    """
    rows = [difference.reshape(-1)] if steps == 1 else list(difference.reshape(steps, -1))
    checks = [(row, limits[0]) for row in rows]
    if steps > 1 and math.isfinite(limits[1]):
        checks.append((difference.reshape(-1), limits[1]))
    found = 0.0
    for moved, limit in checks:
        slack = resolved * math.sqrt(np.count_nonzero(moved))
        power = np.sum(np.abs(moved.astype(np.longdouble)) ** norm)
        ratio = (float(power ** (np.longdouble(1) / norm)) - slack) / (limit * per_unit)
        if abs(ratio - 1) < 1e-9 and not slack:
            exact = sum(abs(int(d)) ** norm for d in moved[np.flatnonzero(moved)])
            above = exact > (Fraction(limit) * Fraction(per_unit)) ** norm
            ratio = max(ratio, math.nextafter(1.0, 2.0)) if above else min(ratio, 1.0)
        found = max(found, ratio)
    return found


def reused_noise(subjects: Sequence[Subject]) -> list[str]:
    """Names of tiles, over all subjects, that drew the same noise; their sources must be all zeros
    where answers are read.

    Two tiles with the same integers (of at least four) share a stream: their difference is free of
    noise.
    """
    seen: dict[bytes, str] = {}
    reused = []
    for number, subject in enumerate(subjects):
        found = subject.integers(np.zeros(subject.file.shape, subject.file.dtype))
        _, component = _lossless(subject.plan, subject.component)
        for index in component.tiling.indices():
            block = np.ascontiguousarray(found[component.tiling.box(index)]).reshape(-1)
            if block.size < 4:
                continue
            name, drawn = f"release {number}, tile {index}", block[:4].tobytes()
            if drawn in seen:
                reused.append(f"{seen[drawn]} and {name}")
            seen.setdefault(drawn, name)
    return reused

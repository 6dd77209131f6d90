"""A spec and the facts of its source become a plan: all checks, the noise, the guarantee, the cost. Nothing is spent.

Planning looks at schemas only, never at a value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdask.errors import InvalidMechanism, InvalidSpec, StoreError
from dpdask.ledger import Forecast, Ledger
from dpdask.mechanisms import Calibrated, Steps, calibrate_mechanism
from dpdask.noise import IidNoise, SphericalNoise
from dpdask.noise.recipes import IidRecipe, KroneckerRecipe, SphericalRecipe
from dpdask.privacy import Guarantee, PrivacyBudget
from dpdask.profiles import GaussianProfile, compose
from dpdask.queries import Clip, Fitted, Query, build_query
from dpdask.spec.calibration import AnalyticGaussianSection, CompositionSection, EstimatedDirections, MechanismSection
from dpdask.spec.release import ReleaseSpec
from dpdask.store import Layout, Place, SourceArray, open_source, place_at
from dpdask.tiling import Tiling

__all__ = ["Component", "ReleasePlan", "component_with_directions", "make_plan", "open_ledger", "software_versions"]

DEFAULT_CHUNK = 16 * 2**20
WORKER_BASE = 300 * 10**6  # what a worker holds before any tile: the interpreter, libraries, compiled kernels


@dataclass(frozen=True, kw_only=True)
class Component:
    """One noisy answer of a release: the data itself, or the covariance that its noise directions come from."""

    name: str
    query: Query
    calibrated: Calibrated
    fitted: Fitted
    guarantee: Guarantee
    tiling: Tiling


@dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """Everything that is decided before a release is charged."""

    spec: ReleaseSpec
    source: SourceArray
    identity: str
    output: Place
    data: Component
    directions: Component | None
    guarantee: Guarantee
    layout: Layout
    fingerprint: str
    forecast: Forecast | None
    warnings: tuple[str, ...]

    @property
    def threads(self) -> int:
        """Threads of one worker."""
        return self.spec.compute.threads or os.cpu_count() or 1

    @property
    def tile_bytes(self) -> int:
        """What one tile task holds: its input, its output, and copies that its recipe makes."""
        entries = math.prod(self.data.tiling.extent)
        item = np.dtype(self.layout.dtype).itemsize + self.source.working_dtype.itemsize
        fused = isinstance(self.data.fitted.recipe, IidRecipe) and not self.data.query.summed
        return entries * (item if fused else item + 24)

    @property
    def task_bytes(self) -> int:
        """What one task of any kind holds at most."""
        summing = 3 * max(self.spec.compute.task_size, self.tile_bytes) if self.data.query.summed else 0
        return max(self.tile_bytes, summing)

    @property
    def worker_bytes(self) -> int:
        """The peak memory of one worker."""
        return WORKER_BASE + self.threads * self.task_bytes

    @property
    def read_bytes(self) -> int:
        """Bytes to read, uncompressed: once, twice where records are bounded in a pass of their own."""
        once = math.prod(self.source.shape) * np.dtype(self.source.dtype).itemsize
        return once * (2 if needs_norm_pass(self.data) else 1) + (once if self.directions is not None else 0)

    @property
    def entry_std(self) -> float:
        """The root mean square of the noise of one released entry."""
        return self.data.query.released_std(self.data.fitted.recipe.noise)

    @property
    def scale_factor(self) -> float | None:
        """What a packed integer stands for, None for float output."""
        if np.dtype(self.layout.dtype).kind == "f":
            return None
        step = self.data.fitted.recipe.step
        return None if step is None else step / self.data.query.divisor

    def _protects(self) -> str:
        """Whom the release protects, in words that show a wrong axis."""
        query = self.data.query
        axis = getattr(query, "record_axis", None)
        axis = getattr(query.bound, "record_axis", None) if axis is None else axis
        whom = "what the caller declares" if query.name == "declared" else "the whole tensor"
        if axis is not None:
            whom = _records(query.source_shape[axis], query.source_shape, axis)
        return f"{whom} ({query.body.adjacency}, at most {query.max_contributions} per unit)"

    def describe(self) -> dict[str, Any]:
        """The plan for people and programs who may see the source."""
        guarantee = self.guarantee.describe()
        return {
            "source": {"shape": list(self.source.shape), "dtype": self.source.dtype, "chunks": list(self.source.chunks)},
            "output": {
                "shape": list(self.layout.shape),
                "dtype": self.layout.dtype,
                "chunks": list(self.layout.chunks),
                "shards": None if self.layout.shards is None else list(self.layout.shards),
                "bytes": self.layout.total_bytes,
            },
            "query": self.data.query.describe(),
            "protects": self._protects(),
            "sensitivity": self.data.query.body.radius / self.data.query.divisor,
            "guarantee": guarantee,
            "expected_error": {"entry_std": self.entry_std, "noise": type(self.data.fitted.recipe.noise).__name__},
            "grid": self.data.fitted.recipe.describe(),
            "ledger": None
            if self.forecast is None
            else {
                "dataset": self.spec.budget.dataset,
                "total": {"epsilon": self.forecast.total.epsilon, "delta": self.forecast.total.delta},
                "spent_before": self.forecast.before,
                "spent_after": self.forecast.after,
            },
            "tiles": self.data.tiling.count,
            "tile_shape": list(self.data.tiling.extent),
            "peak_bytes_per_worker": self.worker_bytes,
            "bytes_to_read": self.read_bytes,
            "bytes_to_write": self.layout.total_bytes,
            "warnings": list(self.warnings),
        }


def _records(count: int, shape: tuple[int, ...], axis: int) -> str:
    values = math.prod(shape) // count
    return f"one of {count} records along axis {axis}, {values} value{'s' * (values > 1)} each"


def needs_norm_pass(component: Component) -> bool:
    """Whether records reach beyond one tile, so that their norms need a pass of their own."""
    query = component.query
    if not isinstance(query.bound, Clip):
        return False
    if query.summed:
        return component.tiling.count > 1
    extent, shape = component.tiling.extent, query.source_shape
    return any(e != n for axis, (e, n) in enumerate(zip(extent, shape, strict=True)) if axis != query.bound.record_axis)


def open_ledger(spec: ReleaseSpec) -> Ledger:
    """The ledger of a spec, or of DPDASK_LEDGER; keys are wrapped by DPDASK_MASTER_KEY (64 hexadecimal digits) when set."""
    url = spec.budget.ledger or os.environ.get("DPDASK_LEDGER") or "sqlite:///dpdask-ledger.db"
    return Ledger(url, master_key=master_key(), create=False)


def master_key() -> bytes | None:
    """The key that wraps release keys, from DPDASK_MASTER_KEY."""
    given = os.environ.get("DPDASK_MASTER_KEY")
    if not given:
        return None
    try:
        key = bytes.fromhex(given)
    except ValueError:
        key = b""
    if len(key) != 32:
        raise InvalidSpec("DPDASK_MASTER_KEY is not 64 hexadecimal digits; make one with `openssl rand -hex 32`")
    return key


def make_plan(spec: ReleaseSpec, *, ledger: Ledger | None = None, resuming: bool = False) -> ReleasePlan:
    """Check everything that can be checked without a value, and decide everything that can be decided."""
    output = place_at(spec.output.url, spec.output.options)
    if not resuming and output.occupied():
        raise StoreError(
            f"output {spec.output.url!r} exists; a release replaces nothing: `dpdask show` tells what it is,"
            " and another output.url is another release, charged anew"
        )
    place = place_at(spec.source.url, spec.source.options)
    if place.holds(output) or output.holds(place):
        raise StoreError("output.url lies within the source, or the source within it; publish somewhere else")
    source = open_source(place, spec.source.array)
    if spec.source.window is not None:
        window = spec.source.window
        source = source.windowed(window.axis, window.start, window.stop)
    query = build_query(spec.query, spec.unit, source.shape, spec.composition)
    budget = spec.privacy.budget()
    estimated = getattr(spec.mechanism, "directions", None)
    section: MechanismSection = spec.mechanism
    directions: Component | None = None
    if isinstance(estimated, EstimatedDirections):
        directions = _directions_component(spec, query, estimated, budget)
        size = directions.query.answer_shape[0]
        section = section.model_copy(update={"directions": np.eye(size).tolist()})
        budget = _share(budget, 1 - estimated.share)
    data = _component("data", spec, query, section, budget, spec.composition)
    layout = _layout(spec, source, query, data)
    tiling = _tiling(layout, data)
    data = dataclasses.replace(data, tiling=tiling)
    guarantee = data.guarantee if directions is None else _together(spec.privacy.budget(), directions, data)
    warnings = data.calibrated.warnings
    if not guarantee.certified:
        if not spec.accept_uncertified:
            raise InvalidMechanism(
                f"{spec.mechanism.name} is not certified: {guarantee.reason}; choose another mechanism,"
                " or set accept_uncertified: true to release it at its verified price"
            )
        warnings = (*warnings, f"released uncertified at the caller's word: {guarantee.reason}")
    _check_output(layout, data)
    _check_public(spec, source, layout)
    identity = source.identity()
    plan = ReleasePlan(
        spec=spec,
        source=source,
        identity=identity,
        output=output,
        data=data,
        directions=directions,
        guarantee=guarantee,
        layout=layout,
        fingerprint=_fingerprint(spec, identity, data, directions, layout),
        forecast=None,
        warnings=warnings,
    )
    _check_memory(plan)
    if not resuming:
        _check_room(plan)
    if ledger is None:
        return plan
    record = ledger.record(plan.fingerprint)
    if record is not None and record.open:  # charged already
        spent = ledger.state(record.dataset).spent_epsilon
        return dataclasses.replace(plan, forecast=Forecast(record.total, spent, spent))
    forecast = ledger.forecast(spec.budget.dataset, guarantee.verified, query.body.adjacency, query.max_contributions)
    return dataclasses.replace(plan, forecast=forecast)


def _component(
    name: str,
    spec: ReleaseSpec,
    query: Query,
    section: MechanismSection,
    budget: PrivacyBudget,
    composition: CompositionSection,
) -> Component:
    """Calibrate a mechanism to a query and fit its noise; the guarantee is that of what is really added."""
    steps = composition.steps
    shape = query.answer_shape if steps == 1 else query.answer_shape[1:] or (1,)
    calibrated = calibrate_mechanism(
        section, budget=budget, body=query.body, shape=shape, composition=composition, norm_bound=query.norm_bound
    )
    noise = calibrated.noise
    if steps > 1:
        if not isinstance(noise, IidNoise):
            raise InvalidMechanism("a stack of steps takes i.i.d. noise; use analytic-gaussian")
        noise = IidNoise(query.answer_shape, noise.sigma)
    fitted = query.fit(noise, mu=calibrated.calibration.get("mu"), asked=spec.noise.steps_per_sigma)
    guarantee = calibrated.guarantee
    if fitted.mu is not None and fitted.mu != calibrated.calibration.get("mu"):
        composed = Steps(count=steps, sampling_rate=composition.sampling_rate, slack=composition.slack)
        verified = composed.compose(GaussianProfile(fitted.mu), query.body.adjacency)
        guarantee = Guarantee(claimed=guarantee.claimed, theorem=guarantee.theorem, verified=verified)
    return Component(
        name=name,
        query=query,
        calibrated=calibrated,
        fitted=fitted,
        guarantee=guarantee,
        tiling=Tiling(shape=query.answer_shape, unit=query.answer_shape, symmetric=query.symmetric),
    )


def _share(budget: PrivacyBudget, share: float) -> PrivacyBudget:
    return PrivacyBudget(epsilon=budget.epsilon * share, delta=budget.delta * share)


def _directions_component(spec: ReleaseSpec, query: Query, estimated: EstimatedDirections, budget: PrivacyBudget) -> Component:
    """The DP covariance whose eigenvectors become the noise directions of the feature axis."""
    bound = query.bound
    if query.name != "identity" or not isinstance(bound, Clip) or len(query.source_shape) != 2:
        raise InvalidMechanism(
            "directions from dp-covariance need query: identity on a matrix of l2-clipped records; give public directions"
        )
    feature = 1 - bound.record_axis
    if getattr(spec.mechanism, "axis", 0) % 2 != feature:
        raise InvalidMechanism(f"directions from dp-covariance lie along the features; set mechanism.axis: {feature}")
    unit = spec.unit.model_copy(update={"l2_clip_norm": bound.norm})
    from dpdask.spec.release import CovarianceSection

    covariance = build_query(CovarianceSection(name="covariance"), unit, query.source_shape, CompositionSection())
    return _component(
        "directions",
        spec.model_copy(update={"noise": type(spec.noise)()}),
        covariance,
        AnalyticGaussianSection(name="analytic-gaussian"),
        _share(budget, estimated.share),
        CompositionSection(),
    )


def component_with_directions(plan: ReleasePlan, directions: list[list[float]]) -> Component:
    """The data component with its noise turned to ``directions``; rounding never makes it weaker than planned."""
    assert isinstance(plan.spec.mechanism.directions, EstimatedDirections)  # type: ignore[union-attr]
    section = plan.spec.mechanism.model_copy(update={"directions": directions})
    budget = _share(plan.spec.privacy.budget(), 1 - plan.spec.mechanism.directions.share)  # type: ignore[union-attr]
    query = plan.data.query
    calibrated = calibrate_mechanism(
        section,
        budget=budget,
        body=query.body,
        shape=query.answer_shape,
        composition=plan.spec.composition,
        norm_bound=query.norm_bound,
    )
    planned = plan.data.calibrated.calibration["mu"]
    recipe = plan.data.fitted.recipe
    assert isinstance(recipe, KroneckerRecipe)
    first, *others = calibrated.noise.factors  # type: ignore[attr-defined]
    growth = max(1.0, calibrated.calibration["mu"] / planned) * (1 + 1e-12)
    noise = type(calibrated.noise)((first.times(growth), *others))  # type: ignore[call-arg]
    fitted = query.fit(noise, mu=planned, asked=plan.spec.noise.steps_per_sigma)
    return dataclasses.replace(plan.data, calibrated=calibrated, fitted=fitted)


def _together(budget: PrivacyBudget, directions: Component, data: Component) -> Guarantee:
    verified = compose([(directions.guarantee.verified, 1), (data.guarantee.verified, 1)])
    theorem = f"{directions.guarantee.theorem} for the directions, then {data.guarantee.theorem}; basic composition"
    return Guarantee(claimed=budget, theorem=theorem, verified=verified)


def _layout(spec: ReleaseSpec, source: SourceArray, query: Query, data: Component) -> Layout:
    shape = query.answer_shape
    given = spec.noise.output_dtype
    keeps = not query.summed
    dtype = given or ("float32" if keeps and source.working_dtype == np.float32 else "float64")
    if spec.publish.chunks is not None:
        chunks = tuple(spec.publish.chunks)
    elif keeps:
        chunks = source.chunks
    else:
        chunks = _default_chunks(shape, np.dtype(dtype).itemsize, query.symmetric)
    names = spec.publish.dimension_names
    if names is None and keeps and source.dimension_names is not None:
        names = list(source.dimension_names)
    if query.symmetric and len(chunks) == 2 and (chunks[0] != chunks[1] or len(set(spec.publish.shards or [1])) > 1):
        raise InvalidSpec(f"publish.chunks: {list(chunks)} of a symmetric result are not square; give two equal lengths")
    return Layout(
        name=spec.output.array,
        shape=shape,
        chunks=chunks,
        shards=None if spec.publish.shards is None else tuple(spec.publish.shards),
        dtype=dtype,
        codec=spec.publish.codec,
        dimension_names=tuple(names or (f"dim_{axis}" for axis in range(len(shape)))),
    )


def _default_chunks(shape: tuple[int, ...], item: int, square: bool) -> tuple[int, ...]:
    """Chunks of about 16 MiB: last axes whole, first ones cut."""
    if square:
        side = min(shape[0], int(math.sqrt(DEFAULT_CHUNK / item)))
        return side, side
    chunks = list(shape)
    for axis in range(len(shape)):
        rest = math.prod(chunks[axis + 1 :]) * item
        chunks[axis] = max(1, min(shape[axis], DEFAULT_CHUNK // rest))
        if chunks[axis] > 1 or rest <= DEFAULT_CHUNK:
            break
    return tuple(chunks)


def _tiling(layout: Layout, data: Component) -> Tiling:
    spanned = data.fitted.recipe.spanned
    if data.query.symmetric and spanned:
        spanned = (0, 1)
    return Tiling(shape=layout.shape, unit=layout.unit, spanned=spanned, symmetric=data.query.symmetric)


def _check_public(spec: ReleaseSpec, source: SourceArray, layout: Layout) -> None:
    """Attributes and coordinates that are to be copied exist and fit the result."""
    source.attributes(spec.publish.attributes)
    sizes = dict(zip(layout.dimension_names, layout.shape, strict=True))
    for name in spec.publish.coordinates:
        shape, dimensions = source.coordinate_schema(name)
        dims = dimensions or ((name,) if len(shape) == 1 else ())
        fits = len(dims) == len(shape) and all(sizes.get(d) == n for d, n in zip(dims, shape, strict=True))
        if not fits or name == layout.name:
            raise StoreError(
                f"publish.coordinates: {name!r} does not lie along the result's dimensions {list(layout.dimension_names)};"
                " name them by publish.dimension_names or drop it"
            )


def _check_output(layout: Layout, data: Component) -> None:
    dtype = np.dtype(layout.dtype)
    if dtype.kind == "f":
        return
    recipe = data.fitted.recipe
    if recipe.step is None:
        raise InvalidSpec(f"noise.output_dtype: {dtype} needs one grid for all entries, which this noise has not; use float64")
    if data.query.symmetric:
        raise InvalidSpec(f"noise.output_dtype: {dtype} cannot hold the halves of a symmetrised result; use float64")
    limit: float = 0
    if isinstance(recipe, IidRecipe):
        limit = recipe.grid.limit
    elif isinstance(recipe, SphericalRecipe):
        spread = math.sqrt(recipe.noise.entries) * 64 * recipe.noise.entry_std
        limit = (max(abs(recipe.low), abs(recipe.high)) + spread) / recipe.rounding
    if limit > np.iinfo(dtype).max:
        raise InvalidSpec(
            f"noise.output_dtype: {dtype} cannot hold {limit:.3g} grid steps; use int64, float64 or a smaller"
            " noise.steps_per_sigma"
        )


def _check_memory(plan: ReleasePlan) -> None:
    allowed = plan.spec.compute.memory
    if allowed is None:
        total = _machine_memory() if plan.spec.compute.cluster == "local" else None
        allowed = None if total is None else int(0.8 * total / plan.spec.compute.workers)
    if allowed is not None and plan.worker_bytes > allowed:
        wide = (
            f" (the noise mixes axes {list(plan.data.tiling.spanned)}, which tiles hold whole)"
            if plan.data.tiling.spanned
            else ""
        )
        raise InvalidSpec(
            f"a worker would hold {plan.worker_bytes / 1e9:.3g} GB for tiles of shape {plan.data.tiling.extent}{wide},"
            f" more than the {allowed / 1e9:.3g} GB allowed; use smaller publish.chunks, fewer compute.threads or more memory"
        )


def _machine_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_room(plan: ReleasePlan) -> None:
    plan.output.check_writable()
    free = plan.output.free_bytes()
    wanted = plan.layout.total_bytes if plan.layout.codec == "none" else plan.layout.total_bytes // 8
    if free is not None and free < wanted + 2**20:
        raise StoreError(
            f"the output needs {wanted / 1e6:.4g} MB but its disk has {free / 1e6:.4g} MB left; free some space or choose"
            " another output.url"
        )


def _fingerprint(spec: ReleaseSpec, identity: str, data: Component, directions: Component | None, layout: Layout) -> str:
    """What makes a release this one and no other: source, spec, grid, sampler and library, but not where it is computed."""
    asked = spec.model_dump(mode="json", by_alias=True, exclude={"compute": True, "source": {"options"}, "output": {"options"}})
    asked["budget"] = spec.budget.dataset
    facts: dict[str, Any] = {
        "source": identity,
        "spec": asked,
        "layout": [layout.name, layout.shape, layout.chunks, layout.shards, layout.dtype, layout.codec, layout.dimension_names],
        "grid": data.fitted.recipe.describe(),
        "noise": _digest(data.fitted.recipe.noise.describe()),
        "directions": None if directions is None else directions.fitted.recipe.describe(),
        "dpdask": importlib.metadata.version("dpdask"),
    }
    if isinstance(data.fitted.recipe.noise, SphericalNoise):  # radii and stretches are floating point
        facts["scipy"] = importlib.metadata.version("scipy")
    return _digest(facts)


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def software_versions() -> dict[str, str]:
    """The versions of what computes a release."""
    names = ("dpdask", "numpy", "scipy", "numba", "zarr", "dask", "distributed", "cryptography")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}

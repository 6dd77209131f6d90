"""A spec and the facts of its source become a plan: all checks, the noise, the guarantee, the cost.
Nothing is spent.

Planning looks at schemas only, never at a value.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from dpdask.errors import InvalidMechanism, InvalidSensitivity, InvalidSpec, StoreError
from dpdask.ledger import Forecast, Ledger
from dpdask.planning.build_query import build_query
from dpdask.planning.checks import (
    check_memory,
    check_no_placeholders,
    check_output,
    check_public,
    check_records,
    check_room,
)
from dpdask.planning.component import directions_component, make_component, share_of, together
from dpdask.planning.fingerprint import fingerprint
from dpdask.planning.plan import Component, ReleasePlan
from dpdask.privacy import Adjacency
from dpdask.queries import Query, SummedQuery
from dpdask.spec.calibration import EstimatedDirections, MechanismSection
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import Layout, LocalStorage, SourceArray, open_source, open_storage

__all__ = ["make_plan"]

DEFAULT_CHUNK = 16 * 2**20


def make_plan(
    spec: ReleaseSpec, *, ledger: Ledger | None = None, resuming: bool = False
) -> ReleasePlan:
    """Check everything that can be checked without a value, and decide everything that can be
    decided.
    """
    check_no_placeholders(spec.output.url)
    output = open_storage(spec.output.url, spec.output.options)
    taken = not resuming and output.occupied()
    if taken and (ledger is None or isinstance(output, LocalStorage)):
        raise _exists(spec)
    place = open_storage(spec.source.url, spec.source.options)
    if place.holds(output) or output.holds(place):
        raise StoreError(
            "output.url lies within the source, or the source within it; publish somewhere else"
        )
    source = open_source(place, spec.source.array)
    if spec.source.window is not None:
        window = spec.source.window
        source = source.windowed(window.axis, window.start, window.stop)
    query = build_query(spec.query, spec.privacy_unit, source.shape, spec.composition)
    check_records(query)
    _check_window(spec, query, len(source.shape))
    budget = spec.privacy.budget()
    estimated = getattr(spec.mechanism, "directions", None)
    section: MechanismSection = spec.mechanism
    directions: Component | None = None
    if isinstance(estimated, EstimatedDirections):
        directions = directions_component(spec, query, estimated, budget)
        size = directions.query.answer_shape[0]
        section = section.model_copy(update={"directions": np.eye(size).tolist()})
        budget = share_of(budget, 1 - estimated.share)
    layout = _layout(spec, source, query)
    data = make_component(
        "data", spec, query, section, budget, spec.composition, layout.write_chunk
    )
    guarantee = (
        data.guarantee if directions is None else together(spec.privacy.budget(), directions, data)
    )
    warnings = data.warnings
    if not guarantee.certified:
        if not spec.accept_uncertified:
            raise InvalidMechanism(
                f"{spec.mechanism.name} is not certified: {guarantee.reason}; choose another"
                " mechanism,"
                " or set accept_uncertified: true to release it at its verified price"
            )
        warnings = (*warnings, f"released uncertified at the caller's word: {guarantee.reason}")
    if (
        isinstance(query, SummedQuery)
        and data.exact_sum is not None
        and query.bias(data.exact_sum) > data.noise.entry_std / 10
    ):
        warnings = (
            *warnings,
            "rounding so many records before they are summed may move the result by a tenth of"
            " its noise",
        )
    check_output(layout, data)
    check_public(spec, source, layout)
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
        fingerprint=fingerprint(spec, identity, data, directions, layout),
        forecast=None,
        warnings=warnings,
    )
    check_memory(plan)
    if not resuming:
        check_room(plan)
    if ledger is None:
        return plan
    record = ledger.entry(plan.fingerprint)
    begun = record is not None and record.open
    if taken and (not begun or output.read("zarr.json") is not None):
        raise _exists(spec)
    if (
        record is not None and begun
    ):  # charged already, and on an object store perhaps some of it is there
        spent = ledger.spent_epsilon(record.dataset)
        return dataclasses.replace(plan, forecast=Forecast(record.total, spent, spent))
    forecast = ledger.forecast(spec.budget.dataset, guarantee.verified, plan.privacy_unit)
    return dataclasses.replace(plan, forecast=forecast)


def _exists(spec: ReleaseSpec) -> StoreError:
    return StoreError(
        f"output {spec.output.url!r} exists; a release replaces nothing: `dpdask show` tells"
        " what it is,"
        " and another output.url is another release, charged anew"
    )


def _check_window(spec: ReleaseSpec, query: Query, axes: int) -> None:
    """Positions shift when a record goes, so a window of records loses one and gains another: no
    bound of ours covers that.
    """
    window, record_axis = spec.source.window, spec.privacy_unit.record_dim
    private = query.sensitivity.adjacency is Adjacency.ADD_REMOVE_ONE
    if (
        window is not None
        and private
        and record_axis is not None
        and record_axis % axes == window.axis
    ):
        raise InvalidSensitivity(
            f"source.window lies along the record axis {window.axis}, where a record that goes"
            " lets another one in; use"
            " privacy_unit.adjacency: replace-one, or a window along another axis"
        )


def _layout(spec: ReleaseSpec, source: SourceArray, query: Query) -> Layout:
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
    if (
        query.symmetric
        and len(chunks) == 2
        and (chunks[0] != chunks[1] or len(set(spec.publish.shards or [1])) > 1)
    ):
        raise InvalidSpec(
            f"publish.chunks: {list(chunks)} of a symmetric result are not square; give two"
            " equal lengths"
        )
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

"""From a spec and the schema of its source to a plan: all checks, the noise, the guarantee, the
privacy cost.

Planning reads schemas only, never a value, and spends nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from dpdask.errors import InvalidMechanism, InvalidSensitivity, InvalidSpec, StoreError
from dpdask.ledger import Forecast, Ledger
from dpdask.noise import LaplaceNoise
from dpdask.planning.advice import advice
from dpdask.planning.build_layers import build_layers
from dpdask.planning.build_query import build_query
from dpdask.planning.checks import (
    check_memory,
    check_missing,
    check_no_placeholders,
    check_output,
    check_public,
    check_records,
    check_space,
)
from dpdask.planning.component import (
    directions_component,
    jointly,
    make_component,
    share_of,
    together,
    with_layers,
)
from dpdask.planning.disjoint import check_per
from dpdask.planning.fingerprint import fingerprint
from dpdask.planning.layouts import layouts_beside
from dpdask.planning.naming import axis_of, released_names
from dpdask.planning.plan import Component, ReleasePlan, Variable, identity_of
from dpdask.planning.principal_axes import with_unknown_axes
from dpdask.planning.sessions import (
    is_session,
    session_layout,
    session_query,
    session_source,
)
from dpdask.planning.sources import (
    coarsened,
    open_whole_source,
    output_storage,
    source_storage,
    with_arrays_beside,
)
from dpdask.planning.variables import (
    Draft,
    budgets_of,
    check_agreement,
    naming_variable,
    variable_specs,
)
from dpdask.privacy import Adjacency, Guarantee, PrivacyBudget
from dpdask.queries import Query, SummedQuery
from dpdask.spec.mechanism import (
    AutoSection,
    EstimatedDirections,
    LaplaceSection,
    MechanismSection,
)
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import (
    Layout,
    LocalStorage,
    SourceArray,
    Storage,
)
from dpdask.types import Shape

__all__ = ["make_plan"]

_DEFAULT_CHUNK_BYTES = 16 * 2**20


def make_plan(
    spec: ReleaseSpec,
    *,
    ledger: Ledger | None = None,
    resuming: bool = False,
    forecast: bool = True,
) -> ReleasePlan:
    """Check whatever can be checked without a value, and decide whatever can be decided.

    Args:
        spec: What to release.
        ledger: The ledger that will be charged: ``auto`` takes what its dataset could hold.
        resuming: Whether the release has begun, so that its output may be there already.
        forecast: Whether to forecast the charge, if there is a ledger.

    Returns:
        The plan, with a forecast if one was wanted.

    Raises:
        DpdaskError: If the release cannot be carried out. Nothing was spent.
    """
    check_no_placeholders(spec.output.url)
    output = output_storage(spec)
    occupied = not resuming and output.occupied()
    if occupied and (ledger is None or not forecast or isinstance(output, LocalStorage)):
        raise _output_exists(spec)
    directions, variables = _variables(spec, output)
    other = _other_mechanism(spec, variables, ledger)
    if other is not None:
        directions, variables = _variables(spec.model_copy(update={"mechanism": other}), output)
    guarantee = _guarantee(spec, directions, variables)
    plan = ReleasePlan(
        spec=spec,
        output=output,
        variables=variables,
        directions=directions,
        guarantee=guarantee,
        fingerprint=fingerprint(spec, variables, directions),
        forecast=None,
        warnings=_warnings(guarantee, variables),
    )
    check_memory(plan)
    if not resuming:
        check_space(plan)
    if ledger is None or not forecast:
        return plan
    return dataclasses.replace(plan, forecast=_forecast(plan, ledger, occupied=occupied))


def _other_mechanism(
    spec: ReleaseSpec, variables: tuple[Variable, ...], ledger: Ledger | None
) -> MechanismSection | None:
    """Return what ``auto`` takes instead where the dataset could never be charged its choice.

    It depends on the total and the policy of the dataset, which never change, and not on what is
    spent: a release that is resumed has the same noise.
    """
    if ledger is None or not isinstance(spec.mechanism, AutoSection) or len(variables) > 1:
        return None
    [component] = (variable.component for variable in variables)
    if ledger.could_hold(spec.budget.dataset, component.guarantee.verified):
        return None
    if isinstance(component.noise, LaplaceNoise):
        return spec.mechanism.model_copy(update={"laplace": False})
    laplace = component.query.sensitivity.l1 is not None and not component.parts
    return LaplaceSection(name="laplace") if laplace else None


def _output_exists(spec: ReleaseSpec) -> StoreError:
    return StoreError(
        f"output {spec.output.url!r} exists; a release replaces nothing: `dpdask show` tells what"
        " it is, and another output.url is another release, with its own charge"
    )


def _open_source(spec: ReleaseSpec, output: Storage) -> SourceArray:
    """Open the source, which must lie apart from the output, and restrict it to its window."""
    if is_session(spec):
        return session_source(spec)
    storage = source_storage(spec)
    if storage.holds(output) or output.holds(storage):
        raise StoreError(
            "output.url lies within the source, or the source within it; publish somewhere else"
        )
    source = open_whole_source(spec, storage)
    window = spec.source.window
    if window is not None:
        axis = axis_of(
            "source.window.axis", window.axis, shape=source.shape, names=source.dimension_names
        )
        source = source.windowed(axis, window.start, window.stop)
    return coarsened(spec, source)


def _variables(spec: ReleaseSpec, output: Storage) -> tuple[Component | None, tuple[Variable, ...]]:
    """Return every array that is released, and the covariance of noise directions, if any."""
    specs = variable_specs(spec)
    drafts = []
    for own in specs:
        with naming_variable(spec, own):
            drafts.append(_draft(own, _open_source(own, output)))
    check_agreement(drafts)
    directions: Component | None = None
    variables = []
    for draft, budget in zip(drafts, budgets_of(spec, drafts), strict=True):
        with naming_variable(spec, draft.spec):
            name = "data" if len(drafts) == 1 else f"{draft.layout.name}:data"
            directions, variable = _variable(draft, name, budget)
        variables.append(variable)
    check_public(variables)
    return directions, tuple(variables)


def _draft(spec: ReleaseSpec, source: SourceArray) -> Draft:
    """Return a source with its question and its layout."""
    query = _build_query(spec, source)
    source = with_arrays_beside(spec, source, query)
    return Draft(spec, source, query, _layout(spec, source, query))


def _variable(draft: Draft, name: str, budget: PrivacyBudget) -> tuple[Component | None, Variable]:
    """Return a variable with its noise, and the covariance of its noise directions, if any."""
    spec, source, query, layout = draft
    layers = build_layers(spec, query, layout, source)
    directions, data = _components(draft, name, budget)
    data = with_layers(data, layers)
    check_output(layout, data)
    variable = Variable(
        spec=spec,
        source=source,
        identity=identity_of(source, layers),
        component=data,
        layout=layout,
        beside=layouts_beside(layout, data.arrays_beside(layout)),
    )
    return directions, variable


def _build_query(spec: ReleaseSpec, source: SourceArray) -> Query:
    """Build the query, and check that it has an answer on this source."""
    if is_session(spec):
        return session_query(spec, source)
    query = build_query(
        spec.query,
        spec.privacy_unit,
        source.shape,
        spec.composition,
        source.dimension_names,
        counts_beside=spec.mechanism.counts_beside,
    )
    check_records(query)
    check_missing(spec, source, query)
    _check_window(source, query)
    check_per(spec, source, query)
    return query


def _check_window(source: SourceArray, query: Query) -> None:
    """Refuse a window of records whose number is private.

    Positions shift when a record is removed, so the window loses one record and gains another: the
    sensitivity does not cover that.
    """
    window = source.window
    if window is None or query.sensitivity.adjacency is not Adjacency.ADD_REMOVE_ONE:
        return
    if query.units_axis == window[0]:
        raise InvalidSensitivity(
            f"source.window lies along the record axis {window[0]}, where a record that is"
            " removed lets another one in; use privacy_unit.adjacency: replace-one, or a window"
            " along another axis"
        )


def _components(
    draft: Draft, name: str, budget: PrivacyBudget
) -> tuple[Component | None, Component]:
    """Calibrate the noise of the answer and, if its directions are estimated, of the covariance
    that they come from.
    """
    spec, _, query, layout = draft
    write_chunk = layout.write_chunk[1:] if is_session(spec) else layout.write_chunk
    estimated = getattr(spec.mechanism, "directions", None)
    if not isinstance(estimated, EstimatedDirections):
        data = make_component(
            name, spec, query, spec.mechanism, budget, spec.composition, write_chunk
        )
        return None, data
    if query.people is not None:
        raise InvalidMechanism(
            "directions from dp-covariance are estimated from all records, and privacy_unit.ids"
            " keeps some; give public directions"
        )
    directions = directions_component(spec, query, estimated, budget)
    # The estimated axes are put in at run time.
    section = with_unknown_axes(spec.mechanism, directions.query.answer_shape[0])
    remaining = share_of(budget, 1 - estimated.share)
    data = make_component(name, spec, query, section, remaining, spec.composition, write_chunk)
    return directions, data


def _guarantee(
    spec: ReleaseSpec, directions: Component | None, variables: Sequence[Variable]
) -> Guarantee:
    """Return the guarantee of everything that is released, which must be certified or accepted."""
    components = [variable.component for variable in variables]
    guarantee = components[0].guarantee
    if directions is not None:
        guarantee = together(spec.privacy.budget(), directions, components[0])
    elif len(components) > 1:
        guarantee = jointly(spec.privacy.budget(), components)
    if not guarantee.certified and not spec.accept_uncertified:
        raise InvalidMechanism(
            f"{spec.mechanism.name} is not certified: {guarantee.reason}; choose another"
            " mechanism, or set accept_uncertified: true to release it at its verified privacy"
            " cost"
        )
    return guarantee


def _warnings(guarantee: Guarantee, variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return what the curator should know; nothing in it depends on a private number of records."""
    warnings = []
    for variable in variables:
        about = "" if len(variables) == 1 else f"{variable.name}: "
        warnings += [about + warning for warning in _warnings_of(variable)]
    if not guarantee.certified:
        warnings.append(f"released uncertified, as declared: {guarantee.reason}")
    return tuple(warnings)


def _warnings_of(variable: Variable) -> tuple[str, ...]:
    data, query = variable.component, variable.query
    warnings = data.warnings + advice(
        data,
        variable.accuracy,
        budget=data.guarantee.claimed,
        dimension_names=variable.source.dimension_names,
    )
    if not isinstance(query, SummedQuery) or query.sensitivity.adjacency is (
        Adjacency.ADD_REMOVE_ONE
    ):
        return warnings
    if data.exact_sum is not None and query.bias(data.exact_sum) > data.noise.entry_std / 10:
        warnings = (
            *warnings,
            "rounding so many records before they are summed may change the result by a tenth of"
            " its noise",
        )
    return warnings


def _layout(spec: ReleaseSpec, source: SourceArray, query: Query) -> Layout:
    """Return the form of the released array; the source's, where the query keeps its shape."""
    if is_session(spec):
        return session_layout(spec, query, _default_chunks(query.answer_shape, 8))
    keeps_shape = not query.summed
    single = keeps_shape and source.working_dtype == np.float32
    dtype = spec.noise.output_dtype or ("float32" if single else "float64")
    shards = spec.publish.shards
    chunks = _chunks(spec, source, query, np.dtype(dtype).itemsize)
    if query.symmetric and len(chunks) == 2:
        square = chunks[0] == chunks[1] and len(set(shards or [1])) == 1
        if not square:
            raise InvalidSpec(
                f"publish.chunks: {list(chunks)} of a symmetric result are not square; give two"
                " equal lengths"
            )
    return Layout(
        name=spec.output.array,
        shape=query.answer_shape,
        chunks=chunks,
        shards=None if shards is None else tuple(shards),
        dtype=dtype,
        codec=spec.publish.codec,
        dimension_names=released_names(query, source.dimension_names, spec),
    )


def _chunks(spec: ReleaseSpec, source: SourceArray, query: Query, itemsize: int) -> Shape:
    if spec.publish.chunks is not None:
        return tuple(spec.publish.chunks)
    if not query.summed:
        return source.chunks
    if query.symmetric:
        side = min(query.answer_shape[0], int(math.sqrt(_DEFAULT_CHUNK_BYTES / itemsize)))
        return side, side
    return _default_chunks(query.answer_shape, itemsize)


def _default_chunks(shape: Shape, itemsize: int) -> Shape:
    """Return chunks of about 16 MiB: the last axes whole, the first ones divided."""
    chunks = list(shape)
    for axis in range(len(shape)):
        row_bytes = math.prod(chunks[axis + 1 :]) * itemsize
        chunks[axis] = max(1, min(shape[axis], _DEFAULT_CHUNK_BYTES // row_bytes))
        if chunks[axis] > 1 or row_bytes <= _DEFAULT_CHUNK_BYTES:
            break
    return tuple(chunks)


def _forecast(plan: ReleasePlan, ledger: Ledger, *, occupied: bool) -> Forecast:
    """Return what the ledger will say after the release; a release that has begun costs no more."""
    entry = ledger.entry(plan.fingerprint)
    begun = entry is not None and entry.open
    # On an object store, chunks of a release that has begun are at the output already.
    if occupied and (not begun or plan.output.read("zarr.json") is not None):
        raise _output_exists(plan.spec)
    if entry is not None and begun:
        spent = ledger.spent_epsilon(entry.dataset)
        return Forecast(entry.total, spent, spent)
    dataset = plan.spec.budget.dataset
    return ledger.forecast(dataset, plan.guarantee.verified, plan.privacy_unit)

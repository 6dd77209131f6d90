"""From a spec and the schema of its source to a plan: all checks, the noise, the guarantee, the
privacy cost.

Planning reads schemas only, never a value, and spends nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dpdask.errors import InvalidMechanism, StoreError
from dpdask.ledger import Forecast, Ledger
from dpdask.noise import LaplaceNoise
from dpdask.planning.advice import advice
from dpdask.planning.answer import Component
from dpdask.planning.checks import (
    check_memory,
    check_no_placeholders,
    check_public,
    check_space,
)
from dpdask.planning.component import jointly, together
from dpdask.planning.directions import with_directions
from dpdask.planning.drafts import data_component, make_draft
from dpdask.planning.estimate import Estimate
from dpdask.planning.fingerprint import fingerprint
from dpdask.planning.layouts import layouts_beside
from dpdask.planning.naming import axis_of
from dpdask.planning.plan import ReleasePlan, Variable, identity_of
from dpdask.planning.private_bounds import with_private_bound
from dpdask.planning.sessions import is_session, session_source
from dpdask.planning.sources import (
    coarsened,
    open_whole_source,
    output_storage,
    source_storage,
)
from dpdask.planning.variables import (
    Draft,
    budgets_of,
    check_agreement,
    naming_variable,
    variable_specs,
)
from dpdask.privacy import Adjacency, Guarantee, PrivacyBudget
from dpdask.queries import SummedQuery
from dpdask.spec.mechanism import (
    AutoSection,
    EstimatedDirections,
    LaplaceSection,
    MechanismSection,
)
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import LocalStorage, SourceArray, Storage

__all__ = ["make_plan"]


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
    variables = _variables(spec, output)
    other = _other_mechanism(spec, variables, ledger)
    if other is not None:
        variables = _variables(spec.model_copy(update={"mechanism": other}), output)
    guarantee = _guarantee(spec, variables)
    plan = ReleasePlan(
        spec=spec,
        output=output,
        variables=variables,
        guarantee=guarantee,
        fingerprint=fingerprint(spec, variables),
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


def _variables(spec: ReleaseSpec, output: Storage) -> tuple[Variable, ...]:
    """Return every array that is released."""
    specs = variable_specs(spec)
    drafts = []
    for own in specs:
        with naming_variable(spec, own):
            drafts.append(make_draft(own, _open_source(own, output)))
    check_agreement(drafts)
    variables = []
    for draft, budget in zip(drafts, budgets_of(spec, drafts), strict=True):
        with naming_variable(spec, draft.spec):
            prefix = "" if len(drafts) == 1 else f"{draft.layout.name}:"
            variables.append(_variable(draft, prefix, budget))
    check_public(variables)
    return tuple(variables)


def _variable(draft: Draft, prefix: str, budget: PrivacyBudget) -> Variable:
    """Return a variable with its noise, and what is drawn first to decide on it.

    Args:
        draft: The source with its question.
        prefix: What the names of its components begin with.
        budget: What it may cost.
    """
    spec, source, _, layout = draft
    estimate, data = _components(draft, prefix, budget)
    return Variable(
        spec=spec,
        source=source,
        identity=identity_of(source, data.layers),
        component=data,
        layout=layout,
        beside=layouts_beside(layout, data.arrays_beside(layout)),
        estimate=estimate,
    )


def _components(
    draft: Draft, prefix: str, budget: PrivacyBudget
) -> tuple[Estimate | None, Component]:
    """Calibrate the noise of the answer, and of what decides on its directions or its bound."""
    mechanism = draft.spec.mechanism
    name = f"{prefix}data"
    if draft.spec.privacy_unit.private_bound is not None:
        return with_private_bound(draft, prefix, budget)
    if isinstance(getattr(mechanism, "directions", None), EstimatedDirections):
        return with_directions(draft, name, budget)
    return None, data_component(draft, name, budget, mechanism)


def _guarantee(spec: ReleaseSpec, variables: Sequence[Variable]) -> Guarantee:
    """Return the guarantee of everything that is released, which must be certified or accepted."""
    budget, components = spec.privacy.budget(), [variable.component for variable in variables]
    estimates = [variable.estimate for variable in variables if variable.estimate is not None]
    first = [estimate.component for estimate in estimates]
    guarantee = components[0].guarantee
    if estimates and not estimates[0].shares_mu:
        guarantee = together(budget, first[0], components[0])
    elif first:
        guarantee = jointly(budget, components, bounds=first)
    elif len(components) > 1:
        guarantee = jointly(budget, components)
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

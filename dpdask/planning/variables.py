"""The arrays of a release of several: the spec of each by itself, and what they must agree in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dpdask.errors import DpdaskError, InvalidMechanism, InvalidSensitivity, InvalidSpec
from dpdask.planning.disjoint import block_of, one_index_axis
from dpdask.planning.shares import budget_of_share, equal_error_shares, given_shares
from dpdask.privacy import PrivacyBudget
from dpdask.queries import Query
from dpdask.spec.mechanism import AnalyticGaussianSection, AutoSection, EstimatedDirections
from dpdask.spec.release import PrivacyUnitSection, ReleaseSpec, VariableSection
from dpdask.storage import Layout, SourceArray

__all__ = [
    "Draft",
    "budgets_of",
    "check_agreement",
    "naming_variable",
    "variable_specs",
]

_OF_THE_BOUND = ("l2_clip_norm", "ranges", "feature_dim", "center", "expected_distance")


class Draft(NamedTuple):
    """A variable before its noise is calibrated."""

    spec: ReleaseSpec
    source: SourceArray
    query: Query
    layout: Layout


def variable_specs(spec: ReleaseSpec) -> list[ReleaseSpec]:
    """Return the spec of every variable by itself: its array, its name, its bound.

    Raises:
        InvalidSpec: Several variables cannot be released so.
    """
    arrays = spec.source.arrays
    if arrays is None:
        return [_with_gaussian_noise(spec)]
    if len(arrays) > 1:
        _check_several(spec)
    return [_with_gaussian_noise(_spec_of(spec, name, section)) for name, section in arrays.items()]


def _with_gaussian_noise(spec: ReleaseSpec) -> ReleaseSpec:
    """Return the spec of a bound that is chosen privately with the noise that ``auto`` takes then:
    the same whatever bound is chosen.
    """
    if spec.privacy_unit.private_bound is None or not isinstance(spec.mechanism, AutoSection):
        return spec
    return spec.model_copy(update={"mechanism": AnalyticGaussianSection(name="analytic-gaussian")})


def _spec_of(spec: ReleaseSpec, name: str, section: VariableSection) -> ReleaseSpec:
    publish, mechanism = spec.publish, spec.mechanism
    if len(spec.source.arrays or ()) > 1:
        # a text about all of them is not the name of each
        publish = publish.model_copy(update={"description": None})
        if isinstance(mechanism, AutoSection):
            mechanism = mechanism.model_copy(update={"laplace": False})
    changes = {
        "source": spec.source.model_copy(update={"array": name, "arrays": None}),
        "output": spec.output.model_copy(update={"array": name}),
        "privacy_unit": _privacy_unit(spec.privacy_unit, section),
        "mechanism": mechanism,
        "publish": publish,
    }
    return spec.model_copy(update=changes)


def _privacy_unit(unit: PrivacyUnitSection, section: VariableSection) -> PrivacyUnitSection:
    """Return the privacy unit with a variable's bound; a bound of its own replaces all of that."""
    own = {key: getattr(section, key) for key in section.model_fields_set - {"share"}}
    if own.get("l2_clip_norm") is not None or own.get("ranges") is not None:
        own = dict.fromkeys(_OF_THE_BOUND) | own
    return unit.model_copy(update=own)


def _check_several(spec: ReleaseSpec) -> None:
    """Refuse what has no meaning, or no exact joint cost, for several variables."""
    if not spec.query.takes_variables:
        raise InvalidSpec(
            f"query {spec.query.name} is asked of one array; name that by source.array, or use"
            " identity, sum or mean for source.arrays"
        )
    if spec.privacy_unit.record_dim is None:
        raise InvalidSensitivity(
            "source.arrays share their records; name the dimension along which they lie:"
            " privacy_unit.record_dim"
        )
    if isinstance(getattr(spec.mechanism, "directions", None), EstimatedDirections):
        raise InvalidMechanism(
            "directions from dp-covariance are estimated for one array; give public directions, or"
            " name one source.array"
        )
    if spec.publish.dimension_names:
        raise InvalidSpec(
            "publish.dimension_names names the dimensions of one array, and those of source.arrays"
            " keep theirs; drop it"
        )


@contextlib.contextmanager
def naming_variable(whole: ReleaseSpec, spec: ReleaseSpec) -> Iterator[None]:
    """Let errors say which variable they are about, where there are several."""
    try:
        yield
    except DpdaskError as error:
        if len(whole.source.arrays or ()) < 2:
            raise
        raise type(error)(f"source.arrays.{spec.source.array}: {error}") from None


def budgets_of(spec: ReleaseSpec, drafts: Sequence[Draft]) -> list[PrivacyBudget]:
    """Return the budget of every variable; all of it for a single one."""
    budget = spec.privacy.budget()
    shares = given_shares([section.share for section in (spec.source.arrays or {}).values()])
    if len(drafts) == 1:
        return [budget]
    if shares is None:
        shares = equal_error_shares([draft.query for draft in drafts])
    return [budget_of_share(budget, share) for share in shares]


def check_agreement(drafts: Sequence[Draft]) -> None:
    """Check that all variables have the same records, and that one group can hold them."""
    first, *others = drafts
    for draft in others:
        _check_records(first, draft)
        _check_per(first, draft)
    _check_dimensions(drafts)


def _check_records(first: Draft, draft: Draft) -> None:
    """Refuse records that are not the same; their number may be private, so no text tells it."""
    names = f"{first.layout.name!r} and {draft.layout.name!r}"
    (size, dimension), (other_size, other_dimension) = _records(first), _records(draft)
    if size != other_size:
        raise InvalidSpec(
            f"source.arrays: {names} have different numbers of records, so they are not about the"
            " same ones; release them apart"
        )
    if dimension != other_dimension:
        raise InvalidSpec(
            f"source.arrays: the records of {names} lie along dimensions of different names;"
            " give privacy_unit.record_dim by name"
        )
    if _window(first) != _window(draft):
        raise InvalidSpec(
            f"source.window lies along dimensions of different names in {names}; give"
            " its axis by name, and one that they share"
        )


def _check_per(first: Draft, draft: Draft) -> None:
    """Refuse units that are one index of a dimension in one variable, and of another elsewhere.

    Windows of disjoint indices protect disjoint units only if they do in every variable.
    """
    if _per(first) != _per(draft):
        raise InvalidSensitivity(
            f"privacy_unit.per is not the same dimension in {first.layout.name!r} and"
            f" {draft.layout.name!r}; give it by name, and one that they share"
        )
    one, other = (block_of(each.spec, each.source) for each in (first, draft))
    if (one is None) != (other is None):
        raise InvalidSensitivity(
            f"source.window lies along privacy_unit.per in {first.layout.name!r} or in"
            f" {draft.layout.name!r}, but not in both; give its axis by name, and one that they"
            " share"
        )


def _per(draft: Draft) -> tuple[str | int, bool] | None:
    """Return the dimension of ``privacy_unit.per``, and whether the records lie along it."""
    axis, names = one_index_axis(draft.spec, draft.source), draft.source.dimension_names
    if axis is None:
        return None
    return axis if names is None else names[axis], axis == draft.query.units_axis


def _records(draft: Draft) -> tuple[int, str | None]:
    """Return how many records a variable has, and the name of their dimension."""
    axis, names = draft.query.units_axis, draft.source.dimension_names
    assert axis is not None
    return draft.source.shape[axis], None if names is None else names[axis]


def _window(draft: Draft) -> tuple[str | None, int, int] | None:
    """Return the window of a variable, and the name of its dimension."""
    window, names = draft.source.window, draft.source.dimension_names
    if window is None:
        return None
    axis, start, stop = window
    return None if names is None else names[axis], start, stop


def _check_dimensions(drafts: Sequence[Draft]) -> None:
    """Refuse names that stand for two things in one group."""
    sizes: dict[str, tuple[int, str]] = {}
    for draft in drafts:
        layout = draft.layout
        for dimension, size in zip(layout.dimension_names, layout.shape, strict=True):
            known, name = sizes.setdefault(dimension, (size, layout.name))
            if known != size:
                raise InvalidSpec(
                    f"source.arrays: dimension {dimension!r} has {known} entries in {name!r} and"
                    f" {size} in {layout.name!r}, so no reader opens them together; rename it in"
                    " one of them, or release them apart"
                )

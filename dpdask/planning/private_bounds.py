"""Bounds that are chosen privately: a noisy histogram first, then the data with what it chose.

The histogram has a share of the squared mu, the data have the rest. Until the bound is chosen, the
widest one stands for it: noise is in proportion to the bound, so nothing is larger than planned.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from dpdask.errors import InvalidMechanism, InvalidSensitivity, InvalidSpec
from dpdask.planning.answer import Component
from dpdask.planning.component import make_component, verified_mu
from dpdask.planning.drafts import data_component, make_query
from dpdask.planning.estimate import Estimate
from dpdask.planning.layouts import layouts_beside
from dpdask.planning.plan import ReleasePlan, Variable
from dpdask.planning.shares import budget_of_share
from dpdask.planning.variables import Draft
from dpdask.privacy import PrivacyBudget
from dpdask.queries import (
    BoundHistogram,
    BoundRule,
    ChosenBound,
    Clip,
    NormHistogram,
    Query,
    Ranges,
    ValueHistogram,
)
from dpdask.spec import CompositionSection
from dpdask.spec.bounds import PrivateNormSection, PrivateRangesSection
from dpdask.spec.mechanism import AnalyticGaussianSection
from dpdask.spec.release import ReleaseSpec
from dpdask.types import Floats, Json

__all__ = ["BoundsEstimate", "with_private_bound"]

_GAUSSIAN = AnalyticGaussianSection(name="analytic-gaussian")
_MOST_FEATURES = 1000  # with a range each, whose histograms are published


@dataclass(frozen=True, kw_only=True)
class BoundsEstimate(Estimate):
    """The noisy histogram from which a bound is chosen.

    Args:
        rule: How it is chosen.
        share: The share of the squared mu that the histogram has.
        budget: What the data may cost.
    """

    kind: ClassVar[str] = "bounds"
    decides_on_sums: ClassVar[bool] = True
    shares_mu: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    rule: BoundRule
    share: float
    budget: PrivacyBudget

    @property
    def histogram(self) -> BoundHistogram:
        """The question of the histogram."""
        query = self.component.query
        assert isinstance(query, BoundHistogram)
        return query

    def choose(self, noisy: Floats) -> str:
        """Return the bound."""
        std = self.component.noise.entry_std
        return json.dumps(self.rule.choose(noisy, self.histogram.edges, std=std).to_dict())

    def settle(self, plan: ReleasePlan, variable: Variable, chosen: str) -> Variable:
        """Return the data with the bound, and noise in proportion to it."""
        bound = ChosenBound.from_dict(json.loads(chosen))
        planned = variable.component
        draft = _draft_with(
            Draft(variable.spec, variable.source, variable.query, variable.layout), bound
        )
        component = self.component_with(draft, planned, bound)
        assert component.tiling == planned.tiling
        return variable.answering(component)

    def component_with(self, draft: Draft, planned: Component, bound: ChosenBound) -> Component:
        """Return the data with a bound; the noise grows if rounding costs more than planned.

        Guarantee: its verified mu is at most that of the planned component.

        Args:
            draft: The source with its question, which has the bound.
            planned: The data with the widest bound.
            bound: The bound, which becomes part of what the noise is drawn for.
        """
        budget, charged = self.budget, verified_mu(planned)
        while True:
            component = data_component(draft, planned.name, budget, draft.spec.mechanism)
            real = verified_mu(component)
            if real <= charged:
                return dataclasses.replace(component, chosen=bound.to_dict())
            budget = budget_of_share(budget, (charged / real) ** 2 * (1 - 1e-9), _key(draft.spec))

    def arrays(self, noisy: Floats, chosen: str) -> Mapping[str, Floats]:
        """Return the noisy counts and the edges of their bins."""
        return {self.kind: noisy, f"{self.kind}_edges": self.histogram.edges}

    def to_dict(self) -> Json:
        """Return how the bound is chosen, for a plan."""
        edges = self.histogram.edges
        return {
            "between": [float(edges.min()), float(edges.max())],
            **self.rule.to_dict(),
            "share": self.share,
            "histograms": self.histogram.histograms,
            "histogram_std": self.component.noise.entry_std,
        }

    def extremes(self) -> Iterator[ChosenBound]:
        """Yield the bounds at which a grid would fail first, if it fails for any.

        The data scale with a norm, so its smallest is as good as any. Of ranges, the narrowest that
        lie furthest from 0, all of them or one alone.
        """
        edges = self.histogram.edges
        if self.rule.quantiles is None:
            yield ChosenBound(norm=float(edges[0]))
            return
        widest = [(float(row[0]), float(row[-1])) for row in edges]
        for ends in (slice(0, 2), slice(-2, None)):
            narrow = [(float(low), float(high)) for low, high in (row[ends] for row in edges)]
            yield ChosenBound(ranges=tuple(narrow))
            for one in {0, len(narrow) - 1}:
                mixed = [narrow[i] if i == one else pair for i, pair in enumerate(widest)]
                yield ChosenBound(ranges=tuple(mixed))


def with_private_bound(
    draft: Draft, prefix: str, budget: PrivacyBudget
) -> tuple[BoundsEstimate, Component]:
    """Return the histogram that chooses a bound, and the data with the widest one.

    Guarantee: together they meet ``budget``; and the data can be released with whatever bound is
    chosen, or nothing is charged.

    Args:
        draft: The source with its question, which has the widest bound.
        prefix: What the names of its components begin with.
        budget: What both may cost.
    """
    spec, query = draft.spec, draft.query
    section = spec.privacy_unit.private_bound
    assert section is not None
    _check(spec, query)
    key = _key(spec)
    remaining = budget_of_share(budget, 1 - section.share, key)
    data = data_component(draft, f"{prefix}data", remaining, spec.mechanism)
    histogram = _histogram(query, section)
    component = make_component(
        f"{prefix}bounds",
        spec.model_copy(update={"noise": type(spec.noise)()}),
        histogram,
        _GAUSSIAN,
        budget_of_share(budget, section.share, key),
        CompositionSection(),
        histogram.answer_shape,
    )
    estimate = BoundsEstimate(
        component=component,
        rule=_rule(section, query, data),
        share=section.share,
        budget=remaining,
    )
    for bound in estimate.extremes():
        narrow = estimate.component_with(_draft_with(draft, bound), data, bound)
        _check_stored_alike(draft, data, narrow)
    return estimate, data


def _key(spec: ReleaseSpec) -> str:
    name = "ranges" if spec.privacy_unit.l2_clip_norm is None else "l2_clip_norm"
    return f"privacy_unit.{name}.share"


def _draft_with(draft: Draft, bound: ChosenBound) -> Draft:
    """Return a draft with its bound chosen."""
    return draft._replace(query=make_query(draft.spec, draft.source, bound))


def _histogram(query: Query, section: PrivateNormSection | PrivateRangesSection) -> BoundHistogram:
    """Return the histogram of norms or of values, around the centre of the query's bound."""
    bound = query.bound
    if isinstance(section, PrivateNormSection) and isinstance(bound, Clip):
        low, high = section.between
        return NormHistogram.of(query, bound, (low, high))
    assert isinstance(bound, Ranges)
    return ValueHistogram.of(query, bound)


def _rule(
    section: PrivateNormSection | PrivateRangesSection, query: Query, data: Component
) -> BoundRule:
    """Return how the bound follows from the counts.

    The best norm C minimises what clipping and noise move a sum by: over all groups

        sum of (||x|| - C)+  +  C sqrt(groups entries) sigma / C,

    where sigma / C does not depend on C. Its derivative is 0 where as many records are longer than
    C as the second factor says.
    """
    if isinstance(section, PrivateRangesSection):
        low, high = section.quantiles
        return BoundRule(quantiles=(low, high))
    if not section.best:
        return BoundRule(quantile=section.quantile)
    assert isinstance(query.bound, Clip)
    entries = math.prod(query.answer_shape)
    groups = entries // query.values_per_record
    return BoundRule(above=math.sqrt(groups * entries) * data.noise.entry_std / query.bound.norm)


def _check(spec: ReleaseSpec, query: Query) -> None:
    """Refuse what no bound can be chosen for."""
    unit, section = spec.privacy_unit, spec.query
    private = unit.private_bound
    name = "l2_clip_norm" if isinstance(private, PrivateNormSection) else "ranges"
    if name not in section.private_bounds:
        way_out = "give l2_clip_norm" if "l2_clip_norm" in section.private_bounds else "say it"
        raise InvalidSensitivity(
            f"privacy_unit.{name} of query {section.name} is not chosen privately; {way_out}"
        )
    best = isinstance(private, PrivateNormSection) and private.best
    if best and "best" not in section.private_bounds:
        raise InvalidSensitivity(
            f"privacy_unit.l2_clip_norm.best weighs what clipping removes from a sum against its"
            f" noise, and query {section.name} is not a sum of records; give quantile"
        )
    if query.people is not None and query.people.clipped:
        raise InvalidSensitivity(
            "privacy_unit.clip: person bounds all records of a person together, and a norm is"
            " chosen from those of single records; drop clip, or state the norm"
        )
    if query.units_axis is None:
        raise InvalidSensitivity(
            f"privacy_unit.{name} is chosen from a histogram of records; name the dimension along"
            " which they lie: privacy_unit.record_dim"
        )
    if not isinstance(spec.mechanism, AnalyticGaussianSection):
        raise InvalidMechanism(
            f"a bound that is chosen privately shares mu^2 with the data, which take i.i.d."
            f" Gaussian noise; use mechanism: auto or analytic-gaussian instead of"
            f" {spec.mechanism.name}"
        )
    if isinstance(query.bound, Ranges) and len(query.bound.pairs) > _MOST_FEATURES:
        raise InvalidSpec(
            f"privacy_unit.ranges: {len(query.bound.pairs)} features with a range each are more"
            f" than {_MOST_FEATURES}; choose one range for all, without feature_dim"
        )


def _check_stored_alike(draft: Draft, data: Component, other: Component) -> None:
    """Check that the data are stored alike, whatever bound is chosen."""
    layouts = [
        layouts_beside(draft.layout, each.arrays_beside(draft.layout)) for each in (data, other)
    ]
    if layouts[0] != layouts[1] or data.tiling != other.tiling:
        raise InvalidSensitivity(
            "the arrays of the release would depend on the bound that is chosen; give a bound"
        )

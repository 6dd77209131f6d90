"""What a curator should know of a release's use before anything is spent.

Every sentence follows from public values: none depends on a private number of records.
"""

from __future__ import annotations

import numpy as np

from dpdask.figures import number_text
from dpdask.mechanisms.directional import directional
from dpdask.noise import IidNoise
from dpdask.planning.accuracy import Accuracy
from dpdask.planning.naming import released_axis
from dpdask.planning.plan import Component
from dpdask.planning.wording import units_text
from dpdask.privacy import Adjacency, PrivacyBudget
from dpdask.queries import Query, Ranges
from dpdask.sensitivity import EntrywiseBox, RecordBox
from dpdask.types import Floats

__all__ = ["advice"]

_FEW_UNITS = 50
_NOISY_COUNT = 0.2  # the noise of a count over the count itself
_FAR_WIDER = 10.0  # how many times wider a range decides on the noise of the others
_MUCH_LESS = 2.0  # how many times less noise is worth a warning


def advice(
    component: Component,
    accuracy: Accuracy,
    *,
    budget: PrivacyBudget,
    dimension_names: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """Return warnings about a release that is private but of little use.

    Args:
        component: The answer and its noise.
        accuracy: How far noise moves released entries.
        budget: What the release may cost.
        dimension_names: The names of the source's dimensions, None where it has none.
    """
    warnings = [
        _wide_noise(component, accuracy),
        _noisy_counts(accuracy),
        _few_units(component.query, dimension_names),
        _unequal_ranges(component, budget),
    ]
    return tuple(warning for warning in warnings if warning is not None)


def _wide_noise(component: Component, accuracy: Accuracy) -> str | None:
    """Warn where noise exceeds the width of what an entry can be."""
    query, expected = component.query, accuracy.expected
    widths = query.entry_widths()
    if widths is None or expected is None:
        return None
    stds = _stds_by_feature(component, expected.rms, len(widths))
    ratios = stds / np.asarray(widths)
    exceeding = int(np.sum(ratios > 1))
    if exceeding == 0:
        return None
    worst = int(np.argmax(ratios))
    where = "" if exceeding == len(ratios) else f" in {exceeding} of {len(ratios)} features"
    std = stds[min(worst, stds.size - 1)]
    return (
        f"the noise exceeds the width of the bound{where}: its standard deviation"
        f" {number_text(std)} is {number_text(ratios[worst])} times the"
        f" {number_text(widths[worst])} that an entry can vary by, so single entries say almost"
        " nothing; sum or average over more records, bound them more tightly, or raise"
        " privacy.epsilon"
    )


def _noisy_counts(accuracy: Accuracy) -> str | None:
    """Warn where means are divided by counts that are mostly noise."""
    counts, public = accuracy.count_deviations, accuracy.public_count
    if not accuracy.divided_by_count or counts is None or public is None:
        return None
    if counts.rms <= _NOISY_COUNT * public:
        return None
    return (
        f"the noise of a count (standard deviation {number_text(counts.rms)}) is large against the"
        f" {round(public):,} records of an entry if {accuracy.public_count_if}, so means are"
        " unreliable; make fewer groups, count records rather than entries (missing: center), or"
        " raise privacy.epsilon"
    )


def _stds_by_feature(component: Component, rms: float, features: int) -> Floats:
    """Return the standard deviation of an entry, for each feature where noise differs."""
    query = component.query
    same = np.array([rms])
    if features == 1 or not isinstance(query.bound, Ranges):
        return same
    axis = released_axis(query, query.bound.feature_axis)
    if axis is None:
        return same
    stds = np.sqrt(component.noise.variances_along(axis))
    return np.asarray(stds * (rms / component.noise.entry_std))


def _few_units(query: Query, dimension_names: tuple[str, ...] | None) -> str | None:
    """Warn where a public number of privacy units is small."""
    axis = query.units_axis
    if axis is None or query.sensitivity.adjacency is not Adjacency.REPLACE_ONE:
        return None
    if query.people is not None:  # how many they are is private
        return None
    records = query.source_shape[axis]
    units = -(-records // query.max_contributions)
    if units >= _FEW_UNITS:
        return None
    who = f"only {units_text(records, axis, dimension_names)} are protected"
    if query.max_contributions > 1:
        who += f", up to {query.max_contributions} of them those of one unit"
    return (
        f"{who}: among fewer than about {_FEW_UNITS} units, noise that hides one hides most of what"
        " they have in common; wait for more, or expect little of the result"
    )


def _unequal_ranges(component: Component, budget: PrivacyBudget) -> str | None:
    """Warn where noise is as large in every feature because one range is far wider."""
    query, noise = component.query, component.noise
    if not isinstance(noise, IidNoise) or not isinstance(query.bound, Ranges):
        return None
    widest, narrowest = max(query.bound.widths), min(query.bound.widths)
    if widest == narrowest:
        return None
    decides = f"the widest range ({number_text(widest)}) decides on the noise of every feature"
    sensitivity = query.sensitivity
    if not isinstance(sensitivity, (EntrywiseBox, RecordBox)):
        if widest < _FAR_WIDER * narrowest:
            return None
        return f"{decides}; scale features to similar ranges, or release them apart from each other"
    other = directional(budget=budget, sensitivity=sensitivity, shape=query.answer_shape).noise
    least = float(np.sqrt(np.min(other.variances_along(sensitivity.feature_axis))))
    times = noise.sigma / least
    if times < _MUCH_LESS:
        return None
    return (
        f"{decides}; mechanism: directional would give the narrowest ({number_text(narrowest)})"
        f" {number_text(times)} times less"
    )

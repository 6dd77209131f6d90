"""The choice that ``auto`` makes: of the certified mechanisms, the one with the least noise.

Gaussian candidates are compared by the root mean square of an entry's noise. Laplace noise replaces
the best of them only where it is smaller in every entry, so that no feature pays for another. All
candidates meet the same budget; what the ledger charges beyond that is part of the reason
(docs/mechanisms/auto.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from dpdask.accounting import dominating_gaussian
from dpdask.errors import OutOfReach
from dpdask.mechanisms.base import Calibration, Choice, Steps
from dpdask.mechanisms.directional import directional
from dpdask.mechanisms.gaussian import analytic_gaussian
from dpdask.mechanisms.laplace import laplace
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import EntrywiseBox, RecordBox, SensitivitySet
from dpdask.types import Shape

__all__ = ["auto"]


def auto(
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    steps: Steps = Steps(),
    with_laplace: bool = True,
) -> Calibration:
    """Return the noise of the certified mechanism with the least released error, and why.

    Args:
        budget: (epsilon, delta) of all steps together.
        sensitivity: What one privacy unit can change in one step.
        shape: The shape of the tensor.
        steps: How many steps share the budget; several, or sampled ones, take analytic-gaussian.
        with_laplace: Whether Laplace noise may be chosen.

    Guarantee: that of the mechanism it chooses, from public values alone.
    """
    first = analytic_gaussian(budget=budget, sensitivity=sensitivity, shape=shape, steps=steps)
    if not steps.single:
        note = "steps and samples compose exactly under it alone"
        return _chosen("analytic-gaussian", {"analytic-gaussian": first}, note)
    candidates = {"analytic-gaussian": first}
    if _has_several_widths(sensitivity):
        candidates["directional"] = directional(
            budget=budget, sensitivity=sensitivity, shape=shape, steps=steps
        )
    gaussian = _quietest(candidates)
    name = gaussian
    if with_laplace and sensitivity.l1 is not None:
        candidates["laplace"] = laplace(
            budget=budget, sensitivity=sensitivity, shape=shape, steps=steps
        )
        if _quieter_everywhere(candidates["laplace"], candidates[gaussian]):
            name = "laplace"
    if name != "laplace":
        return _chosen(name, candidates, "")
    try:
        note = _ledger_note(budget, candidates["laplace"], gaussian, candidates[gaussian])
    except OutOfReach:  # no ledger could charge it
        return _chosen(gaussian, {gaussian: candidates[gaussian]}, "")
    return _chosen(name, candidates, note, warnings=(note,))


def _chosen(
    name: str,
    candidates: Mapping[str, Calibration],
    note: str,
    warnings: tuple[str, ...] = (),
) -> Calibration:
    """Return the calibration of a candidate with why it was chosen, its own noise first."""
    stds = {other: one.noise.entry_std for other, one in candidates.items()}
    order = sorted(stds, key=lambda other: (other != name, stds[other]))
    choice = Choice(name=name, stds=tuple((other, stds[other]) for other in order), note=note)
    calibration = candidates[name]
    return dataclasses.replace(
        calibration, choice=choice, warnings=(*calibration.warnings, *warnings)
    )


def _has_several_widths(sensitivity: SensitivitySet) -> bool:
    if not isinstance(sensitivity, (EntrywiseBox, RecordBox)):
        return False
    return len(set(sensitivity.widths)) > 1


def _quietest(candidates: Mapping[str, Calibration]) -> str:
    """Return the certified candidate with the least root mean square; the first one in a tie."""
    certified = [name for name, one in candidates.items() if one.guarantee.certified]
    return min(certified, key=lambda name: candidates[name].noise.entry_std)


def _quieter_everywhere(one: Calibration, other: Calibration) -> bool:
    """Return whether a certified candidate has less noise than another in every entry.

    Other noise varies along one axis at most, that of the features.
    """
    axes = range(len(one.noise.tensor_shape))
    return one.guarantee.certified and all(
        bool(np.all(one.noise.variances_along(axis) < other.noise.variances_along(axis)))
        for axis in axes
    )


def _ledger_note(budget: PrivacyBudget, chosen: Calibration, name: str, other: Calibration) -> str:
    """Return what the ledger charges for Laplace noise, which later releases feel."""
    charges = [
        dominating_gaussian(calibration.guarantee.verified, delta0=0.0)
        for calibration in (chosen, other)
    ]
    epsilons = [charge.epsilon(budget.delta) for charge in charges]
    return (
        f"a ledger charges laplace mu {charges[0].mu:.3g}, so its dataset needs a total epsilon of"
        f" {epsilons[0]:.3g} at delta {budget.delta:g}, against mu {charges[1].mu:.3g} and"
        f" {epsilons[1]:.3g} for {name}; name mechanism: {name} where the dataset has further"
        " releases or a smaller total"
    )

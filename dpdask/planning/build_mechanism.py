"""From the sections of a spec to calibrated noise.

A mechanism takes one file and one line: ``register_mechanism(SectionClass, builder)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dpdask.errors import InvalidMechanism, InvalidSensitivity
from dpdask.mechanisms.base import Calibration, Steps, amplified_rate
from dpdask.planning import mechanism_builders as builders
from dpdask.planning.build_sensitivity import build_sensitivity, norm_bound
from dpdask.planning.mechanism_builders import MechanismInputs
from dpdask.privacy import PrivacyBudget
from dpdask.sensitivity import SensitivitySet
from dpdask.spec import MECHANISMS, CalibrationSpec, CompositionSection, MechanismSection
from dpdask.spec import mechanism as sections
from dpdask.types import Shape

__all__ = [
    "MechanismInputs",
    "calibrate",
    "calibrate_mechanism",
    "calibration_inputs",
    "register_mechanism",
    "steps_of",
    "unregister_mechanism",
]

_S = TypeVar("_S", bound=MechanismSection)
_Build = Callable[[MechanismSection, MechanismInputs], Calibration]
_BUILDERS: dict[type[MechanismSection], _Build] = {}


def register_mechanism(
    section: type[_S], builder: Callable[[_S, MechanismInputs], Calibration]
) -> None:
    """Add a mechanism: the section that specs name it by, and the function that calibrates it."""
    MECHANISMS.register(section)

    def build(content: MechanismSection, inputs: MechanismInputs) -> Calibration:
        assert isinstance(content, section)
        return builder(content, inputs)

    _BUILDERS[section] = build


def unregister_mechanism(section: type[MechanismSection]) -> None:
    """Remove a mechanism. Idempotent."""
    MECHANISMS.unregister(section)
    _BUILDERS.pop(section, None)


def calibrate(spec: CalibrationSpec) -> Calibration:
    """Return the noise and the guarantee that ``spec`` describes."""
    return _calibrated(spec.mechanism, calibration_inputs(spec))


def calibration_inputs(spec: CalibrationSpec) -> MechanismInputs:
    """Return what ``spec`` calibrates a mechanism to."""
    shape = tuple(spec.shape)
    sampling, contributions = spec.composition.sampling, spec.sensitivity.max_contributions
    if sampling is not None and sampling.of == "records" and contributions is None:
        raise InvalidSensitivity(
            "composition.sampling of records needs sensitivity.max_contributions, how many records"
            " a privacy unit has at most; give it"
        )
    return MechanismInputs(
        budget=spec.privacy.budget(),
        sensitivity=build_sensitivity(spec.sensitivity, shape),
        shape=shape,
        steps=steps_of(spec.composition, contributions or 1),
        norm_bound=norm_bound(spec.sensitivity, shape),
    )


def steps_of(composition: CompositionSection, contributions: int) -> Steps:
    """Return the steps of a spec, for privacy units of at most ``contributions`` records."""
    sampling = composition.sampling
    rate = None
    if sampling is not None:
        rate = amplified_rate(rate=sampling.rate, of=sampling.of, contributions=contributions)
    return Steps(count=composition.steps, sampling_rate=rate, slack=composition.slack)


def calibrate_mechanism(
    section: MechanismSection,
    *,
    budget: PrivacyBudget,
    sensitivity: SensitivitySet,
    shape: Shape,
    steps: Steps,
    norm_bound: float | None,
) -> Calibration:
    """Return the noise and the guarantee of one mechanism.

    Args:
        section: The section ``mechanism`` of a spec.
        budget: The privacy budget of all steps together.
        sensitivity: What one privacy unit can change in one step.
        shape: The shape of the tensor that noise is added to.
        steps: How many steps share the budget.
        norm_bound: sup ||f||, where it is known.

    Raises:
        InvalidMechanism: If the mechanism does not apply, or its options do not go together.
    """
    inputs = MechanismInputs(
        budget=budget, sensitivity=sensitivity, shape=shape, steps=steps, norm_bound=norm_bound
    )
    return _calibrated(section, inputs)


def _calibrated(section: MechanismSection, inputs: MechanismInputs) -> Calibration:
    """Return the noise and the guarantee of one mechanism by its builder."""
    if isinstance(getattr(section, "directions", None), sections.EstimatedDirections):
        raise InvalidMechanism(
            "directions from dp-covariance need the data; give them in a release, or give public"
            " directions"
        )
    builder = _BUILDERS.get(type(section))
    if builder is None:
        raise InvalidMechanism(
            f"mechanism {section.name!r} has no builder; call register_mechanism with its section"
            " first"
        )
    return builder(section, inputs)


register_mechanism(sections.ClassicGaussianSection, builders.build_classic_gaussian)
register_mechanism(sections.AnalyticGaussianSection, builders.build_analytic_gaussian)
register_mechanism(sections.ImgmSection, builders.build_imgm)
register_mechanism(sections.MvgSection, builders.build_mvg)
register_mechanism(sections.MgmSection, builders.build_mgm)
register_mechanism(sections.UdnSection, builders.build_udn)
register_mechanism(sections.IdnSection, builders.build_idn)
register_mechanism(sections.DirectionalSection, builders.build_directional)
register_mechanism(sections.RankOneSection, builders.build_rank_one)
register_mechanism(sections.KNormSection, builders.build_k_norm)
register_mechanism(sections.AutoSection, builders.build_auto)
register_mechanism(sections.LaplaceSection, builders.build_laplace)

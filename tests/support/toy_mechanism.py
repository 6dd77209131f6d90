"""A mechanism of one file: i.i.d. Gaussian noise by concentrated differential privacy.

rho-zCDP gives (rho + 2 sqrt(rho ln(1/delta)), delta)-DP (Bun & Steinke 2016, Prop. 1.3), and noise
of standard deviation s / sqrt(2 rho) gives rho-zCDP.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from dpdask.mechanisms import Calibration
from dpdask.mechanisms.gaussian import verified_gaussian
from dpdask.noise import IidNoise
from dpdask.planning.build_mechanism import MechanismInputs, register_mechanism
from dpdask.spec.fields import Number
from dpdask.spec.mechanism import MechanismSection


class ZcdpGaussianSection(MechanismSection):
    """``zcdp-gaussian``: ``margin`` multiplies the noise."""

    name: Literal["zcdp-gaussian"]
    margin: Annotated[Number, Field(ge=1)] = 1.0


def calibrate_zcdp(section: ZcdpGaussianSection, inputs: MechanismInputs) -> Calibration:
    step = inputs.steps.basic_step(inputs.budget)
    log_delta = -math.log(step.delta)
    root_rho = math.sqrt(log_delta + step.epsilon) - math.sqrt(log_delta)
    sigma = inputs.sensitivity.radius / (math.sqrt(2) * root_rho) * section.margin * (1 + 1e-12)
    return verified_gaussian(
        noise=IidNoise(inputs.shape, sigma),
        sensitivity=inputs.sensitivity,
        budget=inputs.budget,
        theorem="Bun & Steinke 2016, Prop. 1.3" + inputs.steps.suffix("basic composition"),
        steps=inputs.steps,
        quantities={"sigma": sigma, "rho": root_rho**2},
    )


def register() -> None:
    register_mechanism(ZcdpGaussianSection, calibrate_zcdp)

"""Exact privacy profiles: delta(epsilon) and epsilon(delta) of the noise that is really added, and
their composition.
"""

from dpdask.accounting.composed import (
    ComposedProfile,
    SampledProfile,
    StepProfile,
    compose,
    profile_from_dict,
)
from dpdask.accounting.dominating import Dominated, dominating_gaussian
from dpdask.accounting.gaussian import GaussianProfile
from dpdask.accounting.pure import PureProfile
from dpdask.accounting.radial import Chi, Gamma, HalfNormal, RadialLaw
from dpdask.accounting.spherical import SphericalProfile

__all__ = [
    "Chi",
    "ComposedProfile",
    "Dominated",
    "Gamma",
    "GaussianProfile",
    "HalfNormal",
    "PureProfile",
    "RadialLaw",
    "SampledProfile",
    "SphericalProfile",
    "StepProfile",
    "compose",
    "dominating_gaussian",
    "profile_from_dict",
]

"""Exact privacy profiles: delta(epsilon) and epsilon(delta) of the noise that is really added, and their composition."""

from dpdask.profiles.composed import ComposedProfile, SampledProfile, compose, profile_from_description
from dpdask.profiles.dominating import Dominated, dominating_gaussian
from dpdask.profiles.gaussian import GaussianProfile
from dpdask.profiles.radial import Chi, Gamma, HalfNormal, RadialLaw
from dpdask.profiles.spherical import SphericalProfile

__all__ = [
    "Chi",
    "ComposedProfile",
    "Dominated",
    "Gamma",
    "GaussianProfile",
    "HalfNormal",
    "RadialLaw",
    "SampledProfile",
    "SphericalProfile",
    "compose",
    "dominating_gaussian",
    "profile_from_description",
]

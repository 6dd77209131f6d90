"""Noise: the shapes that mechanisms choose and the factors that colour them."""

from dpdask.noise.deviations import Deviations, Tail
from dpdask.noise.distributions import (
    IidNoise,
    KroneckerNoise,
    LaplaceNoise,
    Noise,
    SphericalNoise,
    noise_from_dict,
)
from dpdask.noise.factors import DenseFactor, DiagonalFactor, Factor, LowRankFactor, ScaledIdentity
from dpdask.noise.levels import NoiseLevel

__all__ = [
    "DenseFactor",
    "Deviations",
    "DiagonalFactor",
    "Factor",
    "IidNoise",
    "KroneckerNoise",
    "LaplaceNoise",
    "LowRankFactor",
    "Noise",
    "NoiseLevel",
    "ScaledIdentity",
    "SphericalNoise",
    "Tail",
    "noise_from_dict",
]

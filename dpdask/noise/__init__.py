"""Noise: the shapes that mechanisms choose and the factors that colour them."""

from dpdask.noise.distributions import (
    IidNoise,
    KroneckerNoise,
    LaplaceNoise,
    Noise,
    SphericalNoise,
    noise_from_dict,
)
from dpdask.noise.factors import DenseFactor, DiagonalFactor, Factor, LowRankFactor, ScaledIdentity

__all__ = [
    "DenseFactor",
    "DiagonalFactor",
    "Factor",
    "IidNoise",
    "KroneckerNoise",
    "LaplaceNoise",
    "LowRankFactor",
    "Noise",
    "ScaledIdentity",
    "SphericalNoise",
    "noise_from_dict",
]

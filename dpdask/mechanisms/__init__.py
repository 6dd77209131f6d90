"""Mechanisms: from (budget, sensitivity, shape) to noise with a guarantee.

Nothing after calibration depends on which mechanism it was.
"""

from dpdask.mechanisms.auto import auto
from dpdask.mechanisms.base import Calibration, Choice, Steps, amortise, amplified_rate
from dpdask.mechanisms.directional import directional
from dpdask.mechanisms.gaussian import analytic_gaussian, classic_gaussian, imgm
from dpdask.mechanisms.laplace import laplace
from dpdask.mechanisms.mgm import idn, mgm, udn, utility_weights
from dpdask.mechanisms.reproductions.mvg import mvg
from dpdask.mechanisms.reproductions.mvg_allocation import (
    Allocation,
    Binary,
    FixedShares,
    MaxPnr,
    Uniform,
)
from dpdask.mechanisms.spherical import k_norm, rank_one

__all__ = [
    "Allocation",
    "Binary",
    "Calibration",
    "Choice",
    "FixedShares",
    "MaxPnr",
    "Steps",
    "Uniform",
    "amortise",
    "amplified_rate",
    "analytic_gaussian",
    "auto",
    "classic_gaussian",
    "directional",
    "idn",
    "imgm",
    "k_norm",
    "laplace",
    "mgm",
    "mvg",
    "rank_one",
    "udn",
    "utility_weights",
]

"""dpdask: certified, differentially private releases of large tensors."""

from dpdask.errors import DpdaskError
from dpdask.mechanisms import Calibrated, Steps, calibrate
from dpdask.privacy import Adjacency, Guarantee, PrivacyBudget
from dpdask.profiles import GaussianProfile, SphericalProfile
from dpdask.sensitivity import Box, L2Ball, Origin, RecordBall, RecordBox

__all__ = [
    "Adjacency",
    "Box",
    "Calibrated",
    "DpdaskError",
    "GaussianProfile",
    "Guarantee",
    "L2Ball",
    "Origin",
    "PrivacyBudget",
    "RecordBall",
    "RecordBox",
    "SphericalProfile",
    "Steps",
    "calibrate",
]

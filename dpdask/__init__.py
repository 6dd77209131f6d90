"""dpdask: certified, differentially private releases of large tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpdask.errors import DpdaskError
from dpdask.mechanisms import Calibrated, Steps, calibrate
from dpdask.privacy import Adjacency, Guarantee, PrivacyBudget
from dpdask.profiles import GaussianProfile, SphericalProfile
from dpdask.sensitivity import L2Ball, Origin

if TYPE_CHECKING:
    from dpdask.published import open_release
    from dpdask.releasing import plan, release
    from dpdask.spec import ReleaseSpec

__all__ = [
    "Adjacency",
    "Calibrated",
    "DpdaskError",
    "GaussianProfile",
    "Guarantee",
    "L2Ball",
    "Origin",
    "PrivacyBudget",
    "ReleaseSpec",
    "SphericalProfile",
    "Steps",
    "calibrate",
    "open_release",
    "plan",
    "release",
]


def __getattr__(name: str) -> Any:
    """The release's names, loaded when first used: they bring a database and a cluster client with them."""
    homes = {"open_release": "published", "plan": "releasing", "release": "releasing"}
    if name in homes:
        import importlib

        return getattr(importlib.import_module(f"dpdask.{homes[name]}"), name)
    if name == "ReleaseSpec":
        from dpdask.spec import ReleaseSpec

        return ReleaseSpec
    raise AttributeError(f"module 'dpdask' has no attribute {name!r}")

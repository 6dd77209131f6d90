"""dpdask: certified, differentially private releases of large tensors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dpdask.errors import DpdaskError

if TYPE_CHECKING:
    from importlib.metadata import version

    from dpdask.accounting import GaussianProfile, SphericalProfile
    from dpdask.mechanisms import Calibration, Steps
    from dpdask.planning.build_mechanism import calibrate
    from dpdask.privacy import Adjacency, Guarantee, PrivacyBudget
    from dpdask.releases.api import plan, release
    from dpdask.releases.choices import plan_epsilons
    from dpdask.releases.read import open_release, open_release_dataset
    from dpdask.releases.sessions import StepSession, steps
    from dpdask.releases.step_files import wait_for_step
    from dpdask.releases.uncertainty import interval
    from dpdask.sensitivity import L2Ball, Origin
    from dpdask.spec import ReleaseSpec

    __version__ = version("dpdask")

__all__ = [
    "Adjacency",
    "Calibration",
    "DpdaskError",
    "GaussianProfile",
    "Guarantee",
    "L2Ball",
    "Origin",
    "PrivacyBudget",
    "ReleaseSpec",
    "SphericalProfile",
    "StepSession",
    "Steps",
    "__version__",
    "calibrate",
    "interval",
    "open_release",
    "open_release_dataset",
    "plan",
    "plan_epsilons",
    "release",
    "steps",
    "wait_for_step",
]

_LOADED_WHEN_USED = {  # they bring SciPy, pydantic, a database and a cluster client with them
    "Adjacency": "dpdask.privacy",
    "Calibration": "dpdask.mechanisms",
    "GaussianProfile": "dpdask.accounting",
    "Guarantee": "dpdask.privacy",
    "L2Ball": "dpdask.sensitivity",
    "Origin": "dpdask.sensitivity",
    "PrivacyBudget": "dpdask.privacy",
    "ReleaseSpec": "dpdask.spec",
    "SphericalProfile": "dpdask.accounting",
    "StepSession": "dpdask.releases.sessions",
    "Steps": "dpdask.mechanisms",
    "calibrate": "dpdask.planning.build_mechanism",
    "interval": "dpdask.releases.uncertainty",
    "open_release": "dpdask.releases.read",
    "open_release_dataset": "dpdask.releases.read",
    "plan": "dpdask.releases.api",
    "plan_epsilons": "dpdask.releases.choices",
    "release": "dpdask.releases.api",
    "steps": "dpdask.releases.sessions",
    "wait_for_step": "dpdask.releases.step_files",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used."""
    if name == "__version__":
        from importlib.metadata import version

        return version("dpdask")
    if name in _LOADED_WHEN_USED:
        return getattr(importlib.import_module(_LOADED_WHEN_USED[name]), name)
    raise AttributeError(f"module 'dpdask' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})

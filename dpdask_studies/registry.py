"""All studies by name, each loaded when it is run."""

from __future__ import annotations

import importlib

from dpdask.errors import InvalidSpec
from dpdask_studies.study import Study

__all__ = ["NAMES", "studies", "study"]

_MODULES = {
    "r1-counts": "r1_counts",
    "r1-pca": "r1_pca",
    "r1-training": "r1_training",
    "r1-loss": "r1_loss",
    "mvg-regression": "mvg_regression",
    "mvg-component": "mvg_component",
    "mvg-covariance": "mvg_covariance",
    "mgm-errors": "mgm_errors",
    "mgm-time": "mgm_time",
    "mgm-gradients": "mgm_gradients",
    "mgm-features": "mgm_features",
    "imgm": "imgm",
    "best": "best",
}
NAMES = tuple(_MODULES)


def study(name: str) -> Study:
    """Return a study by its name."""
    if name not in _MODULES:
        raise InvalidSpec(f"{name!r} is not a valid study; choose one of {', '.join(NAMES)}")
    try:
        module = importlib.import_module(f"dpdask_studies.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        raise InvalidSpec(
            f"study {name} needs {error.name}; install it by: pip install 'dpdask[studies]'"
        ) from None
    chosen: Study = module.STUDY
    return chosen


def studies() -> list[Study]:
    """Return all studies."""
    return [study(name) for name in NAMES]

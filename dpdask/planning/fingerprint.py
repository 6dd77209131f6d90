"""What a release is known by in the ledger, and the software that computes it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from typing import Any

from dpdask.noise import DenseFactor, KroneckerNoise, SphericalNoise
from dpdask.planning.plan import Component
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import Layout
from dpdask.types import Json

__all__ = ["fingerprint", "recipe_digest", "software_versions", "spec_digest"]


def fingerprint(
    spec: ReleaseSpec, identity: str, data: Component, directions: Component | None, layout: Layout
) -> str:
    """What makes a release this one and no other: source, spec, grid, sampler and library, but not
    where it is computed.
    """
    facts: Json = {
        "source": identity,
        "spec": _asked(spec),
        "layout": [
            layout.name,
            layout.shape,
            layout.chunks,
            layout.shards,
            layout.dtype,
            layout.codec,
            layout.dimension_names,
        ],
        "grid": data.fitted.recipe.to_dict() | data.fitted.records_to_dict(),
        "noise": _digest(data.fitted.recipe.noise.to_dict()),
        **_applied(data),
        "directions": None if directions is None else directions.fitted.recipe.to_dict(),
        "dpdask": importlib.metadata.version("dpdask"),
    }
    if isinstance(
        data.fitted.recipe.noise, SphericalNoise
    ):  # radii and stretches are floating point
        facts["scipy"] = importlib.metadata.version("scipy")
    return _digest(facts)


def recipe_digest(release: str, component: Component) -> str:
    """What a component's noise is drawn for: the release, and the noise and grid that are really
    used.

    Directions that were found on the way are part of it. So the same integers are never added along
    other axes or on another grid, whatever a resumed run was made to believe: another recipe draws
    other noise.
    """
    fitted = component.fitted
    grid = fitted.recipe.to_dict() | fitted.records_to_dict()
    return _digest(
        {
            "release": release,
            "noise": _digest(fitted.recipe.noise.to_dict()),
            "grid": grid,
            **_applied(component),
        }
    )


def _applied(component: Component) -> Json:
    """The computed inverses of dense factors, whose last bits differ between processors and
    libraries.
    """
    noise = component.fitted.recipe.noise
    factors = noise.factors if isinstance(noise, KroneckerNoise) else ()
    dense = [
        hashlib.sha256(factor.inverse().tobytes()).hexdigest()
        for factor in factors
        if isinstance(factor, DenseFactor)
    ]
    return {"applied": dense} if dense else {}


def spec_digest(spec: ReleaseSpec) -> str:
    """What tells one spec from another, wherever it is computed, and whatever options later
    versions add.
    """
    return _digest(_asked(spec, exclude_defaults=True))


def _asked(spec: ReleaseSpec, *, exclude_defaults: bool = False) -> Json:
    elsewhere: Any = {"compute": True, "source": {"options"}, "output": {"options"}}
    asked = spec.model_dump(
        mode="json", by_alias=True, exclude=elsewhere, exclude_defaults=exclude_defaults
    )
    return {**asked, "budget": spec.budget.dataset}


def _digest(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def software_versions() -> dict[str, str]:
    """The versions of what computes a release."""
    names = ("dpdask", "numpy", "scipy", "numba", "zarr", "dask", "distributed", "cryptography")
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }

"""The fingerprint of a release in the ledger, and the software that computes it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Sequence

from dpdask.noise import DenseFactor, KroneckerNoise, SphericalNoise
from dpdask.planning.answer import Component
from dpdask.planning.plan import Variable
from dpdask.spec.release import CenterSection, ReleaseSpec
from dpdask.types import Json

__all__ = ["FORMAT", "fingerprint", "recipe_digest", "software_versions", "spec_digest"]


FORMAT = {"sampler": 1, "grid": 1, "wire": 1}
"""What decides the bytes of a release beside its spec and its source, by version.

A release that an older dpdask began is finished by a newer one of the same format. Whoever changes
how noise is drawn, how values are put on their grid, how a release is encoded, or the default of a
spec's option, raises a number: tests/golden/bytes.json shows that it is needed.
"""


def fingerprint(spec: ReleaseSpec, variables: Sequence[Variable]) -> str:
    """Return what tells a release from all others: source, spec, grid, sampler and format.

    Where it is computed is not part of it, nor are options that are left at their defaults: a later
    version may know more of them. The fingerprint is secret: it is never published.

    Args:
        spec: The release as it was asked for.
        variables: The released arrays.
    """
    payload: Json = {
        "spec": _spec_to_dict(spec),
        "directions": None,
        "format": FORMAT,
    }
    for variable in variables:
        if variable.estimate is not None:
            name = variable.estimate.component.name
            payload[name] = variable.estimate.component.privatizer.to_dict()
    if len(variables) == 1:
        payload |= _variable(variables[0])
    else:
        payload["variables"] = [_variable(variable) for variable in variables]
    if any(isinstance(variable.component.noise, SphericalNoise) for variable in variables):
        payload["scipy"] = importlib.metadata.version("scipy")  # for radii and stretches
    return _digest(payload)


def _variable(variable: Variable) -> Json:
    """Return what tells a released array from others."""
    layout, component = variable.layout, variable.component
    return {
        "source": variable.identity,
        "layout": [
            layout.name,
            layout.shape,
            layout.chunks,
            layout.shards,
            layout.dtype,
            layout.codec,
            layout.dimension_names,
        ],
        "grid": component.grid_to_dict(),
        "noise": _digest(component.noise.to_dict()),
        **_applied(component),
        **_parts(component),
        **_center(variable.spec, component),
    }


def recipe_digest(fingerprint: str, component: Component) -> str:
    """Return what a component's noise is drawn for: the release, its real noise and its grid.

    Guarantee: the same integers are never added along other axes or on another grid, whatever a
    resumed run reads: another noise or grid draws other integers. Directions and bounds that a
    release chooses are part of it.
    """
    return _digest(
        {
            "release": fingerprint,
            "noise": _digest(component.noise.to_dict()),
            "grid": component.grid_to_dict(),
            **_applied(component),
            **_parts(component),
            **({} if component.chosen is None else {"chosen": component.chosen}),
        }
    )


def _parts(component: Component) -> Json:
    """Return the noise and grids of further parts, nothing where there are none."""
    if not component.parts:
        return {}
    return {
        "parts": {
            part.name: [part.noise.to_dict(), part.privatizer.to_dict()] for part in component.parts
        }
    }


def _center(spec: ReleaseSpec, component: Component) -> Json:
    """Return a digest of a centre that the spec names but does not hold."""
    if not isinstance(spec.privacy_unit.center, CenterSection):
        return {}
    return {"center": component.query.bound_to_dict(component.discretized)["center"]}


def _applied(component: Component) -> Json:
    """Return the inverses of dense factors, by which answers are whitened."""
    noise = component.noise
    factors = noise.factors if isinstance(noise, KroneckerNoise) else ()
    dense = [
        hashlib.sha256(factor.inverse().tobytes()).hexdigest()
        for factor in factors
        if isinstance(factor, DenseFactor)
    ]
    return {"applied": dense} if dense else {}


def spec_digest(spec: ReleaseSpec) -> str:
    """Return what tells one spec from another, whatever options later versions add."""
    return _digest(_spec_to_dict(spec))


def _spec_to_dict(spec: ReleaseSpec) -> Json:
    """Return a spec without defaults, and without what says only where it is computed or stored."""
    elsewhere: Json = {"compute": True, "source": {"options"}, "output": {"options"}}
    document = spec.model_dump(mode="json", by_alias=True, exclude=elsewhere, exclude_defaults=True)
    # documents are compared with sorted keys, and the order of arrays is that of the answer's axes,
    # or of the variables on the card
    arrays = {"arrays": list(spec.query.arrays)} if spec.query.arrays else {}
    variables = {"variables": list(spec.source.arrays)} if spec.source.arrays else {}
    return {**document, **arrays, **variables, "budget": spec.budget.dataset}


def _digest(payload: Json) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def software_versions() -> dict[str, str]:
    """Return the versions of what computes a release."""
    names = ("dpdask", "numpy", "scipy", "numba", "zarr", "dask", "distributed", "cryptography")
    return {"python": platform.python_version(), **{name: _version(name) for name in names}}


@functools.cache  # it reads and parses a file of each package
def _version(name: str) -> str:
    return importlib.metadata.version(name)

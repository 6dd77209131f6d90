"""The norms of all tiles' spherical noise, drawn once in a process."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from dpdask.execution.jobs import TileJob
from dpdask.keystream import ReleaseKey
from dpdask.noise import SphericalNoise
from dpdask.planning.tiling import Index
from dpdask.privatizers.chunk_radii import chunk_radii

__all__ = ["tile_radii"]

# Those of the release under way: many tiles make them slow to draw in every task.
_RADII: dict[str, Any] = {}
_RADII_LOCK = threading.Lock()


def tile_radii(job: TileJob, key: ReleaseKey) -> dict[Index, float]:
    """Return the norm of every tile's noise where all share one direction, equal in every task."""
    noise = job.privatizer.noise
    if not isinstance(noise, SphericalNoise):
        return {}
    # a code that only this key gives for these tiles: a process may serve several releases
    drawn_for = f"{job.binding}/{job.component}/{job.tiling}/{noise.law}"
    name = key.seal("radii").close(drawn_for, b"")
    with _RADII_LOCK:
        if _RADII.get("name") != name:
            _RADII.update(name=name, radii=_drawn_radii(job, key, noise))
        radii: dict[Index, float] = _RADII["radii"]
    return radii


def _drawn_radii(job: TileJob, key: ReleaseKey, noise: SphericalNoise) -> dict[Index, float]:
    indices = list(np.ndindex(*job.tiling.counts))
    sizes = [
        math.prod(part.stop - part.start for part in job.tiling.box(index)) for index in indices
    ]
    drawn = chunk_radii(
        key,
        fingerprint=bytes.fromhex(job.binding),
        component=job.component,
        law=noise.law,
        chunk_sizes=sizes,
    )
    return dict(zip(indices, drawn.tolist(), strict=True))

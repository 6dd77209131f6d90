"""Radii of spherical noise, chunk by chunk, in one pass.

The squared norms of the chunks of a Gaussian vector are independent of the chunks' directions. So
the radius R and the shares w_c = G_c / sum G, G_c ~ Gamma(m_c / 2), are drawn here, from the
release key, and chunk c adds a vector of norm R sqrt(w_c) in its own uniform direction: together
exactly one uniform direction, with nothing of size M in one place. Everything here is floating
point, by inverse distribution functions of 52-bit uniforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from dpdask.accounting.radial import Chi, Gamma, HalfNormal, RadialLaw
from dpdask.errors import InvalidNoise
from dpdask.keystream import ReleaseKey, TileStream
from dpdask.noise.factors import Floats

__all__ = ["chunk_radii"]


def chunk_radii(
    key: ReleaseKey,
    *,
    fingerprint: bytes,
    component: str,
    law: RadialLaw,
    chunk_sizes: Sequence[int],
) -> Floats:
    """The norm of the noise of every chunk; their squares sum to R^2."""
    sizes = np.asarray(chunk_sizes, dtype=np.float64)
    if sizes.ndim != 1 or not sizes.size or np.any(sizes < 1):
        raise InvalidNoise(
            "spherical noise needs at least one chunk, and every chunk at least one entry"
        )
    shares = special.gammaincinv(
        sizes / 2,
        _uniforms(
            key.tile(fingerprint=fingerprint, component=f"{component}/shares", index=()), sizes.size
        ),
    )
    drawn = _uniforms(
        key.tile(fingerprint=fingerprint, component=f"{component}/radius", index=()), 2
    )[0]
    radius = _radius(law, float(drawn), int(np.sum(sizes)))
    return np.asarray(radius * np.sqrt(shares / math.fsum(shares)), dtype=np.float64)


def _uniforms(stream: TileStream, count: int) -> Floats:
    """Uniforms at the middles of 2^52 intervals of (0, 1)."""
    buffer = np.empty(min(32768, count + count % 2), np.uint64)
    refill = stream.filler(0, buffer)
    words = np.empty(count, np.uint64)
    for first in range(0, count, buffer.size):
        refill()
        words[first : first + buffer.size] = buffer[: count - first]
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _radius(law: RadialLaw, u: float, dimension: int) -> float:
    """The u-quantile of the radius."""
    if isinstance(law, HalfNormal):
        return law.scale * float(special.erfinv(u)) * math.sqrt(2)
    if isinstance(law, Chi):
        return law.scale * math.sqrt(2 * float(special.gammaincinv(dimension / 2, u)))
    if isinstance(law, Gamma):
        return law.scale * float(special.gammaincinv(dimension, u))
    raise InvalidNoise(f"radial law {law.name!r} has no sampler; use half-normal, chi or gamma")

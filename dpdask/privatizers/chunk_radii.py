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

from dpdask.accounting.radial import RadialLaw
from dpdask.errors import InvalidNoise
from dpdask.keystream import ReleaseKey, TileStream
from dpdask.types import Floats

__all__ = ["chunk_radii"]


def chunk_radii(
    key: ReleaseKey,
    *,
    fingerprint: bytes,
    component: str,
    law: RadialLaw,
    chunk_sizes: Sequence[int],
) -> Floats:
    """Return the norm of the noise of every chunk; their squares sum to R^2.

    Args:
        key: The release key.
        fingerprint: What the noise is drawn for.
        component: The name of the component.
        law: The distribution of the radius R.
        chunk_sizes: How many entries every chunk holds.
    """
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
    radius = law.quantile(float(drawn), int(np.sum(sizes)))
    return np.asarray(radius * np.sqrt(shares / math.fsum(shares)), dtype=np.float64)


def _uniforms(stream: TileStream, count: int) -> Floats:
    """Return uniforms at the middles of 2^52 intervals of (0, 1)."""
    buffer = np.empty(min(32768, count + count % 2), np.uint64)
    refill = stream.filler(0, buffer)
    words = np.empty(count, np.uint64)
    for first in range(0, count, buffer.size):
        refill()
        words[first : first + buffer.size] = buffer[: count - first]
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

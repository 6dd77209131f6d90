"""A layer with less noise on average: entries shrunk towards their mean (James & Stein 1961)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpdask.errors import InvalidSpec
from dpdask.noise import IidNoise, Noise
from dpdask.queries.beside import DATA, NOISE_STD, BesideArray
from dpdask.queries.layers.base import Layer, register_layer_class
from dpdask.types import Array, Floats, Region, Shape

__all__ = ["LEAST_ENTRIES", "Denoised"]

_AT_ONCE = 2**16  # numbers as Python holds them
LEAST_ENTRIES = 4  # of fewer, shrinking towards the mean gains nothing


@register_layer_class
@dataclass(frozen=True, kw_only=True)
class Denoised(Layer):
    """All entries, moved towards their mean by one factor.

    With m entries y of mean a, noise of variance v, and S = sum (y - a)^2, the factor is
    s = max(0, 1 - (m - 3) v / S) and the entries are a + s (y - a) (Efron & Morris 1973). Their
    total squared error is below that of y for every truth, if m > 3. Stein's unbiased estimate of
    it (SURE) is m v - (m - 3)^2 v^2 / S, and S - (m - 2) v where s is 0; divided by m, it is
    published as ``<array>_denoised_mse``.
    """

    name: ClassVar[str] = "denoised"
    whole: ClassVar[bool] = True
    needs_noise: ClassVar[bool] = True

    def arrays(self, shape: Shape, dimension_names: tuple[str, ...]) -> tuple[BesideArray, ...]:
        """Return the entries, and the estimate of their mean squared error."""
        entries = BesideArray(
            suffix="denoised", shape=shape, aligned=True, long_name="shrunk towards their mean"
        )
        error = BesideArray(
            suffix="denoised_mse",
            shape=(),
            aligned=False,
            long_name="unbiased estimate of the mean squared error of the denoised entries",
            units="({})^2",
            standard_name=None,
            dimension_names=(),
        )
        return entries, error

    def check_noise(self, noise: Noise, *, symmetric: bool) -> None:
        """Refuse noise that is not independent, Gaussian and equal: the estimate needs that."""
        if not isinstance(noise, IidNoise) or symmetric:
            raise InvalidSpec(
                "publish.layers: denoised needs the same Gaussian noise on every entry,"
                " independent of all others, which this result does not have; drop it, or use"
                " mechanism: analytic-gaussian with an identity, sum, mean or histogram"
            )

    def apply(self, released: Mapping[str, Floats], box: Region) -> dict[str, Array]:
        """Return the entries, moved, and the estimate of their error."""
        entries = released[DATA]
        variance = float(released[NOISE_STD].reshape(-1)[0]) ** 2
        count = entries.size
        mean = _total(entries) / count
        distances = entries - mean
        spread = _total(distances**2)
        removed = (count - 3) * variance
        if spread <= removed:
            moved, error = np.full_like(entries, mean), spread - (count - 2) * variance
        else:
            moved = mean + (1 - removed / spread) * distances
            error = count * variance - removed**2 / spread
        return {"denoised": moved, "denoised_mse": np.asarray(error / count)}


def _total(values: Floats) -> float:
    """Return the sum, exactly rounded, so that every machine has the same; NaN beyond doubles."""
    flat = values.reshape(-1)
    parts = (flat[start : start + _AT_ONCE].tolist() for start in range(0, flat.size, _AT_ONCE))
    try:
        return math.fsum(itertools.chain.from_iterable(parts))
    except (OverflowError, ValueError):
        return math.nan

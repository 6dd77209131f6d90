"""Radial laws: the distribution of R in spherical noise ``n = R v``, v a uniform direction in R^M.

A law is a frozen value that knows the distribution of R and the shape of the resulting density of
n, a decreasing function exp(-g(r)) of the radius. It works in logarithms of radii, ``y = ln(r /
centre)``, and with ``zeta = ln(q^2 / r^2)`` for two radii r <= q, so that no number overflows or
cancels for M from 2 to beyond 1e12.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import special

from dpdask.types import Floats, Json

__all__ = [
    "RADIAL_LAWS",
    "Chi",
    "Floats",
    "Gamma",
    "HalfNormal",
    "RadialLaw",
    "gamma_ratio",
    "radial_law_from_dict",
]


def gamma_ratio(n: float) -> float:
    """Gamma(n + 1/2) / (Gamma(n) sqrt(n)), to full precision for any n > 0."""
    if n < 100:
        return math.exp(math.lgamma(n + 0.5) - math.lgamma(n)) / math.sqrt(n)
    i = 1 / n
    return 1 - i / 8 + i**2 / 128 + 5 * i**3 / 1024 - 21 * i**4 / 32768 - 399 * i**5 / 262144


def _stirling_remainder(a: float) -> float:
    """ln Gamma(a) - (a ln a - a + ln(2 pi / a) / 2)."""
    if a < 20:
        return math.lgamma(a) - (a * math.log(a) - a + 0.5 * math.log(2 * math.pi / a))
    i = 1 / a
    return i / 12 - i**3 / 360 + i**5 / 1260 - i**7 / 1680


def _exp_minus_linear(y: Floats) -> Floats:
    """e^y - 1 - y without cancellation near zero."""
    small = np.clip(y, -0.1, 0.1)
    series = np.zeros_like(small)
    for k in range(14, 1, -1):
        series = (series + 1) * small / k
    near = series * small
    far = np.exp(np.minimum(y, 700.0)) - 1 - y
    return np.where(np.abs(y) < 0.1, near, far)


@dataclass(frozen=True, slots=True)
class RadialLaw(abc.ABC):
    """A law of the radius with one ``scale``; the noise's density decreases with the radius."""

    name: ClassVar[str]
    scale: float

    @abc.abstractmethod
    def log_centre(self, dimension: int) -> float:
        """The logarithm of the radius at which y = 0."""

    @abc.abstractmethod
    def scan(self, dimension: int) -> Floats:
        """Increasing values of y, fine enough to find the bulk of any integral against the law."""

    def least_exposed(self, dimension: int, sensitivity: float) -> float | None:
        """The y at which the largest possible loss is least, where that is inside the range of
        radii.
        """
        return None

    @abc.abstractmethod
    def log_density(self, y: Floats, dimension: int) -> Floats:
        """The log density of y = ln(R / centre)."""

    @abc.abstractmethod
    def growth(self, y: Floats, epsilon: float, dimension: int) -> Floats:
        """The zeta at which the loss g(q) - g(r) reaches ``epsilon`` for noise of radius r."""

    @abc.abstractmethod
    def further_loss(self, y: Floats, zeta: Floats, ratio: Floats, dimension: int) -> Floats:
        """g(q) - g(q1) for q1^2 = r^2 e^zeta and q^2 = q1^2 (1 + ratio): loss beyond epsilon."""

    def misalignment(
        self, y: Floats, t: Floats, c1: Floats, epsilon: float, sensitivity: float, dimension: int
    ) -> Floats:
        """1 - c1: how far the cosine of loss epsilon lies below 1; t is sensitivity / r."""
        return 1 - c1

    @abc.abstractmethod
    def log_raw_moment(self, order: int, dimension: int) -> float:
        """ln E[(R / scale)^(2 order)]."""

    @abc.abstractmethod
    def quantile(self, probability: float, dimension: int) -> float:
        """The radius that R stays below with ``probability``, in floating point."""

    def to_dict(self) -> Json:
        """``{"name": ..., "configuration": {"scale": ...}}``."""
        return {"name": self.name, "configuration": {"scale": self.scale}}


@dataclass(frozen=True, slots=True)
class HalfNormal(RadialLaw):
    """R = scale |z|, z standard normal: rank-one noise (R1SMG), scale^2 = sigma_star."""

    name: ClassVar[str] = "half-normal"

    def log_centre(self, dimension: int) -> float:
        """ln scale."""
        return math.log(self.scale)

    def scan(self, dimension: int) -> Floats:
        """Far to the left, where the density of y decays only like e^y and small radii lose the
        most privacy; finely near 0.
        """
        return np.unique(np.concatenate([np.arange(-1400.0, 9.0, 8.0), np.arange(-8.0, 4.0, 0.25)]))

    def least_exposed(self, dimension: int, sensitivity: float) -> float | None:
        """r (r + s) = (M - 1) scale^2: small radii lose by the power of r, large ones by the
        exponential.
        """
        ratio = sensitivity / self.scale
        root = 2 * (dimension - 1) / (ratio + math.sqrt(ratio * ratio + 4 * (dimension - 1)))
        return math.log(root)

    def log_density(self, y: Floats, dimension: int) -> Floats:
        """ln(sqrt(2/pi) exp(y - e^(2y)/2))."""
        return 0.5 * math.log(2 / math.pi) + y - 0.5 * np.exp(np.minimum(2 * y, 700.0))

    def growth(self, y: Floats, epsilon: float, dimension: int) -> Floats:
        """Newton's method on the convex a (e^zeta - 1) + (M - 1) zeta / 2 = epsilon, from the
        right.
        """
        a = 0.5 * np.exp(np.clip(2 * y, -745.0, 700.0))
        half = 0.5 * (dimension - 1)
        if epsilon == 0:
            return np.zeros_like(y)
        with np.errstate(divide="ignore", over="ignore"):
            zeta = np.minimum(epsilon / half, np.log1p(epsilon / a))
        for _ in range(100):
            grown = a * np.exp(np.minimum(zeta, 700.0))
            step = (a * np.expm1(np.minimum(zeta, 700.0)) + half * zeta - epsilon) / (grown + half)
            zeta = np.maximum(zeta - step, 0.0)
            if np.all(np.abs(step) <= 1e-15 * zeta):
                break
        return zeta

    def further_loss(self, y: Floats, zeta: Floats, ratio: Floats, dimension: int) -> Floats:
        """g(r) = r^2 / (2 scale^2) + (M - 1) ln r."""
        return 0.5 * np.exp(np.minimum(2 * y + zeta, 700.0)) * ratio + 0.5 * (
            dimension - 1
        ) * np.log1p(ratio)

    def log_raw_moment(self, order: int, dimension: int) -> float:
        """E z^(2k) = (2k - 1)!!."""
        return sum(math.log(j) for j in range(1, 2 * order, 2))

    def quantile(self, probability: float, dimension: int) -> float:
        """By the inverse error function."""
        return self.scale * float(special.erfinv(probability)) * math.sqrt(2)


@dataclass(frozen=True, slots=True)
class Chi(RadialLaw):
    """R = scale chi_M: exactly i.i.d. Gaussian noise of standard deviation ``scale``."""

    name: ClassVar[str] = "chi"

    def log_centre(self, dimension: int) -> float:
        """ln(scale sqrt(M))."""
        return math.log(self.scale) + 0.5 * math.log(dimension)

    def scan(self, dimension: int) -> Floats:
        """In standard deviations of y, 1 / sqrt(2 M)."""
        return np.arange(-90.0, 91.0, 2.0) / math.sqrt(2 * dimension)

    def log_density(self, y: Floats, dimension: int) -> Floats:
        """-(M/2)(e^(2y) - 1 - 2y), normalised."""
        log_norm = 0.5 * math.log(math.pi / dimension) + _stirling_remainder(dimension / 2)
        return -0.5 * dimension * _exp_minus_linear(2 * y) - log_norm

    def growth(self, y: Floats, epsilon: float, dimension: int) -> Floats:
        """ln(1 + 2 epsilon scale^2 / r^2)."""
        return np.log1p(2 * epsilon / dimension * np.exp(np.minimum(-2 * y, 700.0)))

    def further_loss(self, y: Floats, zeta: Floats, ratio: Floats, dimension: int) -> Floats:
        """g(r) = r^2 / (2 scale^2)."""
        return 0.5 * dimension * np.exp(np.minimum(2 * y + zeta, 650.0)) * ratio

    def log_raw_moment(self, order: int, dimension: int) -> float:
        """E chi_M^(2k) = M (M + 2) ... (M + 2k - 2)."""
        return sum(math.log(dimension + 2 * j) for j in range(order))

    def quantile(self, probability: float, dimension: int) -> float:
        """R^2 / (2 scale^2) has a gamma distribution."""
        return self.scale * math.sqrt(2 * float(special.gammaincinv(dimension / 2, probability)))


@dataclass(frozen=True, slots=True)
class Gamma(RadialLaw):
    """R ~ Gamma(M, scale): density proportional to exp(-||n|| / scale), the l2 K-norm mechanism."""

    name: ClassVar[str] = "gamma"

    def log_centre(self, dimension: int) -> float:
        """ln(M scale)."""
        return math.log(self.scale) + math.log(dimension)

    def scan(self, dimension: int) -> Floats:
        """In standard deviations of y, 1 / sqrt(M)."""
        return np.arange(-90.0, 91.0, 2.0) / math.sqrt(dimension)

    def log_density(self, y: Floats, dimension: int) -> Floats:
        """-M (e^y - 1 - y), normalised."""
        log_norm = 0.5 * math.log(2 * math.pi / dimension) + _stirling_remainder(dimension)
        return -dimension * _exp_minus_linear(y) - log_norm

    def growth(self, y: Floats, epsilon: float, dimension: int) -> Floats:
        """2 ln(1 + epsilon scale / r)."""
        return 2 * np.log1p(epsilon / dimension * np.exp(np.minimum(-y, 700.0)))

    def further_loss(self, y: Floats, zeta: Floats, ratio: Floats, dimension: int) -> Floats:
        """g(r) = r / scale."""
        reached: Floats = dimension * np.exp(np.minimum(y + zeta / 2, 650.0))
        return np.asarray(reached * (ratio / (np.sqrt(1 + ratio) + 1)), dtype=np.float64)

    def misalignment(
        self, y: Floats, t: Floats, c1: Floats, epsilon: float, sensitivity: float, dimension: int
    ) -> Floats:
        """(1 - epsilon scale / s)(2 + t + epsilon scale / r)/2: exact up to the largest loss, s /
        scale.
        """
        share = max(0.0, 1 - epsilon * self.scale / sensitivity)
        return share * (2 + t + epsilon / dimension * np.exp(np.minimum(-y, 700.0))) / 2

    def log_raw_moment(self, order: int, dimension: int) -> float:
        """E R^(2k) = M (M + 1) ... (M + 2k - 1)."""
        return sum(math.log(dimension + j) for j in range(2 * order))

    def quantile(self, probability: float, dimension: int) -> float:
        """R / scale has a gamma distribution."""
        return self.scale * float(special.gammaincinv(dimension, probability))


RADIAL_LAWS: dict[str, type[RadialLaw]] = {law.name: law for law in (HalfNormal, Chi, Gamma)}


def radial_law_from_dict(description: Json) -> RadialLaw:
    """Return the distribution that :meth:`RadialLaw.to_dict` wrote."""
    return RADIAL_LAWS[description["name"]](description["configuration"]["scale"])

"""The exact privacy profile of spherically symmetric noise ``n = R v`` (mechanisms page: rank-one).

Let the density of n be exp(-g(||n||)), g increasing, and let neighbours differ by D with ||D|| = s.
Noise of radius r and cosine c with D has the privacy loss ``g(q) - g(r)`` with ``q^2 = r^2 + s^2 +
2 r s c``, increasing in c. Hence

    delta(epsilon) = E_r integral over c from c1(r) to 1 of f_M(c) (1 - e^(epsilon - loss(r, c)))
    dc,

where loss(r, c1) = epsilon and f_M is the density of one coordinate of a uniform direction. Every
factor is positive: nothing cancels, and logarithms carry it to delta = 1e-300. For any decreasing
density the ball of radius s is covered by
||D|| = s: the overlap of level sets, balls around 0 and around D, only shrinks as ||D|| grows.

The cosine is integrated in ``u`` with ``c^2 = 1 - e^(-u^2/(M-1))``, in which its density is the
standard normal one times the smooth factor k(w) = w / sqrt(1 - e^(-w^2)), w = u / sqrt(M-1); so M =
1e12 is as easy as M = 3.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from dpdask.accounting.radial import Floats, RadialLaw, gamma_ratio
from dpdask.accounting.rounding import round_up_delta, smallest_epsilon
from dpdask.errors import InvalidBudget, InvalidMechanism
from dpdask.types import Json

__all__ = ["SphericalProfile"]

_FAR = 39.0  # a standard normal beyond this is below 1e-330


def _half_line_rule() -> tuple[Floats, Floats]:
    """Double-exponential rule on (0, inf) for integrands decaying like e^-v: v = exp(x - e^-x)."""
    step = 1 / 14
    x = np.arange(-3.9, 4.3, step)
    v = np.exp(x - np.exp(-x))
    return v, step * v * (1 + np.exp(-x))


def _unit_interval_rule() -> tuple[Floats, Floats]:
    """Double-exponential (tanh-sinh) rule on (0, 1), nodes given as their distance from 0."""
    step = 1 / 24
    x = step * np.arange(-98, 99)
    inner = math.pi / 2 * np.sinh(x)
    nodes = 1 / (1 + np.exp(-2 * inner))
    weights = step * math.pi * np.cosh(x) * nodes / (1 + np.exp(2 * inner))
    return nodes, weights


_LINE, _LINE_WEIGHT = _half_line_rule()
_UNIT, _UNIT_WEIGHT = _unit_interval_rule()
_FINE = np.polynomial.legendre.leggauss(15)
_GRADED = 2.0 ** np.arange(-40.0, 0.0, 5.0)  # distances from a kink at which panels end
_COARSE = np.polynomial.legendre.leggauss(10)


def _smooth_factor(w: Floats) -> Floats:
    w2 = w * w
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(w2 < 1e-300, 1.0, np.sqrt(w2 / -np.expm1(-w2)))


def _growth_ratio(base: Floats, gap: Floats) -> Floats:
    """base * gap, capped where the loss is so large that 1 - e^-loss is 1 anyway."""
    with np.errstate(over="ignore"):
        return np.minimum(base * gap, 1e300)


def _near(one: float, other: float) -> bool:
    """Whether two logarithmic heights differ by less than 4; never for a point of no height."""
    return one > -math.inf and other > -math.inf and abs(one - other) < 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SphericalProfile:
    """The privacy of spherical noise in ``dimension`` entries on an l2 ball of radius
    ``sensitivity``.

    Guarantee: necessary and sufficient for noise R v with R of law ``law``, rounded towards more
    loss.
    """

    dimension: int
    law: RadialLaw
    sensitivity: float

    def __post_init__(self) -> None:
        if self.dimension < 2:
            raise InvalidMechanism(
                f"dimension={self.dimension} has no sphere of directions; spherical noise needs"
                " at least 2 entries"
            )
        for name, value in (("scale", self.law.scale), ("sensitivity", self.sensitivity)):
            if not (value > 0 and math.isfinite(value)):
                raise InvalidBudget(
                    f"{name}={value:g} is not a valid size; it must be finite and > 0"
                )

    def _threshold(self, y: Floats, epsilon: float) -> tuple[Floats, Floats, Floats, Floats]:
        """The cosine c1 at which the loss reaches epsilon, 1 - c1, its zeta, and the growth of q^2
        per unit of cosine.
        """
        log_t = math.log(self.sensitivity) - self.law.log_centre(self.dimension) - y
        log_t = np.clip(log_t, -700.0, 700.0)
        t = np.exp(log_t)
        zeta = self.law.growth(y, epsilon, self.dimension)
        with np.errstate(over="ignore"):
            z_over_t = np.where(
                zeta < 1,
                np.expm1(np.minimum(zeta, 1.0)) / t,
                np.exp(np.minimum(zeta - log_t, 709.0)) - 1 / t,
            )
        c1 = 0.5 * (z_over_t - t)
        gap_to_one = self.law.misalignment(y, t, c1, epsilon, self.sensitivity, self.dimension)
        return c1, gap_to_one, zeta, 2 * np.exp(np.minimum(log_t - zeta, 700.0))

    def _log_conditional(self, y: Floats, epsilon: float) -> Floats:
        """Return ln of the conditional delta at the radius exp(y) * centre.

        It is -inf where the loss stays below epsilon.
        """
        n = self.dimension - 1
        root_n = math.sqrt(n)
        c1, gap_to_one, zeta, base = self._threshold(y, epsilon)
        result = np.full(y.shape, -np.inf)
        live = gap_to_one > 0
        if not np.any(live):
            return result
        y, zeta, c1, gap_to_one, base = y[live], zeta[live], c1[live], gap_to_one[live], base[live]
        inside = gap_to_one < 2
        c1_in = np.where(inside, c1, 0.0)
        # -ln(1 - c1^2), from whichever of c1 and 1 - c1 carries the digits
        near_one = np.where(inside, gap_to_one, 1.0)
        w1_squared = np.where(
            near_one < 0.5,
            -np.log(near_one * (2 - near_one)),
            -np.log1p(-np.minimum(c1_in**2, 1 - 1e-16)),
        )
        u1 = np.where(inside, np.sign(c1_in) * np.sqrt(n * w1_squared), -np.inf)
        right = u1 >= 0
        # From max(u1, 0) to infinity.
        start = np.maximum(u1, 0.0)
        width = 2 / (start + np.sqrt(start**2 + 4))
        v = width[:, None] * _LINE
        u = start[:, None] + v
        c_squared = -np.expm1(-((u / root_n) ** 2))
        c = np.sqrt(c_squared)
        rise = np.exp(-w1_squared)[:, None] * -np.expm1(-(2 * start[:, None] * v + v * v) / n)
        gap = np.where(right[:, None], rise / np.maximum(c + c1[:, None], 1e-300), c - c1[:, None])
        loss = self.law.further_loss(
            y[:, None], zeta[:, None], _growth_ratio(base[:, None], gap), self.dimension
        )
        weight = np.exp(-start[:, None] * v - v * v / 2) * _smooth_factor(u / root_n) * _LINE_WEIGHT
        total = width * np.sum(weight * -np.expm1(-np.maximum(loss, 0.0)), axis=1)
        left = np.flatnonzero(~right)
        if left.size:
            total[left] += self._below_zero(
                u1[left], c1[left], w1_squared[left], y[left], zeta[left], base[left]
            )
        with np.errstate(divide="ignore"):
            scaled = np.log(total) - start**2 / 2
        result[live] = scaled + math.log(gamma_ratio(n / 2)) - 0.5 * math.log(2 * math.pi)
        return result

    def _below_zero(
        self,
        u1: Floats,
        c1: Floats,
        w1_squared: Floats,
        y: Floats,
        zeta: Floats,
        base: Floats,
    ) -> Floats:
        """Return the part of the integral from u1 < 0 up to 0."""
        n = self.dimension - 1
        root_n = math.sqrt(n)
        begin = np.maximum(u1, -_FAR)
        exact = (u1 >= -_FAR)[:, None]
        v = -begin[:, None] * _UNIT
        u = begin[:, None] * _UNIT[::-1]
        c = np.sqrt(-np.expm1(-((u / root_n) ** 2)))
        edge = np.abs(c1)[:, None]
        fall = np.exp(-w1_squared)[:, None] * np.expm1(
            np.where(exact, (2 * -begin[:, None] * v - v * v) / n, 0.0)
        )
        gap = np.where(exact, fall / np.maximum(edge + c, 1e-300), edge - c)
        loss = self.law.further_loss(
            y[:, None], zeta[:, None], _growth_ratio(base[:, None], gap), self.dimension
        )
        weight = np.exp(-u * u / 2) * _smooth_factor(u / root_n) * _UNIT_WEIGHT
        part: Floats = -begin * np.sum(weight * -np.expm1(-np.maximum(loss, 0.0)), axis=1)
        return part

    def _log_integrand(self, y: Floats, epsilon: float) -> Floats:
        return self.law.log_density(y, self.dimension) + self._log_conditional(y, epsilon)

    def _panels(self, epsilon: float) -> tuple[Floats, float]:
        """Panel edges that cover all but e^-42 of the peak of the integrand, and its logarithmic
        height.
        """
        scan = self.law.scan(self.dimension)
        turning = self.law.least_exposed(self.dimension, self.sensitivity)
        if turning is not None:
            scan = np.unique(np.append(scan, turning))
        heights = self._log_integrand(scan, epsilon)
        gain, rounds = math.inf, 0
        while (gain > 0.1 or rounds < 3) and rounds < 60:
            best = int(np.argmax(heights))
            before = float(heights[best])
            finer = np.linspace(scan[max(best - 1, 0)], scan[min(best + 1, scan.size - 1)], 33)[
                1:-1
            ]
            scan = np.concatenate([scan, finer])
            heights = np.concatenate([heights, self._log_integrand(finer, epsilon)])
            scan, first = np.unique(scan, return_index=True)
            heights = heights[first]
            gain, rounds = (
                float(np.max(heights)) - before if before > -math.inf else 0.0,
                rounds + 1,
            )
        peak = float(np.max(heights))
        high = np.flatnonzero(heights > peak - 42)
        if peak == -math.inf or not high.size:
            return scan, -math.inf
        kept = [max(high[0] - 1, 0)]
        for i in range(high[0], min(high[-1] + 2, scan.size)):
            if i == int(np.argmax(heights)) or not _near(heights[i], heights[kept[-1]]):
                kept.append(i)
        kept.append(min(high[-1] + 1, scan.size - 1))
        edges = scan[kept]
        for kink in self._kinks(scan, epsilon):
            near = kink + np.concatenate([-_GRADED[::-1], [0.0], _GRADED])
            edges = np.concatenate([edges, near[(near > edges[0]) & (near < edges[-1])]])
        return np.unique(edges), peak

    def _kinks(self, scan: Floats, epsilon: float) -> list[float]:
        """Where the integrand is not smooth: c1 crosses 1 (the largest loss meets epsilon) or -1
        (the least one does).
        """
        crossings = []
        gap_to_one = self._threshold(scan, epsilon)[1]
        for level in (0.0, 2.0):
            above = gap_to_one > level
            for i in np.flatnonzero(above[1:] != above[:-1]):
                low, high = float(scan[i]), float(scan[i + 1])
                for _ in range(12):
                    y = np.linspace(low, high, 33)
                    side = self._threshold(y, epsilon)[1] > level
                    first = int(np.argmax(side != side[0]))
                    if first == 0:
                        break
                    low, high = float(y[first - 1]), float(y[first])
                crossings.append((low + high) / 2)
        return crossings

    def log_delta(self, epsilon: float) -> float:
        """ln delta(epsilon) by adaptive quadrature over the radius; relative error of delta below
        1e-10.
        """
        return _log_delta(self, epsilon)

    def delta(self, epsilon: float) -> float:
        """The smallest delta at ``epsilon``, rounded up."""
        return round_up_delta(self.log_delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon at ``delta``, rounded up."""
        return smallest_epsilon(self.log_delta, math.log(delta))

    def to_dict(self) -> Json:
        """``{"name": "spherical", "configuration": ...}``."""
        return {
            "name": "spherical",
            "configuration": {
                "dimension": self.dimension,
                "radius": self.law.to_dict(),
                "sensitivity": self.sensitivity,
            },
        }


@functools.lru_cache(maxsize=4096)
def _log_delta(profile: SphericalProfile, epsilon: float) -> float:
    """Adaptive Gauss-Legendre quadrature of the conditional delta over the log of the radius."""
    edges, peak = profile._panels(epsilon)
    if peak == -math.inf:
        return -math.inf
    if (
        peak < -760
    ):  # delta is below the smallest float; the integral is at most its height times its length
        return peak + math.log(edges[-1] - edges[0] + 1)
    total, left, right = 0.0, edges[:-1], edges[1:]
    for _ in range(40):
        middle, half = (left + right) / 2, (right - left) / 2
        fine, coarse = (
            half
            * np.sum(
                weights
                * np.exp(
                    profile._log_integrand(
                        (middle[:, None] + half[:, None] * nodes).ravel(), epsilon
                    ).reshape(left.size, nodes.size)
                    - peak
                ),
                axis=1,
            )
            for nodes, weights in (_FINE, _COARSE)
        )
        whole = total + float(np.sum(fine))
        open_ = np.abs(fine - coarse) > 1e-13 * whole
        if left.size > 4096:  # only rounding noise is left to resolve
            open_ = np.zeros_like(open_)
        total += float(np.sum(fine[~open_]))
        if not np.any(open_):
            break
        left, middle, right = left[open_], middle[open_], right[open_]
        left, right = np.concatenate([left, middle]), np.concatenate([middle, right])
    else:
        total += float(np.sum(fine[open_]))
    return peak + math.log(total)

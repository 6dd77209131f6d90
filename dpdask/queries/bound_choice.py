"""How a bound follows from a noisy histogram: post-processing, so anybody can compute it again.

Bins are public. First, bins at both ends that hold nothing but noise are emptied: noise of many
empty bins adds up to far more than the few records that lie at an end. Then counts are summed from
one end; the sums, which fall without noise, are made to fall again (isotonic regression); the bound
is the first edge beyond which few enough counts lie. Sums are taken in one order, by operations
that every machine rounds alike, so every machine chooses the same edge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpdask.queries.records import Clip, Ranges
from dpdask.types import Floats, Json

__all__ = ["BINS", "BoundRule", "ChosenBound", "norm_edges", "value_edges"]

BINS = 100
_SIGNIFICANT = 5.0  # standard deviations, which noise passes in one of 5000 runs once in 700 times


@dataclass(frozen=True, kw_only=True)
class ChosenBound:
    """A bound that was chosen: a clip norm, or ranges."""

    norm: float | None = None
    ranges: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(cls, bound: Clip | Ranges | None) -> ChosenBound:
        """Return the numbers of a bound."""
        if isinstance(bound, Clip):
            return cls(norm=bound.norm)
        return cls(ranges=() if bound is None else bound.pairs)

    def at_end(self, between: Sequence[Sequence[float]]) -> bool:
        """Return whether an end of what could be chosen was chosen.

        Args:
            between: The smallest and the largest end, by histogram.
        """
        pairs = self.ranges if self.norm is None else ((self.norm, self.norm),)
        ends = zip(pairs, between, strict=True)
        return any(pair[0] == end[0] or pair[1] == end[1] for pair, end in ends)

    def to_dict(self) -> Json:
        """Return the bound as the ledger notes it and the card records it."""
        if self.norm is not None:
            return {"norm": self.norm}
        return {"ranges": [list(pair) for pair in self.ranges]}

    @classmethod
    def from_dict(cls, content: Json) -> ChosenBound:
        """Return what :meth:`to_dict` described."""
        pairs = content.get("ranges", [])
        return cls(norm=content.get("norm"), ranges=tuple((low, high) for low, high in pairs))


def norm_edges(low: float, high: float) -> tuple[float, ...]:
    """Return the norms that may be chosen: equal ratios, to six digits so that all machines agree.

    Bin j holds norms up to edge j; the first one begins at 0, the last one has no end.
    """
    ratio = math.log(high / low) / BINS
    inner = (float(f"{low * math.exp(ratio * i):.6g}") for i in range(1, BINS))
    return (low, *inner, high)


def value_edges(low: float, high: float) -> tuple[float, ...]:
    """Return the ends that may be chosen: equal bins; what lies outside is in the end bins."""
    width = high - low
    return (low, *(low + width * i / BINS for i in range(1, BINS)), high)


@dataclass(frozen=True, kw_only=True)
class BoundRule:
    """By which counts a bound is chosen.

    Args:
        quantile: The share of norms up to the bound; None for another rule.
        above: How many norms may lie above the bound; None for another rule.
        quantiles: The shares of values below both ends of a range; None for another rule.
    """

    quantile: float | None = None
    above: float | None = None
    quantiles: tuple[float, float] | None = None

    def choose(self, counts: Floats, edges: Floats, *, std: float) -> ChosenBound:
        """Return the bound that follows from noisy counts.

        Guarantee: no count can make it fail; a norm is one of the edges, and a range is not empty.

        Args:
            counts: The noisy counts, by bin; for ranges by feature, too.
            edges: The edges, likewise.
            std: The standard deviation of the noise of a count.
        """
        rows = [
            [Fraction(float(count)) for count in _without_noisy_ends(row, std)]
            for row in np.atleast_2d(counts)
        ]
        if self.quantiles is None:
            return ChosenBound(norm=self._norm(rows[0], edges))
        ends = zip(rows, np.atleast_2d(edges), strict=True)
        return ChosenBound(ranges=tuple(self._range(row, own) for row, own in ends))

    def _norm(self, exact: Sequence[Fraction], edges: Floats) -> float:
        if self.above is not None:
            allowed = Fraction(self.above)
        else:
            allowed = (1 - Fraction(self.quantile or 0.0)) * sum(exact)
        return float(edges[_first_with_few_beyond(exact, allowed)])

    def _range(self, exact: Sequence[Fraction], edges: Floats) -> tuple[float, float]:
        below, up_to = self.quantiles or (0.0, 1.0)
        total = sum(exact)
        last = _first_with_few_beyond(exact, (1 - Fraction(up_to)) * total)
        from_above = _first_with_few_beyond(exact[::-1], Fraction(below) * total)
        first = len(exact) - 1 - from_above
        return float(edges[min(first, last)]), float(edges[max(first, last) + 1])

    def to_dict(self) -> Json:
        """Return the rule as a card records it."""
        if self.quantiles is not None:
            return {"quantiles": list(self.quantiles)}
        return {"quantile": self.quantile} if self.above is None else {"above": self.above}

    @classmethod
    def from_dict(cls, content: Json) -> BoundRule:
        """Return the rule that a card records."""
        pair = content.get("quantiles")
        return cls(
            quantile=content.get("quantile"),
            above=content.get("above"),
            quantiles=None if pair is None else (float(pair[0]), float(pair[1])),
        )


def _without_noisy_ends(counts: Floats, std: float) -> Floats:
    """Return counts with 0 in the bins at both ends that noise alone explains.

    Those below the lowest, and above the highest run of bins whose sum is larger than noise makes
    it; all are left if there is no such run.
    """
    last = _last_with_records(counts, std)
    mirrored = _last_with_records(counts[::-1], std)
    if last is None or mirrored is None:
        return counts
    first = counts.size - 1 - mirrored
    bins = np.arange(counts.size)
    return np.where((bins >= min(first, last)) & (bins <= max(first, last)), counts, 0.0)


def _last_with_records(counts: Floats, std: float) -> int | None:
    """Return the last bin of the highest run that holds more than noise; None without one."""
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    bins = np.arange(counts.size)
    sizes = bins[None, :] - bins[:, None] + 1  # of the run from bin i to bin j
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = (sums[None, 1:] - sums[:-1, None]) / np.sqrt(sizes)
    scores[sizes < 1] = -np.inf
    starts = np.flatnonzero(scores.max(axis=1) >= _SIGNIFICANT * std)
    return int(np.argmax(scores[starts[-1]])) if starts.size else None


def _first_with_few_beyond(counts: Sequence[Fraction], allowed: Fraction) -> int:
    """Return the first bin beyond which at most ``allowed`` are counted; else the last bin."""
    beyond = [Fraction(0)]
    for count in reversed(counts[1:]):
        beyond.append(beyond[-1] + count)
    return next(
        (index for index, many in enumerate(_falling(beyond[::-1])) if many <= allowed),
        len(counts) - 1,
    )


def _falling(values: Sequence[Fraction]) -> list[Fraction]:
    """Return the nearest numbers that never rise (isotonic regression, pooled violators)."""
    runs: list[tuple[Fraction, int]] = []
    for value in values:
        total, size = value, 1
        while runs and runs[-1][0] * size <= total * runs[-1][1]:
            before, many = runs.pop()
            total, size = total + before, size + many
        runs.append((total, size))
    return [total / size for total, size in runs for _ in range(size)]

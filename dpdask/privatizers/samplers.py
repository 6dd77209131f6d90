"""The samplers of exact integers: what the loop over a tile's blocks must know of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpdask.keystream import TileStream, Words
from dpdask.privatizers import exact_gaussian, exact_laplace
from dpdask.types import Floats

__all__ = ["GAUSSIAN", "LAPLACE", "Sampler"]


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How blocks of 1,024 random words become exact integers.

    Args:
        version: Its name on the card and in the fingerprint.
        thresholds: How far from its integer a draw may lie and still be decided, in both ranges.
        fill_block: The compiled fast path; it counts the draws that may be undecided.
        find_undecided: The compiled test which draws are undecided.
        settle_block: The exact path of these draws.
    """

    version: str
    thresholds: Callable[[float], tuple[float, float]]
    fill_block: Callable[..., int]
    find_undecided: Callable[..., int]
    settle_block: Callable[[TileStream, int, Words, Floats, float], list[int]]


GAUSSIAN = Sampler(
    version=exact_gaussian.SAMPLER_VERSION,
    thresholds=exact_gaussian.thresholds,
    fill_block=exact_gaussian.fill_block,
    find_undecided=exact_gaussian.find_undecided,
    settle_block=exact_gaussian.settle_block,
)
"""``round(N(0, S^2))``, S the steps per sigma."""

LAPLACE = Sampler(
    version=exact_laplace.LAPLACE_VERSION,
    thresholds=exact_laplace.thresholds,
    fill_block=exact_laplace.fill_block,
    find_undecided=exact_laplace.find_undecided,
    settle_block=exact_laplace.settle_block,
)
"""``round(Lap(S))``, S the steps per scale."""

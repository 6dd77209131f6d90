"""The samplers of exact integers: what the loop over a tile's blocks must know of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from dpdask.keystream import TileStream, Words
from dpdask.loading import when_used
from dpdask.types import Floats

if TYPE_CHECKING:
    from dpdask.privatizers import exact_gaussian, exact_laplace, quick_gaussian
else:
    exact_gaussian = when_used("dpdask.privatizers.exact_gaussian")
    exact_laplace = when_used("dpdask.privatizers.exact_laplace")
    quick_gaussian = when_used("dpdask.privatizers.quick_gaussian")

__all__ = ["BLOCK", "GAUSSIAN", "LAPLACE", "Sampler"]

BLOCK = 1024  # elements that are drawn together


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How blocks of 1,024 random words become exact integers.

    Args:
        version: Its name on the card and in the fingerprint.
        compiled: The module with its functions, which loads when the first integer is drawn.
        quick: The module with a faster path that leaves more draws undecided; None for none.
    """

    version: str
    compiled: ModuleType
    quick: ModuleType | None = None

    @property
    def thresholds(self) -> Callable[[float], tuple[float, float]]:
        """How far from its integer a draw may lie and still be decided, in both ranges."""
        thresholds: Callable[[float], tuple[float, float]] = self.compiled.thresholds
        return thresholds

    @property
    def fill_block(self) -> Callable[..., int]:
        """The compiled fast path; it counts the draws that may be undecided."""
        fill_block: Callable[..., int] = self.compiled.fill_block
        return fill_block

    @property
    def fill_quickly(self) -> Callable[..., int]:
        """The path that is tried first; it counts the draws that are undecided."""
        if self.quick is None:
            return self.fill_block
        fill_quickly: Callable[..., int] = self.quick.fill_quickly
        return fill_quickly

    def quick_limit(self, steps_per_sigma: float) -> float | None:
        """Return how far from its integer a draw of the quick path may lie and still be decided;
        None where that path does not pay.
        """
        if self.quick is None:
            return None
        limit: float | None = self.quick.quick_limit(steps_per_sigma)
        return limit

    @property
    def find_undecided(self) -> Callable[..., int]:
        """The compiled test which draws are undecided."""
        find_undecided: Callable[..., int] = self.compiled.find_undecided
        return find_undecided

    @property
    def settle_block(self) -> Callable[[TileStream, int, Words, Floats, float], list[int]]:
        """The exact path of these draws."""
        settle_block: Callable[[TileStream, int, Words, Floats, float], list[int]] = (
            self.compiled.settle_block
        )
        return settle_block


GAUSSIAN = Sampler(version="box-muller-taylor/1", compiled=exact_gaussian, quick=quick_gaussian)
"""``round(N(0, S^2))``, S the steps per sigma."""

LAPLACE = Sampler(version="laplace-log/1", compiled=exact_laplace)
"""``round(Lap(S))``, S the steps per scale."""

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
    from dpdask.privatizers import exact_gaussian, exact_laplace
else:
    exact_gaussian = when_used("dpdask.privatizers.exact_gaussian")
    exact_laplace = when_used("dpdask.privatizers.exact_laplace")

__all__ = ["BLOCK", "GAUSSIAN", "LAPLACE", "Sampler"]

BLOCK = 1024  # elements that are drawn together


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How blocks of 1,024 random words become exact integers.

    Args:
        version: Its name on the card and in the fingerprint.
        compiled: The module with its functions, which loads when the first integer is drawn.
    """

    version: str
    compiled: ModuleType

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


GAUSSIAN = Sampler(version="box-muller-taylor/1", compiled=exact_gaussian)
"""``round(N(0, S^2))``, S the steps per sigma."""

LAPLACE = Sampler(version="laplace-log/1", compiled=exact_laplace)
"""``round(Lap(S))``, S the steps per scale."""

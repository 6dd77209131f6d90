"""Hierarchical counts H_b on a map (Qardaji, Yang & Li 2013; inference by Hay et al. 2010).

A map of b^h x b^h cells is counted on h grids, of b^i x b^i cells each. Every grid is released with
1/h of epsilon by Laplace noise, as an ordinary histogram; what follows is post-processing.

Guarantee: pure epsilon, by composition of the h releases. One replaced record changes two cells of
each grid by 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpdask.types import Floats

__all__ = ["consistent", "depth"]


def depth(bins: int, branching: int) -> int:
    """Return h, the least number of grids whose finest has at least ``bins`` cells per axis."""
    levels = 1
    while branching**levels < bins:
        levels += 1
    return levels


def consistent(grids: Sequence[Floats], branching: int) -> Floats:
    """Return the finest grid of least squares on all grids, coarsest first, of equal noise.

    Every cell is the sum of its branching^2 parts, in the result as in the truth.
    """
    parts = branching**2
    estimates = [np.asarray(grids[-1], float)]
    for height, grid in enumerate(reversed(grids[:-1]), start=2):
        own = (parts**height - parts ** (height - 1)) / (parts**height - 1)
        below = (parts ** (height - 1) - 1) / (parts**height - 1)
        estimates.insert(0, own * grid + below * _block_sums(estimates[0], branching))
    fitted = estimates[0]
    for finer in estimates[1:]:
        surplus = (fitted - _block_sums(finer, branching)) / parts
        fitted = finer + np.kron(surplus, np.ones((branching, branching)))
    return fitted


def _block_sums(grid: Floats, branching: int) -> Floats:
    rows, columns = grid.shape
    blocks = grid.reshape(rows // branching, branching, columns // branching, branching)
    return np.asarray(blocks.sum((1, 3)))

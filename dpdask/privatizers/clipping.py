"""Clipping: records are shrunk to an l2 norm in integers, so that they obey it exactly.

The value rule, which never raises: NaN counts as 0, +-infinity as the bound, then the bound is
enforced.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpdask.errors import InvalidSensitivity, OutOfReach
from dpdask.loading import when_used
from dpdask.privatizers.grid import DEFAULT_STEPS_PER_SIGMA, ENTRY_LIMIT, Grid
from dpdask.types import Array, Floats, Shape

if TYPE_CHECKING:
    from dpdask.privatizers import squares
else:
    squares = when_used("dpdask.privatizers.squares")

__all__ = [
    "RecordNorms",
    "clip_factors",
    "clipped_on_grid",
    "fine_clip_grid",
    "no_norms",
    "norm_squares",
    "on_grid",
    "record_factors",
    "record_norms",
    "rows_of",
]

_WORDS = 4  # of 32 bits, in which squared norms are added up

RecordNorms: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


def rows_of(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Return (outer, records, inner): a C-ordered tensor as records along the middle axis."""
    if not -len(shape) <= axis < len(shape):
        raise InvalidSensitivity(
            f"axis {axis} is not an axis of shape {shape}; choose one from 0 to {len(shape) - 1}"
        )
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def record_norms(block: Array, *, record_axis: int, step: float) -> RecordNorms:
    """Return exact squared norms, in grid steps, of the part of each record that lies in ``block``.

    Row i holds four words, low ones first: the sum of word k times 2^(32 k). Rows of the parts of
    a record are added in any order, exactly, for up to 2^31 blocks.

    Args:
        block: Some entries of some records.
        record_axis: The axis along which records lie.
        step: The step of the grid on which records are clipped.

    Raises:
        OutOfReach: More than 2^31 entries of a record lie in the block.
    """
    outer, records, inner = rows_of(block.shape, record_axis)
    _check_reach(outer * inner)
    sums = no_norms(records)
    squares.add_squares(np.ascontiguousarray(block).reshape(outer, records, inner), 1 / step, sums)
    return _carried(sums)


def _check_reach(entries: int) -> None:
    """Check that the squares of so many entries add up in words of 64 bits."""
    if entries > 2**31:
        raise OutOfReach(
            f"{entries} entries of a record in one block are more than 2^31; use smaller blocks"
        )


def no_norms(records: int) -> RecordNorms:
    """Return squared norms of zero, to add others to."""
    return np.zeros((records, _WORDS), np.uint64)


def _carried(norms: RecordNorms) -> RecordNorms:
    """Return the same sums with words below 2^32, but for the highest."""
    words = norms.copy()
    for word in range(_WORDS - 1):
        words[:, word + 1] += words[:, word] >> np.uint64(32)
        words[:, word] &= np.uint64(0xFFFFFFFF)
    return words


def clip_factors(norms: RecordNorms, *, grid: Grid) -> Floats:
    """Return the factor f of each record with which trunc(q f) obeys its norm, in integers q.

    Guarantee: the record of entries trunc(q f) has a norm of at most ``grid.high`` steps, exactly.

    f = 1 for a record inside the bound. Else f is below bound / norm by 2^-48, more than the
    rounding of q f can add:
    |trunc(fl(q f))| <= |q| f (1 + 2^-53), and the squares sum to at most norm^2 f^2 (1 + 2^-53)^2
    <= bound^2.
    """
    factors = np.empty(len(norms))
    squares.factors_of(norms.copy(), grid.high, factors)
    return factors


def record_factors(block: Array, *, record_axis: int, grid: Grid) -> Floats:
    """Return the clip factors of the whole records of a block (:func:`clip_factors`).

    Args:
        block: All entries of some records.
        record_axis: The axis along which records lie.
        grid: The grid on which records are clipped.
    """
    outer, records, inner = rows_of(block.shape, record_axis)
    _check_reach(outer * inner)
    rows = np.ascontiguousarray(block).reshape(outer, records, inner)
    factors: Floats = squares.clip_factors(rows, 1 / grid.step, grid.high)
    return factors


def norm_squares(norms: RecordNorms) -> Floats:
    """Return squared norms as doubles, rounded three times at most."""
    words = _carried(norms)
    total: Floats = np.zeros(len(words))
    for word in range(_WORDS):
        total += words[:, word].astype(np.float64) * 2.0 ** (32 * word)
    return total


def on_grid(block: Array, *, step: float, low: Floats | float, high: Floats | float) -> Floats:
    """Return entries by the value rule as whole numbers of steps, clamped to [low, high].

    Args:
        block: The entries.
        step: The step of the grid.
        low: The least number of steps, for all entries or along an axis.
        high: The largest one.
    """
    with np.errstate(all="ignore"):  # no value may be told from another by a warning
        steps = block.astype(np.float64)
        np.copyto(steps, 0.0, where=np.isnan(steps))
        steps *= 1 / step
        np.rint(steps, out=steps)
        np.clip(steps, low, high, out=steps)
    return steps


def clipped_on_grid(block: Array, *, step: float, factors: Floats, record_axis: int) -> Floats:
    """Return records shrunk by their factors, as whole numbers of steps: trunc(q f).

    Args:
        block: Some entries of some records.
        step: The step of the grid on which records are clipped.
        factors: One factor per record (:func:`clip_factors`).
        record_axis: The axis along which records lie.
    """
    steps = on_grid(block, step=step, low=-ENTRY_LIMIT, high=ENTRY_LIMIT)
    steps *= factors.reshape([-1 if axis == record_axis else 1 for axis in range(block.ndim)])
    np.trunc(steps, out=steps)
    return steps


def fine_clip_grid(norm: float, bits: int = 24) -> Grid:
    """Return a grid for clipping records apart from the noise: the norm is 2^bits steps or more.

    The step is a power of two, so whole numbers of steps are exact floats.
    """
    step = 2.0 ** (math.frexp(norm)[1] - bits - 1)
    bound = math.floor(Fraction(norm) / Fraction(step))
    return Grid(step=step, steps_per_sigma=DEFAULT_STEPS_PER_SIGMA, low=-bound, high=bound)

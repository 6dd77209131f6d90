"""Clipping by person: one factor for all records of a person, so that they obey a norm together.

What is added up over a person are norms of records (power 1), where the records themselves are
added up; or squared norms (power 2), where they keep their places or are multiplied. Sums are
integers, so that no division into tasks changes a factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpdask.loading import when_used
from dpdask.privatizers.clipping import RecordNorms, norm_squares
from dpdask.privatizers.grid import Grid
from dpdask.types import Floats, Integers

if TYPE_CHECKING:
    from dpdask.privatizers import people_kernels
else:
    people_kernels = when_used("dpdask.privatizers.people_kernels")

__all__ = ["person_factors", "record_measures"]

_FRACTION = 2**8  # of a step, in which norms are added up
_WORDS = 5  # of 32 bits; a squared norm is below 2^131, a sum of 2^30 of them below 2^161
_UNITS = tuple(2.0 ** (32 * word) for word in range(_WORDS))
_EXACT = 2.0**53  # integers up to it are doubles
_UP = 1 + 2.0**-48  # above the rounding of a few operations
_DOWN = 1 - 2.0**-48


def record_measures(norms: RecordNorms, *, power: int) -> Floats:
    """Return what every record adds to its person, an integer that a double holds, rounded up.

    Args:
        norms: Exact squared norms in grid steps (:func:`dpdask.privatizers.clipping.record_norms`).
        power: 1 for norms, in parts of a step; 2 for squared norms.
    """
    squares = norm_squares(norms)
    if power == 1:
        return np.ceil(np.sqrt(squares) * (_FRACTION * _UP))
    return np.where(squares < _EXACT, squares, squares * _UP)


def person_factors(
    codes: Integers, people: int, measures: Floats, *, grid: Grid, power: int
) -> Floats:
    """Return the factor f of every record, the same for all of one person.

    Guarantee: of the records of entries trunc(q f) of one person, the norms add up to at most
    ``grid.high`` steps (power 1), or the squared norms to at most its square (power 2), exactly.

    f = 1 within the bound. Else f is below bound / measure by 2^-48, more than the rounding of the
    sums, of f itself and of q f can add: |trunc(fl(q f))| <= |q| f (1 + 2^-53).

    Args:
        codes: The person of every record, from 0 on.
        people: How many people there are.
        measures: What every record adds (:func:`record_measures`).
        grid: The grid on which records are clipped.
        power: 1 where norms are added up, 2 where squared norms are.
    """
    words = np.zeros((people, _WORDS), np.uint64)
    people_kernels.add_measures(codes, measures, np.array(_UNITS), words)
    for word in range(_WORDS - 1):
        words[:, word + 1] += words[:, word] >> np.uint64(32)
        words[:, word] &= np.uint64(0xFFFFFFFF)
    bound = grid.high
    over = _exceeds(words, bound * _FRACTION if power == 1 else bound * bound)
    total: Floats = np.zeros(people)
    for word, unit in enumerate(_UNITS):
        total += words[:, word].astype(np.float64) * unit
    with np.errstate(divide="ignore"):
        shrink = bound * _FRACTION / total if power == 1 else bound / np.sqrt(total)
    factors: Floats = np.where(over, shrink * _DOWN, 1.0)[codes]
    return factors


def _exceeds(words: RecordNorms, limit: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return which sums, in words of 32 bits but for the highest, are above ``limit``."""
    over = np.zeros(len(words), np.bool_)
    for word in range(_WORDS):
        part = np.uint64(limit >> 32 * word & 0xFFFFFFFF)
        over = (words[:, word] > part) | ((words[:, word] == part) & over)
    return over

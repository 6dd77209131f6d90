"""By how much floating point and grids increase the distance between neighbouring answers.

The bounds follow from public values alone. Whitening multiplies the bounded answer x by a matrix W
per mode, in floating point, and rounds S * W x to integers, S the steps per sigma. With
``||fl(W y) - W y|| <= c ||y||`` and ``||W|| <= t`` for every mode (a factor's ``whitening_error``
and 1/``smallest``), and x of norm at most X in the entries that one privacy unit can change, the
whitened answer is off by at most X (prod(t + c) - prod(t)). The distance between neighbouring
answers increases by at most twice that, and by sqrt(entries) / S in the last rounding. Proofs:
docs/exact-noise.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.types import Floats

__all__ = [
    "FOLD",
    "UNIT",
    "coarsened_up",
    "dot_error",
    "float_share",
    "gamma",
    "moved_entries",
    "moved_records",
    "product_rounding",
    "same_inverse",
    "spectral_norm",
    "whitened_rounding",
]

UNIT = 2.0**-53  # unit roundoff: the relative error of one operation
# terms of a dot product that kernels add plainly; the sums of so many are added with their rounding
# errors kept
FOLD = 64


class WhiteningFactor(Protocol):
    """What the bounds need of a noise factor."""

    @property
    def smallest(self) -> float:
        """1 / ||W||, rounded down."""

    def whitening_error(self) -> float:
        """c with ||fl(W y) - W y|| <= c ||y||, rounded up."""


def gamma(terms: float) -> float:
    """Return n u / (1 - n u): the relative error of n operations, rounded up (Higham 2002, 3.1)."""
    spent = terms * UNIT
    return spent / (1 - spent) * (1 + 4 * UNIT) if spent < 0.5 else math.inf


def dot_error(terms: int) -> float:
    """Return the error of a dot product in our kernels, relative to the sum of absolute products.

    Chains of at most 64 fused multiply-adds (gamma_64), added up with their rounding errors kept: u
    + gamma_m^2 for m of them (Ogita, Rump & Oishi 2005, Prop. 4.5).
    """
    return gamma(min(terms, FOLD) + 2) + gamma(math.ceil(terms / FOLD)) ** 2


def coarsened_up(value: float) -> float:
    """Return a number above ``value`` by at most 2^-40 of it.

    Solvers of linear algebra differ from machine to machine in their last bits; what is computed
    from them is the same on all after this, but where ``value`` lies within those bits of a step.
    """
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, 41)), exponent - 41)


def same_inverse(matrix: Floats) -> Floats:
    """Return the computed inverse of a square matrix, the same bits on every machine.

    Gauss and Jordan's elimination with pivots by column. Every number is one product and one
    difference, each rounded by itself, where a library's sums depend on the vector unit.
    """
    size = len(matrix)
    left, right = np.array(matrix, dtype=np.float64), np.eye(size)
    for column in range(size):
        pivot = column + int(np.argmax(np.abs(left[column:, column])))
        if pivot != column:
            left[[column, pivot]] = left[[pivot, column]]
            right[[column, pivot]] = right[[pivot, column]]
        scale = left[column, column]
        left[column] /= scale
        right[column] /= scale
        weights = left[:, column].copy()
        weights[column] = 0.0
        left[:, column:] -= weights[:, np.newaxis] * left[column, column:]
        right -= weights[:, np.newaxis] * right[column]
    return right


def spectral_norm(matrix: Floats) -> float:
    """Return an upper bound on ||A||_2, proved by a Cholesky factorisation, not by a solver.

    If c I - fl(A'A) has a computed Cholesky factor, its least eigenvalue is above -2 gamma_(n+2) n
    c (Rump 2006); fl(A'A) is off by at most gamma_n ||A||_F^2. So ||A||^2 <= c (1 + 2 gamma_(n+2)
    n) + gamma_n ||A||_F^2.
    """
    scale = 2.0 ** math.frexp(float(np.max(np.abs(matrix))))[1]
    scaled = matrix / scale  # exact, and nothing of weight underflows
    size = matrix.shape[1]
    gram = scaled.T @ scaled
    top = coarsened_up(max(float(np.linalg.eigvalsh(gram)[-1]), float(np.max(np.diag(gram)))))
    margin = 8 * size * size * UNIT
    while True:
        bound = top * (1 + margin)
        try:
            np.linalg.cholesky(bound * np.eye(size) - gram)
            break
        except np.linalg.LinAlgError:
            margin *= 4
            if not margin < 1:
                raise InvalidNoise(
                    "the norm of a matrix could not be bounded; give a better conditioned one"
                ) from None
    slack = (
        2 * gamma(size + 2) * size * bound + gamma(size + 2) * float(np.sum(np.diag(gram))) * 1.01
    )
    return math.sqrt(bound + slack) * scale * (1 + 8 * UNIT)


def float_share(factors: Sequence[WhiteningFactor]) -> float:
    """Return prod(t + c) / prod(t) - 1: the relative error of whitening by all modes."""
    logs = [math.log1p(factor.whitening_error() * factor.smallest) for factor in factors]
    return math.expm1(math.fsum(logs)) * 1.01


def moved_entries(
    sizes: Sequence[int], mixing: Sequence[int], record_axis: int | None, contributions: int
) -> int:
    """Return how many whitened entries one privacy unit can change: its records, mixed with others.

    Args:
        sizes: The shape of the answer.
        mixing: The axes whose factors mix entries.
        record_axis: The axis along which records lie; None where all entries can change.
        contributions: How many records one privacy unit has at most.
    """
    return math.prod(
        min(contributions, size) if axis == record_axis and axis not in mixing else size
        for axis, size in enumerate(sizes)
    )


def moved_records(
    sizes: Sequence[int], mixing: Sequence[int], record_axis: int | None, contributions: int
) -> int:
    """Return how many records the entries of :func:`moved_entries` belong to."""
    if record_axis is None:
        return 1
    return sizes[record_axis] if record_axis in mixing else min(contributions, sizes[record_axis])


def whitened_rounding(
    factors: Sequence[WhiteningFactor],
    *,
    steps_per_sigma: float,
    moved: int,
    norm: float,
    prior_rounding: float = 0.0,
) -> tuple[float, float]:
    """Return by how much rounding increases the distance between neighbouring whitened answers.

    Args:
        factors: The factors of the noise.
        steps_per_sigma: The steps of the whitened grid per standard deviation.
        moved: How many whitened entries one privacy unit can change.
        norm: A bound on the norm of the answer in these entries.
        prior_rounding: The l2 distance that an earlier rounding of the answer added.

    Returns:
        The increase in standard deviations, rounded up, and the part of it that is due to floating
        point.
    """
    stretch = math.prod(1 / factor.smallest for factor in factors) * (1 + 1e-14)
    floating = 2 * norm * stretch * float_share(factors)
    coarse = math.sqrt(moved) / steps_per_sigma
    increase = max(2 * coarse, coarse + floating) + prior_rounding * stretch
    return increase * (1 + 1e-14), floating


def product_rounding(*, step: float, entries: int, most: float) -> float:
    """Return by how much rounding entries times 1/step increases the l2 distance of neighbours.

    One step, and twice three roundings of the product, in every entry that differs; at least
    sqrt(2) steps are charged.

    Args:
        step: The step of the grid.
        entries: How many entries can differ.
        most: The largest absolute value of an entry, in steps.
    """
    per_entry = max(math.sqrt(2), 1 + 2 * gamma(3) * float(most))
    return math.sqrt(entries) * step * per_entry

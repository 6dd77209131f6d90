"""How far floating point and grids move two neighbours apart before noise is added: bounds from
public facts alone.

Whitening multiplies the bounded answer x by a matrix W per mode, in floating point, and rounds
ratio * W x to integers. With ``||fl(W y) - W y|| <= c ||y||`` and ``||W|| <= t`` for every mode (a
factor's ``whitening_error`` and 1/``smallest``), and x of norm at most X in the entries that one
unit can move, the whitened answer is off by at most X (prod(t + c) - prod(t)). Two neighbours move
apart by at most twice that, and by sqrt(entries)/ratio in the last rounding. Proofs:
docs/exact-noise.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpdask.errors import InvalidNoise
from dpdask.types import Floats

__all__ = [
    "FOLD",
    "UNIT",
    "dot_error",
    "float_share",
    "gamma",
    "moved_entries",
    "moved_records",
    "spectral_norm",
    "whitened_rounding",
]

UNIT = 2.0**-53  # half a unit in the last place: the relative error of one operation
# terms of a dot product that kernels add plainly; the sums of so many are added with their rounding
# errors kept
FOLD = 64


def gamma(terms: float) -> float:
    """n u / (1 - n u): the relative error of n operations, rounded up (Higham 2002, 3.1)."""
    spent = terms * UNIT
    return spent / (1 - spent) * (1 + 4 * UNIT) if spent < 0.5 else math.inf


def dot_error(terms: int) -> float:
    """The error of a dot product as kernels compute it, relative to the sum of absolute products.

    Chains of at most 64 fused multiply-adds (gamma_64), added up with their rounding errors kept: u
    + gamma_m^2 for m of them (Ogita, Rump & Oishi 2005, Prop. 4.5).
    """
    return gamma(min(terms, FOLD) + 2) + gamma(math.ceil(terms / FOLD)) ** 2


def spectral_norm(matrix: Floats) -> float:
    """An upper bound on ||A||_2 that is proved by a Cholesky factorisation, not taken from an
    eigenvalue solver.

    If c I - fl(A'A) has a computed Cholesky factor, its least eigenvalue is above -2 gamma_(n+2) n
    c (Rump 2006); fl(A'A) is off by at most gamma_n ||A||_F^2. So ||A||^2 <= c (1 + 2 gamma_(n+2)
    n) + gamma_n ||A||_F^2.
    """
    scale = 2.0 ** math.frexp(float(np.max(np.abs(matrix))))[1]
    scaled = matrix / scale  # exact, and nothing of weight underflows
    size = matrix.shape[1]
    gram = scaled.T @ scaled
    top = max(float(np.linalg.eigvalsh(gram)[-1]), float(np.max(np.diag(gram))))
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


def float_share(factors: Sequence[Any]) -> float:
    """prod(t + c) / prod(t) - 1: the error of whitening by all modes, relative to prod(t) and the
    norm of the answer.
    """
    return (
        math.expm1(
            math.fsum(math.log1p(factor.whitening_error() * factor.smallest) for factor in factors)
        )
        * 1.01
    )


def moved_entries(
    sizes: Sequence[int], mixing: Sequence[int], record_axis: int | None, contributions: int
) -> int:
    """How many whitened entries one unit can move: its records, and what factors mix in."""
    return math.prod(
        min(contributions, size) if axis == record_axis and axis not in mixing else size
        for axis, size in enumerate(sizes)
    )


def moved_records(
    sizes: Sequence[int], mixing: Sequence[int], record_axis: int | None, contributions: int
) -> int:
    """How many records those entries belong to."""
    if record_axis is None:
        return 1
    return sizes[record_axis] if record_axis in mixing else min(contributions, sizes[record_axis])


def whitened_rounding(
    factors: Sequence[Any], *, ratio: float, moved: int, norm: float, parted: float = 0.0
) -> tuple[float, float]:
    """By how much two neighbours move apart on their way to integers, in standard deviations; and
    the floating-point part.

    ``moved`` whitened entries can differ, ``norm`` bounds the answer in them, ``parted`` is by how
    much an earlier rounding of the answer moved the two apart.
    """
    stretch = math.prod(1 / factor.smallest for factor in factors) * (1 + 1e-14)
    floating = 2 * norm * stretch * float_share(factors)
    coarse = math.sqrt(moved) / ratio
    return (max(2 * coarse, coarse + floating) + parted * stretch) * (1 + 1e-14), floating

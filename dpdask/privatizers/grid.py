"""The grid: answers become integers before noise is added, so that no floating-point bit of the
data survives.

With S = sigma/step, an answer on the grid ``step * Z`` plus ``round(N(0, S^2))`` steps equals the
rounding of answer + N(0, sigma^2): post-processing of the ideal mechanism. Bounds are integers too:
a clamped entry or a clipped record obeys its bound exactly, with no rounding term in the
sensitivity.

The value rule, which never raises: NaN counts as 0, +-infinity as the bound, then the bound is
enforced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numba
import numpy as np

from dpdask.errors import InvalidSensitivity, OutOfReach
from dpdask.types import Array, Floats

__all__ = [
    "CLIP_LIMIT",
    "DECLARED_REACH",
    "ENTRY_LIMIT",
    "Grid",
    "RecordNorms",
    "clip_factors",
    "clipped_on_grid",
    "fine_clip_grid",
    "no_norms",
    "on_grid",
    "ratio_for_declared",
    "record_norms",
    "rows_of",
]

DEFAULT_RATIO = 2.0**14
# outputs beyond 64 sigma of the bounds are cut to that: post-processing, and no integer overflows
REACH = 64
LARGEST = 2**51  # beyond it, adding and subtracting 1.5 * 2^52 no longer rounds to integers
CLIP_LIMIT = 2**31 - 1  # grid steps of a clip norm
DECLARED_REACH = (
    2**49
)  # steps; an unbounded entry's product with 1/step is then exact to 3/16 of a step
ENTRY_LIMIT = (
    2**50 - 1
)  # an entry of a record to be clipped saturates here, 2^19 clip norms away at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """``step`` and integer bounds ``low`` to ``high`` for answers; noise has standard deviation
    ``ratio`` steps.
    """

    step: float
    ratio: float
    low: int
    high: int

    def __post_init__(self) -> None:
        if not (self.step > 0 and math.isfinite(self.step) and math.isfinite(1 / self.step)):
            raise OutOfReach(
                f"a grid step of {self.step:g} cannot be inverted in floating point; rescale the"
                " data"
            )
        if self.low > self.high:
            raise InvalidSensitivity(
                f"no grid point lies between {self.low} and {self.high} steps of {self.step:g};"
                " the range is narrower than"
                " the grid: use a larger ratio"
            )
        if self.limit >= LARGEST:
            raise OutOfReach(
                f"bounds of {max(-self.low, self.high):g} steps plus {REACH} sigma exceed 2^51;"
                " use a smaller ratio or narrower bounds"
            )

    @property
    def limit(self) -> int:
        """No output lies further than this many steps from zero."""
        return max(abs(self.low), abs(self.high)) + REACH * int(self.ratio)

    @classmethod
    def for_range(
        cls, *, sigma: float, low: float, high: float, ratio: float = DEFAULT_RATIO
    ) -> Grid:
        """The grid of answers clamped to [low, high]: bounds rounded inwards, so the width never
        grows.
        """
        step = _step(sigma, ratio)
        bottom, top = Fraction(low) / Fraction(step), Fraction(high) / Fraction(step)
        return cls(step=step, ratio=ratio, low=math.ceil(bottom), high=math.floor(top))

    @classmethod
    def for_clip(cls, *, sigma: float, norm: float, ratio: float = DEFAULT_RATIO) -> Grid:
        """The grid of records clipped to ``norm``: every record's integer norm is at most
        floor(norm / step).
        """
        step = _step(sigma, ratio)
        bound = math.floor(Fraction(norm) / Fraction(step))
        if bound > CLIP_LIMIT:
            raise OutOfReach(
                f"clip norm {norm:g} is {bound:.3g} grid steps, above 2^31; use a smaller ratio"
                " or a smaller clip norm"
            )
        if bound < 1:
            raise InvalidSensitivity(
                f"clip norm {norm:g} is below one grid step {step:g}; use a larger ratio"
            )
        return cls(step=step, ratio=ratio, low=-bound, high=bound)


def _step(sigma: float, ratio: float) -> float:
    if not (sigma > 0 and math.isfinite(sigma)):
        raise InvalidSensitivity(f"sigma={sigma:g} is no noise scale; it must be finite and > 0")
    return sigma / ratio  # exact: ratio is a power of two


def ratio_for_declared(*, sigma: float, sensitivity: float, entries: int) -> tuple[float, float]:
    """The least ratio >= 2^14 at which rounding ``entries`` entries inflates a declared sensitivity
    by at most 0.1 %.

    Returns the ratio and the inflated sensitivity s' that the noise must be calibrated to.
    ``sigma`` is the noise for the sensitivity itself; the noise for s', and with it the step, grows
    by s'/s, so s' = s + (s'/s) step sqrt(entries).
    """
    ratio = DEFAULT_RATIO
    while sigma / ratio * math.sqrt(entries) > sensitivity / 1001:
        ratio *= 2
        if ratio > 2**30:
            raise OutOfReach(
                f"{entries} entries at sensitivity {sensitivity:g} and sigma {sigma:g} need a"
                " grid finer than sigma/2^30;"
                " bound the answer by clipping or ranges instead"
            )
    return ratio, sensitivity / (1 - sigma / ratio * math.sqrt(entries) / sensitivity) * (1 + 1e-14)


RecordNorms = np.ndarray[Any, np.dtype[np.uint64]]


def rows_of(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """(outer, records, inner): a C-ordered tensor as records along the middle axis."""
    if not -len(shape) <= axis < len(shape):
        raise InvalidSensitivity(
            f"axis {axis} is not an axis of shape {shape}; choose one from 0 to {len(shape) - 1}"
        )
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def record_norms(block: Array, *, record_axis: int, step: float) -> RecordNorms:
    """Exact squared norms, in grid steps, of the part of each record that lies in ``block``.

    Row i holds four words, low ones first: the sum of word k times 2^(32 k). Parts of a record add
    up in any order: ``sum of the rows``, exactly, for up to 2^31 blocks.
    """
    outer, records, inner = rows_of(block.shape, record_axis)
    if outer * inner > 2**31:
        raise OutOfReach(
            f"{outer * inner} entries of a record in one block are more than 2^31; use smaller"
            " blocks"
        )
    sums = no_norms(records)
    _add_squares(np.ascontiguousarray(block).reshape(outer, records, inner), 1 / step, sums)
    return _carried(sums)


def no_norms(records: int) -> RecordNorms:
    """The squared norms of parts that hold nothing, to add others to."""
    return np.zeros((records, _WORDS), np.uint64)


def _carried(norms: RecordNorms) -> RecordNorms:
    """The same sums with words below 2^32, but for the highest."""
    words = norms.copy()
    for word in range(_WORDS - 1):
        words[:, word + 1] += words[:, word] >> np.uint64(32)
        words[:, word] &= np.uint64(0xFFFFFFFF)
    return words


_WORDS = 4
_EXACT_RUN = 1024
_HALF = 25  # bits; an entry of 50 bits is squared in halves
_LIMIT = float(ENTRY_LIMIT)


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc"})
def _run_of_squares(xs, inverse_step):  # type: ignore[no-untyped-def]
    """The sum of squares of a short run. Below 2^52 every partial sum was a whole number below
    2^53: exact in any order.
    """
    total = 0.0
    for j in range(xs.size):
        v = np.float64(xs[j])
        q = np.rint(abs(v) * inverse_step)
        q = q if q < _LIMIT else _LIMIT
        q = q if v == v else 0.0
        total += q * q
    return total


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_squares(x, inverse_step, sums):  # type: ignore[no-untyped-def]
    mask = np.uint64(0xFFFFFFFF)
    for o in range(x.shape[0]):
        for r in range(x.shape[1]):
            words = sums[r]
            for first in range(0, x.shape[2], _EXACT_RUN):
                xs = x[o, r, first : first + _EXACT_RUN]
                total = _run_of_squares(xs, inverse_step)
                if total < 4503599627370496.0:
                    square = np.uint64(np.int64(total))
                    words[0] += square & mask
                    words[1] += square >> np.uint64(32)
                    continue
                for j in range(xs.size):
                    v = np.float64(xs[j])
                    q = np.rint(abs(v) * inverse_step)
                    q = q if q < _LIMIT else _LIMIT
                    q = q if v == v else np.float64(0.0)
                    whole = np.uint64(np.int64(q))
                    high = whole >> np.uint64(_HALF)
                    low = whole & np.uint64(2**_HALF - 1)
                    square, cross, top = (
                        low * low,
                        high * low,
                        high * high,
                    )  # of weights 1, 2^26 and 2^50
                    words[0] += (square & mask) + ((cross & np.uint64(2**6 - 1)) << np.uint64(26))
                    words[1] += (square >> np.uint64(32)) + ((cross >> np.uint64(6)) & mask)
                    words[1] += (top & np.uint64(2**14 - 1)) << np.uint64(18)
                    words[2] += (cross >> np.uint64(38)) + ((top >> np.uint64(14)) & mask)
                    words[3] += top >> np.uint64(46)


def clip_factors(norms: RecordNorms, *, grid: Grid) -> Floats:
    """For each record the factor f with: every entry replaced by trunc(q f) makes a norm of at most
    ``grid.high`` steps.

    f = 1 for a record inside the bound. Else f is below bound / norm by 2^-48, more than the
    rounding of q f can add:
    |trunc(fl(q f))| <= |q| f (1 + 2^-53), and the squares sum to at most norm^2 f^2 (1 + 2^-53)^2
    <= bound^2.
    """
    bound = grid.high
    words = _carried(norms)
    rest, carry, square = words[:, 0], words[:, 1], bound * bound
    over = (carry > np.uint64(square >> 32)) | (
        (carry == np.uint64(square >> 32)) & (rest > np.uint64(square & 0xFFFFFFFF))
    )
    over |= (words[:, 2] | words[:, 3]) > 0
    total = sum(words[:, word].astype(np.float64) * 2.0 ** (32 * word) for word in range(_WORDS))
    with np.errstate(divide="ignore"):
        shrink = bound / np.sqrt(total) * (1 - 2.0**-48)
    return np.where(over, shrink, 1.0)


def on_grid(block: Array, *, step: float, low: Any, high: Any) -> Floats:
    """Entries by the value rule as whole numbers of steps, clamped to [low, high] (numbers or
    arrays that broadcast).
    """
    with np.errstate(all="ignore"):  # no value may be told from another by a warning
        steps = block.astype(np.float64)
        np.copyto(steps, 0.0, where=np.isnan(steps))
        steps *= 1 / step
        np.rint(steps, out=steps)
        np.clip(steps, low, high, out=steps)
    return steps


def clipped_on_grid(
    block: Array,
    *,
    step: float,
    factors: Floats,
    record_axis: int,
) -> Floats:
    """Records shrunk by their factors (:func:`clip_factors`), as whole numbers of steps: trunc(q f)
    for every entry.
    """
    steps = on_grid(block, step=step, low=-ENTRY_LIMIT, high=ENTRY_LIMIT)
    steps *= factors.reshape([-1 if axis == record_axis else 1 for axis in range(block.ndim)])
    np.trunc(steps, out=steps)
    return steps


def fine_clip_grid(norm: float, bits: int = 24) -> Grid:
    """A grid for clipping records apart from the noise: steps are powers of two, so whole numbers
    of them are exact floats.

    The norm is 2^bits to 2^(bits + 1) steps.
    """
    step = 2.0 ** (math.frexp(norm)[1] - bits - 1)
    bound = math.floor(Fraction(norm) / Fraction(step))
    return Grid(step=step, ratio=2.0**14, low=-bound, high=bound)

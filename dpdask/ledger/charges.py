"""How charges add up: exactly, as integers, in any order.

What a release is charged is rounded up to whole multiples of 2^-256, so that sums are exact
integers that anybody can recompute. What is added up is the policy of a dataset
(:mod:`dpdask.ledger.policies`): mu^2 and delta0, or epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from dpdask.accounting import Dominated, PureProfile

__all__ = ["FRACTION_BITS", "NOTHING", "Charge", "Spent"]

Charge = Dominated | PureProfile
"""What a release is charged: a Gaussian beside a mass, or an epsilon."""

FRACTION_BITS = 256
"""A sum is a whole multiple of two to the power of minus this."""

_DIGITS = 80


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums of charges, as multiples of 2^-256.

    Args:
        amount: the sum of mu^2; under the policy ``pure``, that of epsilon.
        delta0: the sum of delta0.
    """

    amount: int
    delta0: int

    @classmethod
    def on(cls, charge: Charge) -> Spent:
        """Return what one charge adds, rounded up."""
        if isinstance(charge, PureProfile):
            return cls(_multiples(Fraction(charge.largest_loss)), 0)
        return cls(_multiples(Fraction(charge.mu) ** 2), _multiples(Fraction(charge.delta0)))

    @classmethod
    def read(cls, amount: str, delta0: str) -> Spent:
        """Return the sums that :meth:`digits` wrote."""
        return cls(int(amount, 16), int(delta0, 16))

    def digits(self) -> tuple[str, str]:
        """Return both sums as hexadecimal digits of fixed length, which compare as the numbers."""
        return f"{self.amount:0{_DIGITS}x}", f"{self.delta0:0{_DIGITS}x}"

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.amount + other.amount, self.delta0 + other.delta0)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.amount - other.amount, self.delta0 - other.delta0)

    def times(self, count: int) -> Spent:
        """Return what ``count`` equal charges add."""
        return Spent(self.amount * count, self.delta0 * count)

    def maximum(self, other: Spent) -> Spent:
        """Return the larger of the two amounts, and of the two sums of delta0."""
        return Spent(max(self.amount, other.amount), max(self.delta0, other.delta0))


NOTHING = Spent(0, 0)


def _multiples(value: Fraction) -> int:
    return math.ceil(value * (1 << FRACTION_BITS))

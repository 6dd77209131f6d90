"""What releases are charged and how charges add up: exactly, as integers, in any order.

mu^2 and delta0 of a release are rounded up to whole multiples of 2^-256, so that sums are exact
integers that anybody can recompute. See :mod:`dpdask.accounting.dominating` for why both may be
added up however releases were chosen.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from fractions import Fraction

from dpdask.accounting import Dominated, GaussianProfile, dominating_gaussian
from dpdask.errors import BudgetExceeded, OutOfReach
from dpdask.privacy import PrivacyBudget, PrivacyProfile

__all__ = ["NOTHING", "Spent", "charge_of", "charged_after", "check_within", "covers", "fits"]

_FRACTION_BITS = 256
_DIGITS = 80

# Shares of the total's delta that a release may be charged as delta0 if no Gaussian dominates it;
# the cheapest is charged.
_SHARES = (1e-4, 1e-2, 1e-1)


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums of mu^2 and delta0, as multiples of 2^-256."""

    mu_squared: int
    delta0: int

    @classmethod
    def on(cls, charge: Dominated) -> Spent:
        """Return what one charge adds, rounded up."""
        return cls(_multiples(Fraction(charge.mu) ** 2), _multiples(Fraction(charge.delta0)))

    @classmethod
    def read(cls, mu_squared: str, delta0: str) -> Spent:
        """Return the sums that :meth:`digits` wrote."""
        return cls(int(mu_squared, 16), int(delta0, 16))

    def digits(self) -> tuple[str, str]:
        """Return both sums as hexadecimal digits of fixed length, which compare as the numbers."""
        return f"{self.mu_squared:0{_DIGITS}x}", f"{self.delta0:0{_DIGITS}x}"

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.mu_squared + other.mu_squared, self.delta0 + other.delta0)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.mu_squared - other.mu_squared, self.delta0 - other.delta0)

    def times(self, count: int) -> Spent:
        """Return what ``count`` equal charges add."""
        return Spent(self.mu_squared * count, self.delta0 * count)

    def maximum(self, other: Spent) -> Spent:
        """Return the larger of the two sums of mu^2, and of the two sums of delta0."""
        return Spent(max(self.mu_squared, other.mu_squared), max(self.delta0, other.delta0))

    @property
    def profile(self) -> Dominated:
        """The profile of everything together, rounded up."""
        root = math.isqrt(self.mu_squared)
        root += root * root < self.mu_squared
        delta0 = min(1.0, _float_up(Fraction(self.delta0, 1 << _FRACTION_BITS)))
        return Dominated(_float_up(Fraction(root, 1 << (_FRACTION_BITS // 2))), delta0)


NOTHING = Spent(0, 0)


def _multiples(value: Fraction) -> int:
    return math.ceil(value * (1 << _FRACTION_BITS))


def _float_up(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def fits(spent: Spent, total: PrivacyBudget) -> bool:
    """Return whether everything together stays within a total.

    That is delta(epsilon) of the Gaussian of all mu^2, and the sum of all delta0.
    """
    mu = spent.profile.mu
    gaussian = Fraction(GaussianProfile(mu).delta(total.epsilon)) if mu else Fraction(0)
    return gaussian + Fraction(spent.delta0, 1 << _FRACTION_BITS) <= Fraction(total.delta)


def charge_of(profile: PrivacyProfile, spent: Spent, total: PrivacyBudget) -> Dominated:
    """Return what a release is charged: of the pairs (mu, delta0) that cover it, the cheapest.

    Args:
        profile: the release's privacy profile.
        spent: what the dataset has spent before it.
        total: the dataset's total.

    Raises:
        OutOfReach: no Gaussian covers the profile.
    """
    with contextlib.suppress(OutOfReach):
        return dominating_gaussian(profile, delta0=0.0)
    options: list[tuple[float, Dominated]] = []
    refusal: OutOfReach | None = None
    for share in _SHARES:
        try:
            charge = dominating_gaussian(profile, delta0=total.delta * share)
        except OutOfReach as error:
            refusal = error
            continue
        epsilon_after = (spent + Spent.on(charge)).profile.epsilon(total.delta)
        options.append((epsilon_after, charge))
    if not options:
        assert refusal is not None
        raise refusal
    return min(options, key=lambda option: (option[0], option[1].delta0))[1]


def charged_after(
    spent: Dominated | None, profile: PrivacyProfile, budget: PrivacyBudget
) -> Dominated:
    """Return what is spent after one more release, charged as the ledger would.

    Args:
        spent: what was spent before; None for nothing.
        profile: the release's privacy profile.
        budget: the total that the charge is chosen for.
    """
    before = NOTHING if spent is None else Spent.on(spent)
    return (before + Spent.on(charge_of(profile, before, budget))).profile


def check_within(dataset: str, total: PrivacyBudget, before: Spent, after: Spent) -> None:
    """Raise :class:`BudgetExceeded` if what is spent ``after`` a release passes the total."""
    if fits(after, total):
        return
    epsilon = after.profile.epsilon(total.delta)
    amount = f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite: its delta is used up"
    raise BudgetExceeded(
        f"dataset {dataset!r} has spent epsilon {before.profile.epsilon(total.delta):.4g} of"
        f" {total.epsilon:g} at delta"
        f" {total.delta:g}; this release would make it {amount}: give it a smaller epsilon, or"
        " release less"
    )


def covers(charge: Dominated, profile: PrivacyProfile) -> bool:
    """Return whether a recorded charge is at least what its profile costs.

    Machines may differ in the last digits.
    """
    try:
        return dominating_gaussian(profile, delta0=charge.delta0).mu <= charge.mu * (1 + 1e-9)
    except OutOfReach:
        return False

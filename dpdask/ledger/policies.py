"""What charges of a dataset are and how they add up: its accounting policy, fixed at its opening.

Both are filters: valid for releases that are chosen after earlier ones were seen.

- ``adaptive``: every release is charged a Gaussian and a mass that lie above its profile; mu^2 and
  delta0 add up (:mod:`dpdask.accounting.dominating`).
- ``pure``: every release is charged its epsilon, and epsilons add up (Rogers, Roth, Ullman & Vadhan
  2016, Thm 3.6); only releases of pure differential privacy are taken, and delta stays 0.
"""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from typing import Protocol

from dpdask.accounting import Dominated, GaussianProfile, PureProfile, dominating_gaussian
from dpdask.errors import BudgetExceeded, LedgerError, OutOfReach
from dpdask.ledger.charges import FRACTION_BITS, NOTHING, Charge, Spent
from dpdask.privacy import PrivacyBudget, PrivacyProfile

__all__ = ["ADAPTIVE", "POLICIES", "Policy", "check_within", "policy_named"]

# Shares of the total's delta that a release may be charged as delta0 if no Gaussian dominates it;
# the cheapest is charged.
_SHARES = (1e-4, 1e-2, 1e-1)
_CLOSE = 1 + 1e-9  # machines may differ in the last digits


class Policy(Protocol):
    """How the charges of a dataset add up."""

    @property
    def name(self) -> str:
        """What the opening entry calls it."""

    def charge_of(self, profile: PrivacyProfile, spent: Spent, total: PrivacyBudget) -> Charge:
        """Return what a release is charged.

        Args:
            profile: the release's privacy profile.
            spent: what the dataset has spent before it.
            total: the dataset's total.

        Raises:
            DpdaskError: such a release cannot be charged.
        """

    def covers(self, charge: Charge, profile: PrivacyProfile) -> bool:
        """Return whether a recorded charge is at least what its profile costs."""

    def fits(self, spent: Spent, total: PrivacyBudget) -> bool:
        """Return whether everything together stays within a total."""

    def profile(self, spent: Spent) -> PrivacyProfile:
        """Return the profile of everything together, rounded up."""

    def largest_fitting(self, spent: Spent, total: PrivacyBudget) -> float:
        """Return the epsilon of the largest release that fits beside what is spent."""

    def zcdp(self, spent: Spent) -> tuple[float, float]:
        """Return rho of zero-concentrated differential privacy, and the delta beside it."""


class _Adaptive:
    """Sums of mu^2 and delta0."""

    name = "adaptive"

    def charge_of(self, profile: PrivacyProfile, spent: Spent, total: PrivacyBudget) -> Charge:
        """Return, of the pairs (mu, delta0) that cover a release, the cheapest."""
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
            epsilon_after = self.profile(spent + Spent.on(charge)).epsilon(total.delta)
            options.append((epsilon_after, charge))
        if not options:
            assert refusal is not None
            raise refusal
        return min(options, key=lambda option: (option[0], option[1].delta0))[1]

    def covers(self, charge: Charge, profile: PrivacyProfile) -> bool:
        """Return whether a recorded charge is at least what its profile costs."""
        if not isinstance(charge, Dominated):
            return False
        try:
            return dominating_gaussian(profile, delta0=charge.delta0).mu <= charge.mu * _CLOSE
        except OutOfReach:
            return False

    def fits(self, spent: Spent, total: PrivacyBudget) -> bool:
        """Return whether the Gaussian of all mu^2, and the sum of all delta0, are in a total."""
        mu = self.profile(spent).mu
        gaussian = Fraction(GaussianProfile(mu).delta(total.epsilon)) if mu else Fraction(0)
        return gaussian + Fraction(spent.delta0, 1 << FRACTION_BITS) <= Fraction(total.delta)

    def profile(self, spent: Spent) -> Dominated:
        """Return the profile of everything together, rounded up."""
        root = math.isqrt(spent.amount)
        root += root * root < spent.amount
        delta0 = min(1.0, _float_up(Fraction(spent.delta0, 1 << FRACTION_BITS)))
        return Dominated(_float_up(Fraction(root, 1 << (FRACTION_BITS // 2))), delta0)

    def largest_fitting(self, spent: Spent, total: PrivacyBudget) -> float:
        """Return the epsilon of the largest Gaussian release that fits beside what is spent."""
        low, high = 0.0, GaussianProfile.meeting(total).mu
        for _ in range(30):
            middle = (low + high) / 2
            fitting = self.fits(spent + Spent.on(Dominated(middle, 0.0)), total)
            low, high = (middle, high) if fitting else (low, middle)
        return GaussianProfile(low).epsilon(total.delta) if low else 0.0

    def zcdp(self, spent: Spent) -> tuple[float, float]:
        """Return half of mu^2: a Gaussian with mu is (mu^2/2)-zCDP (Bun & Steinke 2016)."""
        rho = _float_up(Fraction(spent.amount, 2 << FRACTION_BITS))
        return rho, self.profile(spent).delta0


class _Pure:
    """Sums of epsilon."""

    name = "pure"

    def charge_of(self, profile: PrivacyProfile, spent: Spent, total: PrivacyBudget) -> Charge:
        """Return the epsilon of a release of pure differential privacy."""
        if not isinstance(profile, PureProfile):
            raise LedgerError(
                "the dataset is accounted by the policy pure, and this release has no epsilon with"
                f" delta 0 (its profile is {profile.to_dict()['name']}): use mechanism: laplace,"
                " or a dataset with the policy adaptive"
            )
        return profile

    def covers(self, charge: Charge, profile: PrivacyProfile) -> bool:
        """Return whether a recorded charge is at least what its profile costs."""
        if not (isinstance(charge, PureProfile) and isinstance(profile, PureProfile)):
            return False
        return profile.largest_loss <= charge.largest_loss * _CLOSE

    def fits(self, spent: Spent, total: PrivacyBudget) -> bool:
        """Return whether the sum of all epsilons is within a total."""
        within = Fraction(spent.amount, 1 << FRACTION_BITS) <= Fraction(total.epsilon)
        return within and not spent.delta0

    def profile(self, spent: Spent) -> PrivacyProfile:
        """Return the profile of everything together, rounded up."""
        if spent == NOTHING:
            return Dominated(0.0, 0.0)
        return PureProfile(_float_up(Fraction(spent.amount, 1 << FRACTION_BITS)))

    def largest_fitting(self, spent: Spent, total: PrivacyBudget) -> float:
        """Return the epsilon that is left."""
        left = Fraction(total.epsilon) - Fraction(spent.amount, 1 << FRACTION_BITS)
        return max(0.0, float(left))

    def zcdp(self, spent: Spent) -> tuple[float, float]:
        """Return half of epsilon^2, which pure privacy implies (Bun & Steinke 2016, Prop. 1.4)."""
        return _float_up(Fraction(spent.amount, 1 << FRACTION_BITS) ** 2 / 2), 0.0


def _float_up(value: Fraction) -> float:
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


ADAPTIVE = _Adaptive()
"""The policy of datasets that name none."""

POLICIES: dict[str, Policy] = {ADAPTIVE.name: ADAPTIVE, _Pure.name: _Pure()}
"""All policies by name."""


def policy_named(name: str) -> Policy:
    """Return the policy with a name."""
    if name not in POLICIES:
        raise LedgerError(
            f"{name!r} is not a valid accounting policy; choose one of {', '.join(POLICIES)}"
        )
    return POLICIES[name]


def check_within(
    dataset: str, policy: Policy, total: PrivacyBudget, before: Spent, after: Spent
) -> None:
    """Raise :class:`BudgetExceeded` if what is spent ``after`` a release passes the total."""
    if policy.fits(after, total):
        return
    epsilon = policy.profile(after).epsilon(total.delta)
    amount = f"{epsilon:.4g}" if math.isfinite(epsilon) else "infinite: its delta is used up"
    raise BudgetExceeded(
        f"dataset {dataset!r} has spent epsilon {policy.profile(before).epsilon(total.delta):.4g}"
        f" of {total.epsilon:g} at delta"
        f" {total.delta:g}; this release would make it {amount}: give it a smaller epsilon, or"
        " release less"
    )

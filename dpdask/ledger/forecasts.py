"""What is left of a dataset after a release: how many more like it, how much for another window."""

from __future__ import annotations

from collections.abc import Sequence

from dpdask.accounting import Dominated, GaussianProfile
from dpdask.ledger.admission import Admission
from dpdask.ledger.charges import Spent, fits
from dpdask.ledger.hash_chain import Standing
from dpdask.ledger.models import Forecast, WindowForecast
from dpdask.privacy import PrivacyBudget

__all__ = ["forecast_of"]

_MOST = 10**6
_HALVINGS = 30


def forecast_of(standing: Standing, admissions: Sequence[Admission]) -> Forecast:
    """Return a dataset's budget before and after releases that it admits."""
    total, spent = standing.total, admissions[-1].spent
    return Forecast(
        total,
        standing.spent.profile.epsilon(total.delta),
        spent.profile.epsilon(total.delta),
        _count_more(total, admissions),
        _window(total, admissions[0]) if len(admissions) == 1 else None,
    )


def _count_more(total: PrivacyBudget, admissions: Sequence[Admission]) -> int:
    """Return how many more times the same releases fit, each with the charge that it has now."""

    def fit(times: int) -> bool:
        spent = admissions[-1].spent
        for admission in admissions:
            spent += _growth(admission, times)
        return fits(spent, total)

    low, high = 0, 1
    while high <= _MOST and fit(high):
        low, high = high, high * 2
    high = min(high, _MOST + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def _growth(admission: Admission, times: int) -> Spent:
    """Return what a release adds when it is repeated, of its own block if it has one."""
    amount = Spent.on(admission.charge).times(times)
    block = admission.block
    if block is None:
        return amount
    # The most charged index of the block alone; other releases of the same axis may lie elsewhere.
    return block.largest.maximum(block.change.largest + amount) - block.largest


def _window(total: PrivacyBudget, admission: Admission) -> WindowForecast | None:
    block = admission.block
    if block is None:
        return None
    everywhere = admission.spent - block.largest
    spent = (everywhere + block.change.largest).profile.epsilon(total.delta)
    return WindowForecast(spent, _left(total, everywhere))


def _left(total: PrivacyBudget, spent: Spent) -> float:
    """Return the epsilon of the largest Gaussian release that fits beside what is spent."""
    low, high = 0.0, GaussianProfile.meeting(total).mu
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fitting = fits(spent + Spent.on(Dominated(middle, 0.0)), total)
        low, high = (middle, high) if fitting else (low, middle)
    return GaussianProfile(low).epsilon(total.delta) if low else 0.0

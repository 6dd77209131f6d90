"""What is left of a dataset after a release: how many more like it, how much for another window."""

from __future__ import annotations

from collections.abc import Sequence

from dpdask.ledger.admission import Admission
from dpdask.ledger.charges import Spent
from dpdask.ledger.hash_chain import Standing
from dpdask.ledger.models import Forecast, WindowForecast

__all__ = ["forecast_of"]

_MOST = 10**6


def forecast_of(standing: Standing, admissions: Sequence[Admission]) -> Forecast:
    """Return a dataset's budget before and after releases that it admits."""
    policy, total, spent = standing.policy, standing.total, admissions[-1].spent
    return Forecast(
        total,
        policy.profile(standing.spent).epsilon(total.delta),
        policy.profile(spent).epsilon(total.delta),
        _count_more(standing, admissions),
        _window(standing, admissions[0]) if len(admissions) == 1 else None,
    )


def _count_more(standing: Standing, admissions: Sequence[Admission]) -> int:
    """Return how many more times the same releases fit, each with the charge that it has now."""

    def fit(times: int) -> bool:
        spent = admissions[-1].spent
        for admission in admissions:
            spent += _growth(admission, times)
        return standing.policy.fits(spent, standing.total)

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


def _window(standing: Standing, admission: Admission) -> WindowForecast | None:
    block = admission.block
    if block is None:
        return None
    everywhere = admission.spent - block.largest
    policy, total = standing.policy, standing.total
    spent = policy.profile(everywhere + block.change.largest).epsilon(total.delta)
    return WindowForecast(spent, policy.largest_fitting(everywhere, total))

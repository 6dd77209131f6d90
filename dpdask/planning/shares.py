"""How the variables of one release share its budget.

Gaussian noise of several variables, all of which one privacy unit can change at once, costs

    mu^2 = mu_1^2 + ... + mu_k^2,

so a share s_i of mu^2, with s_1 + ... + s_k = 1, gives variable i mu_i = mu sqrt(s_i).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpdask.accounting import GaussianProfile
from dpdask.errors import InvalidBudget, InvalidSpec
from dpdask.privacy import PrivacyBudget
from dpdask.queries import Clip, Query, Ranges

__all__ = ["budget_of_share", "equal_error_shares", "given_shares"]

_DOWN = 1 - 1e-13  # far more than a few operations round, so that all shares stay within mu


def given_shares(shares: Sequence[float | None]) -> list[float] | None:
    """Return the shares that a spec gives, None where it gives none.

    Raises:
        InvalidSpec: Some variables have one and others do not, or they do not add up to 1.
    """
    known = [share for share in shares if share is not None]
    if not known:
        return None
    if len(known) != len(shares):
        raise InvalidSpec(
            "source.arrays: some variables have a share and others have none; give all of them one,"
            " or none"
        )
    total = math.fsum(known)
    if not math.isclose(total, 1, rel_tol=1e-9):
        raise InvalidSpec(
            f"source.arrays: the shares add up to {total:.6g}; choose shares that add up to 1"
        )
    return [share / total for share in known]


def equal_error_shares(queries: Sequence[Query]) -> list[float]:
    """Return the shares at which noise is the same in proportion to the bounds of all variables.

    Noise of standard deviation Delta_i / mu_i over a bound of width w_i per entry is the same for
    all i where mu_i is proportional to Delta_i / w_i, so s_i to its square. With ranges of width w
    on d entries Delta = w sqrt(d), and s_i is proportional to d_i. A clip norm C bounds an entry by
    2 C / sqrt(d) if all are alike, which gives the same.
    """
    weights = [(query.sensitivity.radius / _entry_width(query)) ** 2 for query in queries]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _entry_width(query: Query) -> float:
    """Return how far apart two values of one entry lie at most, by the bound on one record."""
    bound = query.bound
    if isinstance(bound, Ranges):
        squares = [(high - low) ** 2 for low, high in bound.pairs]
        return math.sqrt(math.fsum(squares) / len(squares))
    assert isinstance(bound, Clip)
    axis = bound.record_axis
    entries = math.prod(size for other, size in enumerate(query.source_shape) if other != axis)
    return 2 * bound.norm / math.sqrt(entries)


def budget_of_share(
    budget: PrivacyBudget, share: float, key: str = "source.arrays"
) -> PrivacyBudget:
    """Return a budget that Gaussian noise meets with ``sqrt(share)`` of the mu of ``budget``.

    Guarantee: noise that meets the budgets of shares that add up to 1 meets ``budget`` together.

    Args:
        budget: What the noise of all shares may cost.
        share: The share of the squared mu.
        key: Where the spec has the share, for the error text.

    Raises:
        InvalidSpec: No budget is so small, or so large.
    """
    mu = GaussianProfile.meeting(budget).mu * math.sqrt(share) * _DOWN
    epsilon = budget.epsilon * math.sqrt(share)
    delta = GaussianProfile(mu).delta(epsilon)
    try:
        part = PrivacyBudget(epsilon=epsilon, delta=delta)
        while GaussianProfile.meeting(part).mu > mu:  # delta was rounded up
            delta *= _DOWN
            part = PrivacyBudget(epsilon=epsilon, delta=delta)
    except InvalidBudget:
        raise InvalidSpec(
            f"{key}: a share of {share:.3g} of epsilon={budget.epsilon:g},"
            f" delta={budget.delta:g} is out of range; choose larger shares, or a budget that is"
            " neither so small nor so large"
        ) from None
    return part

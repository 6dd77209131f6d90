"""What a release means and how to use it, in sentences for people who know no statistics."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy.optimize import brentq

from dpdask.errors import InvalidInput
from dpdask.figures import number_text
from dpdask.noise import Tail
from dpdask.releases.card import ReleaseCard
from dpdask.releases.uncertainty import half_width
from dpdask.views.rows import query_name

__all__ = ["Chip", "chips", "difference_ratio", "meaning", "protected", "ratio_of_95", "usage"]

LEVEL = 0.95

_INDEPENDENT = {"iid": Tail.GAUSSIAN, "laplace": Tail.LAPLACE}
"""Noise whose entries are independent of each other, on cards."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One fact at the top of a page."""

    text: str
    kind: Literal["good", "bad", "plain"]


def chips(card: ReleaseCard, *, intact: bool) -> list[Chip]:
    """Return the facts by which a reader judges a release at first sight.

    Args:
        card: The card.
        intact: Whether a verification of its files has just passed.
    """
    claimed = card.guarantee.claimed
    budget = f"epsilon = {claimed.epsilon:g}, delta = {claimed.delta:g}"
    items = [
        Chip(f"Privacy verified: {budget}", "good")
        if card.guarantee.certified
        else Chip(f"Privacy not certified: {budget} is claimed", "bad")
    ]
    if intact:
        items.append(Chip("Files intact", "good"))
    signed = f"Signed by {card.signed_by}" if card.signed_by else "Unsigned"
    return [*items, Chip(signed, "plain"), Chip(f"Protects {protected(card)}", "plain")]


def protected(card: ReleaseCard) -> str:
    """Return whom a release protects, such as ``one plane``."""
    unit = card.privacy_unit
    names = card.released.dimension_names
    whom = "one record"
    if unit.people is not None:
        whom = f"one {unit.people.name}"
    elif unit.record_axis is None:
        whom = "what the curator declared as one unit"
    elif unit.max_contributions > 1:
        whom = f"one person with up to {unit.max_contributions:,} records"
    elif query_name(card.query) == "identity" and unit.record_axis < len(names):
        whom = f"one {names[unit.record_axis]}"
    if unit.per is not None and unit.per.axis != unit.record_axis:
        return f"one {unit.per.dimension} of {whom}"
    return whom


def meaning(card: ReleaseCard) -> str:
    """Return what the guarantee says, in one paragraph."""
    claimed = card.guarantee.claimed
    change = "replaced by any other" if card.privacy_unit.adjacency == "replace-one" else "left out"
    factor = number_text(math.exp(claimed.epsilon)) if claimed.epsilon < 700 else "a huge number"
    apart = f", apart from an additive {claimed.delta:g}" if claimed.delta else ""
    promise = (
        f"Random noise was added so that these numbers hardly depend on {protected(card)}. Had its"
        f" data been {change}, every possible result would have been at most {factor} times as"
        f" likely, or as unlikely, as it was{apart}. So whatever somebody concludes about it from"
        " this page, they could have concluded nearly as well without its data."
    )
    if card.guarantee.certified:
        return promise
    return f"{promise} This is what a theorem claims; it is not certified: {card.guarantee.reason}."


def ratio_of_95(card: ReleaseCard) -> float | None:
    """Return within how many standard deviations 95 % of the noise lies; None if nobody can say."""
    try:
        return half_width(str(card.noise.get("name")), LEVEL)
    except InvalidInput:
        return None


def difference_ratio(tail: Tail) -> float:
    """Return within how many standard deviations of one entry 95 % of a difference's noise lies.

    The noise of two entries is independent and has the same distribution. For Laplace noise of
    scale b, P(|difference| > t) = (1 + t / 2b) exp(-t / b).
    """
    if tail is Tail.GAUSSIAN:
        return math.sqrt(2) * tail.ratio(LEVEL)
    in_scales = brentq(lambda t: (1 + t / 2) * math.exp(-t) - (1 - LEVEL), 0.1, 50.0)
    return float(in_scales) / math.sqrt(2)


def usage(card: ReleaseCard) -> list[str]:
    """Return how to compare and average the numbers, as far as that follows from the card."""
    std, tail = card.released.noise_std, _INDEPENDENT.get(str(card.noise.get("name")))
    alike = card.released.noise_std_range is None
    if std is None or tail is None or not alike:
        return [
            f"The standard deviation of every number's noise is in {card.released.array}_noise_std."
        ]
    if math.prod(card.released.shape) == 1:
        return ["Read it with its noise: as the middle of a range, not as one exact number."]
    apart, root = number_text(difference_ratio(tail) * std), "\N{SQUARE ROOT}n"
    return [
        f"The noise of a difference of two numbers is below {apart} with probability 95 %: smaller"
        " differences may be noise alone.",
        f"The average of n numbers has noise of standard deviation {number_text(std)}/{root}.",
    ]

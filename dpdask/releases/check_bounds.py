"""Check a bound that was chosen privately: by the card, and by the noisy counts beside it."""

from __future__ import annotations

import math

import numpy as np

from dpdask.errors import DpdaskError, VerificationFailed
from dpdask.noise import noise_from_dict
from dpdask.planning.verified import mu_shares
from dpdask.queries import BoundRule, ChosenBound, RecordedAnswer
from dpdask.queries.bound_choice import norm_edges, value_edges
from dpdask.queries.people import SUBSET
from dpdask.releases.card import ReleaseCard
from dpdask.releases.card_arrays import CardArrays
from dpdask.releases.card_sections import BoundsFacts
from dpdask.sensitivity import sensitivity_from_dict
from dpdask.types import Floats

__all__ = ["check_choice", "check_histogram", "recorded_histogram"]

_HISTOGRAMS = {"l2-clip": "norm-histogram", "ranges": "value-histogram"}  # by kind of bound
_EDGES = {"norm-histogram": norm_edges, "value-histogram": value_edges}


def recorded_histogram(card: ReleaseCard) -> RecordedAnswer | None:
    """Return the histogram that chose the bound of a variable; None where the spec says it."""
    bounds, unit = card.bounds, card.privacy_unit
    if bounds is None:
        return None
    return RecordedAnswer(
        noise=noise_from_dict(bounds.noise),
        sensitivity=sensitivity_from_dict(bounds.sensitivity),
        query=bounds.query,
        bound=bounds.bound,
        grid=bounds.grid,
        record_axis=unit.record_axis,
        contributions=unit.max_contributions,
        enforced=unit.people is not None,
    )


def check_histogram(
    card: ReleaseCard, answer: RecordedAnswer, histogram: RecordedAnswer | None
) -> None:
    """Check that the card's bound is the one that was chosen, by a histogram of the same records.

    Args:
        card: The card of one variable.
        answer: The answer that has the bound.
        histogram: The histogram, None where no bound was chosen.

    Raises:
        VerificationFailed: The card contradicts itself.
    """
    bounds = card.bounds
    if bounds is None or histogram is None:
        return
    bound, people = card.privacy_unit.bound, card.privacy_unit.people
    kind = bound["kind"]
    if people is not None and people.by != SUBSET:
        raise VerificationFailed(
            "the card's histogram counts records of people who have any number"
        )
    chosen = ChosenBound.from_dict(bounds.chosen)
    if chosen != ChosenBound.from_dict(bound) or chosen.to_dict() != bounds.chosen:
        raise VerificationFailed("the bound on the card is not the one that was chosen")
    if bounds.query["name"] != _HISTOGRAMS.get(kind):
        raise VerificationFailed("the card's bound was chosen by a histogram of something else")
    if bounds.at_end != chosen.at_end(bounds.between):
        raise VerificationFailed("the card says of another bound that it is an end")
    counted = math.prod(histogram.shape[:-1]) * bounds.query["record_entries"]
    if kind == "ranges" and counted != _entries_of_record(card, answer):
        raise VerificationFailed("the card's histograms count other entries than its records have")
    if histogram.noise.tensor_shape != histogram.shape or not math.isclose(
        histogram.noise.entry_std, bounds.noise_std, rel_tol=1e-9
    ):
        raise VerificationFailed("the noise of the counts on the card is for other counts")
    share, _ = mu_shares([[histogram], [answer]])
    if not math.isclose(share, bounds.share, rel_tol=1e-6):
        raise VerificationFailed(
            "the share of the bound on the card does not follow from the noise of its counts"
        )


def _entries_of_record(card: ReleaseCard, answer: RecordedAnswer) -> int:
    """Return how many values one record has, by the answer that is released."""
    if "record_entries" in card.query:
        return int(card.query["record_entries"])
    entries = math.prod(answer.shape)
    axis = card.privacy_unit.record_axis
    return (
        entries // answer.shape[axis]
        if answer.rules.keeps_records and axis is not None
        else (entries)
    )


def check_choice(bounds: BoundsFacts | None, arrays: CardArrays) -> None:
    """Check that the chosen bound follows from the noisy counts that are published.

    Args:
        bounds: How it was chosen, by the card; None where the spec says it.
        arrays: The arrays that are published with the card.

    Raises:
        VerificationFailed: Another bound follows, or none.
    """
    if bounds is None:
        return
    try:
        counts, edges = arrays[bounds.counts], arrays[bounds.edges]
        follows = _counts_fit(bounds, counts) and _edges_fit(bounds, edges)
        chosen = BoundRule.from_dict(bounds.rule).choose(counts, edges, std=bounds.noise_std)
        follows = follows and chosen == ChosenBound.from_dict(bounds.chosen)
    except (DpdaskError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise VerificationFailed(
            f"the choice of the bound cannot be recomputed ({type(error).__name__})"
        ) from None
    if not follows:
        raise VerificationFailed("the chosen bound does not follow from the noisy counts")


def _counts_fit(bounds: BoundsFacts, counts: Floats) -> bool:
    """Return whether counts have the shape and lie on the grid that the card says."""
    steps = counts / bounds.grid["step"]
    on_grid = np.abs(steps - np.rint(steps)) <= 1e-6
    return list(counts.shape) == bounds.query["answer_shape"] and bool(np.all(on_grid))


def _edges_fit(bounds: BoundsFacts, edges: Floats) -> bool:
    """Return whether edges are those of the bins between the ends on the card."""
    computed = [_EDGES[bounds.query["name"]](low, high) for low, high in bounds.between]
    rows = np.atleast_2d(edges)
    return rows.shape == np.shape(computed) and bool(np.allclose(rows, computed, rtol=1e-5))

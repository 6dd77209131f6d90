"""Bounds that are chosen privately, as rows of plans and of cards."""

from __future__ import annotations

from dpdask.figures import number_text
from dpdask.types import Json
from dpdask.views.rows import Row

__all__ = ["chosen_bound_rows", "planned_bound_rows"]

_LISTED = 4  # ranges


def planned_bound_rows(choice: Json | None) -> list[Row]:
    """Return how a bound will be chosen; nothing where the spec says it.

    Args:
        choice: ``bound_chosen`` of a plan.
    """
    if choice is None:
        return []
    low, high = (number_text(end) for end in choice["between"])
    text = (
        f"{_what(choice)} chosen privately between {low} and {high}: {_rule(choice)};"
        f" {_cost(choice['share'], choice['histogram_std'])}; sensitivity and noise above are those"
        " of the widest, and in proportion to what is chosen"
    )
    return [Row("bound", text)]


def chosen_bound_rows(bounds: Json | None) -> list[Row]:
    """Return which bound was chosen, and how; nothing where the spec says it.

    Args:
        bounds: ``bounds`` of a card, as JSON.
    """
    if bounds is None:
        return []
    text = (
        f"{_chosen(bounds['chosen'])}, chosen privately: {_rule(bounds['rule'])};"
        f" {_cost(bounds['share'], bounds['noise_std'])}"
    )
    if bounds["at_end"]:
        text += "; an end of what could be chosen, so the data may lie beyond it"
    return [Row("bound", text)]


def _what(choice: Json) -> str:
    if "quantiles" not in choice:
        return "clip norm"
    many = choice["histograms"]
    return "ranges" if many == 1 else f"{many} ranges"


def _rule(rule: Json) -> str:
    """Return by which counts a bound is chosen."""
    if "quantiles" in rule:
        low, high = (f"{end:g}" for end in rule["quantiles"])
        return f"quantiles {low} and {high} of the values"
    if "above" in rule:
        return f"about {number_text(rule['above'])} records are longer"
    return f"quantile {rule['quantile']:g} of the norms"


def _cost(share: float, std: float) -> str:
    return (
        f"a noisy histogram (standard deviation {number_text(std)} per count) has"
        f" {100 * share:.3g} % of mu^2"
    )


def _chosen(chosen: Json) -> str:
    if "norm" in chosen:
        return f"clip norm {chosen['norm']:g}"
    ranges = [f"[{low:g}, {high:g}]" for low, high in chosen["ranges"]]
    more = "" if len(ranges) <= _LISTED else f" and {len(ranges) - _LISTED} more"
    return f"ranges {', '.join(ranges[:_LISTED])}{more}"

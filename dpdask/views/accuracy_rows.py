"""How far noise moves what is released, as rows: of one plan, and of one plan per epsilon."""

from __future__ import annotations

from collections.abc import Sequence

from dpdask.figures import number_text
from dpdask.types import Json
from dpdask.views.rows import Emphasis, Record, Row

__all__ = ["accuracy_rows", "epsilon_rows"]

_EXAMPLE_COUNTS = (100, 1000)
_REMOVES = {"l2-clip": "clipping", "ranges": "clamping"}  # by kind of bound


def accuracy_rows(error: Json, bound: Json) -> list[Row]:
    """Return the noise of a released entry, within what 95 % of them lie, and that of counts.

    Args:
        error: ``expected_error`` of a plan.
        bound: ``bound`` of the plan.
    """
    rows = [Row("noise", f"{error['noise']}, standard deviation {_std(error)}")]
    if error["within_95"] is not None:
        rows.append(Row("accuracy", "; ".join([_within(error), *_not_in_it(bound)])))
    counts = error["counts"]
    if counts is not None:
        rows.append(Row("counts", f"95 % within {_half_width(counts)}"))
    return rows


def _std(error: Json) -> str:
    least, largest = error["entry_std_range"]
    rms = number_text(error["entry_std"])
    if error["divided_by_count"]:
        return f"{rms} / n per entry of count n"
    ends = number_text(least), number_text(largest)
    if ends[0] == ends[1]:
        return f"{rms} per entry"
    return f"{ends[0]} to {ends[1]} per entry (root mean square {rms})"


def _half_width(figures: Json) -> str:
    within = figures["within_95"]
    return "" if within is None else f"±{number_text(within)}"


def _within(error: Json) -> str:
    text = f"95 % of entries within {_half_width(error)}"
    if not error["divided_by_count"]:
        return text
    at = error["at_public_count"]
    if at is None:
        examples = ", ".join(
            f"±{number_text(error['within_95'] / count)} at n = {count:,}"
            for count in _EXAMPLE_COUNTS
        )
    else:
        examples = f"{_half_width(at)} at n = {_count(at)} if {at['if']}"
    distance = number_text(error["up_to_distance_from_center"])
    return f"{text} / n ({examples}), for means up to {distance} from the centre"


def _count(at: Json) -> str:
    return f"{round(at['count']):,}"


def _not_in_it(bound: Json) -> list[str]:
    """Return what the figures leave out, where records are bounded."""
    removes = _REMOVES.get(bound["kind"])
    return [] if removes is None else [f"noise only: what {removes} removes is not in it"]


def epsilon_rows(choices: Sequence[Json]) -> list[Record]:
    """Return one record per epsilon, and per variable where there are several: its noise, and
    what the dataset has spent after the release.

    ``choices`` are what :meth:`dpdask.releases.choices.EpsilonChoice.to_dict` returns.
    """
    return [
        [
            Row("epsilon", f"{choice['epsilon']:g}"),
            *([] if name is None else [Row("variable", name)]),
            *_figure_rows(variable, counts=_public_counts(choice)),
            _budget_row(choice),
        ]
        for choice in choices
        for name, variable in _variables(choice)
    ]


def _variables(choice: Json) -> list[tuple[str | None, Json]]:
    """Return the variables with their names, None for the only one."""
    if "variables" in choice:
        return list(choice["variables"].items())
    return [(None, choice)]


def _public_counts(choice: Json) -> list[str]:
    """Return the public counts that means are divided by."""
    errors = (variable["expected_error"] for _, variable in _variables(choice))
    each = (error["at_public_count"] for error in errors)
    return sorted({_count(at) for at in each if at is not None})


def _figure_rows(variable: Json, *, counts: Sequence[str]) -> list[Row]:
    error = variable["expected_error"]
    divided = " / n" if error["divided_by_count"] else ""
    at = error["at_public_count"]
    rows = [
        Row("mechanism", variable["mechanism"]),
        Row("standard deviation", number_text(error["entry_std"]) + divided),
        Row("95 % of entries within", f"{_half_width(error) or 'unknown'}{divided}"),
    ]
    for count in counts:
        width = "" if at is None or _count(at) != count else _half_width(at)
        rows.append(Row(f"at n = {count}", width))
    return rows


def _budget_row(choice: Json) -> Row:
    after, total = choice["spent_after"], choice["total"]
    label = f"spent after, of {total['epsilon']:g} at delta {total['delta']:g}"
    if after is None:
        return Row(label, "refused: more than the total", Emphasis.BAD)
    return Row(label, f"{after:.4g}")

"""Rows: labelled text, which every renderer shows alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dpdask.types import Json

__all__ = [
    "Emphasis",
    "Record",
    "Row",
    "query_name",
    "query_text",
    "shape_text",
    "size_text",
    "verdict",
]

_NAMES_IN_SPECS = {
    "counted-sum": "sum",
    "counted-mean": "mean",
    "joint-covariance": "covariance",
}


class Emphasis(StrEnum):
    """How a value is to be read."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Row:
    """One labelled value, as text."""

    label: str
    value: str
    emphasis: Emphasis = Emphasis.PLAIN


Record = Sequence[Row]
"""One line of a table with several columns: a row per column, its label the heading."""


def verdict(certified: bool) -> Row:
    """Return the row that says whether a guarantee is certified."""
    if certified:
        return Row("certified", "yes", Emphasis.GOOD)
    return Row("certified", "NO", Emphasis.BAD)


def query_name(query: Json) -> str:
    """Return the name of a query as specs write it; ``query`` is that of a plan or a card."""
    name = str(query["name"])
    return _NAMES_IN_SPECS.get(name, name)


def query_text(query: Json) -> str:
    """Return a query with what is released beside it, such as ``mean, with counts``."""
    beside = ["the mean"] if query.get("center") == "private" else []
    if query.get("counts", "none") != "none":
        several = query["counts"] == "entries" or "groups" in query
        beside.append("counts" if several else "the count")
    return ", with ".join([query_name(query), *filter(None, [" and ".join(beside)])])


def shape_text(sizes: Sequence[int]) -> str:
    """Return the lengths of axes, such as ``1000 x 100``; a scalar has none."""
    return " x ".join(map(str, sizes))


def size_text(count: float) -> str:
    """Return a number of bytes with a decimal prefix."""
    for suffix in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {suffix}"
        count /= 1000
    return f"{count:.4g} TB"

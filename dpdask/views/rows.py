"""Rows: labelled text, which every renderer shows alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Emphasis", "Record", "Row", "shape_text", "size_text", "verdict"]


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

"""Axes of an answer that its source does not have: groups, categories and bins. All are public."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AnswerAxis"]


@dataclass(frozen=True, kw_only=True)
class AnswerAxis:
    """An axis of groups or of bins.

    Args:
        name: The name of its dimension; None for the name of the source array with ``_bin``.
        groups: The groups along it; empty for bins.
        edges: The edges of its bins; empty for groups.
    """

    name: str | None
    groups: tuple[int | str, ...] = ()
    edges: tuple[float, ...] = ()

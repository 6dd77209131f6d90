"""The circuit breaker of a series: a source that does not hold still must not drain the budget."""

from __future__ import annotations

from collections.abc import Sequence

from dpdask.errors import ReleaseError
from dpdask.ledger import SeriesWindow

__all__ = ["check_not_burning"]


def check_not_burning(name: str, past: Sequence[SeriesWindow], max_burns: int) -> None:
    """Stop a series whose last releases were burned one after the other, each with its charge.

    Releases that the curator aborted do not count.

    Args:
        name: The name of the series.
        past: Its windows, oldest first.
        max_burns: After how many burns in a row it stops.

    Raises:
        ReleaseError: It stops; nothing was charged.
    """
    burns = 0
    for window in reversed(past):
        if window.last == "commit":
            break
        burns += window.last == "burn" and not window.aborted
    if burns >= max_burns:
        newest = past[-1].window
        raise ReleaseError(
            f"series {name!r} stopped: its last {burns} releases were charged and burned, because"
            f" the source changed while they ran (last window {newest['start']} to"
            f" {newest['stop']}). Nothing was charged now. Let the source finish writing before a"
            " run (grace, align_to_chunks, another schedule), then set max_burns to"
            f" {burns + 1} for one more try; a release that is published resets the count"
        )

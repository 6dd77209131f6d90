"""How far a stage of a release is, for whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["OnProgress", "Progress", "no_progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is, in write chunks or tasks."""

    stage: str
    done: int
    total: int


OnProgress = Callable[[Progress], None]


def no_progress(_progress: Progress) -> None:
    """No-op progress callback."""

"""What one step is, where steps are handed over instead of an array."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dpdask.spec.fields import Positive, Section

__all__ = ["StepsSection"]


class StepsSection(Section):
    """``source.steps``: nothing is read; the caller hands over one step after the other.

    Args:
        shape: The shape of one record, or of one step's result where the query is precomputed.
    """

    shape: Annotated[list[Positive], Field(min_length=1)]

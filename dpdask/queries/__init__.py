"""Queries: an answer's shape, what one unit can change of it, its computation over chunks."""

from dpdask.queries.base import Clip, Fitted, Query, Ranges, SummedQuery

__all__ = ["Clip", "Fitted", "Query", "Ranges", "SummedQuery"]

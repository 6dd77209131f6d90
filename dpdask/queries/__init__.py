"""Queries: the shape of an answer, what one unit can change of it, and its computation over chunks."""

from dpdask.queries.base import Clip, Fitted, Query, Ranges, SummedQuery
from dpdask.queries.from_spec import build_query

__all__ = ["Clip", "Fitted", "Query", "Ranges", "SummedQuery", "build_query"]

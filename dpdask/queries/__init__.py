"""Queries: an answer's shape, what one privacy unit can change of it, its sums over chunks."""

from dpdask.queries.axes import AnswerAxis
from dpdask.queries.base import Query, RecordSumQuery, SidePart, SummedQuery
from dpdask.queries.beside import BesideArray
from dpdask.queries.bound_choice import BoundRule, ChosenBound
from dpdask.queries.bound_histograms import BoundHistogram, NormHistogram, ValueHistogram
from dpdask.queries.center import ORIGIN, Center
from dpdask.queries.counted import CountedMean, CountedSum
from dpdask.queries.covariance import Covariance, JointCovariance
from dpdask.queries.exact_sum import ExactSum
from dpdask.queries.histogram import Histogram
from dpdask.queries.identity import Identity
from dpdask.queries.layers import Layer, layer_from_dict
from dpdask.queries.mode_moment import ModeMoment
from dpdask.queries.people import People
from dpdask.queries.precomputed import Precomputed
from dpdask.queries.records import Clip, Ranges
from dpdask.queries.second_moment import SecondMoment
from dpdask.queries.sums import Mean, Sum
from dpdask.queries.verification import (
    QueryRules,
    RecordedAnswer,
    RecordedPart,
    is_registered,
    query_rules,
    register_query_rules,
    unregister_query_rules,
)

__all__ = [
    "ORIGIN",
    "AnswerAxis",
    "BesideArray",
    "BoundHistogram",
    "BoundRule",
    "Center",
    "ChosenBound",
    "Clip",
    "CountedMean",
    "CountedSum",
    "Covariance",
    "ExactSum",
    "Histogram",
    "Identity",
    "JointCovariance",
    "Layer",
    "Mean",
    "ModeMoment",
    "NormHistogram",
    "People",
    "Precomputed",
    "Query",
    "QueryRules",
    "Ranges",
    "RecordSumQuery",
    "RecordedAnswer",
    "RecordedPart",
    "SecondMoment",
    "SidePart",
    "Sum",
    "SummedQuery",
    "ValueHistogram",
    "is_registered",
    "layer_from_dict",
    "query_rules",
    "register_query_rules",
    "unregister_query_rules",
]
